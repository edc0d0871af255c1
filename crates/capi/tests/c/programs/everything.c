/* Calls what the examples leave out: everything FOLDER. */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>

#ifndef SEEK_DATA
#define SEEK_DATA 3
#define SEEK_HOLE 4
#endif

static struct papilio_fs *fs;
static char image[4096];

static void make(const char *folder)
{
    struct papilio_mkfs_options *options;
    const char *paths[2];
    char second[4096];
    uint8_t uuid[16] = { 1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16 };

    snprintf(image, sizeof image, "%s/first.img", folder);
    snprintf(second, sizeof second, "%s/second.img", folder);
    paths[0] = image;
    paths[1] = second;
    OK(papilio_mkfs_options_new(&options));
    OK(papilio_mkfs_options_set_size(options, 256 << 20));
    OK(papilio_mkfs_options_set_label(options, "two"));
    OK(papilio_mkfs_options_set_uuid(options, uuid));
    OK(papilio_mkfs_options_set_timestamp(options, 1600000000, 5));
    OK(papilio_mkfs_options_set_node_size(options, 16384));
    OK(papilio_mkfs_options_set_checksum(options, "sha256"));
    OK(papilio_mkfs_options_set_features(options, "free-space-tree,^block-group-tree"));
    OK(papilio_mkfs_options_set_profiles(options, "raid1", NULL));
    OK(papilio_mkfs_options_set_force(options, true));
    OK(papilio_mkfs_options_set_discard(options, false));
    OK(papilio_mkfs_many(paths, 2, options));
    OK(papilio_mkfs_options_free(options));
}

static void open_with_all_options(const char *folder)
{
    struct papilio_options *o;
    char second[4096];
    uint8_t uuid[16];
    char label[8];

    snprintf(second, sizeof second, "%s/second.img", folder);
    OK(papilio_options_new(&o));
    OK(papilio_options_set_write(o, true));
    OK(papilio_options_set_subvolume(o, ""));
    OK(papilio_options_set_subvolume_id(o, 5));
    OK(papilio_options_set_direct_io(o, false));
    OK(papilio_options_set_cache_bytes(o, 16 << 20));
    OK(papilio_options_set_node_cache_bytes(o, 32 << 20));
    OK(papilio_options_set_dirty_bytes(o, 8 << 20));
    OK(papilio_options_set_compression(o, "lzo", true));
    OK(papilio_options_set_compression(o, "none", false));
    OK(papilio_options_set_commit_interval(o, 0));
    OK(papilio_options_set_discard(o, false));
    OK(papilio_options_set_max_inline(o, 2048));
    OK(papilio_options_set_no_data_sums(o, false));
    OK(papilio_options_set_no_data_cow(o, false));
    OK(papilio_options_set_verify_data(o, true));
    OK(papilio_options_set_heal_reads(o, true));
    OK(papilio_options_set_tree_log(o, true));
    OK(papilio_options_set_replay_log(o, true));
    OK(papilio_options_set_use_backup_root(o, false));
    OK(papilio_options_set_superblock_mirror(o, 0));
    OK(papilio_options_set_timestamp(o, 1700000000, 7));
    FAILS(papilio_open(image, o, &fs), ENOENT, "");
    OK(papilio_options_set_degraded(o, true));
    OK(papilio_options_add_device(o, second));
    OK(papilio_open(image, o, &fs));
    OK(papilio_options_free(o));

    OK(papilio_uuid(fs, uuid));
    CHECK(uuid[0] == 1 && uuid[15] == 16);
    CHECK(OK(papilio_label(fs, NULL, 0)) == 3);
    CHECK(OK(papilio_label(fs, label, sizeof label)) == 3 && memcmp(label, "two", 3) == 0);
    FAILS(papilio_label(fs, label, 2), ERANGE, "2 bytes");
    OK(papilio_set_label(fs, "three"));
    CHECK(OK(papilio_label(fs, label, sizeof label)) == 5);
    CHECK(OK(papilio_failure(fs, NULL, 0)) == 0);
    CHECK(OK(papilio_has_log(fs)) == 0);
    CHECK(OK(papilio_waits_for_devices(fs)) == 0);
    CHECK(strncmp(papilio_version(), "0.", 2) == 0);
}

static struct papilio_file *file(const char *path, uint32_t flags)
{
    struct papilio_file *handle;

    OK(papilio_file_open(fs, path, flags, 0666, &handle));
    return handle;
}

static void files(void)
{
    struct papilio_file *f = file("/f", PAPILIO_CREATE | PAPILIO_EXCLUSIVE), *other;
    struct papilio_extent extents[8];
    struct papilio_stat st;
    char buffer[65536], text[16] = { 0 };
    struct iovec vectors[2] = { { buffer, 4 }, { text, 5 } };

    memset(buffer, 'x', sizeof buffer);
    FAILS(papilio_file_open(fs, "/f", PAPILIO_CREATE | PAPILIO_EXCLUSIVE, 0, &other), EEXIST, "/f");
    CHECK(OK(papilio_pwrite(f, buffer, sizeof buffer, 0)) == (int64_t)sizeof buffer);
    CHECK(OK(papilio_lseek(f, -5, SEEK_END)) == (int64_t)sizeof buffer - 5);
    CHECK(OK(papilio_write(f, "hello", 5)) == 5);
    CHECK(OK(papilio_lseek(f, -5, SEEK_CUR)) == (int64_t)sizeof buffer - 5);
    CHECK(OK(papilio_read(f, text, sizeof text)) == 5 && strcmp(text, "hello") == 0);
    CHECK(OK(papilio_read(f, text, sizeof text)) == 0);
    memset(text, 0, sizeof text);
    CHECK(OK(papilio_preadv(f, vectors, 2, sizeof buffer - 9)) == 9);
    CHECK(memcmp(buffer, "xxxx", 4) == 0 && memcmp(text, "hello", 5) == 0);
    memcpy(buffer, "ABCD", 4);
    CHECK(OK(papilio_pwritev(f, vectors, 2, 0)) == 9);
    CHECK(OK(papilio_pread(f, text, 9, 0)) == 9 && memcmp(text, "ABCDhello", 9) == 0);

    OK(papilio_fallocate(f, PAPILIO_PUNCH_HOLE | PAPILIO_KEEP_SIZE, 16384, 16384));
    CHECK(OK(papilio_lseek(f, 0, SEEK_HOLE)) == 16384);
    CHECK(OK(papilio_lseek(f, 16384, SEEK_DATA)) == 32768);
    OK(papilio_fallocate(f, PAPILIO_KEEP_SIZE, 1 << 20, 65536));
    OK(papilio_fallocate(f, PAPILIO_ZERO_RANGE, 0, 4096));
    FAILS(papilio_fallocate(f, 0x40, 0, 4096), EOPNOTSUPP, "0x40");
    OK(papilio_fsync(f));
    OK(papilio_fdatasync(f));
    OK(papilio_fsync_path(fs, "/"));
    CHECK(OK(papilio_extents(f, 0, extents, 8)) >= 2);
    CHECK(extents[0].start == 0);
    OK(papilio_defragment(f, 0, 0));
    OK(papilio_file_drop_cache(f));
    OK(papilio_ftruncate(f, 40000));
    OK(papilio_fstat(f, &st, sizeof st));
    CHECK(st.size == 40000 && st.mode == (S_IFREG | 0644) && st.uid == 10 && st.gid == 20);

    other = file("/clone", PAPILIO_CREATE);
    OK(papilio_clone_range(f, 0, 0, other, 0));
    CHECK(OK(papilio_dedupe_range(f, 0, 32768, other, 0)) == 32768);
    OK(papilio_pwrite(other, "other", 5, 5000));
    FAILS(papilio_dedupe_range(f, 0, 32768, other, 0), EILSEQ, "differ");
    OK(papilio_file_ref(other));
    OK(papilio_file_close(other));
    OK(papilio_fsync(other));
    OK(papilio_file_close(other));
    OK(papilio_file_close(f));

    f = file("/", PAPILIO_UNNAMED | PAPILIO_DIRECT);
    OK(papilio_pwrite(f, buffer, 100, 0));
    OK(papilio_fstat(f, &st, sizeof st));
    CHECK(st.nlink == 0 && st.size == 100);
    OK(papilio_file_close(f));
    f = file("/f", PAPILIO_TRUNCATE);
    OK(papilio_fstat(f, &st, sizeof st));
    CHECK(st.size == 0);
    OK(papilio_file_close(f));
}

static void names(void)
{
    struct papilio_time then = { 1234567890, 123, 0 }, keep = { 0, PAPILIO_TIME_OMIT, 0 };
    struct papilio_stat st;
    char buffer[64];

    OK(papilio_mkdir(fs, "/d", 0777));
    OK(papilio_mknod(fs, "/d/null", S_IFCHR | 0666, 1, 3));
    OK(papilio_mknod(fs, "/d/pipe", S_IFIFO | 0600, 0, 0));
    FAILS(papilio_mknod(fs, "/d/x", S_IFLNK, 0, 0), EINVAL, "type");
    OK(papilio_symlink(fs, "null", "/d/link"));
    CHECK(OK(papilio_readlink(fs, "/d/link", buffer, sizeof buffer)) == 4);
    CHECK(memcmp(buffer, "null", 4) == 0);
    OK(papilio_link(fs, "/d/null", "/d/zero"));
    OK(papilio_stat(fs, "/d/link", 0, &st, sizeof st));
    CHECK(st.nlink == 2 && st.rdev_major == 1 && st.rdev_minor == 3 && S_ISCHR(st.mode));
    OK(papilio_stat(fs, "/d/link", PAPILIO_NOFOLLOW, &st, sizeof st));
    CHECK(S_ISLNK(st.mode) && st.size == 4 && st.ctime.seconds == 1700000000);
    FAILS(papilio_rename(fs, "/d/link", "/d/zero", PAPILIO_RENAME_NOREPLACE), EEXIST, "/d/zero");
    OK(papilio_rename(fs, "/d/link", "/d/zero", PAPILIO_RENAME_EXCHANGE));
    OK(papilio_rename(fs, "/d/zero", "/d/caf\xe9", 0));
    FAILS(papilio_stat(fs, "/d/zero", 0, &st, sizeof st), ENOENT, "/d/zero: no such file");
    OK(papilio_unlink(fs, "/d/pipe"));
    FAILS(papilio_unlink(fs, "/d"), EISDIR, "/d");
    FAILS(papilio_rmdir(fs, "/d"), ENOTEMPTY, "/d");

    OK(papilio_chmod(fs, "/d", 01750));
    OK(papilio_chown(fs, "/d", 7, PAPILIO_KEEP, 0));
    OK(papilio_utimens(fs, "/d", &keep, &then, PAPILIO_NOFOLLOW));
    OK(papilio_set_inode_flags(fs, "/d", 0x2, 0)); /* BTRFS_INODE_NODATACOW */
    OK(papilio_stat(fs, "/d", 0, &st, sizeof st));
    CHECK(st.mode == (S_IFDIR | 01750) && st.uid == 7 && st.gid == 20);
    CHECK(st.mtime.seconds == 1234567890 && st.mtime.nanoseconds == 123 && st.inode_flags & 0x2);

    OK(papilio_setxattr(fs, "/d", "user.a", "1", 1, PAPILIO_XATTR_CREATE));
    FAILS(papilio_setxattr(fs, "/d", "user.a", "1", 1, PAPILIO_XATTR_CREATE), EEXIST, "");
    FAILS(papilio_setxattr(fs, "/d", "user.b", "1", 1, PAPILIO_XATTR_REPLACE), ENODATA, "");
    OK(papilio_setxattr(fs, "/d", "user.empty", NULL, 0, 0));
    CHECK(OK(papilio_getxattr(fs, "/d", "user.a", buffer, sizeof buffer, 0)) == 1);
    CHECK(OK(papilio_getxattr(fs, "/d", "user.empty", buffer, sizeof buffer, 0)) == 0);
    CHECK(OK(papilio_listxattr(fs, "/d", buffer, sizeof buffer, 0)) == 7 + 11);
    OK(papilio_removexattr(fs, "/d", "user.empty", 0));
    FAILS(papilio_getxattr(fs, "/d", "user.empty", NULL, 0, 0), ENODATA, "user.empty");
}

static void directories(void)
{
    struct papilio_dirent entry;
    struct papilio_stat st;
    struct papilio_walk *walk;
    struct papilio_dir *dir;
    const char *path;
    size_t length;
    int64_t mark;
    int more;

    OK(papilio_opendir(fs, "/d", PAPILIO_WITH_STAT, &dir));
    CHECK(papilio_readdir(dir, &entry, sizeof entry, &st, sizeof st) == 1);
    CHECK(strcmp(entry.name, "null") == 0 && entry.name_length == 4 && entry.file_type == DT_CHR);
    CHECK(entry.inode == st.inode && entry.subvolume == 0);
    OK(mark = papilio_telldir(dir));
    CHECK(papilio_readdir(dir, &entry, sizeof entry, NULL, 0) == 1);
    CHECK(strcmp(entry.name, "link") == 0);
    CHECK(papilio_readdir(dir, &entry, sizeof entry, NULL, 0) == 1);
    CHECK(strcmp(entry.name, "caf\xe9") == 0);
    CHECK(papilio_readdir(dir, &entry, sizeof entry, NULL, 0) == 0);
    OK(papilio_seekdir(dir, (uint64_t)mark));
    CHECK(papilio_readdir(dir, &entry, sizeof entry, NULL, 0) == 1);
    CHECK(strcmp(entry.name, "link") == 0);
    OK(papilio_closedir(dir));

    OK(papilio_walk_open(fs, "/", &walk));
    CHECK(papilio_walk_next(walk, &path, &length, &st, sizeof st) == 1);
    CHECK(length == 0 && *path == 0 && st.attributes == PAPILIO_STAT_SUBVOLUME);
    for (int found = 0; (more = papilio_walk_next(walk, &path, &length, NULL, 0)) > 0; found++) {
        CHECK(strncmp(path, "d/", 2) != 0 && found < 10 && strlen(path) == length);
        if (strcmp(path, "d") == 0)
            OK(papilio_walk_skip(walk));
    }
    CHECK(more == 0);
    OK(papilio_walk_close(walk));
}

static void subvolumes(void)
{
    struct papilio_subvolume_list *list;
    struct papilio_subvolume one;
    uint8_t origin[16] = { 9 };
    int64_t id, count;

    OK(papilio_subvolume_create(fs, "/home"));
    OK(id = papilio_subvolume_id(fs, "/home"));
    FAILS(papilio_subvolume_id(fs, "/d"), ENOENT, "/d");
    CHECK(OK(papilio_default_subvolume(fs)) == 5);
    OK(papilio_set_default_subvolume(fs, (uint64_t)id));
    CHECK(OK(papilio_default_subvolume(fs)) == id);
    FAILS(papilio_subvolume_delete(fs, "/home"), EPERM, "/home");
    OK(papilio_set_default_subvolume(fs, 5));
    OK(papilio_subvolume_set_received(fs, "/home", origin, 77, 1500000000, 0));
    OK(papilio_snapshot(fs, "/home", "/snap", PAPILIO_SNAPSHOT_READ_ONLY));
    CHECK(OK(papilio_subvolume_is_read_only(fs, "/snap")) == 1);
    FAILS(papilio_mkdir(fs, "/snap/x", 0755), EROFS, "/snap/x");
    OK(papilio_subvolume_set_read_only(fs, "/snap", false));
    OK(papilio_mkdir(fs, "/snap/x", 0755));

    OK(papilio_subvolumes(fs, &list));
    CHECK(OK(count = papilio_subvolumes_count(list)) == 3);
    OK(papilio_subvolumes_get(list, 1, &one, sizeof one));
    CHECK(one.id == (uint64_t)id && one.parent == 5 && strcmp(one.path, "home") == 0);
    CHECK(one.path_length == 4 && one.received_uuid[0] == 9 && one.sent == 77 && one.flags == 0);
    CHECK(one.send_time.seconds == 1500000000);
    OK(papilio_subvolumes_get(list, 2, &one, sizeof one));
    CHECK(one.flags == PAPILIO_SUBVOLUME_SNAPSHOT && strcmp(one.path, "snap") == 0);
    FAILS(papilio_subvolumes_get(list, 3, &one, sizeof one), ERANGE, "3");
    OK(papilio_subvolumes_free(list));

    OK(papilio_subvolume_delete(fs, "/snap"));
    OK(papilio_subvolume_delete_by_id(fs, (uint64_t)id));
    OK(papilio_subvolumes_clean(fs));
    OK(papilio_subvolumes(fs, &list));
    CHECK(OK(papilio_subvolumes_count(list)) == 1);
    OK(papilio_subvolumes_free(list));
}

static int cancel(void *user, uint64_t done, uint64_t total, uint64_t bytes)
{
    (void)done, (void)total, (void)bytes;
    return ++*(int *)user > 0;
}

static void heard(void *user, const char *message)
{
    CHECK(strlen(message) > 0);
    ++*(int *)user;
}

static void streams(const char *folder)
{
    struct papilio_send_options *options;
    struct stat stat;
    char path[4096];
    int64_t first, second, bytes;
    int fd, calls = 0, messages = 0;

    snprintf(path, sizeof path, "%s/stream", folder);
    CHECK((fd = open(path, O_RDWR | O_CREAT, 0600)) >= 0);
    OK(papilio_subvolume_create(fs, "/s"));
    OK(papilio_mkdir(fs, "/s/one", 0755));
    OK(papilio_snapshot(fs, "/s", "/s1", PAPILIO_SNAPSHOT_READ_ONLY));
    OK(papilio_mkdir(fs, "/s/two", 0755));
    OK(papilio_snapshot(fs, "/s", "/s2", PAPILIO_SNAPSHOT_READ_ONLY));
    OK(first = papilio_subvolume_id(fs, "/s1"));
    OK(second = papilio_subvolume_id(fs, "/s2"));

    FAILS(papilio_send(fs, (uint64_t)first, fd, NULL, cancel, &calls), ECANCELED, "canceled");
    CHECK(calls == 1 && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    OK(papilio_send_options_new(&options));
    OK(papilio_send_options_set_protocol(options, 2));
    OK(papilio_send_options_set_compressed_data(options, true));
    OK(papilio_send_options_set_no_data(options, false));
    OK(bytes = papilio_send(fs, (uint64_t)first, fd, options, NULL, NULL));
    OK(papilio_send_options_set_parent(options, (uint64_t)first));
    OK(papilio_send_options_add_clone_source(options, (uint64_t)first));
    CHECK(OK(papilio_send(fs, (uint64_t)second, fd, options, NULL, NULL)) < bytes);
    OK(papilio_send_options_free(options));

    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    OK(papilio_mkdir(fs, "/received", 0755));
    CHECK(OK(papilio_receive(fs, "/received", fd, PAPILIO_RECEIVE_ONE, 1, NULL, heard, &messages)) == 1);
    CHECK(lseek(fd, 0, SEEK_CUR) == bytes);
    CHECK(OK(papilio_receive(fs, "/received", fd, 0, 1, NULL, NULL, NULL)) == 1);
    CHECK(OK(papilio_subvolume_is_read_only(fs, "/received/s2")) == 1);
    OK(papilio_subvolume_id(fs, "/received/s1"));
    CHECK(messages == 0);
    FAILS(papilio_receive(fs, "/", 12345, 0, 1, NULL, NULL, NULL), EBADF, "12345");

    /* Into a directory of the host, and beside what is there. */
    snprintf(path, sizeof path, "%s/received", folder);
    CHECK(mkdir(path, 0700) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    CHECK(OK(papilio_receive_directory(path, fd, 0, 1, NULL, heard, &messages)) == 2);
    snprintf(path, sizeof path, "%s/received/s2/two", folder);
    CHECK(messages == 0 && lstat(path, &stat) == 0 && S_ISDIR(stat.st_mode));
    snprintf(path, sizeof path, "%s/received", folder);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    FAILS(papilio_receive_directory(path, fd, 0, 1, NULL, NULL, NULL), EEXIST, "s1");
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    calls = 0;
    FAILS(papilio_receive_directory(path, fd, 0, 1, cancel, NULL, &calls), ECANCELED, "canceled");
    FAILS(papilio_receive_directory("/no/such", fd, 0, 1, NULL, NULL, NULL), ENOENT, "/no/such");
    CHECK(pwrite(fd, "rubbish", 7, 0) == 7 && lseek(fd, 0, SEEK_SET) == 0);
    FAILS(papilio_receive(fs, "/received", fd, 0, 1, NULL, NULL, NULL), EINVAL, "");
    close(fd);
}

static void equal_blocks(void)
{
    static char content[300000];
    struct papilio_file *file;
    uint64_t shared = 0;
    int calls = 0, messages = 0;

    for (size_t at = 0; at < sizeof content; at++)
        content[at] = (char)((uint32_t)at * 2654435761u >> 24);
    OK(papilio_mkdir(fs, "/equal", 0755));
    OK(papilio_file_open(fs, "/equal/a", PAPILIO_CREATE, 0640, &file));
    CHECK(OK(papilio_pwrite(file, content, sizeof content, 0)) == sizeof content);
    OK(papilio_file_close(file));
    OK(papilio_file_open(fs, "/equal/b", PAPILIO_CREATE, 0640, &file));
    CHECK(OK(papilio_pwrite(file, content, sizeof content, 0)) == sizeof content);
    OK(papilio_file_close(file));
    OK(papilio_dedupe(fs, "/equal", 0, PAPILIO_DEDUPE_DRY_RUN, &shared, NULL, heard, &messages));
    CHECK(shared == sizeof content && messages == 0);
    FAILS(papilio_dedupe(fs, "/equal", 0, 0, NULL, cancel, NULL, &calls), ECANCELED, "canceled");
    OK(papilio_dedupe(fs, "/equal", 65536, 0, &shared, NULL, heard, &messages));
    CHECK(shared == sizeof content && messages == 0);
    OK(papilio_dedupe(fs, "/equal", 65536, 0, &shared, NULL, NULL, NULL));
    CHECK(shared == 0);
    OK(papilio_dedupe(fs, "/", 0, PAPILIO_DEDUPE_CHECKSUMS, &shared, NULL, heard, &messages));
    FAILS(papilio_dedupe(fs, "/", 5000, PAPILIO_DEDUPE_CHECKSUMS, NULL, NULL, NULL, NULL), EINVAL, "5000");
    FAILS(papilio_dedupe(fs, "/equal", 5000, 0, NULL, NULL, NULL, NULL), EINVAL, "5000");
    FAILS(papilio_dedupe(fs, "/equal", 0, 0x80, NULL, NULL, NULL, NULL), EINVAL, "0x80");
    FAILS(papilio_dedupe(fs, "/none", 0, 0, NULL, NULL, NULL, NULL), ENOENT, "/none");
}

static void copies(const char *folder)
{
    struct papilio_file *file;
    struct stat stat;
    struct papilio_fs *made;
    char path[4096], second[4096], third[4200], content[16];
    int fd, calls, messages = 0;

    OK(papilio_mkdir(fs, "/tree", 0750));
    OK(papilio_mkdir(fs, "/tree/d", 0755));
    OK(papilio_file_open(fs, "/tree/d/f", PAPILIO_CREATE, 0640, &file));
    CHECK(OK(papilio_pwrite(file, "content", 7, 0)) == 7);
    OK(papilio_file_close(file));
    OK(papilio_link(fs, "/tree/d/f", "/tree/hard"));
    OK(papilio_symlink(fs, "d/f", "/tree/soft"));

    snprintf(path, sizeof path, "%s/out", folder);
    CHECK(mkdir(path, 0700) == 0);
    OK(papilio_copy_out(fs, "/tree", path, 0, NULL, heard, &messages));
    CHECK(messages == 0 && lstat(path, &stat) == 0 && (stat.st_mode & 07777) == 0750);
    snprintf(path, sizeof path, "%s/out/hard", folder);
    CHECK(lstat(path, &stat) == 0 && stat.st_nlink == 2 && (stat.st_mode & 07777) == 0640);
    snprintf(path, sizeof path, "%s/out/soft", folder);
    CHECK(lstat(path, &stat) == 0 && S_ISLNK(stat.st_mode));
    CHECK((fd = open(path, O_RDWR)) >= 0 && read(fd, content, sizeof content) == 7);
    CHECK(memcmp(content, "content", 7) == 0 && pwrite(fd, "changed", 7, 0) == 7);
    close(fd);

    /* The program's function ends a copy; fakeroot would not see the owners of one. */
    calls = 0;
    FAILS(papilio_copy_out(fs, "/tree", path, 0, cancel, NULL, &calls), ECANCELED, "canceled");
    CHECK(calls == 1);
    CHECK(setenv("FAKEROOTKEY", "12345", 1) == 0);
    snprintf(path, sizeof path, "%s/out", folder);
    FAILS(papilio_copy_out(fs, "/tree", path, 0, NULL, NULL, NULL), EINVAL, "unshare -r");
    OK(papilio_copy_out(fs, "/tree", path, PAPILIO_COPY_NO_ATTRIBUTES | PAPILIO_COPY_KEEP_EXISTING, NULL, NULL,
                        NULL));
    snprintf(second, sizeof second, "%s/content.img", folder);
    FAILS(papilio_mkfs_content(second, path, NULL, NULL, 0), EINVAL, "unshare -r");
    CHECK(lstat(second, &stat) == -1 && unsetenv("FAKEROOTKEY") == 0);

    /* An existing file stays if the flag says so; a file as source becomes an entry. */
    snprintf(path, sizeof path, "%s/out/d", folder);
    OK(papilio_copy_out(fs, "/tree/d/f", path, PAPILIO_COPY_KEEP_EXISTING, NULL, heard, &messages));
    snprintf(path, sizeof path, "%s/out/d/f", folder);
    CHECK((fd = open(path, O_RDONLY)) >= 0 && read(fd, content, sizeof content) == 7);
    CHECK(memcmp(content, "changed", 7) == 0);
    close(fd);

    /* A directory in the way of a file: the copy is not complete, and says why. */
    CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/out", folder);
    FAILS(papilio_copy_out(fs, "/tree", path, 0, NULL, heard, &messages), EIO, "cannot overwrite a directory");
    CHECK(messages >= 1);
    FAILS(papilio_copy_out(fs, "/none", path, 0, NULL, NULL, NULL), ENOENT, "/none");
    FAILS(papilio_copy_out(fs, "/tree", path, 0x80, NULL, NULL, NULL), EINVAL, "0x80");

    /* The copy becomes a file system again, as small as its content. */
    snprintf(second, sizeof second, "%s/content.img", folder);
    OK(papilio_mkfs_content(second, path, NULL, "zstd", PAPILIO_MKFS_SHRINK));
    CHECK(lstat(second, &stat) == 0 && stat.st_size < 64 << 20);
    OK(papilio_open(second, NULL, &made));
    OK(papilio_file_open(made, "/hard", 0, 0, &file));
    CHECK(OK(papilio_pread(file, content, sizeof content, 0)) == 7);
    OK(papilio_file_close(file));
    OK(papilio_close(made));
    /* It is as the directory already, until that changes. */
    struct papilio_content_update update;
    OK(papilio_update_content(second, path, "zstd", PAPILIO_MKFS_SHRINK, &update, sizeof update));
    CHECK(update.created + update.changed + update.removed + update.bytes_written == 0);
    CHECK(update.unchanged > 1 && update.bytes_equal > 0);
    snprintf(third, sizeof third, "%s/added", path);
    CHECK((fd = open(third, O_RDWR | O_CREAT, 0600)) >= 0 && write(fd, "more", 4) == 4 && close(fd) == 0);
    OK(papilio_update_content(second, path, NULL, 0, &update, sizeof update));
    CHECK(update.created == 1 && update.removed == 0 && update.bytes_written == 4);
    CHECK(unlink(third) == 0);
    OK(papilio_update_content(second, path, NULL, 0, NULL, 0));
    FAILS(papilio_update_content(second, second, NULL, 0, NULL, 0), ENOTDIR, "content.img");
    FAILS(papilio_update_content(second, "/no/content", NULL, 0, NULL, 0), ENOENT, "/no/content");
    FAILS(papilio_update_content(second, path, NULL, 0x80, NULL, 0), EINVAL, "0x80");
    FAILS(papilio_mkfs_content(second, "/no/content", NULL, NULL, 0), ENOENT, "/no/content");
    FAILS(papilio_mkfs_content(second, path, NULL, "none such", 0), EINVAL, "none such");

    snprintf(path, sizeof path, "%s/tree.tar", folder);
    CHECK((fd = open(path, O_RDWR | O_CREAT, 0600)) >= 0);
    OK(papilio_write_tar(fs, "/tree", fd, 0, NULL, heard, &messages));
    CHECK(fstat(fd, &stat) == 0 && stat.st_size % 512 == 0 && stat.st_size > 2048);
    close(fd);
    FAILS(papilio_write_tar(fs, "/tree", 12345, 0, NULL, NULL, NULL), EBADF, "12345");
    CHECK((fd = open("/dev/full", O_WRONLY)) >= 0);
    FAILS(papilio_write_tar(fs, "/tree", fd, 0, NULL, NULL, NULL), ENOSPC, "incomplete archive");
    close(fd);
}

static int one_call(void *user, uint64_t done, uint64_t total, uint64_t bytes)
{
    (void)done, (void)total, (void)bytes;
    return ++*(int *)user;
}

/* The whole file system as an archive, checked, restored, and made anew from two archives. */
static void archives(const char *folder)
{
    char full[4096], next[4096], first[4096], second[4096], other[4096];
    const char *images[] = { first, second }, *parents[] = { full };
    const uint64_t sizes[] = { 300 << 20, 280 << 20 };
    struct papilio_options *options;
    struct papilio_fs *restored;
    struct papilio_file *file;
    struct stat stat;
    int fd, calls = 0;

    snprintf(first, sizeof first, "%s/restored.img", folder);
    snprintf(second, sizeof second, "%s/restored-too.img", folder);
    snprintf(full, sizeof full, "%s/full.pbk", folder);
    snprintf(next, sizeof next, "%s/elsewhere/next.pbk", folder);
    CHECK((fd = open(full, O_RDWR | O_CREAT, 0600)) >= 0);
    OK(papilio_archive(fs, fd, NULL, 3, 2, 0, NULL, NULL));
    close(fd);
    FAILS(papilio_archive(fs, 12345, NULL, 3, 0, 0, NULL, NULL), EBADF, "12345");
    FAILS(papilio_archive(fs, 1, NULL, 20, 0, 0, NULL, NULL), EINVAL, "20");
    CHECK((fd = open("/dev/full", O_WRONLY)) >= 0);
    FAILS(papilio_archive(fs, fd, NULL, 3, 0, 0, NULL, NULL), ENOSPC, "");
    close(fd);
    CHECK((fd = open("/dev/null", O_WRONLY)) >= 0);
    FAILS(papilio_archive(fs, fd, NULL, 3, 0, 0, one_call, &calls), ECANCELED, "");
    CHECK(calls == 1);
    FAILS(papilio_archive(fs, fd, "/no/archive", 3, 0, 0, NULL, NULL), ENOENT, "/no/archive");
    close(fd);

    OK(papilio_file_open(fs, "/in the second archive", PAPILIO_CREATE, 0600, &file));
    OK(papilio_pwrite(file, "second", 6, 0));
    OK(papilio_file_close(file));
    OK(papilio_sync(fs));
    snprintf(other, sizeof other, "%s/elsewhere", folder);
    CHECK(mkdir(other, 0700) == 0);
    CHECK((fd = open(next, O_RDWR | O_CREAT, 0600)) >= 0);
    OK(papilio_archive(fs, fd, full, 0, 0, PAPILIO_ARCHIVE_SKIP_UNREADABLE, NULL, NULL));
    close(fd);
    OK(papilio_archive_verify(full, NULL, 0));
    FAILS(papilio_archive_verify(next, NULL, 0), ENOENT, "neither named nor found");
    OK(papilio_archive_verify(next, parents, 1));

    FAILS(papilio_archive_restore(next, parents, 1, NULL, NULL, 0, 0), EINVAL, "has 2 devices");
    OK(papilio_archive_restore(next, parents, 1, images, sizes, 2, 0));
    CHECK(lstat(first, &stat) == 0 && stat.st_size == 300 << 20);
    CHECK(lstat(second, &stat) == 0 && stat.st_size == 280 << 20);
    FAILS(papilio_archive_restore(full, NULL, 0, images, NULL, 2, 0), EEXIST, "restored.img");
    OK(papilio_options_new(&options));
    OK(papilio_options_add_device(options, second));
    OK(papilio_open(first, options, &restored));
    OK(papilio_options_free(options));
    OK(papilio_file_open(restored, "/in the second archive", 0, 0, &file));
    CHECK(OK(papilio_pread(file, other, 6, 0)) == 6 && memcmp(other, "second", 6) == 0);
    OK(papilio_file_close(file));
    OK(papilio_close(restored));

    /* A damaged archive leaves nothing behind. */
    CHECK((fd = open(full, O_RDWR)) >= 0 && lstat(full, &stat) == 0);
    /* Behind the header, which takes 72 KiB. */
    CHECK(pwrite(fd, "damage", 6, (72 << 10) + 100) == 6);
    close(fd);
    FAILS(papilio_archive_verify(full, NULL, 0), EIO, "frame");
    snprintf(first, sizeof first, "%s/never.img", folder);
    snprintf(second, sizeof second, "%s/neither.img", folder);
    FAILS(papilio_archive_restore(full, NULL, 0, images, NULL, 2, 0), EIO, "frame");
    CHECK(lstat(first, &stat) < 0 && lstat(second, &stat) < 0);
}

static void statistics(void)
{
    struct papilio_statfs sizes;
    struct papilio_memory memory;
    struct papilio_device device;
    struct papilio_space space;
    struct papilio_usage *usage;
    struct papilio_report *report;

    OK(papilio_statfs(fs, &sizes, sizeof sizes));
    CHECK(sizes.device_size == 512 << 20 && sizes.total == 256 << 20 && sizes.missing == 0);
    CHECK(sizes.writable > 0 && sizes.writable <= sizes.available);
    OK(papilio_usage(fs, &usage));
    CHECK(OK(papilio_usage_device_count(usage)) == 2 && OK(papilio_usage_space_count(usage)) == 3);
    OK(papilio_usage_space(usage, 0, &space, sizeof space));
    CHECK(strcmp(space.kind, "Data") == 0 && strcasecmp(space.profile, "raid1") == 0);
    CHECK(space.raw_total == 2 * space.total);
    OK(papilio_usage_device(usage, 1, &device, sizeof device));
    CHECK(device.devid == 2 && device.size == 256 << 20 && strstr(device.path, "second.img"));
    OK(papilio_usage_free(usage));
    OK(papilio_memory(fs, &memory, sizeof memory));
    CHECK(memory.cache_hits > 0 && memory.bad_copies == 0);
    OK(papilio_drop_cache(fs));
    OK(papilio_sync(fs));
    OK(papilio_trim(fs, 1 << 20));
    CHECK(OK(papilio_resize(fs, 2, 200 << 20)) == 200 << 20);
    CHECK(OK(papilio_resize(fs, 2, 256 << 20)) == 256 << 20);

    OK(papilio_check_open(fs, PAPILIO_CHECK_DATA, 10, NULL, NULL, &report));
    CHECK(OK(papilio_report_verdict(report)) < (int)PAPILIO_SEVERITY_WARNING);
    OK(papilio_report_free(report));
}

int main(int argc, char **argv)
{
    struct papilio_queue *queue;
    struct papilio_completion done[2];
    struct papilio_file *f;

    CHECK(argc == 2);
    make(argv[1]);
    open_with_all_options(argv[1]);
    OK(papilio_set_creator(fs, 10, 20, 022));
    files();
    names();
    directories();
    subvolumes();
    streams(argv[1]);
    equal_blocks();
    copies(argv[1]);
    statistics();
    archives(argv[1]);

    f = file("/f", 0);
    OK(papilio_queue_new(fs, 2, 0, &queue));
    OK(papilio_queue_fallocate(queue, f, PAPILIO_KEEP_SIZE, 0, 8192, 1));
    OK(papilio_queue_fsync(queue, f, false, 2));
    FAILS(papilio_queue_fsync(queue, f, false, 3), EAGAIN, "2 requests");
    CHECK(papilio_queue_wait(queue, 2, done, 2) == 2 && papilio_queue_in_flight(queue) == 0);
    CHECK(done[0].result >= 0 && done[1].result >= 0);
    OK(papilio_queue_close(queue));
    OK(papilio_file_close(f));

    OK(papilio_ref(fs));
    OK(papilio_close(fs));
    OK(papilio_sync(fs));
    OK(papilio_close(fs));
    puts("everything: done");
    return 0;
}

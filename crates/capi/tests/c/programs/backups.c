/* Backups of snapshots in a folder: backups FOLDER. */
#include "test.h"

static char image[4096], place[4096];

static int one_call(void *user, uint64_t done, uint64_t total, uint64_t bytes)
{
    (void)done, (void)total, (void)bytes;
    return ++*(int *)user;
}

static int count_calls(void *user, uint64_t done, uint64_t total, uint64_t bytes)
{
    (void)done, (void)total, (void)bytes;
    ++*(int *)user;
    return 0;
}

static void heard(void *user, const char *message)
{
    CHECK(strlen(message) > 0);
    ++*(int *)user;
}

static void fill(struct papilio_fs *fs, const char *path, char byte, size_t length)
{
    struct papilio_file *file;
    char *block = malloc(length);

    CHECK(block);
    for (size_t at = 0; at < length; ++at)
        block[at] = (char)(byte + (char)(at * at / 7));
    OK(papilio_file_open(fs, path, PAPILIO_CREATE, 0600, &file));
    CHECK(OK(papilio_pwrite(file, block, length, 0)) == (int64_t)length);
    OK(papilio_file_close(file));
    free(block);
}

static uint64_t snapshot(struct papilio_fs *fs, const char *path)
{
    OK(papilio_snapshot(fs, "/data", path, PAPILIO_SNAPSHOT_READ_ONLY));
    return (uint64_t)OK(papilio_subvolume_id(fs, path));
}

static void made(struct papilio_repository *repository, struct papilio_fs *fs)
{
    const int64_t times[] = { 1767571200, 1767657600, 1767744000 };
    struct papilio_backup_list *list;
    struct papilio_backup one;
    char id[PAPILIO_BACKUP_ID_SIZE];
    uint64_t first, second;
    int calls = 0;

    OK(papilio_subvolume_create(fs, "/data"));
    FAILS(papilio_backup_create(repository, fs, (uint64_t)OK(papilio_subvolume_id(fs, "/data")), 3,
                                NULL, 0, NULL, NULL, NULL),
          EINVAL, "not read-only");
    FAILS(papilio_backup_create(repository, fs, 5, 0, NULL, 0, NULL, NULL, NULL), EINVAL, "level 0");
    FAILS(papilio_backup_create(repository, fs, 999, 3, NULL, 0, NULL, NULL, NULL), ENOENT, "");
    fill(fs, "/data/first", 'a', 3 << 20);
    first = snapshot(fs, "/one");
    FAILS(papilio_backup_create(repository, fs, first, 3, NULL, 0, one_call, &calls, NULL), ECANCELED,
          "canceled");
    CHECK(calls == 1 && OK(papilio_backups(repository, NULL, NULL, &list)) == 0);
    OK(papilio_backups_free(list));
    CHECK(OK(papilio_backup_create(repository, fs, first, 3, &times[0], 0, count_calls, &calls, id)) == 0);
    CHECK(calls > 1 && strlen(id) == 64);
    CHECK(OK(papilio_backup_create(repository, fs, first, 3, NULL, 0, NULL, NULL, NULL)) == 1);
    fill(fs, "/data/second", 'b', 100000);
    second = snapshot(fs, "/two");
    OK(papilio_backup_create(repository, fs, second, 19, &times[1], 0, NULL, NULL, NULL));

    CHECK(OK(papilio_backups(repository, NULL, NULL, &list)) == 2);
    OK(papilio_backup_get(list, 0, &one, sizeof one));
    CHECK(one.time == times[0] && strcmp(one.id, id) == 0 && one.base == NULL && one.objects == 2);
    CHECK(strcmp(one.name, "one") == 0 && one.name_length == 3 && strcmp(one.source, "/one") == 0);
    CHECK(one.stream_bytes > 3 << 20 && one.stored_bytes > 0 && strlen(one.host) > 0);
    OK(papilio_backup_get(list, 1, &one, sizeof one));
    CHECK(strcmp(one.base, id) == 0 && one.stream_bytes < 200000 && strlen(one.series) == 36);
    FAILS(papilio_backup_get(list, 2, &one, sizeof one), ERANGE, "2");
    OK(papilio_backups_free(list));
    FAILS(papilio_backups_free(list), EBADF, "");

    /* A full one, although there is a base. */
    fill(fs, "/data/third", 'c', 1000);
    OK(papilio_backup_create(repository, fs, snapshot(fs, "/three"), 3, &times[2], PAPILIO_BACKUP_FULL,
                             NULL, NULL, NULL));
}

static void equal(const char *path, const char *folder, const char *name, size_t length, char byte)
{
    char other[8192], *found = malloc(length + 1);
    FILE *file;

    snprintf(other, sizeof other, "%s/%s/%s", folder, path, name);
    CHECK(found && (file = fopen(other, "rb")));
    CHECK(fread(found, 1, length + 1, file) == length);
    for (size_t at = 0; at < length; ++at)
        CHECK(found[at] == (char)(byte + (char)(at * at / 7)));
    fclose(file);
    free(found);
}

static void restored(struct papilio_repository *repository, const char *folder)
{
    const char *paths[] = { "second", "/first/" }, *none[] = { "none" };
    char target[8192], directory[4096];
    struct papilio_fs *fs;
    struct stat stat;
    int calls = 0, messages = 0;

    snprintf(target, sizeof target, "%s/target.img", folder);
    make_image(target, 256);
    fs = open_writable(target);
    OK(papilio_mkdir(fs, "/back", 0755));
    FAILS(papilio_backup_restore(repository, "two", fs, "/back", NULL, 0, one_call, NULL, &calls), ECANCELED,
          "canceled");
    CHECK(calls == 1);
    /* It goes on after the snapshots that the first call received. */
    CHECK(OK(papilio_backup_restore(repository, "two", fs, "/back", NULL, 0, NULL, heard, &messages)) >= 1);
    CHECK(OK(papilio_backup_restore(repository, "two", fs, "/back", NULL, 0, NULL, NULL, NULL)) == 0);
    CHECK(OK(papilio_subvolume_is_read_only(fs, "/back/two")) == 1);
    FAILS(papilio_subvolume_id(fs, "/back/one"), ENOENT, "");
    OK(papilio_backup_restore(repository, "latest", fs, "/", "other name", PAPILIO_BACKUP_KEEP_CHAIN, NULL,
                              NULL, NULL));
    OK(papilio_subvolume_id(fs, "/other name"));
    FAILS(papilio_backup_restore(repository, "nothing", fs, "/", NULL, 0, NULL, NULL, NULL), ENOENT,
          "nothing");
    OK(papilio_close(fs));
    CHECK(messages == 0);

    snprintf(directory, sizeof directory, "%s/directory", folder);
    CHECK(mkdir(directory, 0700) == 0);
    CHECK(OK(papilio_backup_restore_directory(repository, "two", directory, "whole", 0, NULL, NULL, NULL))
          == 2);
    equal("whole", directory, "first", 3 << 20, 'a');
    equal("whole", directory, "second", 100000, 'b');

    snprintf(directory, sizeof directory, "%s/extracted", folder);
    CHECK(mkdir(directory, 0700) == 0);
    calls = 0;
    FAILS(papilio_backup_extract(repository, "two", paths, 2, directory, 0, one_call, NULL, &calls),
          ECANCELED, "canceled");
    FAILS(papilio_backup_extract(repository, "two", none, 1, directory, 0, NULL, NULL, NULL), ENOENT, "none");
    OK(papilio_backup_extract(repository, "two", paths, 2, directory, PAPILIO_BACKUP_NO_OWNERS, count_calls,
                              NULL, &calls));
    CHECK(calls > 2);
    equal("two", directory, "first", 3 << 20, 'a');
    equal("two", directory, "second", 100000, 'b');
    snprintf(target, sizeof target, "%s/three", directory);
    CHECK(lstat(target, &stat) < 0);
}

static void pruned(struct papilio_repository *repository)
{
    struct papilio_retention rules = { .last = 1 }, none = { 0 };
    struct papilio_backup_list *list;
    struct papilio_pruned done;
    int calls = 0;

    OK(papilio_repository_prune(repository, &rules, sizeof rules, PAPILIO_PRUNE_DRY_RUN, NULL, NULL, NULL,
                                &done, sizeof done));
    CHECK(done.kept == 1 && done.removed == 2 && done.objects == 0);
    FAILS(papilio_repository_prune(repository, &rules, sizeof rules, 0, one_call, NULL, &calls, NULL, 0),
          ECANCELED, "canceled");
    OK(papilio_repository_prune(repository, &none, sizeof none, 0, NULL, NULL, NULL, &done, sizeof done));
    CHECK(done.removed == 0);
    rules.last = 2;
    OK(papilio_repository_prune(repository, &rules, sizeof rules, PAPILIO_PRUNE_MERGE, NULL, heard, &calls,
                                &done, sizeof done));
    CHECK(done.kept == 2 && done.removed == 1 && done.merged == 1 && done.bytes > 0);
    CHECK(OK(papilio_backups(repository, NULL, NULL, &list)) == 2);
    OK(papilio_backups_free(list));
    FAILS(papilio_repository_prune(repository, &rules, 4, 0, NULL, NULL, NULL, NULL, 0), EINVAL, "sizeof");
    FAILS(papilio_repository_prune(repository, NULL, sizeof rules, 0, NULL, NULL, NULL, NULL, 0), EINVAL,
          "NULL");
}

static void keys(struct papilio_repository *repository)
{
    struct papilio_repository *other;
    struct papilio_backup_list *list;

    OK(papilio_repository_add_key(repository, "second", 6, "spare", 0));
    OK(papilio_repository_open(place, "second", 6, &other));
    OK(papilio_repository_change_key(other, "third", 5, 0));
    FAILS(papilio_repository_remove_key(other, "nobody", 0), ENOENT, "nobody");
    OK(papilio_repository_close(other));
    FAILS(papilio_repository_open(place, "second", 6, &other), EACCES, "wrong passphrase");
    OK(papilio_repository_open(place, "third", 5, &other));
    OK(papilio_repository_remove_key(other, "spare", 0));
    CHECK(OK(papilio_backups(other, NULL, NULL, &list)) == 2);
    OK(papilio_backups_free(list));
    OK(papilio_repository_close(other));
    FAILS(papilio_repository_open(place, "third", 5, &other), EACCES, "wrong passphrase");
    OK(papilio_repository_open(place, "secret", 6, &other));
    OK(papilio_repository_close(other));
    FAILS(papilio_repository_add_key(repository, NULL, 0, NULL, 0), EINVAL, "empty");
}

/* Damages the largest object, and a lock that nobody holds. */
static void damaged(struct papilio_repository *repository)
{
    struct papilio_retention none = { 0 };
    char command[9000], name[8192];
    int calls = 0, messages = 0;
    FILE *file;

    CHECK(OK(papilio_repository_verify(repository, 100, count_calls, NULL, &calls)) == 0);
    CHECK(calls > 4);
    calls = 0;
    FAILS(papilio_repository_verify(repository, 100, one_call, NULL, &calls), ECANCELED, "canceled");
    FAILS(papilio_repository_verify(repository, 101, NULL, NULL, NULL), EINVAL, "101");
    snprintf(name, sizeof name, "%s/lock", place);
    CHECK((file = fopen(name, "wb")) && fclose(file) == 0);
    FAILS(papilio_repository_prune(repository, &none, sizeof none, 0, NULL, NULL, NULL, NULL, 0), EIO, "lock");
    OK(papilio_repository_prune(repository, &none, sizeof none, PAPILIO_BACKUP_BREAK_LOCK, NULL, NULL, NULL,
                                NULL, 0));
    snprintf(command, sizeof command, "find '%s/data' -type f -size +1k -exec truncate -s -1 {} +", place);
    CHECK(system(command) == 0);
    CHECK(OK(papilio_repository_verify(repository, 0, NULL, heard, &messages)) == messages && messages > 0);
}

int main(int argc, char **argv)
{
    struct papilio_repository *repository, *other;
    struct papilio_fs *fs;

    CHECK(argc == 2);
    snprintf(image, sizeof image, "%s/source.img", argv[1]);
    snprintf(place, sizeof place, "%s/repository", argv[1]);
    make_image(image, 256);
    fs = open_writable(image);
    FAILS(papilio_repository_open(place, NULL, 0, &other), ENOENT, "no backup repository");
    OK(papilio_repository_init(place, "secret", 6, &repository));
    FAILS(papilio_repository_init(place, NULL, 0, &other), EEXIST, "repository is there");
    FAILS(papilio_repository_open(place, NULL, 0, &other), EACCES, "encrypted");
    FAILS(papilio_repository_open(place, "wrong", 5, &other), EACCES, "wrong passphrase");
    made(repository, fs);
    OK(papilio_close(fs));
    OK(papilio_repository_close(repository));
    FAILS(papilio_repository_close(repository), EBADF, "");
    OK(papilio_repository_open(place, "secret", 6, &repository));
    restored(repository, argv[1]);
    pruned(repository);
    keys(repository);
    damaged(repository);
    OK(papilio_repository_close(repository));
    puts("backups: done");
    return 0;
}

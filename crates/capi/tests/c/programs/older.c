/* A log of fsyncs that cannot be replayed, and devices of others: older FOLDER. */
#include "test.h"

#include <fcntl.h>

/* Offsets in the header of a tree block, and the number of the tree of logs. */
#define OWNER 88
#define LOG_TREE ((uint64_t)-6)
#define NODE 16384

static char image[4096], cut[4096];

static void write_file(struct papilio_fs *fs, const char *path, const char *text, bool sync)
{
    struct papilio_file *file;

    OK(papilio_file_open(fs, path, PAPILIO_CREATE, 0644, &file));
    OK(papilio_pwrite(file, text, strlen(text), 0));
    if (sync)
        OK(papilio_fsync(file));
    OK(papilio_file_close(file));
}

/* Copies the image, as a power cut would leave it. */
static void copy(const char *from, const char *to)
{
    static char piece[1 << 20];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t length;

    CHECK(in && out);
    while ((length = fread(piece, 1, sizeof piece, in)) > 0)
        CHECK(fwrite(piece, 1, length, out) == length);
    CHECK(fclose(in) == 0 && fclose(out) == 0);
}

/* Spoils the checksums of all blocks of the log, whose names can be read nevertheless. */
static void spoil_log(const char *path)
{
    static char block[NODE];
    FILE *file = fopen(path, "r+b");
    int found = 0;

    CHECK(file);
    for (long at = 1 << 20; fseek(file, at, SEEK_SET) == 0 && fread(block, 1, NODE, file) == NODE; at += NODE) {
        uint64_t owner;

        memcpy(&owner, block + OWNER, sizeof owner);
        if (owner != LOG_TREE)
            continue;
        block[0] ^= 1;
        CHECK(fseek(file, at, SEEK_SET) == 0 && fwrite(block, 1, 1, file) == 1);
        found++;
    }
    CHECK(fclose(file) == 0);
    CHECK(found > 0);
}

static void lists_older_files(struct papilio_fs *fs)
{
    struct papilio_older_list *list;
    struct papilio_older_state old;
    struct papilio_older_file file;
    int fresh = 0, changed = 0;

    CHECK(OK(papilio_older(fs, &list)) == 1);
    OK(papilio_older_get(list, 0, &old, sizeof old));
    CHECK(strcmp(old.cause, "log-unusable") == 0 && strstr(old.message, "cannot be replayed"));
    CHECK(old.flags == PAPILIO_OLDER_LOG && old.generation > 0 && old.files >= 2);
    for (uint64_t i = 0; i < old.files; i++) {
        OK(papilio_older_file_get(list, 0, i, &file, sizeof file));
        CHECK(file.path_length == strlen(file.path) && strlen(file.reason) > 10);
        fresh += strcmp(file.path, "fresh") == 0 && strcmp(file.part, "missing") == 0 && file.inode > 256;
        changed += strcmp(file.path, "kept") == 0 && strcmp(file.part, "changed") == 0 && file.subvolume == 5;
    }
    CHECK(fresh == 1 && changed == 1);
    FAILS(papilio_older_get(list, 1, &old, sizeof old), ERANGE, "index 1");
    FAILS(papilio_older_file_get(list, 0, old.files, &file, sizeof file), ERANGE, "not below");
    FAILS(papilio_older_file_get(list, 0, 0, &file, 8), EINVAL, "the size is 8");
    OK(papilio_older_free(list));
    FAILS(papilio_older_free(list), EBADF, "papilio_older_list");
    FAILS(papilio_older(NULL, &list), EINVAL, "NULL");
    FAILS(papilio_older(fs, NULL), EINVAL, "list");
}

static void logs(void)
{
    struct papilio_older_list *list;
    struct papilio_options *options;
    struct papilio_fs *fs = open_writable(image);
    struct papilio_stat st;

    write_file(fs, "/kept", "old", false);
    OK(papilio_sync(fs));
    CHECK(OK(papilio_older(fs, &list)) == 0);
    OK(papilio_older_free(list));
    write_file(fs, "/kept", "newer content", true);
    write_file(fs, "/fresh", "only in the log", true);
    copy(image, cut);
    OK(papilio_close(fs));

    /* A good log is replayed in memory, within the limit. */
    OK(papilio_options_new(&options));
    OK(papilio_open(cut, options, &fs));
    CHECK(OK(papilio_older(fs, &list)) == 0);
    OK(papilio_older_free(list));
    OK(papilio_stat(fs, "/fresh", 0, &st, sizeof st));
    OK(papilio_close(fs));
    OK(papilio_options_set_replay_bytes(options, 16384));
    FAILS(papilio_open(cut, options, &fs), EIO, "/fresh: it is missing");
    CHECK(strstr(papilio_last_error(), "more than 16384 bytes"));
    OK(papilio_options_set_allow_older(options, true));
    OK(papilio_open(cut, options, &fs));
    lists_older_files(fs);
    OK(papilio_close(fs));
    OK(papilio_options_set_replay_bytes(options, 256 << 20));

    spoil_log(cut);
    OK(papilio_open(cut, options, &fs));
    FAILS(papilio_stat(fs, "/fresh", 0, &st, sizeof st), ENOENT, "");
    OK(papilio_stat(fs, "/kept", 0, &st, sizeof st));
    CHECK(st.size == 3);
    lists_older_files(fs);
    OK(papilio_close(fs));
    OK(papilio_options_set_allow_older(options, false));
    FAILS(papilio_open(cut, options, &fs), EIO, "/fresh: it is missing");
    OK(papilio_options_free(options));
}

/* A swap area in the first page, which Btrfs leaves alone. */
static void signatures(void)
{
    struct papilio_options *options;
    struct papilio_fs *fs;
    unsigned char page[4096] = { 0 };
    uint32_t header[2] = { 1, 1000 };
    int descriptor = open(image, O_RDWR);

    memcpy(page + 1024, header, sizeof header);
    memcpy(page + 4086, "SWAPSPACE2", 10);
    CHECK(descriptor >= 0 && pwrite(descriptor, page, sizeof page, 0) == sizeof page && close(descriptor) == 0);
    OK(papilio_options_new(&options));
    OK(papilio_open(image, options, &fs));
    OK(papilio_close(fs));
    OK(papilio_options_set_write(options, true));
    FAILS(papilio_open(image, options, &fs), EBUSY, "a swap area");
    OK(papilio_options_set_ignore_signatures(options, true));
    OK(papilio_open(image, options, &fs));
    write_file(fs, "/beside", "swap", true);
    OK(papilio_close(fs));
    OK(papilio_options_set_ignore_signatures(options, false));
    FAILS(papilio_open(image, options, &fs), EBUSY, "a swap area");
    OK(papilio_options_free(options));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(snprintf(image, sizeof image, "%s/older.img", argv[1]) < (int)sizeof image);
    CHECK(snprintf(cut, sizeof cut, "%s/cut.img", argv[1]) < (int)sizeof cut);
    make_image(image, 128);
    logs();
    signatures();
    puts("older: done");
    return 0;
}

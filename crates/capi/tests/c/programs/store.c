/* A file system in an object store, here the files of a folder: store FOLDER. */
#include "test.h"

int main(int argc, char **argv)
{
    struct papilio_file *file;
    struct papilio_fs *fs, *reader;
    char url[4096], block[9000], found[sizeof block];

    CHECK(argc == 2);
    snprintf(url, sizeof url, "slatedb+file://%s/store", argv[1]);
    FAILS(papilio_open(url, NULL, &fs), ENOENT, url);
    make_image(url, 256);
    fs = open_writable(url);
    memset(block, 'x', sizeof block);
    OK(papilio_file_open(fs, "/durable", PAPILIO_CREATE, 0600, &file));
    CHECK(OK(papilio_pwrite(file, block, sizeof block, 0)) == sizeof block);
    OK(papilio_fsync(file));
    OK(papilio_file_close(file));
    OK(papilio_sync(fs));

    /* A reader sees the last commit while the writer goes on. */
    OK(papilio_open(url, NULL, &reader));
    OK(papilio_unlink(fs, "/durable"));
    OK(papilio_file_open(reader, "/durable", 0, 0, &file));
    CHECK(OK(papilio_pread(file, found, sizeof found, 0)) == sizeof found);
    CHECK(memcmp(block, found, sizeof block) == 0);
    OK(papilio_file_close(file));
    FAILS(papilio_unlink(reader, "/durable"), EROFS, "");
    OK(papilio_close(reader));
    OK(papilio_close(fs));

    OK(papilio_open(url, NULL, &fs));
    FAILS(papilio_file_open(fs, "/durable", 0, 0, &file), ENOENT, "/durable");
    OK(papilio_close(fs));
    FAILS(papilio_open("slatedb+nowhere://bucket/prefix", NULL, &fs), ENOENT, "nowhere");
    printf("store: done\n");
    return 0;
}

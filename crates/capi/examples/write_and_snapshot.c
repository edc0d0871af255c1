/* Writes files into an image, takes a snapshot, and changes a file: write_and_snapshot IMAGE. */
#include <papilio.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, papilio_last_error());
        exit(1);
    }
}

static void put(struct papilio_fs *fs, const char *path, const char *content)
{
    struct papilio_file *file;

    must(papilio_file_open(fs, path, PAPILIO_CREATE | PAPILIO_TRUNCATE, 0644, &file), path);
    must(papilio_write(file, content, strlen(content)), path);
    must(papilio_fsync(file), path);
    must(papilio_file_close(file), path);
}

static void show(struct papilio_fs *fs, const char *path)
{
    char text[256];
    struct papilio_file *file;
    int64_t got;

    must(papilio_file_open(fs, path, 0, 0, &file), path);
    must(got = papilio_pread(file, text, sizeof text, 0), path);
    printf("%s: %.*s\n", path, (int)got, text);
    must(papilio_file_close(file), path);
}

int main(int argc, char **argv)
{
    struct papilio_options *options;
    struct papilio_fs *fs;

    if (argc != 2) {
        fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
        return 2;
    }
    must(papilio_options_new(&options), "options");
    must(papilio_options_set_write(options, true), "options");
    must(papilio_options_set_compression(options, "zstd:3", false), "options");
    must(papilio_open(argv[1], options, &fs), argv[1]);
    must(papilio_options_free(options), "options");

    must(papilio_set_creator(fs, 1000, 1000, 022), "creator");
    must(papilio_subvolume_create(fs, "/home"), "/home");
    must(papilio_mkdir(fs, "/home/ada", 0777), "/home/ada");
    put(fs, "/home/ada/notes", "first draft");
    must(papilio_symlink(fs, "notes", "/home/ada/latest"), "symlink");
    must(papilio_setxattr(fs, "/home/ada/notes", "user.state", "draft", 5, 0), "xattr");

    must(papilio_mkdir(fs, "/snapshots", 0755), "/snapshots");
    must(papilio_snapshot(fs, "/home", "/snapshots/monday", PAPILIO_SNAPSHOT_READ_ONLY), "snapshot");
    put(fs, "/home/ada/notes", "second draft");

    show(fs, "/home/ada/latest");
    show(fs, "/snapshots/monday/ada/latest");
    must(papilio_close(fs), argv[1]);
    return 0;
}

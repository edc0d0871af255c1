/* Lists an image and copies a file out of it: read_image IMAGE [PATH].
 *
 *     cc read_image.c $(pkg-config --cflags --libs papilio) -o read_image
 */
#include <papilio.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s (errno %d)\n", what, papilio_last_error(), (int)-result);
        exit(1);
    }
}

static void list(struct papilio_fs *fs)
{
    struct papilio_walk *walk;
    struct papilio_stat st;
    const char *path;
    int more;

    must(papilio_walk_open(fs, "/", &walk), "walk");
    while ((more = papilio_walk_next(walk, &path, NULL, &st, sizeof st)) > 0)
        printf("%06o %10" PRIu64 " /%s\n", st.mode, st.size, path);
    must(more, "walk");
    must(papilio_walk_close(walk), "walk");
}

static void copy_out(struct papilio_fs *fs, const char *path)
{
    static char buffer[1 << 20];
    struct papilio_file *file;
    uint64_t offset = 0;
    int64_t got;

    must(papilio_file_open(fs, path, 0, 0, &file), path);
    while ((got = papilio_pread(file, buffer, sizeof buffer, offset)) > 0) {
        if (fwrite(buffer, 1, (size_t)got, stdout) != (size_t)got) {
            perror("standard output");
            exit(1);
        }
        offset += (uint64_t)got;
    }
    must(got, path);
    must(papilio_file_close(file), path);
}

int main(int argc, char **argv)
{
    struct papilio_fs *fs;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s IMAGE [PATH]\n", argv[0]);
        return 2;
    }
    must(papilio_open(argv[1], NULL, &fs), argv[1]);
    if (argc == 3)
        copy_out(fs, argv[2]);
    else
        list(fs);
    must(papilio_close(fs), argv[1]);
    return 0;
}

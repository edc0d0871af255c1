/* Writes mixed data with every algorithm and level: compression FOLDER. The content that each file
 * of FOLDER/mixed.img must have is in FOLDER/expected. */
#include "test.h"

#include <fcntl.h>

/* A compressor gets its input in blocks of this size. */
#define BLOCK (128 << 10)
#define BLOCKS 5
#define MOST (BLOCKS * BLOCK + 5000)

static uint64_t state;

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Fills a block with random bytes, text, zeros, or with random bytes up to some place and text from
 * there. */
static void fill(char *at, size_t length, int kind)
{
    size_t edge = kind == 3 ? random_number() % (length + 1) : kind == 0 ? length : 0;

    for (size_t i = 0; i < length; i++) {
        if (i < edge)
            at[i] = (char)random_number();
        else if (kind == 2)
            at[i] = 0;
        else
            at[i] = "0123456789\n"[(i / 3 + i / 1000) % 11];
    }
}

static size_t mix(char *data)
{
    size_t length = BLOCKS * BLOCK + random_number() % 5000;

    /* Each file has an incompressible block before a compressible one. */
    for (int i = 0; i < BLOCKS; i++)
        fill(data + i * BLOCK, BLOCK, i < 2 ? i : (int)(random_number() % 4));
    fill(data + BLOCKS * BLOCK, length - BLOCKS * BLOCK, 1);
    return length;
}

static void keep(const char *folder, const char *name, const char *data, size_t length)
{
    char path[4096];
    FILE *file;

    CHECK(snprintf(path, sizeof path, "%s/expected/%s", folder, name) < (int)sizeof path);
    CHECK((file = fopen(path, "wb")) != NULL);
    CHECK(fwrite(data, 1, length, file) == length);
    CHECK(fclose(file) == 0);
}

static void read_back(struct papilio_fs *fs, const char *path, const char *data, size_t length)
{
    static char seen[MOST + 1];
    struct papilio_file *file;

    OK(papilio_file_open(fs, path, 0, 0, &file));
    CHECK((size_t)OK(papilio_pread(file, seen, sizeof seen, 0)) == length);
    CHECK(memcmp(seen, data, length) == 0);
    OK(papilio_file_close(file));
}

static void try_choice(const char *folder, const char *image, const char *choice, bool force)
{
    static char data[MOST];
    struct papilio_options *options;
    struct papilio_file *file;
    struct papilio_fs *fs;
    char path[64];
    size_t length = mix(data);

    snprintf(path, sizeof path, "/%s%s", choice, force ? "-force" : "");
    keep(folder, path + 1, data, length);
    OK(papilio_options_new(&options));
    OK(papilio_options_set_write(options, true));
    OK(papilio_options_set_compression(options, choice, force));
    OK(papilio_open(image, options, &fs));
    OK(papilio_file_open(fs, path, PAPILIO_CREATE, 0644, &file));
    /* One call for all, or several that end inside of blocks. */
    for (size_t at = 0, step; at < length; at += step) {
        step = force ? length : 100000 + random_number() % 100000;
        step = step < length - at ? step : length - at;
        CHECK((size_t)OK(papilio_pwrite(file, data + at, step, at)) == step);
    }
    OK(papilio_file_close(file));
    read_back(fs, path, data, length);
    OK(papilio_close(fs));
    OK(papilio_options_set_write(options, false));
    OK(papilio_open(image, options, &fs));
    read_back(fs, path, data, length);
    OK(papilio_close(fs));
    OK(papilio_options_free(options));
}

int main(int argc, char **argv)
{
    struct papilio_report *report;
    struct papilio_check_statistics seen;
    char image[4096], path[4096], choice[16];

    CHECK(argc == 2);
    state = 0x9e3779b97f4a7c15;
    snprintf(image, sizeof image, "%s/mixed.img", argv[1]);
    CHECK(snprintf(path, sizeof path, "%s/expected", argv[1]) < (int)sizeof path);
    CHECK(mkdir(path, 0755) == 0);
    make_image(image, 400);
    for (int force = 0; force < 2; force++) {
        try_choice(argv[1], image, "zlib", force);
        try_choice(argv[1], image, "lzo", force);
        try_choice(argv[1], image, "zstd", force);
        for (int level = 1; level <= 9; level++) {
            snprintf(choice, sizeof choice, "zlib:%d", level);
            try_choice(argv[1], image, choice, force);
        }
        for (int level = -15; level <= 15; level++) {
            if (level == 0)
                continue;
            snprintf(choice, sizeof choice, "zstd:%d", level);
            try_choice(argv[1], image, choice, force);
        }
    }
    OK(papilio_check(image, NULL, PAPILIO_CHECK_DATA, 0, NULL, NULL, &report));
    if (papilio_report_verdict(report) != 0) {
        const char *text;

        OK(papilio_report_json(report, &text));
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    OK(papilio_report_statistics(report, &seen, sizeof seen));
    CHECK(seen.files == 2 * (3 + 9 + 30));
    /* Compression took place: half of the data is random. */
    CHECK(seen.data_bytes < 2 * (3 + 9 + 30) * (uint64_t)BLOCKS * BLOCK * 8 / 10);
    OK(papilio_report_free(report));
    puts("compression: done");
    return 0;
}

/* Makes a file system on an image or a block device: mkfs IMAGE MEBIBYTES [LABEL]. */
#include <papilio.h>

#include <stdio.h>
#include <stdlib.h>

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, papilio_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct papilio_mkfs_options *options;
    struct papilio_statfs sizes;
    struct papilio_fs *fs;
    uint8_t uuid[16];

    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: %s IMAGE MEBIBYTES [LABEL]\n", argv[0]);
        return 2;
    }
    must(papilio_mkfs_options_new(&options), "options");
    must(papilio_mkfs_options_set_size(options, strtoull(argv[2], NULL, 10) << 20), "size");
    must(papilio_mkfs_options_set_checksum(options, "xxhash"), "checksum");
    if (argc == 4)
        must(papilio_mkfs_options_set_label(options, argv[3]), "label");
    must(papilio_mkfs(argv[1], options), argv[1]);
    must(papilio_mkfs_options_free(options), "options");

    must(papilio_open(argv[1], NULL, &fs), argv[1]);
    must(papilio_uuid(fs, uuid), "uuid");
    must(papilio_statfs(fs, &sizes, sizeof sizes), "sizes");
    for (int i = 0; i < 16; i++)
        printf("%02x", uuid[i]);
    printf(" %llu bytes, %llu available\n", (unsigned long long)sizes.total,
           (unsigned long long)sizes.available);
    must(papilio_close(fs), argv[1]);
    return 0;
}

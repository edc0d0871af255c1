/* Assertions of the test programs. */
#ifndef TEST_H
#define TEST_H

#include <papilio.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Evaluates to the result, which is not negative. */
#define OK(call) ok((int64_t)(call), __FILE__, __LINE__, #call)

static inline int64_t ok(int64_t result, const char *file, int line, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s:%d: %s: %d, %s\n", file, line, call, (int)result, papilio_last_error());
        exit(1);
    }
    return result;
}

/* Asserts that a call fails with an errno, and that the message contains a text. */
#define FAILS(call, errno_, text) fails((int64_t)(call), errno_, text, __FILE__, __LINE__, #call)

static inline void fails(int64_t result, int error, const char *text, const char *file, int line,
                         const char *call)
{
    if (result != -error || !strstr(papilio_last_error(), text)) {
        fprintf(stderr, "%s:%d: %s: %d, %s\n", file, line, call, (int)result, papilio_last_error());
        exit(1);
    }
}

static inline struct papilio_fs *open_writable(const char *image)
{
    struct papilio_options *options;
    struct papilio_fs *fs = NULL;

    OK(papilio_options_new(&options));
    OK(papilio_options_set_write(options, true));
    OK(papilio_open(image, options, &fs));
    OK(papilio_options_free(options));
    return fs;
}

static inline void make_image(const char *image, uint64_t mebibytes)
{
    struct papilio_mkfs_options *options;

    OK(papilio_mkfs_options_new(&options));
    OK(papilio_mkfs_options_set_size(options, mebibytes << 20));
    OK(papilio_mkfs(image, options));
    OK(papilio_mkfs_options_free(options));
}

#endif

/* Writes and reads many blocks at once through a queue, from an event loop: queue IMAGE [direct]. */
#include <papilio.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 32, BLOCKS = 512, BLOCK = 16384 };

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, papilio_last_error());
        exit(1);
    }
}

static int count_done(struct papilio_queue *queue, struct papilio_completion *done)
{
    int64_t got = papilio_queue_wait(queue, 0, done, DEPTH);

    must(got, "completions");
    for (int i = 0; i < got; i++) {
        if (done[i].result != BLOCK) {
            fprintf(stderr, "request %llu: %lld, %s\n", (unsigned long long)done[i].token,
                    (long long)done[i].result, papilio_last_error());
            exit(1);
        }
    }
    return (int)got;
}

/* Runs all blocks through the queue. The buffer of a block is in use until its completion. */
static void run(struct papilio_queue *queue, int fd, struct papilio_file *file, char *data, bool write)
{
    struct papilio_completion done[DEPTH];
    int submitted = 0, completed = 0;

    while (completed < BLOCKS) {
        while (submitted < BLOCKS && papilio_queue_in_flight(queue) < DEPTH) {
            char *block = data + (size_t)submitted * BLOCK;
            uint64_t offset = (uint64_t)submitted * BLOCK;

            if (write)
                must(papilio_queue_write(queue, file, block, BLOCK, offset, submitted), "write");
            else
                must(papilio_queue_read(queue, file, block, BLOCK, offset, submitted), "read");
            submitted++;
        }
        completed += count_done(queue, done);
        if (completed < BLOCKS && papilio_queue_in_flight(queue) == DEPTH) {
            struct pollfd wait = { .fd = fd, .events = POLLIN };
            uint64_t counter;

            if (poll(&wait, 1, 10000) != 1) {
                fprintf(stderr, "no completion within ten seconds\n");
                exit(1);
            }
            if (read(fd, &counter, sizeof counter) < 0)
                perror("eventfd");
        }
    }
}

int main(int argc, char **argv)
{
    struct papilio_options *options;
    struct papilio_fs *fs;
    struct papilio_file *file;
    struct papilio_queue *queue;
    char *written, *found;
    int fd;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s IMAGE [direct]\n", argv[0]);
        return 2;
    }
    written = aligned_alloc(4096, (size_t)BLOCKS * BLOCK);
    found = aligned_alloc(4096, (size_t)BLOCKS * BLOCK);
    if (!written || !found)
        return 1;
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++)
        written[i] = (char)(i * 7 + i / 4096);
    memset(found, 0, (size_t)BLOCKS * BLOCK);

    must(papilio_options_new(&options), "options");
    must(papilio_options_set_write(options, true), "options");
    must(papilio_options_set_direct_io(options, argc == 3), "options");
    must(papilio_open(argv[1], options, &fs), argv[1]);
    must(papilio_options_free(options), "options");
    must(papilio_file_open(fs, "/data", PAPILIO_CREATE, 0644, &file), "/data");
    must(papilio_queue_new(fs, DEPTH, 2, &queue), "queue");
    must(fd = papilio_queue_eventfd(queue), "eventfd");

    run(queue, fd, file, written, true);
    must(papilio_queue_fsync(queue, file, true, 0), "fdatasync");
    must(papilio_queue_wait(queue, 1, &(struct papilio_completion){ 0 }, 1), "fdatasync");
    run(queue, fd, file, found, false);
    printf("%d blocks: %s\n", BLOCKS,
           memcmp(written, found, (size_t)BLOCKS * BLOCK) == 0 ? "the same" : "DIFFERENT");

    must(papilio_queue_close(queue), "queue");
    close(fd);
    must(papilio_file_close(file), "/data");
    must(papilio_close(fs), argv[1]);
    free(written);
    free(found);
    return 0;
}

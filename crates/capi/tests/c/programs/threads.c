/* Several threads with file systems, files and queues, together and apart: threads FOLDER. */
#include "test.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 40, BLOCK = 8192 };

static struct papilio_fs *shared;
static struct papilio_file *common;
static struct papilio_queue *queue;
static char folder[3000];

/* Files of one file system, one file that all write, and one queue that all submit to. */
static void *together(void *argument)
{
    int number = (int)(intptr_t)argument;
    struct papilio_completion done;
    struct papilio_file *file;
    char path[64], block[BLOCK], found[BLOCK];

    memset(block, 'a' + number, sizeof block);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t offset = ((uint64_t)round * THREADS + (uint64_t)number) * BLOCK;

        snprintf(path, sizeof path, "/t%d-%d", number, round);
        OK(papilio_file_open(shared, path, PAPILIO_CREATE | PAPILIO_EXCLUSIVE, 0600, &file));
        OK(papilio_pwrite(file, block, sizeof block, 0));
        CHECK(OK(papilio_pread(file, found, sizeof found, 0)) == BLOCK);
        CHECK(memcmp(block, found, BLOCK) == 0);
        OK(papilio_file_close(file));
        if (round % 2)
            OK(papilio_unlink(shared, path));
        /* The token says which thread's request completed: any thread may collect it. */
        while (papilio_queue_write(queue, common, block, BLOCK, offset, (uint64_t)number) == -EAGAIN)
            papilio_queue_wait(queue, 0, &done, 1);
        /* The block must not change before its completion: wait until none is in flight. */
        while (OK(papilio_queue_in_flight(queue)) > 0)
            if (OK(papilio_queue_wait(queue, 0, &done, 1)) == 1)
                CHECK(done.result == BLOCK && done.token < THREADS);
        FAILS(papilio_unlink(shared, "/missing"), ENOENT, "/missing");
    }
    return NULL;
}

/* A file system of its own. */
static void *apart(void *argument)
{
    struct papilio_fs *fs;
    char path[4096];

    snprintf(path, sizeof path, "%s/own%d.img", folder, (int)(intptr_t)argument);
    make_image(path, 128);
    fs = open_writable(path);
    for (int round = 0; round < ROUNDS; round++) {
        char name[64];

        snprintf(name, sizeof name, "/d%d", round);
        OK(papilio_mkdir(fs, name, 0755));
    }
    OK(papilio_close(fs));
    return NULL;
}

/* References that come and go, while others use the handle. */
static void *references(void *argument)
{
    (void)argument;
    for (int round = 0; round < 1000; round++) {
        struct papilio_stat st;

        OK(papilio_ref(shared));
        OK(papilio_file_ref(common));
        OK(papilio_fstat(common, &st, sizeof st));
        OK(papilio_file_close(common));
        OK(papilio_close(shared));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[2 * THREADS + 1];
    struct papilio_report *report;
    char path[4096], block[BLOCK], wanted[BLOCK];

    CHECK(argc == 2);
    snprintf(folder, sizeof folder, "%s", argv[1]);
    snprintf(path, sizeof path, "%s/shared.img", argv[1]);
    make_image(path, 256);
    shared = open_writable(path);
    OK(papilio_file_open(shared, "/common", PAPILIO_CREATE, 0600, &common));
    OK(papilio_queue_new(shared, THREADS, 2, &queue));
    for (intptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, together, (void *)i) == 0);
        CHECK(pthread_create(&threads[THREADS + i], NULL, apart, (void *)i) == 0);
    }
    CHECK(pthread_create(&threads[2 * THREADS], NULL, references, NULL) == 0);
    for (int i = 0; i < 2 * THREADS + 1; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    for (int i = 0; i < ROUNDS * THREADS; i++) {
        memset(wanted, 'a' + i % THREADS, BLOCK);
        CHECK(OK(papilio_pread(common, block, BLOCK, (uint64_t)i * BLOCK)) == BLOCK);
        CHECK(memcmp(block, wanted, BLOCK) == 0);
    }
    OK(papilio_queue_close(queue));
    OK(papilio_file_close(common));
    OK(papilio_sync(shared));
    OK(papilio_check_open(shared, PAPILIO_CHECK_DATA, 0, NULL, NULL, &report));
    CHECK(OK(papilio_report_verdict(report)) < (int)PAPILIO_SEVERITY_WARNING);
    OK(papilio_report_free(report));
    OK(papilio_close(shared));
    puts("threads: done");
    return 0;
}

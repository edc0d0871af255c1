/* Copies a read-only snapshot to another image through a pipe: send_receive FROM PATH TO.
 *
 * Two threads work at once: one sends, the other receives.
 */
#include <papilio.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, papilio_last_error());
        exit(1);
    }
}

struct sender {
    struct papilio_fs *fs;
    uint64_t subvolume;
    int fd;
    int64_t bytes;
};

static void *send_all(void *argument)
{
    struct sender *sender = argument;

    sender->bytes = papilio_send(sender->fs, sender->subvolume, sender->fd, NULL, NULL, NULL);
    must(sender->bytes, "send");
    close(sender->fd);
    return NULL;
}

int main(int argc, char **argv)
{
    struct papilio_options *options;
    struct papilio_fs *from, *to;
    struct sender sender;
    pthread_t thread;
    int64_t id, received;
    int ends[2];

    if (argc != 4) {
        fprintf(stderr, "usage: %s FROM PATH TO\n", argv[0]);
        return 2;
    }
    must(papilio_open(argv[1], NULL, &from), argv[1]);
    must(id = papilio_subvolume_id(from, argv[2]), argv[2]);
    must(papilio_options_new(&options), "options");
    must(papilio_options_set_write(options, true), "options");
    must(papilio_open(argv[3], options, &to), argv[3]);
    must(papilio_options_free(options), "options");

    if (pipe(ends) != 0) {
        perror("pipe");
        return 1;
    }
    sender = (struct sender){ .fs = from, .subvolume = (uint64_t)id, .fd = ends[1] };
    if (pthread_create(&thread, NULL, send_all, &sender) != 0)
        return 1;
    must(received = papilio_receive(to, "/", ends[0], 0, 1, NULL, NULL, NULL), "receive");
    pthread_join(thread, NULL);
    close(ends[0]);
    printf("%lld bytes, %lld subvolume\n", (long long)sender.bytes, (long long)received);

    must(papilio_close(to), argv[3]);
    must(papilio_close(from), argv[1]);
    return 0;
}

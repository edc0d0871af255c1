/* Wrong handles, pointers, paths and images are errors: bad_input FOLDER. */
#include "test.h"

#include <fcntl.h>
#include <sys/wait.h>

static char image[4096];

static void null_and_foreign_handles(struct papilio_fs *fs)
{
    struct papilio_file *file = NULL;
    struct papilio_stat st;
    struct papilio_options *options;
    char byte;
    int local = 0;

    FAILS(papilio_sync(NULL), EINVAL, "papilio_fs *) is NULL");
    FAILS(papilio_close(NULL), EINVAL, "NULL");
    FAILS(papilio_pread(NULL, &byte, 1, 0), EINVAL, "papilio_file");
    FAILS(papilio_closedir(NULL), EINVAL, "papilio_dir");
    FAILS(papilio_walk_close(NULL), EINVAL, "papilio_walk");
    FAILS(papilio_queue_close(NULL), EINVAL, "papilio_queue");
    FAILS(papilio_report_free(NULL), EINVAL, "papilio_report");
    FAILS(papilio_options_set_write(NULL, true), EINVAL, "papilio_options");
    /* A pointer to something else, a small number, and a handle of another kind. */
    FAILS(papilio_sync((struct papilio_fs *)&local), EBADF, "no open papilio_fs");
    FAILS(papilio_sync((struct papilio_fs *)1), EBADF, "no open papilio_fs");
    FAILS(papilio_fsync((struct papilio_file *)fs), EBADF, "no open papilio_file");

    FAILS(papilio_open(NULL, NULL, &fs), EINVAL, "path is NULL");
    FAILS(papilio_open(image, NULL, NULL), EINVAL, "fs, where the result goes, is NULL");
    FAILS(papilio_stat(fs, NULL, 0, &st, sizeof st), EINVAL, "path is NULL");
    FAILS(papilio_stat(fs, "/", 0, NULL, sizeof st), EINVAL, "stat");
    FAILS(papilio_stat(fs, "/", 0, &st, 8), EINVAL, "the size is 8");
    FAILS(papilio_stat(fs, "/", 0x80, &st, sizeof st), EINVAL, "flags 0x80");
    FAILS(papilio_file_open(fs, "/f", PAPILIO_CREATE, 0644, NULL), EINVAL, "file");
    OK(papilio_file_open(fs, "/f", PAPILIO_CREATE, 0644, &file));
    FAILS(papilio_pread(file, NULL, 10, 0), EINVAL, "its length is 10");
    FAILS(papilio_pwrite(file, NULL, 10, 0), EINVAL, "buffer is NULL");
    FAILS(papilio_pwrite(file, &byte, SIZE_MAX, 0), EINVAL, "longer than memory");
    CHECK(papilio_pread(file, NULL, 0, 0) == 0);
    FAILS(papilio_pwrite(file, &byte, 1, UINT64_MAX), EFBIG, "");
    FAILS(papilio_lseek(file, -1, SEEK_SET), EINVAL, "-1");
    FAILS(papilio_lseek(file, 0, 99), EINVAL, "99");
    OK(papilio_file_close(file));

    OK(papilio_options_new(&options));
    FAILS(papilio_options_set_compression(options, "brotli", false), EINVAL, "brotli");
    FAILS(papilio_options_set_superblock_mirror(options, 3), EINVAL, "3");
    FAILS(papilio_options_set_timestamp(options, 0, 1000000000), EINVAL, "nanoseconds");
    OK(papilio_options_free(options));
    FAILS(papilio_options_free(options), EBADF, "closed");
    FAILS(papilio_open(image, options, &fs), EBADF, "papilio_options");
}

static void closed_handles(struct papilio_fs *fs)
{
    struct papilio_completion done;
    struct papilio_queue *queue;
    struct papilio_file *file;
    struct papilio_dir *dir;
    struct papilio_fs *other;
    struct papilio_queue *foreign;
    char byte = 0, second[4200];

    OK(papilio_file_open(fs, "/f", 0, 0, &file));
    OK(papilio_opendir(fs, "/", 0, &dir));
    FAILS(papilio_close(fs), EBUSY, "2 files, directories");
    OK(papilio_sync(fs));
    OK(papilio_closedir(dir));
    FAILS(papilio_closedir(dir), EBADF, "");

    snprintf(second, sizeof second, "%s.other", image);
    make_image(second, 128);
    other = open_writable(second);
    OK(papilio_queue_new(other, 4, 0, &foreign));
    FAILS(papilio_queue_read(foreign, file, &byte, 1, 0, 0), EXDEV, "file system of the queue");
    OK(papilio_queue_close(foreign));
    OK(papilio_close(other));
    FAILS(papilio_close(other), EBADF, "");

    FAILS(papilio_queue_new(fs, 0, 0, &queue), EINVAL, "0 requests");
    OK(papilio_queue_new(fs, 4, 1, &queue));
    FAILS(papilio_queue_wait(queue, 2, &done, 1), EINVAL, "2 completions");
    OK(papilio_queue_write(queue, file, "data", 4, 0, 1));
    /* The request keeps the file open, and the queue the file system. */
    OK(papilio_file_close(file));
    FAILS(papilio_pread(file, &byte, 1, 0), EBADF, "papilio_file");
    FAILS(papilio_file_close(file), EBADF, "");
    FAILS(papilio_queue_write(queue, file, "data", 4, 0, 1), EBADF, "");
    FAILS(papilio_close(fs), EBUSY, "1 files");
    CHECK(papilio_queue_wait(queue, 1, &done, 1) == 1 && done.result == 4);
    CHECK(papilio_queue_wait(queue, 1, &done, 1) == 0);
    /* A failure that nobody collected is not dropped in silence. */
    OK(papilio_file_open(fs, "/f", 0, 0, &file));
    OK(papilio_queue_write(queue, file, "data", 4, UINT64_MAX - 1, 2));
    FAILS(papilio_queue_close(queue), EFBIG, "");
    FAILS(papilio_queue_close(queue), EBADF, "");
    OK(papilio_file_close(file));
}

static void bad_images(void)
{
    struct papilio_fs *fs = (struct papilio_fs *)&fs;
    struct papilio_report *report;
    char path[4200];

    FAILS(papilio_open("/no/such/image", NULL, &fs), ENOENT, "/no/such/image");
    CHECK(fs == (struct papilio_fs *)&fs);
    FAILS(papilio_open("/", NULL, &fs), EISDIR, "/");
    snprintf(path, sizeof path, "%s.zeros", image);
    CHECK(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0 && truncate(path, 16 << 20) == 0);
    FAILS(papilio_open(path, NULL, &fs), EINVAL, "");
    FAILS(papilio_check(path, NULL, 0, 0, NULL, NULL, &report), EINVAL, "");
    FAILS(papilio_open(image, NULL, &fs), EBUSY, "");
    FAILS(papilio_mkfs(image, NULL), EBUSY, "");
    FAILS(papilio_mkfs_many(NULL, 2, NULL), EINVAL, "paths");
}

static void bad_paths(struct papilio_fs *fs)
{
    char name[300] = "/";
    struct papilio_dir *dir;
    struct papilio_stat st;

    memset(name + 1, 'n', 256);
    FAILS(papilio_mkdir(fs, name, 0755), ENAMETOOLONG, "");
    FAILS(papilio_mkdir(fs, "", 0755), EINVAL, "");
    FAILS(papilio_mkdir(fs, "/", 0755), EINVAL, "");
    FAILS(papilio_mkdir(fs, "/no/d", 0755), ENOENT, "/no");
    FAILS(papilio_stat(fs, "/f/x", 0, &st, sizeof st), ENOTDIR, "");
    FAILS(papilio_opendir(fs, "/f", 0, &dir), ENOTDIR, "");
    OK(papilio_symlink(fs, "loop", "/loop"));
    FAILS(papilio_stat(fs, "/loop", 0, &st, sizeof st), ELOOP, "");
    /* A path is bytes: this one is not UTF-8. */
    FAILS(papilio_stat(fs, "/\xff\xfe", 0, &st, sizeof st), ENOENT, "");
}

/* A structure of an older program is shorter, one of a newer program longer. */
static void sizes_of_structures(struct papilio_fs *fs)
{
    struct {
        struct papilio_stat st;
        unsigned char later[16];
    } longer;

    memset(&longer, 0xaa, sizeof longer);
    OK(papilio_stat(fs, "/f", 0, &longer.st, sizeof longer));
    CHECK(longer.st.mode == (S_IFREG | 0644) && longer.later[0] == 0 && longer.later[15] == 0);
}

static void forks(struct papilio_fs *fs)
{
    int status;
    pid_t child;

    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct papilio_options *options;
        struct papilio_fs *again;

        FAILS(papilio_sync(fs), EBADF, "child");
        FAILS(papilio_close(fs), EBADF, "child");
        FAILS(papilio_open(image, NULL, &again), EBADF, "child");
        FAILS(papilio_options_new(&options), EBADF, "child");
        /* Not exit(): a child has no threads, so that their memory looks lost to Valgrind. */
        execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
        _exit(8);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    OK(papilio_mkdir(fs, "/after", 0755));
}

int main(int argc, char **argv)
{
    struct papilio_fs *fs, *reader;

    CHECK(argc == 2);
    CHECK(papilio_last_error() && *papilio_last_error() == 0);
    snprintf(image, sizeof image, "%s/bad.img", argv[1]);
    make_image(image, 256);
    fs = open_writable(image);
    null_and_foreign_handles(fs);
    closed_handles(fs);
    bad_images();
    bad_paths(fs);
    sizes_of_structures(fs);
    forks(fs);
    OK(papilio_close(fs));
    FAILS(papilio_sync(fs), EBADF, "no open papilio_fs");
    FAILS(papilio_close(fs), EBADF, "no open papilio_fs");
    FAILS(papilio_ref(fs), EBADF, "");

    OK(papilio_open(image, NULL, &reader));
    FAILS(papilio_mkdir(reader, "/x", 0755), EROFS, "");
    FAILS(papilio_sync(reader), EROFS, "");
    OK(papilio_close(reader));
    puts("bad_input: done");
    return 0;
}

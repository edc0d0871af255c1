/* Checks an image and prints its faults: check [--json] IMAGE. Exits with 1 if there are errors. */
#include <papilio.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, papilio_last_error());
        exit(2);
    }
}

static void progress(void *user, uint32_t stage, uint64_t done, uint64_t total)
{
    (void)stage, (void)done, (void)total;
    ++*(unsigned *)user;
}

int main(int argc, char **argv)
{
    bool as_json = argc == 3 && strcmp(argv[1], "--json") == 0;
    const char *image = argv[argc - 1], *text;
    struct papilio_check_statistics seen;
    struct papilio_finding finding;
    struct papilio_report *report;
    unsigned calls = 0;
    int64_t count, length;

    if (argc != 2 && !as_json) {
        fprintf(stderr, "usage: %s [--json] IMAGE\n", argv[0]);
        return 2;
    }
    must(papilio_check(image, NULL, PAPILIO_CHECK_DATA, 0, progress, &calls, &report), image);
    must(papilio_report_statistics(report, &seen, sizeof seen), "statistics");
    must(count = papilio_report_count(report), "report");
    if (as_json) {
        must(length = papilio_report_json(report, &text), "JSON");
        fwrite(text, 1, (size_t)length, stdout);
    } else {
        for (int64_t i = 0; i < count; i++) {
            must(papilio_report_finding(report, (size_t)i, &finding, sizeof finding), "finding");
            printf("%s: %s: %s\n", finding.kind, finding.place, finding.message);
        }
        printf("%" PRIu64 " errors, %" PRIu64 " warnings; %" PRIu64 " blocks, %" PRIu64 " bytes of data\n",
               seen.errors, seen.warnings, seen.blocks, seen.data_bytes_read);
    }
    must(papilio_report_free(report), "report");
    return seen.errors > 0 || calls == 0;
}

/* What snapshots cost and keep, deleted subvolumes, and full file systems: space_and_history FOLDER. */
#include "test.h"

#define MIB (1 << 20)

static char image[4096];

static void write_file(struct papilio_fs *fs, const char *path, char letter, size_t length)
{
    struct papilio_file *file;
    char *content = malloc(length);

    CHECK(content);
    memset(content, letter, length);
    OK(papilio_file_open(fs, path, PAPILIO_CREATE, 0644, &file));
    CHECK(OK(papilio_pwrite(file, content, length, 0)) == (int64_t)length);
    OK(papilio_file_close(file));
    free(content);
}

/* Writes the report at a time of its own, which orders the versions. */
static void write_report(struct papilio_fs *fs, char letter, int64_t seconds)
{
    struct papilio_time then = { .seconds = seconds };

    write_file(fs, "/home/report", letter, MIB);
    OK(papilio_utimens(fs, "/home/report", &then, &then, 0));
}

/* Two days of a subvolume, each with a snapshot: "day1" and "day2" of "home". */
static void make_history(void)
{
    struct papilio_fs *fs = open_writable(image);

    OK(papilio_subvolume_create(fs, "/home"));
    write_file(fs, "/home/kept", 'k', 3 * MIB);
    write_file(fs, "/home/gone", 'g', 2 * MIB);
    write_report(fs, 'a', 100);
    OK(papilio_snapshot(fs, "/home", "/day1", PAPILIO_SNAPSHOT_READ_ONLY));
    OK(papilio_unlink(fs, "/home/gone"));
    write_report(fs, 'b', 200);
    OK(papilio_rename(fs, "/home/kept", "/home/moved", 0));
    OK(papilio_snapshot(fs, "/home", "/day2", PAPILIO_SNAPSHOT_READ_ONLY));
    write_report(fs, 'c', 300);
    OK(papilio_close(fs));
}

static int stop_at_once(void *user, uint64_t done, uint64_t total, uint64_t bytes)
{
    (void)total;
    (void)bytes;
    CHECK(done > 0);
    ++*(int *)user;
    return 1;
}

static int go_on(void *user, uint64_t done, uint64_t total, uint64_t bytes)
{
    stop_at_once(user, done, total, bytes);
    return 0;
}

static uint64_t total(const struct papilio_estimate *estimate)
{
    return estimate->data + estimate->metadata;
}

static void costs(void)
{
    struct papilio_sharing_statistics seen;
    struct papilio_subvolume_space space;
    struct papilio_estimate day1, both, all, freed;
    struct papilio_sharing *sharing;
    struct papilio_fs *fs;
    uint64_t ids[2] = { 0, 0 }, chosen[2] = { 0, 0 }, home = 0;
    const char *text;
    int calls = 0;

    OK(papilio_open(image, NULL, &fs));
    FAILS(papilio_space_sharing(fs, 0, 0, stop_at_once, &calls, &sharing), ECANCELED, "canceled");
    CHECK(calls == 1);
    OK(papilio_space_sharing(fs, 0, 0, go_on, &calls, &sharing));
    OK(papilio_close(fs));
    CHECK(calls > 1);
    CHECK(OK(papilio_sharing_count(sharing)) == 4);
    for (size_t i = 0; i < 4; i++) {
        OK(papilio_sharing_get(sharing, i, &space, sizeof space));
        CHECK(space.path && space.path_length == strlen(space.path));
        CHECK(space.referenced.data >= space.exclusive.data && space.exclusive.data_error == 0);
        if (strcmp(space.path, "day1") == 0) {
            ids[0] = space.id;
            day1 = space.exclusive;
        }
        if (strcmp(space.path, "day2") == 0)
            ids[1] = space.id;
        if (strcmp(space.path, "home") == 0) {
            home = space.id;
            CHECK(space.referenced.data == 4 * MIB && space.exclusive.data == MIB);
        }
    }
    CHECK(ids[0] && ids[1] && home);
    /* The file that went, and the first report. The file that moved is shared. */
    CHECK(day1.data == 3 * MIB && day1.metadata > 0);
    CHECK(day1.raw_data == day1.data && day1.raw_metadata == 2 * day1.metadata);
    OK(papilio_sharing_freed_by(sharing, ids, 1, &freed, sizeof freed));
    CHECK(total(&freed) == total(&day1));
    OK(papilio_sharing_freed_by(sharing, ids, 2, &both, sizeof both));
    CHECK(both.data == 4 * MIB);
    OK(papilio_sharing_freed_by(sharing, NULL, 0, &freed, sizeof freed));
    CHECK(total(&freed) == 0);
    OK(papilio_sharing_total(sharing, &all, sizeof all));
    CHECK(all.data == 8 * MIB);
    CHECK(OK(papilio_sharing_choose(sharing, MIB, ids, 2, chosen)) == 1 && chosen[0] == ids[0]);
    CHECK(OK(papilio_sharing_choose(sharing, 4 * MIB, ids, 2, chosen)) == 2 && chosen[1] == ids[1]);
    FAILS(papilio_sharing_choose(sharing, 1 << 30, ids, 2, chosen), ENOSPC, "all 2 candidates");
    FAILS(papilio_sharing_choose(sharing, 1, ids, 2, NULL), EINVAL, "chosen");
    OK(papilio_sharing_statistics_get(sharing, &seen, sizeof seen));
    CHECK(seen.subvolumes == 4 && seen.in_deletion == 0 && seen.bad_blocks == 0 && seen.errors == 0);
    CHECK(seen.blocks >= 4 && seen.leaves_read >= 4 && !(seen.flags & PAPILIO_SHARING_SAMPLED));
    FAILS(papilio_sharing_error(sharing, 0, &text), ERANGE, "index 0");
    FAILS(papilio_sharing_get(sharing, 4, &space, sizeof space), ERANGE, "index 4");
    FAILS(papilio_sharing_get(sharing, 0, &space, 8), EINVAL, "sizeof");
    OK(papilio_sharing_free(sharing));
    FAILS(papilio_sharing_free(sharing), EBADF, "papilio_sharing");
    FAILS(papilio_sharing_count(NULL), EINVAL, "NULL");
}

static void versions(uint64_t home)
{
    struct papilio_version_holder holder;
    struct papilio_version version;
    struct papilio_version_list *list;
    struct papilio_only_list *only;
    struct papilio_fs *fs;

    OK(papilio_open(image, NULL, &fs));
    CHECK(OK(papilio_versions(fs, home, "report", &list)) == 3);
    CHECK(OK(papilio_only_in_snapshots(fs, home, "", &only)) == 1);
    FAILS(papilio_versions(fs, home, "never", &list), ENOENT, "never");
    OK(papilio_close(fs));
    for (size_t i = 0; i < 3; i++) {
        OK(papilio_versions_get(list, i, &version, sizeof version));
        CHECK(version.size == MIB && version.holders == 1 && S_ISREG(version.mode));
        CHECK(version.mtime.seconds == 100 * ((int64_t)i + 1));
        OK(papilio_version_holder_get(list, i, 0, &holder, sizeof holder));
        CHECK(strcmp(holder.path, "report") == 0 && holder.path_length == 6 && holder.inode > 256);
        CHECK(strcmp(holder.subvolume_path, i == 0 ? "day1" : i == 1 ? "day2" : "home") == 0);
    }
    CHECK(holder.subvolume == home && holder.subvolume_path_length == 4);
    FAILS(papilio_versions_get(list, 3, &version, sizeof version), ERANGE, "index 3");
    FAILS(papilio_version_holder_get(list, 0, 1, &holder, sizeof holder), ERANGE, "index 1");
    OK(papilio_versions_free(list));
    FAILS(papilio_versions_get(list, 0, &version, sizeof version), EBADF, "papilio_version_list");

    OK(papilio_only_get(only, 0, &holder, sizeof holder, &version, sizeof version));
    CHECK(strcmp(holder.path, "gone") == 0 && strcmp(holder.subvolume_path, "day1") == 0);
    CHECK(version.size == 2 * MIB && version.holders == 1);
    OK(papilio_only_get(only, 0, &holder, sizeof holder, NULL, 0));
    FAILS(papilio_only_get(only, 1, &holder, sizeof holder, NULL, 0), ERANGE, "index 1");
    OK(papilio_only_free(only));
}

static void histories(uint64_t home, uint64_t since)
{
    struct papilio_history_step step;
    struct papilio_history_list *list;
    struct papilio_change change;
    struct papilio_fs *fs;
    int calls = 0, deleted = 0, renamed = 0, written = 0;

    OK(papilio_open(image, NULL, &fs));
    CHECK(OK(papilio_history(fs, home, "", since, NULL, NULL, &list)) == 1);
    OK(papilio_history_free(list));
    FAILS(papilio_history(fs, home, "", 0, stop_at_once, &calls, &list), ECANCELED, "canceled");
    CHECK(OK(papilio_history(fs, home, "", 0, go_on, &calls, &list)) == 2 && calls == 3);
    FAILS(papilio_history(fs, home, "", 5, NULL, NULL, &list), EINVAL, "no snapshot of this past");
    OK(papilio_close(fs));
    OK(papilio_history_get(list, 0, &step, sizeof step));
    for (uint64_t i = 0; i < step.changes; i++) {
        OK(papilio_change_get(list, 0, i, &change, sizeof change));
        CHECK(change.path_length == strlen(change.path));
        if (change.name == PAPILIO_CHANGE_DELETED && strcmp(change.path, "gone") == 0)
            deleted += change.size == 2 * MIB && change.type_ == S_IFREG && !change.old_path;
        if (change.name == PAPILIO_CHANGE_RENAMED && strcmp(change.path, "moved") == 0)
            renamed += strcmp(change.old_path, "kept") == 0 && change.old_path_length == 4;
        if (change.name == PAPILIO_CHANGE_KEPT && strcmp(change.path, "report") == 0)
            written += (change.flags & PAPILIO_CHANGE_CONTENT) != 0;
    }
    CHECK(deleted == 1 && renamed == 1 && written == 1);
    OK(papilio_history_get(list, 1, &step, sizeof step));
    CHECK(step.old_subvolume == since && step.new_subvolume == home && step.changes >= 1);
    FAILS(papilio_history_get(list, 2, &step, sizeof step), ERANGE, "index 2");
    FAILS(papilio_change_get(list, 1, step.changes, &change, sizeof change), ERANGE, "not below");
    OK(papilio_history_free(list));
}

static void undeletes(uint64_t day1)
{
    struct papilio_undelete_summary summary;
    struct papilio_deleted_subvolume one;
    struct papilio_undelete_plan *plan;
    struct papilio_deleted_list *list;
    struct papilio_fs *fs = open_writable(image);
    const char *line;
    int64_t found;
    size_t i;

    OK(papilio_subvolume_delete(fs, "/day1"));
    OK(papilio_subvolumes_clean(fs));
    OK(papilio_close(fs));
    found = OK(papilio_find_deleted_subvolumes(image, NULL, &list));
    CHECK(found >= 1);
    for (i = 0; i < (size_t)found; i++) {
        OK(papilio_deleted_get(list, i, &one, sizeof one));
        if (one.id == day1)
            break;
    }
    CHECK(i < (size_t)found && strcmp(one.path, "day1") == 0 && one.path_length == 4);
    CHECK(one.blocks > 0 && one.missing == 0 && one.generation > 0 && one.change_time.seconds > 0);
    FAILS(papilio_deleted_get(list, found, &one, sizeof one), ERANGE, "not below");
    OK(papilio_deleted_free(list));
    OK(papilio_plan_undelete(image, NULL, one.id, one.root_tree, &plan));
    OK(papilio_undelete_plan_get(plan, &summary, sizeof summary));
    CHECK(summary.changes > 0 && summary.refused == 0 && summary.losses == 0);
    CHECK(summary.flags & PAPILIO_UNDELETE_BETTER || summary.flags == 0);
    OK(papilio_undelete_plan_line(plan, PAPILIO_PLAN_CHANGES, 0, &line));
    CHECK(strlen(line) > 10);
    FAILS(papilio_undelete_plan_line(plan, PAPILIO_PLAN_REFUSED, 0, &line), ERANGE, "index 0");
    FAILS(papilio_undelete_plan_line(plan, PAPILIO_PLAN_LOSSES, 0, &line), ERANGE, "index 0");
    FAILS(papilio_undelete_plan_line(plan, 9, 0, &line), EINVAL, "unknown kind 9");
    OK(papilio_undelete_plan_free(plan));
    /* Nothing was written: it is still deleted. */
    OK(papilio_open(image, NULL, &fs));
    FAILS(papilio_subvolume_id(fs, "/day1"), ENOENT, "day1");
    OK(papilio_close(fs));
    FAILS(papilio_find_deleted_subvolumes("/nowhere", NULL, &list), ENOENT, "nowhere");
}

static void reliefs(void)
{
    struct papilio_relief_summary summary;
    struct papilio_relief_group group;
    struct papilio_relief *relief;
    struct papilio_fs *fs;
    uint64_t devid = 0;

    /* The device is larger than the file system. */
    CHECK(truncate(image, 256 * MIB + 64 * MIB) == 0);
    OK(papilio_open(image, NULL, &fs));
    OK(papilio_plan_relief(fs, &relief));
    OK(papilio_close(fs));
    OK(papilio_relief_get(relief, &summary, sizeof summary));
    CHECK(summary.metadata_total > summary.metadata_used && summary.metadata_used > 0);
    CHECK(summary.room == summary.metadata_total - summary.metadata_used + summary.unallocated_metadata);
    CHECK(summary.needed >= 16 * MIB && summary.slack_devices == 1);
    CHECK(!(summary.flags & PAPILIO_RELIEF_SHORT) == (summary.room >= summary.needed));
    CHECK(summary.flags & PAPILIO_RELIEF_MEASURES);
    CHECK(OK(papilio_relief_slack(relief, 0, &devid)) == 64 * MIB && devid == 1);
    FAILS(papilio_relief_slack(relief, 1, &devid), ERANGE, "index 1");
    for (size_t i = 0; i < summary.movable_groups; i++) {
        OK(papilio_relief_group_get(relief, PAPILIO_RELIEF_MOVABLE, i, &group, sizeof group));
        CHECK(group.length > 0 && group.used > 0 && group.raw >= group.length);
    }
    for (size_t i = 0; i < summary.empty_groups; i++) {
        OK(papilio_relief_group_get(relief, PAPILIO_RELIEF_EMPTY, i, &group, sizeof group));
        CHECK(group.used == 0);
    }
    FAILS(papilio_relief_group_get(relief, PAPILIO_RELIEF_EMPTY, summary.empty_groups, &group, sizeof group),
          ERANGE, "not below");
    FAILS(papilio_relief_group_get(relief, 7, 0, &group, sizeof group), EINVAL, "unknown kind 7");
    OK(papilio_relief_free(relief));
}

int main(int argc, char **argv)
{
    struct papilio_fs *fs;
    uint64_t home, day1, day2;

    CHECK(argc == 2);
    CHECK(snprintf(image, sizeof image, "%s/history.img", argv[1]) < (int)sizeof image);
    make_image(image, 256);
    make_history();
    OK(papilio_open(image, NULL, &fs));
    home = OK(papilio_subvolume_id(fs, "/home"));
    day1 = OK(papilio_subvolume_id(fs, "/day1"));
    day2 = OK(papilio_subvolume_id(fs, "/day2"));
    OK(papilio_close(fs));
    costs();
    versions(home);
    histories(home, day2);
    undeletes(day1);
    reliefs();
    puts("space_and_history: done");
    return 0;
}

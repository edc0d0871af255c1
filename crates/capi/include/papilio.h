/* libpapilio: Btrfs in user space. See papilio(3).
 *
 * Generated from crates/capi/src by cbindgen: PAPILIO_BLESS=1 cargo test -p papilio-capi --test header
 */

#ifndef PAPILIO_H
#define PAPILIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// Flag of papilio_archive(): bytes that no copy gives are left out, and not an error.
#define PAPILIO_ARCHIVE_SKIP_UNREADABLE 1

// Flag of papilio_archive_restore(): files that have content, and devices, are overwritten.
#define PAPILIO_RESTORE_FORCE 1

// Value of papilio_time.nanoseconds for papilio_utimens(): the time of the change.
#define PAPILIO_TIME_NOW 1073741823

// Value of papilio_time.nanoseconds for papilio_utimens(): the time stays as it is.
#define PAPILIO_TIME_OMIT 1073741822

// Value of `uid` and `gid` for papilio_chown(): the field stays as it is.
#define PAPILIO_KEEP 4294967295

// Flag of papilio_backup_create(): a full backup in any case.
#define PAPILIO_BACKUP_FULL 2

// Flag of papilio_backup_restore() and papilio_backup_restore_directory(): keeps the snapshots on
// which the last one is based, under their names.
#define PAPILIO_BACKUP_KEEP_CHAIN 1

// Flag of papilio_backup_extract(): files keep the owners that they are made with.
#define PAPILIO_BACKUP_NO_OWNERS 1

// Bytes of the id of a backup: 64 hexadecimal digits and a NUL.
#define PAPILIO_BACKUP_ID_SIZE 65

// Flag of a check: reads and verifies all data as well.
#define PAPILIO_CHECK_DATA 1

// Value of papilio_finding.severity and of papilio_report_verdict(): a remark.
#define PAPILIO_SEVERITY_NOTE 1

// Value of papilio_finding.severity and of papilio_report_verdict(): no data is at risk.
#define PAPILIO_SEVERITY_WARNING 2

// Value of papilio_finding.severity and of papilio_report_verdict(): data is at risk, or the
// kernel refuses the file system.
#define PAPILIO_SEVERITY_ERROR 3

// Stage of a check: the trees are walked; the counts are tree blocks.
#define PAPILIO_CHECK_STAGE_TREES 0

// Stage of a check: references are compared; there are no counts.
#define PAPILIO_CHECK_STAGE_SPACE 1

// Stage of a check: data is read; the counts are bytes.
#define PAPILIO_CHECK_STAGE_DATA 2

// Flag of papilio_dedupe(): equal blocks are only counted, by their hashes.
#define PAPILIO_DEDUPE_DRY_RUN 1

// Flag of papilio_dedupe(): candidates come from the checksums that are stored.
#define PAPILIO_DEDUPE_CHECKSUMS 2

// The bytes of papilio_dirent.name: the longest name, 255 bytes, and a NUL.
#define PAPILIO_NAME_SIZE 256

// Flag of papilio_opendir(): reads inodes along with entries, for papilio_readdir() with a
// papilio_stat.
#define PAPILIO_WITH_STAT 2

// Flag of papilio_copy_out(): files get their mode less the umask, and the current owner and time.
// Each hard link becomes a file.
#define PAPILIO_COPY_NO_ATTRIBUTES 1

// Flag of papilio_copy_out() and papilio_write_tar(): directories of other subvolumes stay empty.
#define PAPILIO_COPY_ONE_SUBVOLUME 2

// Flag of papilio_copy_out(): existing files of the host stay as they are.
#define PAPILIO_COPY_KEEP_EXISTING 4

// Flag of papilio_file_open(): creates the file if there is none.
#define PAPILIO_CREATE 2

// Flag of papilio_file_open(), with PAPILIO_CREATE: fails if the file exists.
#define PAPILIO_EXCLUSIVE 4

// Flag of papilio_file_open(): sets the size to 0.
#define PAPILIO_TRUNCATE 8

// Flag of papilio_file_open(): reads and writes of this handle bypass the page cache.
#define PAPILIO_DIRECT 16

// Flag of papilio_file_open(): creates a file without a name in the directory `path`. It is
// deleted when it is closed.
#define PAPILIO_UNNAMED 32

// Flag of papilio_fallocate(): the size of the file does not change.
#define PAPILIO_KEEP_SIZE 1

// Flag of papilio_fallocate(), with PAPILIO_KEEP_SIZE: makes a hole.
#define PAPILIO_PUNCH_HOLE 2

// Flag of papilio_fallocate(): the range reads as zeros afterwards.
#define PAPILIO_ZERO_RANGE 16

// Value of papilio_extent.kind: in the leaf with the inode.
#define PAPILIO_EXTENT_INLINE 0

// Value of papilio_extent.kind: in an extent on disk.
#define PAPILIO_EXTENT_REGULAR 1

// Value of papilio_extent.kind: allocated, but not written.
#define PAPILIO_EXTENT_PREALLOCATED 2

// Flag of papilio_mkfs_content(): the file system, and the image if it is a regular file, shrink
// to the content.
#define PAPILIO_MKFS_SHRINK 1

// Flag of papilio_rename(): fails if the new name exists.
#define PAPILIO_RENAME_NOREPLACE 1

// Flag of papilio_rename(): exchanges the two names, which both exist.
#define PAPILIO_RENAME_EXCHANGE 2

// Bit of papilio_older_state.flags: the options ask for exactly this state.
#define PAPILIO_OLDER_ASKED 1

// Bit of papilio_older_state.flags: a log of fsyncs belongs to the state.
#define PAPILIO_OLDER_LOG 2

// Value of papilio_change.name: the old snapshot lacks the path.
#define PAPILIO_CHANGE_ADDED 1

// Value of papilio_change.name: the new snapshot lacks the path.
#define PAPILIO_CHANGE_DELETED 2

// Value of papilio_change.name: it had another path. Files below a renamed directory are not
// listed.
#define PAPILIO_CHANGE_RENAMED 3

// Value of papilio_change.name: both snapshots have the path, for the same inode.
#define PAPILIO_CHANGE_KEPT 4

// Bit of papilio_change.flags: data was written, or the size changed.
#define PAPILIO_CHANGE_CONTENT 1

// Bit of papilio_change.flags: mode, owner, flags, times or attributes changed.
#define PAPILIO_CHANGE_METADATA 2

// The most requests that a queue may have in flight.
#define PAPILIO_QUEUE_DEPTH_MAX 65536

// Flag of papilio_backup_create(), papilio_repository_prune() and those that change keys: takes
// the lock away from another process, which must not run any more.
#define PAPILIO_BACKUP_BREAK_LOCK 1

// Flag of papilio_repository_prune(): joins kept backups with the bases that no rule keeps.
#define PAPILIO_PRUNE_MERGE 2

// Flag of papilio_repository_prune(): only counts what would be removed, and changes nothing.
#define PAPILIO_PRUNE_DRY_RUN 4

// Bit of papilio_deleted_subvolume.flags: its content is still being freed.
#define PAPILIO_DELETED_BEING_FREED 1

// Bit of papilio_undelete_summary.flags: the file system is sound after the change, or better than
// before.
#define PAPILIO_UNDELETE_BETTER 1

// Kind of lines of a plan: the changes.
#define PAPILIO_PLAN_CHANGES 0

// Kind of lines of a plan: changes that cannot be made, with the reason.
#define PAPILIO_PLAN_REFUSED 1

// Kind of lines of a plan: everything that is lost.
#define PAPILIO_PLAN_LOSSES 2

// Kind of block groups of a relief: those without content.
#define PAPILIO_RELIEF_EMPTY 0

// Kind of block groups of a relief: those of data whose content fits into the others, the emptiest
// first.
#define PAPILIO_RELIEF_MOVABLE 1

// Bit of papilio_relief_summary.flags: metadata has too little room for the kernel to work.
#define PAPILIO_RELIEF_SHORT 1

// Bit of papilio_relief_summary.flags: there is something to do besides deleting.
#define PAPILIO_RELIEF_MEASURES 2

// Bit of papilio_sharing_statistics.flags: bytes of data are estimates.
#define PAPILIO_SHARING_SAMPLED 1

// Flag of calls with a path: a symbolic link in the last component is not followed.
#define PAPILIO_NOFOLLOW 1

// Bit of papilio_stat.attributes: the root directory of a subvolume.
#define PAPILIO_STAT_SUBVOLUME 1

// Bit of papilio_stat.attributes: an empty directory that stands for a nested subvolume in a
// snapshot.
#define PAPILIO_STAT_STUB 2

// Flag of papilio_receive() and papilio_receive_directory(): ends after the first stream, and
// reads nothing behind it.
#define PAPILIO_RECEIVE_ONE 1

// Flag of papilio_snapshot(): the snapshot is read-only, which sending needs.
#define PAPILIO_SNAPSHOT_READ_ONLY 1

// Bit of papilio_subvolume.flags: the subvolume is read-only.
#define PAPILIO_SUBVOLUME_READ_ONLY 1

// Bit of papilio_subvolume.flags: it was created as a snapshot.
#define PAPILIO_SUBVOLUME_SNAPSHOT 2

// Bit of papilio_subvolume.flags: it was deleted, and its space is being freed.
#define PAPILIO_SUBVOLUME_DELETED 4

// Flag of papilio_setxattr(): fails if the attribute exists.
#define PAPILIO_XATTR_CREATE 16

// Flag of papilio_setxattr(): fails if the attribute does not exist.
#define PAPILIO_XATTR_REPLACE 32

// A list of backups, the oldest first. Made by papilio_backups(), freed by papilio_backups_free().
struct papilio_backup_list;

// A list of deleted subvolumes. Made by papilio_find_deleted_subvolumes(), freed by
// papilio_deleted_free().
struct papilio_deleted_list;

// A directory that is being read. Opened by papilio_opendir(), closed by papilio_closedir().
struct papilio_dir;

// An open regular file. Opened by papilio_file_open(), closed by papilio_file_close().
struct papilio_file;

// An open file system. Opened by papilio_open(), closed by papilio_close().
struct papilio_fs;

// The history of a directory. Made by papilio_history(), freed by papilio_history_free().
struct papilio_history_list;

// Options of a new file system. Made by papilio_mkfs_options_new().
struct papilio_mkfs_options;

// A list of older states. Made by papilio_older(), freed by papilio_older_free().
struct papilio_older_list;

// A list of files that only snapshots have. Made by papilio_only_in_snapshots(), freed by
// papilio_only_free().
struct papilio_only_list;

// Options for opening a file system. Made by papilio_options_new().
struct papilio_options;

// A queue of requests. Made by papilio_queue_new(), closed by papilio_queue_close().
struct papilio_queue;

// The measures that would help a full file system. Made by papilio_plan_relief(), freed by
// papilio_relief_free().
struct papilio_relief;

// The report of a check. Made by papilio_check(), freed by papilio_report_free().
struct papilio_report;

// A repository of backups. Made by papilio_repository_init() or papilio_repository_open(), closed
// by papilio_repository_close().
struct papilio_repository;

// Options of a send. Made by papilio_send_options_new().
struct papilio_send_options;

// Which subvolumes share which bytes. Made by papilio_space_sharing(), freed by
// papilio_sharing_free().
struct papilio_sharing;

// A list of subvolumes. Made by papilio_subvolumes(), freed by papilio_subvolumes_free().
struct papilio_subvolume_list;

// A plan to bring a subvolume back. Made by papilio_plan_undelete(), freed by
// papilio_undelete_plan_free().
struct papilio_undelete_plan;

// How the space of a file system is used. Made by papilio_usage(), freed by papilio_usage_free().
struct papilio_usage;

// A list of versions of a file. Made by papilio_versions(), freed by papilio_versions_free().
struct papilio_version_list;

// A walk through a tree of directories. Begun by papilio_walk_open(), ended by
// papilio_walk_close().
struct papilio_walk;

// A function that a long call reports to. `user` is the pointer that the program gave. A result
// other than 0 ends the call with -ECANCELED. The function must return: no longjmp, no exception.
typedef int (*papilio_progress_fn)(void *user, uint64_t done, uint64_t total, uint64_t bytes);

// A point in time.
struct papilio_time {
    // Whole seconds since 1970, negative before.
    int64_t seconds;
    // Further nanoseconds, normally below 1,000,000,000.
    uint32_t nanoseconds;
    // Zero.
    uint32_t reserved;
};

// A function that hears of a failure after which the call goes on: of a command of a stream, or of
// a file that is not copied. `message` is valid during the call. The function must return: no
// longjmp, no exception.
typedef void (*papilio_message_fn)(void *user, const char *message);

// A backup. The texts are NUL-terminated and belong to the list.
struct papilio_backup {
    // The time that pruning goes by, in seconds since 1970.
    int64_t time;
    // The bytes of the stream.
    uint64_t stream_bytes;
    // The bytes of its objects as they are stored. Other backups may use them, too.
    uint64_t stored_bytes;
    // The number of its objects.
    uint64_t objects;
    // The sender's transaction that last changed the snapshot.
    uint64_t ctransid;
    // The UUID of the snapshot in the stream.
    uint8_t uuid[16];
    // The id.
    const char *id;
    // The id of the backup that it is based on; NULL for a full backup, "" if it is not there.
    const char *base;
    // The name of the snapshot.
    const char *name;
    // The bytes of the name, without the NUL.
    size_t name_length;
    // The host that made the backup.
    const char *host;
    // The operand of that.
    const char *source;
    // The UUID, as text, of the subvolume from which the snapshots of the series stem.
    const char *series;
};

// A function that a check reports to, from the thread that checks. `user` is the pointer that the
// program gave, `stage` is one of PAPILIO_CHECK_STAGE_*, `done` of `total` is how much of it is
// done; `total` is 0 if it is not known. The function must return: no longjmp, no exception.
typedef void (*papilio_check_fn)(void *user, uint32_t stage, uint64_t done, uint64_t total);

// A fault that a check found. The texts belong to the report.
struct papilio_finding {
    // A short name of the rule that is broken, which stays the same between versions.
    const char *kind;
    // A description in one line, without the place.
    const char *message;
    // The place in words.
    const char *place;
    // The id of the tree; 0 if there is none.
    uint64_t tree;
    // The inode number; 0 if there is none.
    uint64_t inode;
    // The logical address of a tree block or extent; UINT64_MAX if there is none.
    uint64_t address;
    // PAPILIO_SEVERITY_*.
    uint32_t severity;
    // Zero.
    uint32_t reserved;
};

// The numbers of a report.
struct papilio_check_statistics {
    // Errors, including those that the report did not keep.
    uint64_t errors;
    // Warnings, including those that the report did not keep.
    uint64_t warnings;
    // Findings that were counted but not kept.
    uint64_t dropped;
    // Trees walked.
    uint64_t trees;
    // Distinct tree blocks.
    uint64_t blocks;
    // Bytes of those blocks, one copy of each.
    uint64_t metadata_bytes;
    // Data extents.
    uint64_t data_extents;
    // Bytes of those extents, one copy of each.
    uint64_t data_bytes;
    // Subvolumes and snapshots.
    uint64_t subvolumes;
    // Inodes in them, each counted in every snapshot that has it.
    uint64_t inodes;
    // Regular files among them.
    uint64_t files;
    // Bytes of data that have checksums.
    uint64_t csum_bytes;
    // Bytes of data that were read and compared with their checksums, each copy counted.
    uint64_t data_bytes_read;
};

// An entry of a directory.
struct papilio_dirent {
    // The number of the inode; of a subvolume, that of its root directory, 256.
    uint64_t inode;
    // The id of the subvolume that the entry leads to; 0 if it is the directory's own.
    uint64_t subvolume;
    // The index of the entry. Later entries have larger ones; papilio_seekdir() takes it.
    uint64_t index;
    // The type, as d_type: DT_REG, DT_DIR, DT_LNK and so on of <dirent.h>.
    uint32_t file_type;
    // The bytes of the name.
    uint32_t name_length;
    // The name, with a NUL after it.
    char name[PAPILIO_NAME_SIZE];
};

// The metadata of a file, as of the call.
struct papilio_stat {
    // The inode number, unique in its subvolume only.
    uint64_t inode;
    // The id of the subvolume that contains the inode.
    uint64_t subvolume;
    // The size in bytes; of a directory, twice the total length of its names.
    uint64_t size;
    // The bytes without holes, before compression.
    uint64_t allocated_bytes;
    // The transaction that created the inode.
    uint64_t generation;
    // The transaction that last changed the inode.
    uint64_t last_changed;
    // The inode's flags, BTRFS_INODE_* of <linux/btrfs_tree.h>.
    uint64_t inode_flags;
    // Type and permissions, as st_mode.
    uint32_t mode;
    // The number of names; 1 for a directory.
    uint32_t nlink;
    // The owner's user id.
    uint32_t uid;
    // The group id.
    uint32_t gid;
    // The major number of a device file.
    uint32_t rdev_major;
    // The minor number of a device file.
    uint32_t rdev_minor;
    // Bits PAPILIO_STAT_*.
    uint32_t attributes;
    // Zero.
    uint32_t reserved;
    // The time of the last read.
    struct papilio_time atime;
    // The time of the last change of the content.
    struct papilio_time mtime;
    // The time of the last change of the inode.
    struct papilio_time ctime;
    // The time of creation.
    struct papilio_time btime;
};

// An extent of a file.
struct papilio_extent {
    // The file offset of the first byte.
    uint64_t start;
    // The length in bytes of the file.
    uint64_t length;
    // The logical address of the whole extent, of which the file may use a part; 0 if inline.
    uint64_t address;
    // The bytes that the whole extent takes on disk.
    uint64_t stored;
    // The uncompressed bytes of the whole extent.
    uint64_t uncompressed;
    // Where the file's part begins in the extent, in uncompressed bytes.
    uint64_t offset;
    // The transaction that wrote the extent.
    uint64_t generation;
    // PAPILIO_EXTENT_*.
    uint32_t kind;
    // The compression: 0 none, 1 zlib, 2 lzo, 3 zstd.
    uint32_t compression;
};

// The result of papilio_update_content().
struct papilio_content_update {
    // Names that were made, where none was.
    uint64_t created;
    // Entries whose data, attributes or kind were changed.
    uint64_t changed;
    // Names that were removed. A directory counts as one.
    uint64_t removed;
    // Entries that were as they should be.
    uint64_t unchanged;
    // Bytes of file data written, without holes.
    uint64_t bytes_written;
    // Bytes of file data that were equal.
    uint64_t bytes_equal;
};

// A state that is older than the newest one on the devices. The texts belong to the list.
struct papilio_older_state {
    // A short name of the cause, such as "log-unusable", which stays the same between versions.
    const char *cause;
    // A description in one line.
    const char *message;
    // The generation that is shown.
    uint64_t generation;
    // The number of files that are known to be older.
    uint64_t files;
    // Bits PAPILIO_OLDER_*.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
};

// A file or directory for which the log of fsyncs has something newer. The texts belong to the
// list.
struct papilio_older_file {
    // The path from the top level, without a leading slash, as far as it is known.
    const char *path;
    // The bytes of the path, without the NUL.
    size_t path_length;
    // The difference: "changed", "missing", "removed", or "unknown" for a part of the log that
    // cannot be read.
    const char *part;
    // The difference in words.
    const char *reason;
    // The id of the subvolume; 0 if the fault concerns all logs.
    uint64_t subvolume;
    // The inode number; 0 for a fault of the log.
    uint64_t inode;
};

// A version of a file.
struct papilio_version {
    // The size in bytes.
    uint64_t size;
    // The number of files that are this version, see papilio_version_holder_get().
    uint64_t holders;
    // The time of the last change of the content.
    struct papilio_time mtime;
    // Type and permissions, as st_mode.
    uint32_t mode;
    // The owner's user id.
    uint32_t uid;
    // The group id.
    uint32_t gid;
    // Zero.
    uint32_t reserved;
};

// A file that only snapshots have, or that is a version. The texts belong to the list.
struct papilio_version_holder {
    // The id of the subvolume or snapshot that has the file.
    uint64_t subvolume;
    // Its inode there.
    uint64_t inode;
    // The path of the subvolume from the top level, without a leading slash; NULL if it has none.
    const char *subvolume_path;
    // The bytes of that path, without the NUL.
    size_t subvolume_path_length;
    // The path of the file in it, without a leading slash.
    const char *path;
    // The bytes of that path, without the NUL.
    size_t path_length;
};

// Two neighbours in the past of a subvolume.
struct papilio_history_step {
    // The id of the older one.
    uint64_t old_subvolume;
    // The id of the newer one.
    uint64_t new_subvolume;
    // The number of changes, see papilio_change_get().
    uint64_t changes;
};

// A path that changed in a step. The texts belong to the history.
struct papilio_change {
    // The size of the file in bytes: in the new snapshot, or in the old one if it was deleted.
    uint64_t size;
    // The path in the new snapshot, or in the old one if it was deleted, without a leading slash.
    const char *path;
    // The bytes of that path, without the NUL.
    size_t path_length;
    // The path that a renamed file had; NULL for others.
    const char *old_path;
    // The bytes of that path, without the NUL.
    size_t old_path_length;
    // PAPILIO_CHANGE_ADDED, _DELETED, _RENAMED or _KEPT.
    uint32_t name;
    // Bits PAPILIO_CHANGE_CONTENT and _METADATA, which only files have that both snapshots have.
    uint32_t flags;
    // The type of the file, as the type bits of st_mode.
    uint32_t type_;
    // Zero.
    uint32_t reserved;
};

// A completed request.
struct papilio_completion {
    // The token of the request.
    uint64_t token;
    // Bytes read, written, punched or allocated; 0 for syncs; or a negative errno. Only a read at
    // the end of the file gives fewer bytes than requested.
    int64_t result;
};

// The numbers of backups that papilio_repository_prune() keeps: the last one of each of the last
// periods that have one, in UTC. Each series of snapshots counts alone.
struct papilio_retention {
    // The last ones.
    uint32_t last;
    // Days.
    uint32_t daily;
    // Weeks, which begin on Monday.
    uint32_t weekly;
    // Months.
    uint32_t monthly;
    // Years.
    uint32_t yearly;
};

// The result of papilio_repository_prune().
struct papilio_pruned {
    // Backups that stay.
    uint64_t kept;
    // Backups that are gone.
    uint64_t removed;
    // Backups that were joined with their bases.
    uint64_t merged;
    // Objects that are gone.
    uint64_t objects;
    // Bytes of these.
    uint64_t bytes;
};

// A subvolume that was deleted. The path belongs to the list.
struct papilio_deleted_subvolume {
    // The id that it had.
    uint64_t id;
    // The address of an older root tree that has it, for papilio_plan_undelete().
    uint64_t root_tree;
    // The transaction that wrote that root tree.
    uint64_t generation;
    // Blocks of its tree that can be read.
    uint64_t blocks;
    // Blocks that were overwritten, besides all those below them. Data may be overwritten, too.
    uint64_t missing;
    // The time of its last change.
    struct papilio_time change_time;
    // Its path from the top level, without a leading slash; NULL if it has none.
    const char *path;
    // The bytes of the path, without the NUL.
    size_t path_length;
    // Bits PAPILIO_DELETED_*.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
};

// The numbers of lines of a plan.
struct papilio_undelete_summary {
    // The number of changes.
    uint64_t changes;
    // The number of changes that cannot be made.
    uint64_t refused;
    // The number of losses.
    uint64_t losses;
    // Bits PAPILIO_UNDELETE_*.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
};

// How much room metadata has, and what would help.
struct papilio_relief_summary {
    // Bytes of metadata space, without copies.
    uint64_t metadata_total;
    // Bytes of it in use.
    uint64_t metadata_used;
    // Bytes of metadata that chunks in unallocated space could provide.
    uint64_t unallocated_metadata;
    // Bytes of room that metadata has: free, and in unallocated space.
    uint64_t room;
    // The bytes of room that the kernel needs to work.
    uint64_t needed;
    // Deleted subvolumes whose content is still there.
    uint64_t deleted_subvolumes;
    // The number of block groups of the kind PAPILIO_RELIEF_EMPTY.
    uint64_t empty_groups;
    // The number of block groups of the kind PAPILIO_RELIEF_MOVABLE.
    uint64_t movable_groups;
    // The number of devices that are larger than the file system on them.
    uint64_t slack_devices;
    // Bits PAPILIO_RELIEF_SHORT and _MEASURES.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
};

// A block group.
struct papilio_relief_group {
    // Its logical address.
    uint64_t start;
    // Its length in bytes.
    uint64_t length;
    // The bytes in use.
    uint64_t used;
    // The bytes that it takes on devices.
    uint64_t raw;
};

// Bytes as they lie on disk, compressed.
struct papilio_estimate {
    // Bytes of data, without copies.
    uint64_t data;
    // Bytes of tree blocks, without copies.
    uint64_t metadata;
    // Bytes of data on devices, with all copies and parity.
    uint64_t raw_data;
    // Bytes of tree blocks on devices, with all copies.
    uint64_t raw_metadata;
    // The true bytes of data differ by no more than so many in 95 of 100 samples; 0 if they were
    // counted.
    uint64_t data_error;
};

// The space of a subvolume.
struct papilio_subvolume_space {
    // The subvolume's id.
    uint64_t id;
    // Bytes that it holds, alone or with others.
    struct papilio_estimate referenced;
    // Bytes that only it holds: deleting it, and nothing else, frees them.
    struct papilio_estimate exclusive;
    // Its path from the top level, without a leading slash; NULL if it has none. It belongs to the
    // answers.
    const char *path;
    // The bytes of the path, without the NUL.
    size_t path_length;
};

// The numbers of blocks that were read, and of those that could not be.
struct papilio_sharing_statistics {
    // Subvolumes that were measured.
    uint64_t subvolumes;
    // Subvolumes that are deleted and not yet cleaned. They are no holders.
    uint64_t in_deletion;
    // Tree blocks of subvolumes.
    uint64_t blocks;
    // Leaves that were read.
    uint64_t leaves_read;
    // Tree blocks that could not be read: nothing below them is counted.
    uint64_t bad_blocks;
    // The number of texts of papilio_sharing_error().
    uint64_t errors;
    // Bits PAPILIO_SHARING_*.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
};

// The sizes that statfs shows, in bytes, and the sums of the devices.
struct papilio_statfs {
    // Data that would fit on the empty devices.
    uint64_t total;
    // The unused part of `total`.
    uint64_t free;
    // Space for files.
    uint64_t available;
    // Bytes of new data that can certainly be written now; 0 if the file system is open for
    // reading only.
    uint64_t writable;
    // The bytes of all devices.
    uint64_t device_size;
    // Bytes of devices that chunks take.
    uint64_t allocated;
    // Used bytes of devices, all copies included.
    uint64_t used;
    // Bytes of missing devices.
    uint64_t missing;
};

// The space of all chunks of one type and one profile.
struct papilio_space {
    // The type: "Data", "Metadata", "System" or "Data+Metadata". It belongs to the usage object.
    const char *kind;
    // The profile, such as "RAID1". It belongs to the usage object.
    const char *profile;
    // Capacity in bytes.
    uint64_t total;
    // Used bytes.
    uint64_t used;
    // Bytes of devices that the chunks take.
    uint64_t raw_total;
    // Bytes of devices that the used bytes take.
    uint64_t raw_used;
};

// A device of a file system.
struct papilio_device {
    // Its path; NULL if it is missing. It belongs to the usage object.
    const char *path;
    // Its id.
    uint64_t devid;
    // Its UUID.
    uint8_t uuid[16];
    // Bytes of it that belong to the file system.
    uint64_t total;
    // Its actual size in bytes; 0 if it is missing.
    uint64_t size;
    // Bytes that chunks take.
    uint64_t allocated;
};

// The memory that a file system uses now, in bytes, and the counters of its cache of tree blocks.
struct papilio_memory {
    // Pages of the page cache and their descriptions.
    uint64_t pages;
    // The dirty pages among `pages`.
    uint64_t dirty_pages;
    // Clean tree blocks.
    uint64_t tree_blocks;
    // Tree blocks that no commit has written yet.
    uint64_t dirty_tree_blocks;
    // Changes of references that are not in the extent tree yet.
    uint64_t delayed_refs;
    // Cached checksums of data.
    uint64_t checksums;
    // Data written whose extents are not in the trees yet.
    uint64_t ordered_extents;
    // Look-ups of tree blocks that memory answered.
    uint64_t cache_hits;
    // Look-ups of tree blocks that had to read.
    uint64_t cache_misses;
    // Tree blocks read from devices; each copy counts.
    uint64_t blocks_read;
    // Number of times that a copy was bad while another was good.
    uint64_t bad_copies;
};

// A subvolume.
struct papilio_subvolume {
    // Its id; 5 is the top level.
    uint64_t id;
    // The id of the subvolume that contains it; 0 for the top level and for a deleted one.
    uint64_t parent;
    // The inode number of the directory that contains it; 0 where `parent` is.
    uint64_t directory;
    // The transaction that last changed its tree.
    uint64_t generation;
    // The transaction that created it.
    uint64_t created;
    // The transaction that last changed an inode in it.
    uint64_t changed;
    // The sender's transaction, of a received subvolume.
    uint64_t sent;
    // The transaction that received it.
    uint64_t received;
    // The time of its creation.
    struct papilio_time creation_time;
    // The time of its last change.
    struct papilio_time change_time;
    // The time when it was sent.
    struct papilio_time send_time;
    // The time when it was received.
    struct papilio_time receive_time;
    // Its UUID.
    uint8_t uuid[16];
    // The UUID of the subvolume that it is a snapshot of; zero for others.
    uint8_t parent_uuid[16];
    // The UUID that it had on the sender's file system; zero for others.
    uint8_t received_uuid[16];
    // Bits PAPILIO_SUBVOLUME_*.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
    // Its path from the top level, without a leading slash; NULL if it has none. It belongs to the
    // list.
    const char *path;
    // The bytes of the path, without the NUL.
    size_t path_length;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Writes an archive of the last commit of `fs` to the descriptor `fd`: the used bytes of all
// devices, from which papilio_archive_restore() makes the same file system again. `since` is NULL,
// or the path of an archive of the same file system, which the new one is based on and needs;
// those that it is based on itself are found in its directory. `level` is that of zstd, 1 to 19,
// or 0 for no compression. `threads` is the number of threads, 0 for one of each core. `flags` is
// 0 or PAPILIO_ARCHIVE_SKIP_UNREADABLE. `progress` is NULL or a function that is called with
// `user`, the bytes done, all bytes, and the bytes done.
//
// Returns 0 if the archive is complete, or a negative errno: -EIO for damage, also if the archive
// was written and lacks bytes or has some without a good copy; -ENOENT if an archive that `since`
// is based on is not found, -EBADF if `fd` is not open, -ECANCELED if `progress` returns other
// than 0, and the errors of writing to `fd`.
int papilio_archive(struct papilio_fs *fs,
                    int fd,
                    const char *since,
                    int level,
                    uint32_t threads,
                    uint32_t flags,
                    papilio_progress_fn progress,
                    void *user);

// Reads the archive at the path `archive`, and those that it is based on, and checks every
// checksum, their order, contents and end marks. `parents` are `parent_count` paths of such
// archives; those in the directory of `archive` are found without. All paths are NUL-terminated.
//
// Returns 0, or a negative errno: -EIO for a fault, also if the source could not give all bytes;
// -ENOENT if an archive is missing.
int papilio_archive_verify(const char *archive, const char *const *parents, size_t parent_count);

// Restores the archive at the path `archive` to `count` images or block devices, in the order of
// the ids of the archived devices. `parents` is as in papilio_archive_verify(). A missing or empty
// image gets the size of the archived device, or that of `sizes`, which is NULL or has `count`
// sizes in bytes. If a device is smaller than the archived one, the file system is shrunk to it,
// with temporary files. `flags` is 0 or PAPILIO_RESTORE_FORCE. All paths are NUL-terminated.
//
// Returns 0, or a negative errno: -EIO for damage, also if the archive lacks bytes; -EEXIST for a
// target that has content, without PAPILIO_RESTORE_FORCE; -EINVAL for a wrong number of targets;
// -ENOSPC if a target is too small. After an error no target has a superblock, and an image that
// was missing is missing again, unless only bytes of the source are lacking.
int papilio_archive_restore(const char *archive,
                            const char *const *parents,
                            size_t parent_count,
                            const char *const *images,
                            const uint64_t *sizes,
                            size_t count,
                            uint32_t flags);

// Sets the permissions of the file at `path`, NUL-terminated: the twelve low bits of `mode`.
// Follows symbolic links.
//
// Returns 0 or a negative errno.
int papilio_chmod(struct papilio_fs *fs, const char *path, uint32_t mode);

// Sets owner and group of the file at `path`, NUL-terminated. PAPILIO_KEEP leaves one unchanged.
// `flags` is 0 or PAPILIO_NOFOLLOW.
//
// Returns 0 or a negative errno.
int papilio_chown(struct papilio_fs *fs,
                  const char *path,
                  uint32_t uid,
                  uint32_t gid,
                  uint32_t flags);

// Sets the times of the last read and the last change of the file at `path`, NUL-terminated. Their
// nanoseconds may be PAPILIO_TIME_NOW or PAPILIO_TIME_OMIT. NULL is the same as PAPILIO_TIME_NOW.
// `flags` is 0 or PAPILIO_NOFOLLOW.
//
// Returns 0 or a negative errno.
int papilio_utimens(struct papilio_fs *fs,
                    const char *path,
                    const struct papilio_time *atime,
                    const struct papilio_time *mtime,
                    uint32_t flags);

// Sets the flags of the inode at `path`, NUL-terminated, that chattr controls: BTRFS_INODE_* of
// <linux/btrfs_tree.h>, such as NODATACOW. papilio_stat() returns them all. `flags` is 0 or
// PAPILIO_NOFOLLOW.
//
// Returns 0 or a negative errno: -EOPNOTSUPP for flags that cannot be set.
int papilio_set_inode_flags(struct papilio_fs *fs,
                            const char *path,
                            uint64_t inode_flags,
                            uint32_t flags);

// Backs up the read-only subvolume of `fs` with the id `subvolume`. The backup is incremental if
// the repository has one of a snapshot of the same subvolume, and `fs` still has that snapshot.
// `level` is that of zstd, 1 to 19. `time` is NULL for now, or points to the time that pruning
// goes by, in seconds since 1970. `flags` has any of PAPILIO_BACKUP_FULL and
// PAPILIO_BACKUP_BREAK_LOCK. `progress` is NULL or a function that is called with `user`, the
// inodes that are sent, their total, and the bytes of the stream. `id` is NULL or points to
// PAPILIO_BACKUP_ID_SIZE bytes, which get the id of the backup.
//
// Returns 0, or 1 if the repository had the backup before, or a negative errno: -EINVAL for a
// subvolume that is not read-only, -EBUSY if another process has the lock, -ECANCELED if
// `progress` returns other than 0. After an error the repository lists what it listed before.
int papilio_backup_create(struct papilio_repository *repository,
                          struct papilio_fs *fs,
                          uint64_t subvolume,
                          int level,
                          const int64_t *time,
                          uint32_t flags,
                          papilio_progress_fn progress,
                          void *user,
                          char *id);

// Lists the backups of a repository, the oldest first. `failed` is NULL or hears, with `user`, of
// each manifest that cannot be read, whose backup is not listed. The list goes to `*list`. Free it
// with papilio_backups_free().
//
// Returns the number of backups or a negative errno.
int64_t papilio_backups(struct papilio_repository *repository,
                        papilio_message_fn failed,
                        void *user,
                        struct papilio_backup_list **list);

// Describes the backup at `index` of a list, counted from 0. `backup` points to a papilio_backup,
// and `size` is its sizeof. Its texts are valid until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_backup_get(struct papilio_backup_list *list,
                       size_t index,
                       struct papilio_backup *backup,
                       size_t size);

// Frees a list of backups, and the texts in it.
//
// Returns 0 or a negative errno.
int papilio_backups_free(struct papilio_backup_list *list);

// Restores a backup into the directory of `fs` at `path`, NUL-terminated, as a read-only snapshot.
// `backup` is its id or the first four digits or more, the name of its snapshot, or "latest",
// NUL-terminated. `name` is NULL for the snapshot's name, or another one. `flags` is 0 or
// PAPILIO_BACKUP_KEEP_CHAIN. The backups that it is based on are received first and deleted at the
// end, unless `fs` has such a snapshot. `failed` is NULL or hears of commands of the stream that
// fail. `progress` is NULL or a function that is called with `user`, 0, 0, and the bytes of the
// stream that is received.
//
// Returns the number of snapshots that were received, 0 if it was there already, or a negative
// errno: -ENOENT for a backup that is not there, -EIO for an object that is missing or damaged,
// -ECANCELED if `progress` returns other than 0. A restore that was interrupted goes on when it is
// called again.
int64_t papilio_backup_restore(struct papilio_repository *repository,
                               const char *backup,
                               struct papilio_fs *fs,
                               const char *path,
                               const char *name,
                               uint32_t flags,
                               papilio_progress_fn progress,
                               papilio_message_fn failed,
                               void *user);

// As papilio_backup_restore(), into the directory `directory` of the host, NUL-terminated. In a
// mount of Papilio or of the kernel's Btrfs it becomes a snapshot, elsewhere a plain directory.
// Linux only.
//
// Returns as papilio_backup_restore(), and -EOPNOTSUPP on other hosts.
int64_t papilio_backup_restore_directory(struct papilio_repository *repository,
                                         const char *backup,
                                         const char *directory,
                                         const char *name,
                                         uint32_t flags,
                                         papilio_progress_fn progress,
                                         papilio_message_fn failed,
                                         void *user);

// Copies `count` paths of a backup, with all below them, to NAME in the directory `directory` of
// the host, where NAME is that of the snapshot. `backup` is as in papilio_backup_restore(). The
// texts of `paths` are relative to the snapshot's root; "" means everything. Only the objects that
// hold them are read. `flags` is 0 or PAPILIO_BACKUP_NO_OWNERS; only root can give files their
// owners. `failed` is NULL or hears of each file that is missing or not whole. `progress` is NULL
// or a function that is called with `user`, the requests to the store, 0, and the bytes that they
// moved. All texts are NUL-terminated. Linux only.
//
// Returns 0, or a negative errno: -EIO if something is missing or not whole, or an object is
// damaged; -ENOENT for a path or a backup that is not there; -ECANCELED if `progress` returns
// other than 0; -EOPNOTSUPP on other hosts.
int papilio_backup_extract(struct papilio_repository *repository,
                           const char *backup,
                           const char *const *paths,
                           size_t count,
                           const char *directory,
                           uint32_t flags,
                           papilio_progress_fn progress,
                           papilio_message_fn failed,
                           void *user);

// Checks the file system on the image or block device at `path`, NUL-terminated, which may be too
// damaged to be opened. `options` names further devices, and may be NULL. `flags` is 0 or
// PAPILIO_CHECK_DATA. The report keeps at most `max_findings`; 0 means 10,000. `progress` is NULL
// or called with `user`. The report goes to `*report`. Free it with papilio_report_free().
//
// Returns 0 or a negative errno. Faults of the file system are in the report, and no errors of the
// call.
int papilio_check(const char *path,
                  const struct papilio_options *options,
                  uint32_t flags,
                  size_t max_findings,
                  papilio_check_fn progress,
                  void *user,
                  struct papilio_report **report);

// Checks the open file system `fs`, as of its last commit: call papilio_sync() first to include
// the latest changes. The other arguments are those of papilio_check().
//
// Returns 0 or a negative errno.
int papilio_check_open(struct papilio_fs *fs,
                       uint32_t flags,
                       size_t max_findings,
                       papilio_check_fn progress,
                       void *user,
                       struct papilio_report **report);

// Returns the worst severity of a report, PAPILIO_SEVERITY_*; 0 if there is nothing to report; or
// a negative errno.
int papilio_report_verdict(struct papilio_report *report);

// Returns the number of findings that a report kept, or a negative errno.
int64_t papilio_report_count(struct papilio_report *report);

// Describes the finding at `index` of a report, counted from 0. `finding` points to a
// papilio_finding, and `size` is its sizeof. Its texts are NUL-terminated UTF-8, and valid until
// the report is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_report_finding(struct papilio_report *report,
                           size_t index,
                           struct papilio_finding *finding,
                           size_t size);

// Returns the numbers of a report. `statistics` points to a papilio_check_statistics, and `size`
// is its sizeof.
//
// Returns 0 or a negative errno.
int papilio_report_statistics(struct papilio_report *report,
                              struct papilio_check_statistics *statistics,
                              size_t size);

// Returns a report as JSON, as `papilio check --json` prints it. `*text` gets the NUL-terminated
// text, which is valid until the report is freed.
//
// Returns the length of the text or a negative errno.
int64_t papilio_report_json(struct papilio_report *report, const char **text);

// Frees a report, and its texts.
//
// Returns 0 or a negative errno.
int papilio_report_free(struct papilio_report *report);

// Shares the data of equal blocks of all files below `path`, NUL-terminated. Blocks with equal
// hashes are compared before. Content and times stay. `block_size` is a power of two from 4096 to
// 16 MiB, or 0 for 128 KiB. `flags` is 0 or PAPILIO_DEDUPE_DRY_RUN. `shared_bytes` is NULL or gets
// the number of bytes that share the data of others now.
//
// With PAPILIO_DEDUPE_CHECKSUMS candidates come from the checksums that are stored, and extents
// are only given up whole, with all references to them. `block_size` is the shortest run that
// counts, or 0 for 16 KiB, and `shared_bytes` gets the number of bytes that became free. The path
// "/" means the whole file system. Extents without checksums are left out silently.
//
// Files that cannot be read or shared are left out, and `failed` is NULL or hears of each.
// `progress` is NULL or a function that is called with `user`, the files so far, 0, and the bytes
// read; with PAPILIO_DEDUPE_CHECKSUMS with the extents or places of a stage so far, 0 and 0.
//
// Returns 0 or a negative errno: -EIO if files were left out, -EINVAL for another block size,
// -ECANCELED if `progress` returns other than 0.
int papilio_dedupe(struct papilio_fs *fs,
                   const char *path,
                   uint64_t block_size,
                   uint32_t flags,
                   uint64_t *shared_bytes,
                   papilio_progress_fn progress,
                   papilio_message_fn failed,
                   void *user);

// Opens the directory at `path`, NUL-terminated, for reading its entries. `flags` is 0 or
// PAPILIO_WITH_STAT. The handle goes to `*dir`, which is unchanged if the call fails.
//
// Returns 0 or a negative errno: -ENOTDIR.
int papilio_opendir(struct papilio_fs *fs,
                    const char *path,
                    uint32_t flags,
                    struct papilio_dir **dir);

// Reads the next entry of a directory, in the order of creation and without "." and "..". `entry`
// points to a papilio_dirent, and `entry_size` is its sizeof. `stat` is NULL, or points to a
// papilio_stat of `stat_size` bytes that gets the metadata of the entry's inode.
//
// Returns 1 for an entry, 0 at the end, or a negative errno. The directory ends with its first
// error of reading; an entry whose inode cannot be read fails alone.
int papilio_readdir(struct papilio_dir *dir,
                    struct papilio_dirent *entry,
                    size_t entry_size,
                    struct papilio_stat *stat,
                    size_t stat_size);

// Returns the index that papilio_seekdir() takes to continue after the entry that was read last,
// or a negative errno.
int64_t papilio_telldir(struct papilio_dir *dir);

// Lets the next papilio_readdir() return the first entry whose index is not below `index`. 0
// starts again, and shows entries that were created meanwhile.
//
// Returns 0 or a negative errno.
int papilio_seekdir(struct papilio_dir *dir, uint64_t index);

// Closes a directory.
//
// Returns 0 or a negative errno.
int papilio_closedir(struct papilio_dir *dir);

// Begins a walk at `path`, NUL-terminated: over it and all that is below it, each directory before
// its content. The walk does not follow symbolic links, and crosses into subvolumes. The handle
// goes to `*walk`, which is unchanged if the call fails.
//
// Returns 0 or a negative errno.
int papilio_walk_open(struct papilio_fs *fs, const char *path, struct papilio_walk **walk);

// Returns the next file of a walk. `*path` gets its path from the start of the walk, without a
// leading slash and with a NUL after its `*length` bytes; empty for the start itself. It stays
// valid until the next call for this walk. `length` may be NULL. `stat` is NULL, or points to a
// papilio_stat of `size` bytes.
//
// Returns 1 for a file, 0 at the end, or a negative errno. An error concerns one file or
// directory, and the walk goes on after it.
int papilio_walk_next(struct papilio_walk *walk,
                      const char **path,
                      size_t *length,
                      struct papilio_stat *stat,
                      size_t size);

// Leaves out the content of the directory that the walk returned last.
//
// Returns 0 or a negative errno.
int papilio_walk_skip(struct papilio_walk *walk);

// Ends a walk.
//
// Returns 0 or a negative errno.
int papilio_walk_close(struct papilio_walk *walk);

// Copies the content of the directory at `path`, or the file there, into the existing directory
// `directory` of the host; both are NUL-terminated. A symbolic link at the end of `path` is not
// followed. The copy keeps owners, modes, times, extended attributes, access control lists, hard
// links and holes. Owners can be set by root only; for another user they are the program's,
// without an error. The directory gets the attributes of that at `path`, and existing files are
// replaced. Below `directory` no link of the host is followed. `flags` is 0 or a combination of
// PAPILIO_COPY_NO_ATTRIBUTES, PAPILIO_COPY_ONE_SUBVOLUME and PAPILIO_COPY_KEEP_EXISTING.
//
// The copy goes on around everything that cannot be read or made. `problem` is NULL or hears of
// each with `user`. `progress` is NULL or a function that is called with `user`, 0, 0, and the
// bytes of files so far.
//
// Returns 0 if the copy is complete, or a negative errno: -EIO if it lacks something, -ENOSPC,
// -EDQUOT or -EROFS if the destination ended it, -ECANCELED if `progress` returns other than 0,
// -EINVAL for a program under fakeroot, which would not see the owners.
int papilio_copy_out(struct papilio_fs *fs,
                     const char *path,
                     const char *directory,
                     uint32_t flags,
                     papilio_progress_fn progress,
                     papilio_message_fn problem,
                     void *user);

// Writes the file or directory at `path`, NUL-terminated, with everything below it as a tar
// archive in pax format to the descriptor `fd`. The members' paths begin with the last name of
// `path`, or with "." for the root. `flags` is 0 or PAPILIO_COPY_ONE_SUBVOLUME. `problem` is NULL
// or hears of everything that the archive lacks. `progress` is as in papilio_copy_out().
//
// Returns 0 if the archive is complete, or a negative errno: -EIO if it lacks something, -EBADF
// for a descriptor that is not open, -ECANCELED if `progress` returns other than 0, the errno of
// writing.
int papilio_write_tar(struct papilio_fs *fs,
                      const char *path,
                      int fd,
                      uint32_t flags,
                      papilio_progress_fn progress,
                      papilio_message_fn problem,
                      void *user);

// Returns the message of the calling thread's last failed call. It stays valid until the thread's
// next failed call, is empty before the first one, and never NULL. It is one line of text; paths
// in it are converted to UTF-8.
//
// A successful call leaves the message as it is: test the result first.
const char *papilio_last_error(void);

// Returns the version of the library, such as "0.1.0". The text is static.
const char *papilio_version(void);

// Opens the regular file at `path`, NUL-terminated. `flags` is 0 or a combination of
// PAPILIO_CREATE, PAPILIO_EXCLUSIVE, PAPILIO_TRUNCATE, PAPILIO_DIRECT, PAPILIO_NOFOLLOW and
// PAPILIO_UNNAMED. A new file gets the permissions `mode`, less the umask of
// papilio_set_creator(). The handle goes to `*file`, which is unchanged if the call fails. Whether
// it can be written depends on the file system only.
//
// Returns 0 or a negative errno: -EISDIR for a directory, -EINVAL for other types, -EEXIST as the
// flags require.
int papilio_file_open(struct papilio_fs *fs,
                      const char *path,
                      uint32_t flags,
                      uint32_t mode,
                      struct papilio_file **file);

// Adds a reference to the handle `file`. Each reference needs a papilio_file_close() of its own.
//
// Returns 0 or a negative errno.
int papilio_file_ref(struct papilio_file *file);

// Drops a reference to the handle `file`, and closes the file with the last one. Requests of
// queues that are in flight keep it open until they complete. Closing a file does not make it
// durable.
//
// Returns 0 or a negative errno.
int papilio_file_close(struct papilio_file *file);

// Reads up to `size` bytes at byte `offset` of the file into `buffer`, which has at least that
// size. Holes read as zeros. All data is verified by its checksum, unless it has none or the
// options say otherwise. After an error, the content of the buffer is unspecified.
//
// Returns the bytes read, fewer than `size` only at the end of the file, or a negative errno: -EIO
// if no copy of the data is good.
int64_t papilio_pread(struct papilio_file *file, void *buffer, size_t size, uint64_t offset);

// Writes the `size` bytes at `buffer` at byte `offset` of the file. If `offset` is past the end,
// the gap reads as zeros. Neither needs alignment.
//
// Returns the number of bytes that are stored, or a negative errno if none is: -ENOSPC, -EDQUOT,
// -EFBIG, -EROFS. As with pwrite() it is less than `size` only if the others have no space, or
// would exceed a limit, or a later step failed; writing them again gives the error.
int64_t papilio_pwrite(struct papilio_file *file, const void *buffer, size_t size, uint64_t offset);

// Reads at byte `offset` of the file into the `count` buffers that `buffers` describes, one after
// the other.
//
// Returns the bytes read, fewer than the buffers have only at the end of the file, or a negative
// errno as papilio_pread().
int64_t papilio_preadv(struct papilio_file *file,
                       const struct iovec *buffers,
                       size_t count,
                       uint64_t offset);

// Writes the `count` buffers that `buffers` describes, one after the other, at byte `offset` of
// the file.
//
// Returns the number of bytes that are stored, or a negative errno, as papilio_pwrite().
int64_t papilio_pwritev(struct papilio_file *file,
                        const struct iovec *buffers,
                        size_t count,
                        uint64_t offset);

// Reads up to `size` bytes at the file's position into `buffer`, which has at least that size, and
// advances the position.
//
// Returns the bytes read, 0 at the end of the file, or a negative errno as papilio_pread().
int64_t papilio_read(struct papilio_file *file, void *buffer, size_t size);

// Writes the `size` bytes at `buffer` at the file's position, and advances the position by what is
// stored.
//
// Returns the number of bytes that are stored, or a negative errno, as papilio_pwrite(); the
// position is unchanged after an error.
int64_t papilio_write(struct papilio_file *file, const void *buffer, size_t size);

// Moves the file's position. `whence` is SEEK_SET, SEEK_CUR or SEEK_END, or SEEK_DATA or SEEK_HOLE
// for the first byte of data or of a hole at or after `offset`. The end of a file counts as a
// hole, preallocated ranges count as holes.
//
// Returns the new position, or a negative errno: -ENXIO if there is no such byte, -EINVAL before
// the start of the file.
int64_t papilio_lseek(struct papilio_file *file, int64_t offset, int whence);

// Sets the size of the file in bytes. A longer file reads as zeros at its end.
//
// Returns 0 or a negative errno.
int papilio_ftruncate(struct papilio_file *file, uint64_t size);

// Makes all changes of the file up to now durable, and its names if they changed.
//
// Returns 0 or a negative errno.
int papilio_fsync(struct papilio_file *file);

// Makes all data written to the file up to now durable, with the metadata that is needed to read
// it.
//
// Returns 0 or a negative errno.
int papilio_fdatasync(struct papilio_file *file);

// Makes what is at `path`, NUL-terminated, durable as papilio_fsync() does, for every type of
// file. For a directory this includes the changes of its entries and new directories below it.
//
// Returns 0 or a negative errno.
int papilio_fsync_path(struct papilio_fs *fs, const char *path);

// Describes the open file `file` as it is now. `stat` points to a papilio_stat, and `size` is its
// sizeof.
//
// Returns 0 or a negative errno.
int papilio_fstat(struct papilio_file *file, struct papilio_stat *stat, size_t size);

// Allocates space for `length` bytes at `offset`. `mode` is 0, PAPILIO_KEEP_SIZE,
// PAPILIO_ZERO_RANGE, both, or PAPILIO_PUNCH_HOLE with PAPILIO_KEEP_SIZE, which frees the space.
// The values are those of fallocate(2).
//
// Returns 0 or a negative errno: -ENOSPC, -EOPNOTSUPP for another mode.
int papilio_fallocate(struct papilio_file *file, uint32_t mode, uint64_t offset, uint64_t length);

// Lets the file `to` share `length` bytes of the file `from`, from `from_offset` on, at
// `to_offset`. A `length` of 0 means up to the end of `from`. Both may be the same file. Offsets
// are multiples of the sector size, usually 4096; so is the length, unless it ends at the end of
// `from`.
//
// Returns 0 or a negative errno: -EXDEV for files of two file systems.
int papilio_clone_range(struct papilio_file *from,
                        uint64_t from_offset,
                        uint64_t length,
                        struct papilio_file *to,
                        uint64_t to_offset);

// Shares a range as papilio_clone_range() does, if the bytes of both files are equal.
//
// Returns the bytes shared, or a negative errno: -EXDEV for files of two file systems, -EILSEQ if
// the ranges differ.
int64_t papilio_dedupe_range(struct papilio_file *from,
                             uint64_t from_offset,
                             uint64_t length,
                             struct papilio_file *to,
                             uint64_t to_offset);

// Stores the extents of the file in the array `extents`, in order and without holes, starting with
// the one that contains byte `offset`: at most `count` of them. The layout of papilio_extent is
// fixed.
//
// Returns the number stored, fewer than `count` only at the end of the file, or a negative errno.
int64_t papilio_extents(struct papilio_file *file,
                        uint64_t offset,
                        struct papilio_extent *extents,
                        size_t count);

// Writes small extents in a range of bytes anew as larger ones, without a change of the content or
// the times. A `length` of 0 means up to the end of the file. Extents that snapshots share are
// copied.
//
// Returns the bytes rewritten, or a negative errno.
int64_t papilio_defragment(struct papilio_file *file, uint64_t offset, uint64_t length);

// Writes the file's cached data back to the device, and drops it from the page cache.
//
// Returns 0 or a negative errno.
int papilio_file_drop_cache(struct papilio_file *file);

// Opens the image or block device at `path`, a NUL-terminated path of the host, with `options`, or
// with the defaults if that is NULL. The handle goes to `*fs`, which is unchanged if the call
// fails. The device is locked against other users until papilio_close(); for reading only, against
// writers.
//
// Returns 0 or a negative errno, among them -ENOENT, -EACCES, -EBUSY for a device in use, -EINVAL
// for one without a Btrfs, -EOPNOTSUPP for unknown features, -EIO for a damaged file system.
int papilio_open(const char *path, const struct papilio_options *options, struct papilio_fs **fs);

// Adds a reference to the handle `fs`, for another part of the program. Each reference needs a
// papilio_close() of its own.
//
// Returns 0 or a negative errno.
int papilio_ref(struct papilio_fs *fs);

// Drops a reference to the handle `fs`. With the last one, makes all changes durable and closes
// the file system. Calls of other threads that run meanwhile end as if they came before.
//
// Returns 0; -EBUSY while files, directories, walks or queues are open, and nothing is closed
// then; or the errno of the commit, after which the handle is closed all the same.
int papilio_close(struct papilio_fs *fs);

// Makes all changes durable, those of all files included (syncfs).
//
// Returns 0 or a negative errno: -EROFS if the file system is open for reading only, or became
// read-only by a failure, see papilio_failure().
int papilio_sync(struct papilio_fs *fs);

// Sets owner, group and umask of what this file system's handle creates from now on: files,
// directories, links, devices and subvolumes. All three are 0 at first, whatever the process is.
//
// Returns 0 or a negative errno.
int papilio_set_creator(struct papilio_fs *fs, uint32_t uid, uint32_t gid, uint32_t umask);

// Copies the UUID of the file system to the 16 bytes at `uuid`.
//
// Returns 0 or a negative errno.
int papilio_uuid(struct papilio_fs *fs, uint8_t *uuid);

// Copies the label, without a NUL, to the `size` bytes at `buffer`. With `size` 0, `buffer` may be
// NULL, and the call only returns the length.
//
// Returns the length, 0 without a label, or a negative errno: -ERANGE if the buffer is too small.
int64_t papilio_label(struct papilio_fs *fs, void *buffer, size_t size);

// Sets the label: at most 255 bytes, NUL-terminated, without a line break. "" removes it.
//
// Returns 0 or a negative errno.
int papilio_set_label(struct papilio_fs *fs, const char *label);

// Copies the reason why the file system became read-only, without a NUL, to the `size` bytes at
// `buffer`. With `size` 0, `buffer` may be NULL, and the call only returns the length.
//
// Returns the length, 0 if no failure made it read-only, or a negative errno: -ERANGE if the
// buffer is too small.
int64_t papilio_failure(struct papilio_fs *fs, void *buffer, size_t size);

// Returns 1 if there is a log of fsyncs whose changes are not visible, because the options forbid
// its replay; 0 if not; or a negative errno.
int papilio_has_log(struct papilio_fs *fs);

// Returns 1 if requests wait for a device, as with papilio_options_set_direct_io(): it then pays
// to keep many in flight in a queue. Returns 0 if not, or a negative errno.
int papilio_waits_for_devices(struct papilio_fs *fs);

// Discards the free space of the devices. Commits first, so that deleted files count as free.
// Skips runs of less than `min_length` bytes.
//
// Returns the bytes discarded, or a negative errno: -EOPNOTSUPP if a device cannot discard.
int64_t papilio_trim(struct papilio_fs *fs, uint64_t min_length);

// Sets the bytes that the file system uses of the device with the id `devid`; the first device has
// the id 1. `bytes` is rounded down to whole sectors. Data behind the new end is moved. To shrink
// an image file, truncate it after papilio_close(); to grow one, extend it before papilio_open().
//
// Returns the new size, or a negative errno: -ENOSPC if what would be left is too small.
int64_t papilio_resize(struct papilio_fs *fs, uint64_t devid, uint64_t bytes);

// Makes an options object with the defaults. It goes to `*options`. Free it with
// papilio_mkfs_options_free().
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_new(struct papilio_mkfs_options **options);

// Frees an options object.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_free(struct papilio_mkfs_options *options);

// Sets the size of the file system on each device in bytes, rounded down to whole sectors; by
// default that of the device. A missing regular file is created, and a shorter one extended to
// this size.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_size(struct papilio_mkfs_options *options, uint64_t bytes);

// Sets the label: at most 255 bytes, NUL-terminated, without a line break.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_label(struct papilio_mkfs_options *options, const char *label);

// Sets the UUID of the file system to the 16 bytes at `uuid`. The default is a random one. With a
// time as well, equal options make equal images.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_uuid(struct papilio_mkfs_options *options, const uint8_t *uuid);

// Sets the time of creation: `seconds` since 1970 and `nanoseconds`. The default is the current
// time.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_timestamp(struct papilio_mkfs_options *options,
                                       int64_t seconds,
                                       uint32_t nanoseconds);

// Sets the bytes of a tree block: a power of two from 4 KiB to 64 KiB.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_node_size(struct papilio_mkfs_options *options, uint32_t bytes);

// Sets the checksum algorithm: the NUL-terminated name "crc32c", "xxhash", "sha256" or "blake2".
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_checksum(struct papilio_mkfs_options *options, const char *name);

// Switches features as `mkfs.btrfs -O` does: a NUL-terminated list of names with commas, such as
// "^no-holes,block-group-tree", each with a "^" in front to switch it off.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_features(struct papilio_mkfs_options *options, const char *list);

// Sets the profiles of data and metadata: the NUL-terminated names "single", "dup", "raid0",
// "raid1", "raid1c3", "raid1c4", "raid10", "raid5" or "raid6". NULL keeps the default.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_profiles(struct papilio_mkfs_options *options,
                                      const char *data,
                                      const char *metadata);

// Sets whether existing content of the devices is overwritten. The default is false: -EEXIST then.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_force(struct papilio_mkfs_options *options, bool force);

// Sets whether the old content of the devices is discarded. The default is true.
//
// Returns 0 or a negative errno.
int papilio_mkfs_options_set_discard(struct papilio_mkfs_options *options, bool discard);

// Makes a file system on the image or block device at `path`, a NUL-terminated path of the host,
// with `options`, or with the defaults if that is NULL.
//
// Returns 0 or a negative errno: -EEXIST for a device with content, -EBUSY for one in use, -EINVAL
// for one that is too small or options that exclude one another.
int papilio_mkfs(const char *path, const struct papilio_mkfs_options *options);

// Makes one file system on several images or block devices: `paths` is an array of `count` paths,
// NUL-terminated. The first device gets the id 1.
//
// Returns 0 or a negative errno, as papilio_mkfs().
int papilio_mkfs_many(const char *const *paths,
                      size_t count,
                      const struct papilio_mkfs_options *options);

// Makes a file system on the image or block device at `path`, and fills it from `content`: a
// directory of the host, or a tar archive, which may be compressed. Both are NUL-terminated paths
// of the host. Owners, modes, times, extended attributes, access control lists, hard links, device
// files and holes are kept. `options` may be NULL. Unless they have a size, a missing or empty
// image gets the size that the content needs. `compression` is NULL or as in
// papilio_options_set_compression(). `flags` is 0 or PAPILIO_MKFS_SHRINK.
//
// Returns 0 or a negative errno, as papilio_mkfs(); -ENOSPC if the content does not fit, and the
// errors of reading it. After an error no image looks complete, and a missing one stays missing.
int papilio_mkfs_content(const char *path,
                         const char *content,
                         const struct papilio_mkfs_options *options,
                         const char *compression,
                         uint32_t flags);

// Makes the content of the file system on the image or block device at `path` that of `content`, a
// directory of the host. Both are NUL-terminated paths of the host. Files are compared byte by
// byte, and only what differs is written. Names that the directory lacks are removed. An image
// that is a regular file may grow. `compression` is NULL or as in
// papilio_options_set_compression(). `flags` is 0 or PAPILIO_MKFS_SHRINK, which cuts off what is
// unused at the end. `done` is NULL or points to a papilio_content_update of `size` bytes.
//
// Returns 0 or a negative errno: -EINVAL if the file system has subvolumes; -ENOTDIR if `content`
// is no directory; the errors of opening the file system and of reading the content. After an
// error the file system may have a part of the update, and another call does the rest.
int papilio_update_content(const char *path,
                           const char *content,
                           const char *compression,
                           uint32_t flags,
                           struct papilio_content_update *done,
                           size_t size);

// Creates a directory at `path`, NUL-terminated, with the permissions `mode`, less the umask of
// papilio_set_creator().
//
// Returns 0 or a negative errno.
int papilio_mkdir(struct papilio_fs *fs, const char *path, uint32_t mode);

// Creates a file of any type at `path`, NUL-terminated. `mode` has type (S_IFREG, S_IFIFO,
// S_IFSOCK, S_IFCHR, S_IFBLK, S_IFDIR) and permissions. Device files get the numbers `major`,
// below 4,096, and `minor`, below 1,048,576; other types ignore them.
//
// Returns 0 or a negative errno: -EINVAL for another type.
int papilio_mknod(struct papilio_fs *fs,
                  const char *path,
                  uint32_t mode,
                  uint32_t major,
                  uint32_t minor);

// Creates a symbolic link to `target` at `path`, both NUL-terminated. The target need not exist.
//
// Returns 0 or a negative errno.
int papilio_symlink(struct papilio_fs *fs, const char *target, const char *path);

// Copies the target of the symbolic link at `path`, NUL-terminated, to the `size` bytes at
// `buffer`, without a NUL. With `size` 0, `buffer` may be NULL, and the call only returns the
// length.
//
// Returns the length, or a negative errno: -EINVAL for other types, -ERANGE if the buffer is too
// small. Unlike readlink(2), nothing is cut off.
int64_t papilio_readlink(struct papilio_fs *fs, const char *path, void *buffer, size_t size);

// Gives the file at `existing` the further name `path`, both NUL-terminated. A symbolic link is
// not followed.
//
// Returns 0 or a negative errno: -EXDEV between subvolumes.
int papilio_link(struct papilio_fs *fs, const char *existing, const char *path);

// Renames `from` to `to`, both NUL-terminated. `flags` is 0, which replaces a file or an empty
// directory at `to`, or PAPILIO_RENAME_NOREPLACE or PAPILIO_RENAME_EXCHANGE.
//
// Returns 0 or a negative errno: -EXDEV between subvolumes.
int papilio_rename(struct papilio_fs *fs, const char *from, const char *to, uint32_t flags);

// Removes the name `path`, NUL-terminated, of anything but a directory. A file without names is
// deleted once it is closed.
//
// Returns 0 or a negative errno: -EISDIR for a directory.
int papilio_unlink(struct papilio_fs *fs, const char *path);

// Removes the empty directory at `path`, NUL-terminated.
//
// Returns 0 or a negative errno: -ENOTEMPTY.
int papilio_rmdir(struct papilio_fs *fs, const char *path);

// Lists the reasons why `fs` shows an older state than the newest one on its devices, each with
// the files for which the log of fsyncs has something newer. There are none if `fs` shows the
// newest state, or is open for writing. The list goes to `*list`. Free it with
// papilio_older_free().
//
// Returns the number of states or a negative errno.
int64_t papilio_older(struct papilio_fs *fs, struct papilio_older_list **list);

// Describes the state at `index` of a list, counted from 0. `state` points to a
// papilio_older_state, and `size` is its sizeof. Its texts are NUL-terminated UTF-8, and valid
// until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_older_get(struct papilio_older_list *list,
                      size_t index,
                      struct papilio_older_state *state,
                      size_t size);

// Describes file `number`, counted from 0, of the state at `index` of a list. `file` points to a
// papilio_older_file, and `size` is its sizeof. Its texts are valid until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_older_file_get(struct papilio_older_list *list,
                           size_t index,
                           size_t number,
                           struct papilio_older_file *file,
                           size_t size);

// Frees a list of older states, and the texts in it.
//
// Returns 0 or a negative errno.
int papilio_older_free(struct papilio_older_list *list);

// Makes an options object with the defaults: reading only, one device, none missing, the top-level
// subvolume. The object goes to `*options`. Free it with papilio_options_free().
//
// Returns 0 or a negative errno.
int papilio_options_new(struct papilio_options **options);

// Frees an options object. File systems that were opened with it stay open.
//
// Returns 0 or a negative errno.
int papilio_options_free(struct papilio_options *options);

// Sets whether the file system is opened for writing too. The default is false.
//
// Returns 0 or a negative errno.
int papilio_options_set_write(struct papilio_options *options, bool write);

// Adds `path`, a NUL-terminated path of the host, as another device of a file system with several
// devices.
//
// Returns 0 or a negative errno.
int papilio_options_add_device(struct papilio_options *options, const char *path);

// Sets whether the file system may be opened while devices are missing, as far as each chunk
// tolerates it. The default is false.
//
// Returns 0 or a negative errno.
int papilio_options_set_degraded(struct papilio_options *options, bool degraded);

// Lets all paths start at the subvolume at `path`, a NUL-terminated path from the top level. The
// default is the top level.
//
// Returns 0 or a negative errno.
int papilio_options_set_subvolume(struct papilio_options *options, const char *path);

// Lets all paths start at the subvolume with the id `id`. 0 selects the subvolume that a mount
// without options shows; 5 is the top level.
//
// Returns 0 or a negative errno.
int papilio_options_set_subvolume_id(struct papilio_options *options, uint64_t id);

// Sets whether devices bypass the page cache of the host (O_DIRECT). The default is false. Queues
// then keep many requests in flight without a thread for each.
//
// Returns 0 or a negative errno.
int papilio_options_set_direct_io(struct papilio_options *options, bool direct_io);

// Sets the bytes of the page cache for file data. The default, 0, means none: data is read from
// and written to the device directly. The cache is used only if the file system is open for
// writing.
//
// Returns 0 or a negative errno.
int papilio_options_set_cache_bytes(struct papilio_options *options, uint64_t bytes);

// Limits the memory for tree blocks, in bytes. The default is 64 MiB.
//
// Returns 0 or a negative errno.
int papilio_options_set_node_cache_bytes(struct papilio_options *options, uint64_t bytes);

// Limits the bytes of changed tree blocks in memory beyond which a change waits for a commit. The
// default is 128 MiB.
//
// Returns 0 or a negative errno.
int papilio_options_set_dirty_bytes(struct papilio_options *options, uint64_t bytes);

// Sets the compression of new data: `compression` is the NUL-terminated text "zlib", "lzo",
// "zstd", "zlib:1" to "zlib:9", "zstd:-15" to "zstd:15", or "none", the default. If `force` is
// set, data of all files is compressed, also that which does not get smaller at first.
//
// Returns 0 or a negative errno.
int papilio_options_set_compression(struct papilio_options *options,
                                    const char *compression,
                                    bool force);

// Sets the longest time before a change is committed, in seconds. The default is 30. With 0 only
// papilio_sync(), papilio_close() and lack of memory commit.
//
// Returns 0 or a negative errno.
int papilio_options_set_commit_interval(struct papilio_options *options, uint32_t seconds);

// Sets whether freed space is discarded after each commit. The default is false.
//
// Returns 0 or a negative errno.
int papilio_options_set_discard(struct papilio_options *options, bool discard);

// Sets the most bytes of a file that are stored inline in a tree. The default is 2048; 0 stores no
// file inline.
//
// Returns 0 or a negative errno.
int papilio_options_set_max_inline(struct papilio_options *options, uint32_t bytes);

// Sets whether new files are created without checksums. The default is false.
//
// Returns 0 or a negative errno.
int papilio_options_set_no_data_sums(struct papilio_options *options, bool on);

// Sets whether new files are overwritten in place, which also means without checksums. The default
// is false.
//
// Returns 0 or a negative errno.
int papilio_options_set_no_data_cow(struct papilio_options *options, bool on);

// Sets whether data that is read is verified against its checksums. The default is true.
//
// Returns 0 or a negative errno.
int papilio_options_set_verify_data(struct papilio_options *options, bool verify);

// Sets whether a copy that a read found bad is rewritten from a good one, where the file system is
// open for writing. The default is true.
//
// Returns 0 or a negative errno.
int papilio_options_set_heal_reads(struct papilio_options *options, bool heal);

// Sets whether an fsync may write to the log instead of committing. The default is true.
//
// Returns 0 or a negative errno.
int papilio_options_set_tree_log(struct papilio_options *options, bool log);

// Sets whether a log that a crash left is replayed. The default is true: a file system that is
// opened for reading is replayed in memory, and opening fails if that is not possible. If it is
// false, a file system with a log can be opened for reading only, and shows the last commit.
//
// Returns 0 or a negative errno.
int papilio_options_set_replay_log(struct papilio_options *options, bool replay);

// Sets whether the last commit may be shown if a log of fsyncs cannot be replayed. The default is
// false: papilio_open() fails then, and the message names files that are older. If it is true,
// papilio_older() lists the reasons and those files. It counts only for opening for reading.
//
// Returns 0 or a negative errno.
int papilio_options_set_allow_older(struct papilio_options *options, bool allow);

// Limits the memory for the replay of a log of fsyncs, in bytes for each device. The default is
// 256 MiB. It counts only for opening for reading: a log that needs more cannot be replayed then.
//
// Returns 0 or a negative errno.
int papilio_options_set_replay_bytes(struct papilio_options *options, uint64_t bytes);

// Sets whether a device may be written that has the signature of something else, such as a member
// of an array or an encrypted volume. The default is false: papilio_open() gives -EBUSY.
//
// Returns 0 or a negative errno.
int papilio_options_set_ignore_signatures(struct papilio_options *options, bool ignore);

// Sets whether older roots of the superblock are tried if the newest cannot be read. The default
// is false.
//
// Returns 0 or a negative errno.
int papilio_options_set_use_backup_root(struct papilio_options *options, bool on);

// Selects the copy of the superblock to read, 0 to 2. The default is 0, the primary.
//
// Returns 0 or a negative errno.
int papilio_options_set_superblock_mirror(struct papilio_options *options, uint32_t mirror);

// Sets a fixed time for all changes, so that equal changes make equal images: `seconds` since 1970
// and `nanoseconds` below 1,000,000,000. The default is the clock's time.
//
// Returns 0 or a negative errno.
int papilio_options_set_timestamp(struct papilio_options *options,
                                  int64_t seconds,
                                  uint32_t nanoseconds);

// Lists the different versions of the file at `path`, NUL-terminated, in the subvolume with the id
// `subvolume`, that it and the snapshots have: the one that was modified last comes last. The list
// goes to `*list`. Free it with papilio_versions_free().
//
// Returns the number of versions or a negative errno: -ENOENT if no subvolume has such a file.
int64_t papilio_versions(struct papilio_fs *fs,
                         uint64_t subvolume,
                         const char *path,
                         struct papilio_version_list **list);

// Describes the version at `index` of a list, counted from 0. `version` points to a
// papilio_version, and `size` is its sizeof.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_versions_get(struct papilio_version_list *list,
                         size_t index,
                         struct papilio_version *version,
                         size_t size);

// Describes file `number`, counted from 0, that is the version at `index` of a list; the subvolume
// that was created first comes first. `holder` points to a papilio_version_holder, and `size` is
// its sizeof. Its texts are valid until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_version_holder_get(struct papilio_version_list *list,
                               size_t index,
                               size_t number,
                               struct papilio_version_holder *holder,
                               size_t size);

// Frees a list of versions, and the texts in it.
//
// Returns 0 or a negative errno.
int papilio_versions_free(struct papilio_version_list *list);

// Lists the paths below the directory at `path`, NUL-terminated, in the subvolume with the id
// `subvolume`, that only snapshots of its past have. "" means the whole subvolume. The list goes
// to `*list`. Free it with papilio_only_free().
//
// Returns the number of paths or a negative errno: -ENOENT if no subvolume has such a directory.
int64_t papilio_only_in_snapshots(struct papilio_fs *fs,
                                  uint64_t subvolume,
                                  const char *path,
                                  struct papilio_only_list **list);

// Describes the path at `index` of a list, counted from 0, with the newest snapshot that has it.
// `holder` points to a papilio_version_holder, and `size` is its sizeof; `version`, which may be
// NULL, to a papilio_version of `version_size` bytes. Texts are valid until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_only_get(struct papilio_only_list *list,
                     size_t index,
                     struct papilio_version_holder *holder,
                     size_t size,
                     struct papilio_version *version,
                     size_t version_size);

// Frees a list of paths, and the texts in it.
//
// Returns 0 or a negative errno.
int papilio_only_free(struct papilio_only_list *list);

// Lists what changed in the directory at `path`, NUL-terminated, in the subvolume with the id
// `subvolume`, from snapshot to snapshot of its past, the oldest step first. "" means the whole
// subvolume. With `since` other than 0, only from the snapshot with this id on. `progress` is NULL
// or called with `user` after each step: with the number of steps, 0, and the number of changes so
// far. The history goes to `*history`. Free it with papilio_history_free().
//
// A subvolume of a file system that is open for writing must be read-only.
//
// Returns the number of steps or a negative errno: -ENOENT if no subvolume of the past has such a
// directory; -ECANCELED if `progress` returns other than 0.
int64_t papilio_history(struct papilio_fs *fs,
                        uint64_t subvolume,
                        const char *path,
                        uint64_t since,
                        papilio_progress_fn progress,
                        void *user,
                        struct papilio_history_list **history);

// Describes the step at `index` of a history, counted from 0. `step` points to a
// papilio_history_step, and `size` is its sizeof.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_history_get(struct papilio_history_list *history,
                        size_t index,
                        struct papilio_history_step *step,
                        size_t size);

// Describes change `number`, counted from 0 in the order of paths, of the step at `index` of a
// history. `change` points to a papilio_change, and `size` is its sizeof. Its texts are valid
// until the history is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_change_get(struct papilio_history_list *history,
                       size_t index,
                       size_t number,
                       struct papilio_change *change,
                       size_t size);

// Frees a history, and the texts in it.
//
// Returns 0 or a negative errno.
int papilio_history_free(struct papilio_history_list *history);

// Makes a queue for files of the file system `fs` with up to `depth` requests in flight, 1 to
// PAPILIO_QUEUE_DEPTH_MAX, and with `threads` threads of its own, which may be 0. It goes to
// `*queue`. Several threads may use a queue; one that waits for completions holds up the others.
//
// Returns 0 or a negative errno.
int papilio_queue_new(struct papilio_fs *fs,
                      size_t depth,
                      size_t threads,
                      struct papilio_queue **queue);

// Submits a read of up to `size` bytes at byte `offset` of the file into `buffer`, as
// papilio_pread(). The buffer is in use until the completion with `token` was collected. Tokens
// need not be unique.
//
// Returns 0 or a negative errno, and the buffer is not in use then: -EAGAIN if the queue is full,
// -EXDEV for a file of another file system.
int papilio_queue_read(struct papilio_queue *queue,
                       struct papilio_file *file,
                       void *buffer,
                       size_t size,
                       uint64_t offset,
                       uint64_t token);

// Submits a write of the `size` bytes at `buffer` at byte `offset` of the file, as
// papilio_pwrite(). The buffer is in use, and must not change, until the completion with `token`
// was collected.
//
// Returns 0 or a negative errno, and the buffer is not in use then: -EAGAIN if the queue is full,
// -EXDEV for a file of another file system.
int papilio_queue_write(struct papilio_queue *queue,
                        struct papilio_file *file,
                        const void *buffer,
                        size_t size,
                        uint64_t offset,
                        uint64_t token);

// Submits a papilio_fsync(), or a papilio_fdatasync() if `data_only` is set. It covers the
// requests that had completed when it was submitted.
//
// Returns 0 or a negative errno: -EAGAIN if the queue is full, -EXDEV for a file of another file
// system.
int papilio_queue_fsync(struct papilio_queue *queue,
                        struct papilio_file *file,
                        bool data_only,
                        uint64_t token);

// Submits an allocation of `length` bytes at `offset`, or the making of a hole there: `mode` is 0,
// PAPILIO_KEEP_SIZE, or PAPILIO_PUNCH_HOLE with PAPILIO_KEEP_SIZE, as for papilio_fallocate().
//
// Returns 0 or a negative errno: -EAGAIN if the queue is full, -EXDEV for a file of another file
// system, -EOPNOTSUPP for another mode.
int papilio_queue_fallocate(struct papilio_queue *queue,
                            struct papilio_file *file,
                            uint32_t mode,
                            uint64_t offset,
                            uint64_t length,
                            uint64_t token);

// Collects completions: stores up to `count` in the array `completions`, after waiting until at
// least `min` are there, or all that are in flight if those are fewer. With `min` 0 it does not
// wait for requests that are in flight. The layout of papilio_completion is fixed. The message of
// a request that failed becomes the thread's last message; of several, that of the last.
//
// Returns the number stored or a negative errno: -EINVAL if `min` is more than `count`.
int64_t papilio_queue_wait(struct papilio_queue *queue,
                           size_t min,
                           struct papilio_completion *completions,
                           size_t count);

// Returns an eventfd for an event loop: it is readable when completions may wait. The program
// reads its counter, eight bytes, and then calls papilio_queue_wait() with `min` 0, also once
// after it has submitted. The descriptor does not block, and belongs to the program, which closes
// it.
//
// Returns the descriptor or a negative errno.
int papilio_queue_eventfd(struct papilio_queue *queue);

// Returns the number of requests whose completions were not collected, or a negative errno.
int64_t papilio_queue_in_flight(struct papilio_queue *queue);

// Carries out all requests that were submitted, and closes the queue. No buffer is in use
// afterwards. The results of requests whose completions were not collected are lost, except that
// of the first one that failed.
//
// Returns 0; the errno of that request, and the queue is closed all the same; or a negative errno.
int papilio_queue_close(struct papilio_queue *queue);

// Makes a repository at `place`, NUL-terminated: the path of a folder, which is made if it is
// missing, or a URL such as "s3://BUCKET/PREFIX". The place is empty. `key` points to the
// `key_length` bytes of a passphrase or of a key file, with which everything is encrypted; NULL
// makes a plain repository. The handle goes to `*repository`.
//
// Returns 0 or a negative errno: -EEXIST for a place that is not empty.
int papilio_repository_init(const char *place,
                            const void *key,
                            size_t key_length,
                            struct papilio_repository **repository);

// Opens the repository at `place`, as in papilio_repository_init(). `key` and `key_length` are
// those of one of its keys; a plain repository needs none. The handle goes to `*repository`.
//
// Returns 0 or a negative errno: -ENOENT for a place without a repository, -EACCES for a key that
// is wrong or missing, -EIO for a damaged description.
int papilio_repository_open(const char *place,
                            const void *key,
                            size_t key_length,
                            struct papilio_repository **repository);

// Closes a repository. Its keys in memory are wiped when the last call that uses it ends.
//
// Returns 0 or a negative errno.
int papilio_repository_close(struct papilio_repository *repository);

// Lets a further key open the repository: the `key_length` bytes at `key`. `label` is NULL or a
// name for it, NUL-terminated. `flags` is 0 or PAPILIO_BACKUP_BREAK_LOCK.
//
// Returns 0 or a negative errno: -EBUSY if another process has the lock, -EINVAL for a repository
// that is not encrypted.
int papilio_repository_add_key(struct papilio_repository *repository,
                               const void *key,
                               size_t key_length,
                               const char *label,
                               uint32_t flags);

// Replaces the key with which the repository was opened by the `key_length` bytes at `key`. The
// data stays as it is. `flags` is 0 or PAPILIO_BACKUP_BREAK_LOCK.
//
// Returns as papilio_repository_add_key(); after an error the old key opens the repository.
int papilio_repository_change_key(struct papilio_repository *repository,
                                  const void *key,
                                  size_t key_length,
                                  uint32_t flags);

// Removes a key, which `name`, NUL-terminated, names by its id or its label. The last key stays.
// `flags` is 0 or PAPILIO_BACKUP_BREAK_LOCK.
//
// Returns as papilio_repository_add_key(); -ENOENT for a key that is not there, -EINVAL for the
// last one.
int papilio_repository_remove_key(struct papilio_repository *repository,
                                  const char *name,
                                  uint32_t flags);

// Checks that every backup of a repository can be restored. `percent`, 0 to 100, is the part of
// the objects that is read in full; all must be there with their lengths. `failed` is NULL or
// hears of each fault. `progress` is NULL or a function that is called with `user`, the requests
// to the store, 0, and the bytes that they moved.
//
// Returns the number of faults or a negative errno: -ECANCELED if `progress` returns other than 0,
// and the store's errors.
int64_t papilio_repository_verify(struct papilio_repository *repository,
                                  double percent,
                                  papilio_progress_fn progress,
                                  papilio_message_fn failed,
                                  void *user);

// Removes the backups that no rule keeps, and objects that no backup uses. `retention` points to a
// papilio_retention and `size` is its sizeof; without a rule all backups stay. Backups on which a
// kept one is based stay, too, unless `flags` has PAPILIO_PRUNE_MERGE. `flags` has any of
// PAPILIO_PRUNE_* and PAPILIO_BACKUP_BREAK_LOCK. `failed` is NULL or hears of each backup that
// could not be joined with its bases. `pruned` is NULL or points to a papilio_pruned of
// `pruned_size` bytes. `progress` is as in papilio_repository_verify().
//
// Returns 0 or a negative errno: -EINVAL for rules that keep nothing, and while a manifest is
// damaged; -EBUSY if another process has the lock; -ECANCELED if `progress` returns other than 0.
// After an error, all backups that are listed are whole.
int papilio_repository_prune(struct papilio_repository *repository,
                             const struct papilio_retention *retention,
                             size_t size,
                             uint32_t flags,
                             papilio_progress_fn progress,
                             papilio_message_fn failed,
                             void *user,
                             struct papilio_pruned *pruned,
                             size_t pruned_size);

// Scans the file system on the image or block device at `path`, NUL-terminated, which nobody has
// open for writing, for subvolumes that were deleted and that older root trees still have, by id.
// `options` names further devices, and may be NULL. The list goes to `*list`. Free it with
// papilio_deleted_free().
//
// Returns the number of subvolumes or a negative errno.
int64_t papilio_find_deleted_subvolumes(const char *path,
                                        const struct papilio_options *options,
                                        struct papilio_deleted_list **list);

// Describes the subvolume at `index` of a list, counted from 0. `deleted` points to a
// papilio_deleted_subvolume, and `size` is its sizeof. Its path is valid until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_deleted_get(struct papilio_deleted_list *list,
                        size_t index,
                        struct papilio_deleted_subvolume *deleted,
                        size_t size);

// Frees a list of deleted subvolumes, and the paths in it.
//
// Returns 0 or a negative errno.
int papilio_deleted_free(struct papilio_deleted_list *list);

// Plans in memory how the deleted subvolume with the id `id`, which the older root tree at the
// address `root_tree` has, comes back; nothing is written. `path` and `options` are those of
// papilio_find_deleted_subvolumes(). The plan goes to `*plan`. Free it with
// papilio_undelete_plan_free().
//
// Returns 0 or a negative errno.
int papilio_plan_undelete(const char *path,
                          const struct papilio_options *options,
                          uint64_t id,
                          uint64_t root_tree,
                          struct papilio_undelete_plan **plan);

// Tells the numbers of lines of a plan. `summary` points to a papilio_undelete_summary, and `size`
// is its sizeof.
//
// Returns 0 or a negative errno.
int papilio_undelete_plan_get(struct papilio_undelete_plan *plan,
                              struct papilio_undelete_summary *summary,
                              size_t size);

// Returns in `*text` the line at `index`, counted from 0, of a kind PAPILIO_PLAN_*. It is
// NUL-terminated and valid until the plan is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end, -EINVAL for an unknown kind.
int papilio_undelete_plan_line(struct papilio_undelete_plan *plan,
                               uint32_t kind,
                               size_t index,
                               const char **text);

// Frees a plan, and the texts in it.
//
// Returns 0 or a negative errno.
int papilio_undelete_plan_free(struct papilio_undelete_plan *plan);

// Finds out whether metadata has too little room, and what would help, without changing anything.
// The answer goes to `*relief`. Free it with papilio_relief_free().
//
// Returns 0 or a negative errno.
int papilio_plan_relief(struct papilio_fs *fs, struct papilio_relief **relief);

// Tells how much room metadata has, and what would help. `summary` points to a
// papilio_relief_summary, and `size` is its sizeof.
//
// Returns 0 or a negative errno.
int papilio_relief_get(struct papilio_relief *relief,
                       struct papilio_relief_summary *summary,
                       size_t size);

// Describes the block group at `index`, counted from 0, of a kind PAPILIO_RELIEF_EMPTY or
// PAPILIO_RELIEF_MOVABLE. `group` points to a papilio_relief_group, and `size` is its sizeof.
//
// Returns 0 or a negative errno: -ERANGE past the end, -EINVAL for an unknown kind.
int papilio_relief_group_get(struct papilio_relief *relief,
                             uint32_t kind,
                             size_t index,
                             struct papilio_relief_group *group,
                             size_t size);

// Tells which device at `index`, counted from 0, is larger than the file system on it: its id goes
// to `*devid`.
//
// Returns the bytes behind the end of the file system, or a negative errno: -ERANGE past the end.
int64_t papilio_relief_slack(struct papilio_relief *relief, size_t index, uint64_t *devid);

// Frees what papilio_plan_relief() made.
//
// Returns 0 or a negative errno.
int papilio_relief_free(struct papilio_relief *relief);

// Reads the trees of all subvolumes of `fs`, after a commit, and finds out which of them share
// which bytes. References take at most `memory_bytes`, 0 for 256 MiB; more go to a temporary file.
// With `sampled_leaves` other than 0, only about so many leaves are read, and bytes of data are
// estimated. `progress` is NULL or called with `user`: with the blocks of one level that were
// read, those that are known, and the level. The answers go to `*sharing`. Free them with
// papilio_sharing_free().
//
// Returns 0 or a negative errno: -ECANCELED if `progress` returns other than 0. Blocks that cannot
// be read are left out and counted by papilio_sharing_statistics_get().
int papilio_space_sharing(struct papilio_fs *fs,
                          size_t memory_bytes,
                          uint64_t sampled_leaves,
                          papilio_progress_fn progress,
                          void *user,
                          struct papilio_sharing **sharing);

// Returns the number of subvolumes that were measured, or a negative errno.
int64_t papilio_sharing_count(struct papilio_sharing *sharing);

// Describes the subvolume at `index`, counted from 0 in the order of creation. `space` points to a
// papilio_subvolume_space, and `size` is its sizeof. Its path is valid until the answers are
// freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_sharing_get(struct papilio_sharing *sharing,
                        size_t index,
                        struct papilio_subvolume_space *space,
                        size_t size);

// Tells the bytes that deleting the `count` subvolumes with the ids at `ids`, and no others,
// frees. Ids that were not measured count for nothing. `freed` points to a papilio_estimate, and
// `size` is its sizeof.
//
// Returns 0 or a negative errno.
int papilio_sharing_freed_by(struct papilio_sharing *sharing,
                             const uint64_t *ids,
                             size_t count,
                             struct papilio_estimate *freed,
                             size_t size);

// Tells the bytes of all subvolumes together. `total` points to a papilio_estimate, and `size` is
// its sizeof.
//
// Returns 0 or a negative errno.
int papilio_sharing_total(struct papilio_sharing *sharing,
                          struct papilio_estimate *total,
                          size_t size);

// Chooses subvolumes whose deletion frees at least `wanted` bytes of data and tree blocks, the
// first of the `count` ids at `candidates` first. None of the chosen could be spared. Their ids go
// to `chosen`, which has room for `count` ids.
//
// Returns the number of chosen subvolumes or a negative errno: -ENOSPC if all candidates together
// free less.
int64_t papilio_sharing_choose(struct papilio_sharing *sharing,
                               uint64_t wanted,
                               const uint64_t *candidates,
                               size_t count,
                               uint64_t *chosen);

// Tells what was read, and what could not be. `statistics` points to a papilio_sharing_statistics,
// and `size` is its sizeof.
//
// Returns 0 or a negative errno.
int papilio_sharing_statistics_get(struct papilio_sharing *sharing,
                                   struct papilio_sharing_statistics *statistics,
                                   size_t size);

// Returns in `*text` the message of the error at `index`, counted from 0, NUL-terminated and valid
// until the answers are freed. Only the first few bad blocks have a message.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_sharing_error(struct papilio_sharing *sharing, size_t index, const char **text);

// Frees the answers, and the texts in them.
//
// Returns 0 or a negative errno.
int papilio_sharing_free(struct papilio_sharing *sharing);

// Describes the file at `path`, NUL-terminated. `flags` is 0 or PAPILIO_NOFOLLOW. `stat` points to
// a papilio_stat, and `size` is its sizeof.
//
// Returns 0 or a negative errno.
int papilio_stat(struct papilio_fs *fs,
                 const char *path,
                 uint32_t flags,
                 struct papilio_stat *stat,
                 size_t size);

// Returns the sizes of a file system. `statfs` points to a papilio_statfs, and `size` is its
// sizeof.
//
// Returns 0 or a negative errno.
int papilio_statfs(struct papilio_fs *fs, struct papilio_statfs *statfs, size_t size);

// Tells how the space of a file system is used now, by type, profile and device. The object goes
// to `*usage`. Free it with papilio_usage_free().
//
// Returns 0 or a negative errno.
int papilio_usage(struct papilio_fs *fs, struct papilio_usage **usage);

// Returns the number of types and profiles, or a negative errno.
int64_t papilio_usage_space_count(struct papilio_usage *usage);

// Describes the space at `index`, counted from 0. `space` points to a papilio_space, and `size` is
// its sizeof. Its texts are valid until the usage object is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_usage_space(struct papilio_usage *usage,
                        size_t index,
                        struct papilio_space *space,
                        size_t size);

// Returns the number of devices, or a negative errno.
int64_t papilio_usage_device_count(struct papilio_usage *usage);

// Describes the device at `index`, counted from 0. `device` points to a papilio_device, and `size`
// is its sizeof. Its path is valid until the usage object is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_usage_device(struct papilio_usage *usage,
                         size_t index,
                         struct papilio_device *device,
                         size_t size);

// Frees a usage object, and its texts.
//
// Returns 0 or a negative errno.
int papilio_usage_free(struct papilio_usage *usage);

// Tells how much memory a file system uses. `memory` points to a papilio_memory, and `size` is its
// sizeof.
//
// Returns 0 or a negative errno.
int papilio_memory(struct papilio_fs *fs, struct papilio_memory *memory, size_t size);

// Drops all clean tree blocks from memory.
//
// Returns 0 or a negative errno.
int papilio_drop_cache(struct papilio_fs *fs);

// Makes an options object with the defaults: a full stream in protocol 1, with data. It goes to
// `*options`. Free it with papilio_send_options_free().
//
// Returns 0 or a negative errno.
int papilio_send_options_new(struct papilio_send_options **options);

// Frees an options object.
//
// Returns 0 or a negative errno.
int papilio_send_options_free(struct papilio_send_options *options);

// Sends the difference from the snapshot with the id `parent`, which the receiver has. 0, the
// default, sends everything.
//
// Returns 0 or a negative errno.
int papilio_send_options_set_parent(struct papilio_send_options *options, uint64_t parent);

// Lets the stream clone from the snapshot with the id `source`, which the receiver has.
//
// Returns 0 or a negative errno.
int papilio_send_options_add_clone_source(struct papilio_send_options *options, uint64_t source);

// Sets whether the stream says which ranges changed in place of their data. The default is false.
//
// Returns 0 or a negative errno.
int papilio_send_options_set_no_data(struct papilio_send_options *options, bool no_data);

// Chooses the protocol, 1 or 2. The default is 1.
//
// Returns 0 or a negative errno.
int papilio_send_options_set_protocol(struct papilio_send_options *options, uint32_t protocol);

// Sets whether compressed extents are sent as they lie, which needs protocol 2. The default is
// false.
//
// Returns 0 or a negative errno.
int papilio_send_options_set_compressed_data(struct papilio_send_options *options, bool compressed);

// Writes the stream of the read-only subvolume with the id `subvolume` to the descriptor `fd`.
// `options` may be NULL for the defaults. `progress` is NULL or a function that is called with
// `user`, the inodes that are sent, their total, and the bytes of the stream.
//
// Returns the bytes of the stream, or a negative errno: -EBADF for a descriptor that is not open,
// -ECANCELED if `progress` returns other than 0, the errno of writing.
int64_t papilio_send(struct papilio_fs *fs,
                     uint64_t subvolume,
                     int fd,
                     const struct papilio_send_options *options,
                     papilio_progress_fn progress,
                     void *user);

// Applies the streams that the descriptor `fd` gives to the directory at `path`, NUL-terminated,
// until the end of the input. `flags` is 0 or PAPILIO_RECEIVE_ONE. The call ends after
// `max_errors` commands that failed; 0 means never, and 1 is usual. `failed` is NULL or hears of
// each. `progress` is NULL or a function that is called with `user`, 0, 0, and the bytes of the
// stream.
//
// Returns the number of complete subvolumes, or a negative errno: -EINVAL for an invalid stream,
// -ENOENT for a parent that is missing, -ECANCELED if `progress` returns other than 0. After an
// error, subvolumes that were complete before stay, and an incomplete one stays writable.
int64_t papilio_receive(struct papilio_fs *fs,
                        const char *path,
                        int fd,
                        uint32_t flags,
                        uint64_t max_errors,
                        papilio_progress_fn progress,
                        papilio_message_fn failed,
                        void *user);

// As papilio_receive(), into the directory `directory` of the host, NUL-terminated. In a mount of
// Papilio or of the kernel's Btrfs, subvolumes become subvolumes. Elsewhere they become plain
// directories, and a snapshot is a copy of its parent, which must have been received into the same
// directory. Linux only.
//
// Returns as papilio_receive(); -EINVAL for a program under fakeroot, which would not see the
// owners, and -EOPNOTSUPP on other hosts.
int64_t papilio_receive_directory(const char *directory,
                                  int fd,
                                  uint32_t flags,
                                  uint64_t max_errors,
                                  papilio_progress_fn progress,
                                  papilio_message_fn failed,
                                  void *user);

// Creates an empty subvolume at `path`, NUL-terminated, with the permissions 0755.
//
// Returns 0 or a negative errno.
int papilio_subvolume_create(struct papilio_fs *fs, const char *path);

// Creates a snapshot of the subvolume at `source` at `path`, both NUL-terminated. `flags` is 0 or
// PAPILIO_SNAPSHOT_READ_ONLY. Subvolumes nested in the source appear as empty directories.
// Commits.
//
// Returns 0 or a negative errno: -ENOENT if `source` is not the root of a subvolume.
int papilio_snapshot(struct papilio_fs *fs, const char *source, const char *path, uint32_t flags);

// Deletes the subvolume at `path`, NUL-terminated, with its content. Its space is freed in the
// background, or by papilio_subvolumes_clean().
//
// Returns 0 or a negative errno: -ENOENT if `path` is not a subvolume, -ENOTEMPTY if it contains
// other subvolumes, -EPERM for the default subvolume.
int papilio_subvolume_delete(struct papilio_fs *fs, const char *path);

// Deletes the subvolume with the id `id`.
//
// Returns 0 or a negative errno, as papilio_subvolume_delete().
int papilio_subvolume_delete_by_id(struct papilio_fs *fs, uint64_t id);

// Frees the space of deleted subvolumes, in the calling thread, until none is left.
//
// Returns 0 or a negative errno.
int papilio_subvolumes_clean(struct papilio_fs *fs);

// Makes the subvolume at `path`, NUL-terminated, read-only or writable.
//
// Returns 0 or a negative errno.
int papilio_subvolume_set_read_only(struct papilio_fs *fs, const char *path, bool read_only);

// Returns 1 if the subvolume at `path`, NUL-terminated, is read-only, 0 if it is writable, or a
// negative errno.
int papilio_subvolume_is_read_only(struct papilio_fs *fs, const char *path);

// Returns the id of the subvolume at `path`, NUL-terminated, or a negative errno: -ENOENT if
// `path` is not the root of a subvolume.
int64_t papilio_subvolume_id(struct papilio_fs *fs, const char *path);

// Returns the id of the subvolume that a mount without options shows, or a negative errno.
int64_t papilio_default_subvolume(struct papilio_fs *fs);

// Makes the subvolume with the id `id` the one that a mount without options shows.
//
// Returns 0 or a negative errno.
int papilio_set_default_subvolume(struct papilio_fs *fs, uint64_t id);

// Marks the writable subvolume at `path`, NUL-terminated, as received: from the subvolume with the
// UUID in the 16 bytes at `uuid`, in the sender's transaction `sent`, at the time of `seconds`
// since 1970 and `nanoseconds`. papilio_receive() does this by itself.
//
// Returns 0 or a negative errno.
int papilio_subvolume_set_received(struct papilio_fs *fs,
                                   const char *path,
                                   const uint8_t *uuid,
                                   uint64_t sent,
                                   int64_t seconds,
                                   uint32_t nanoseconds);

// Lists all subvolumes and snapshots, also those being deleted: the top level first, then by id.
// The list, as of now, goes to `*list`. Free it with papilio_subvolumes_free().
//
// Returns 0 or a negative errno.
int papilio_subvolumes(struct papilio_fs *fs, struct papilio_subvolume_list **list);

// Returns the number of subvolumes in a list, or a negative errno.
int64_t papilio_subvolumes_count(struct papilio_subvolume_list *list);

// Describes the subvolume at `index` in a list, counted from 0. `subvolume` points to a
// papilio_subvolume, and `size` is its sizeof. Its path is valid until the list is freed.
//
// Returns 0 or a negative errno: -ERANGE past the end.
int papilio_subvolumes_get(struct papilio_subvolume_list *list,
                           size_t index,
                           struct papilio_subvolume *subvolume,
                           size_t size);

// Frees a list of subvolumes, and the paths in it.
//
// Returns 0 or a negative errno.
int papilio_subvolumes_free(struct papilio_subvolume_list *list);

// Copies the value of the attribute `name` of the file at `path`, both NUL-terminated, to the
// `size` bytes at `value`. With `size` 0, `value` may be NULL, and the call only returns the
// length. `flags` is 0 or PAPILIO_NOFOLLOW.
//
// Returns the length, or a negative errno: -ENODATA if there is no such attribute, -ERANGE if the
// buffer is too small.
int64_t papilio_getxattr(struct papilio_fs *fs,
                         const char *path,
                         const char *name,
                         void *value,
                         size_t size,
                         uint32_t flags);

// Sets the attribute `name` of the file at `path`, both NUL-terminated, to the `size` bytes at
// `value`, which may be NULL if `size` is 0. `flags` is 0 or a combination of PAPILIO_NOFOLLOW
// with PAPILIO_XATTR_CREATE or PAPILIO_XATTR_REPLACE.
//
// Returns 0 or a negative errno: -EEXIST or -ENODATA as the flags require.
int papilio_setxattr(struct papilio_fs *fs,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t size,
                     uint32_t flags);

// Copies the names of all attributes of the file at `path`, NUL-terminated, to the `size` bytes at
// `list`, each followed by a NUL. With `size` 0, `list` may be NULL, and the call only returns the
// length. `flags` is 0 or PAPILIO_NOFOLLOW.
//
// Returns the length of the list, or a negative errno: -ERANGE if the buffer is too small.
int64_t papilio_listxattr(struct papilio_fs *fs,
                          const char *path,
                          void *list,
                          size_t size,
                          uint32_t flags);

// Removes the attribute `name` of the file at `path`, both NUL-terminated. `flags` is 0 or
// PAPILIO_NOFOLLOW.
//
// Returns 0 or a negative errno: -ENODATA if there is no such attribute.
int papilio_removexattr(struct papilio_fs *fs, const char *path, const char *name, uint32_t flags);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PAPILIO_H */

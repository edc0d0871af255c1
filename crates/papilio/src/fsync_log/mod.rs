//! The fsync log: what was made durable since the last commit, and bringing it into the trees.
//!
//! An fsync writes the items of a few inodes into a *log tree* of their subvolume, and the superblock
//! points to the tree of log trees. Whoever opens the file system for writing next replays the logs in one
//! transaction and commits it, which forgets them. Until then nothing of the last commit is overwritten.
//!
//! A log tree has the keys of its subvolume, and these items:
//!
//! | item | what replay does with it |
//! |---|---|
//! | INODE_ITEM | overwrites the inode; generation 0 says only that the inode exists; no links: all of the inode is passed over |
//! | XATTR_ITEM | overwrites; attributes that a logged inode has in the subvolume only are removed |
//! | INODE_REF, INODE_EXTREF | overwrite; names that come are linked, names that go are unlinked |
//! | DIR_INDEX | an entry that exists; the DIR_ITEM follows from it |
//! | DIR_LOG_INDEX | a range of indexes in which entries that the log does not have are gone |
//! | DIR_ITEM, DIR_LOG_ITEM | nothing (kernels before 5.16 wrote them too) |
//! | EXTENT_DATA | replaces what its range held |
//! | EXTENT_CSUM | the checksums of logged extents |
//!
//! [`log_inode`] says what of an inode enters a log, [`name_changes`] and [`related_names`] which names go with
//! it; the trees of the log that is being written, and their way to disk, are [`crate::transaction`]'s.
//!
//! Invariants of the replay: the log is read whole, and all that it points to is taken out of the free
//! space, before anything is allocated; it stays out of it until the superblocks that know no log are on
//! disk, so that a replay that is cut short can be repeated; an error leaves the disk as it was.
//!
//! Locks: none of its own; a transaction's handle, then a tree's editor for one change at a time. Kernel
//! counterpart: `fs/btrfs/tree-log.c`.

mod link_counts;
pub(crate) mod log_inode;
mod log_space;
mod log_trees;
pub(crate) mod name_changes;
mod related_names;
mod replay;
mod replay_entries;
mod replay_extents;
mod replay_inodes;
mod replay_refs;

pub(crate) use replay::replay;

use papilio_format::{InodeNumber, ItemType, Key};

/// The key of a logged range of a directory that begins at `index`.
pub(crate) const fn dir_log_key(directory: InodeNumber, index: u64) -> Key {
    Key::new(directory.0, ItemType::DIR_LOG_INDEX, index)
}

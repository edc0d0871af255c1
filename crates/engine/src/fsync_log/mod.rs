//! The fsync log: writing what must survive a crash before the next commit, and replaying it.
//!
//! An fsync writes the items of a few inodes into a *log tree* of their subvolume. The superblock
//! points to the tree of log trees. The next mount for writing replays the logs in one transaction,
//! and its commit ends them. Until then nothing of the last commit is overwritten.
//!
//! A log tree has the keys of its subvolume, and these items:
//!
//! | item | its replay |
//! |---|---|
//! | INODE_ITEM | overwrites the inode (see below) |
//! | XATTR_ITEM | overwrites; attributes that only the subvolume's inode has are removed |
//! | INODE_REF, INODE_EXTREF | overwrite; new names are linked, missing names unlinked |
//! | DIR_INDEX | makes sure of an entry; the DIR_ITEM follows from it |
//! | DIR_LOG_INDEX | removes the entries in a range of indexes that the log does not have |
//! | DIR_ITEM, DIR_LOG_ITEM | none (kernels before 5.16 wrote them too) |
//! | EXTENT_DATA | replaces the extents in its range |
//! | EXTENT_CSUM | the checksums of logged extents |
//!
//! An inode of generation 0 only states that the inode exists. An inode without links is skipped,
//! with all of its items.
//!
//! [`log_inode`] decides which items of an inode enter a log, [`name_changes`] and
//! [`related_names`] which names go with it. [`crate::transaction`] owns the trees of the log that
//! is being written, and writes them to disk.
//!
//! **Invariants** of the replay
//! - The log is read whole, and everything it points to is taken out of the free space, before
//!   anything is allocated.
//! - That space stays out of the free space until superblocks without a log are on disk, so that an
//!   interrupted replay can be repeated.
//! - An error leaves the disk as it was.
//!
//! **Locks**, in this order: a transaction's handle; a tree's editor, for one change at a time.
//!
//! Kernel counterpart: `fs/btrfs/tree-log.c`.

mod link_counts;
pub mod log_inode;
mod log_space;
mod log_trees;
pub(crate) mod name_changes;
mod related_names;
mod replay;
mod replay_entries;
mod replay_extents;
mod replay_inodes;
mod replay_refs;

#[cfg(feature = "unstable")]
pub use log_trees::LogUsage;
#[cfg(feature = "unstable")]
pub use log_trees::log_usage;
pub(crate) use replay::replay;

use papilio_format::{InodeNumber, ItemType, Key};

/// The key of a directory's logged range of indexes that starts at `index`.
pub(crate) const fn dir_log_key(directory: InodeNumber, index: u64) -> Key {
    Key::new(directory.0, ItemType::DIR_LOG_INDEX, index)
}

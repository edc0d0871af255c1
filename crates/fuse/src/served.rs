//! The file system that a mount shows.
//!
//! Owns [`ServedFileSystem`]. A mount with `ro` has it open for reading. A remount with `rw`, or a
//! device that is added to a seed, opens it for writing beside that, and from then on every request
//! gets the later one. Requests that are under way end with the one that they have.
//!
//! **Invariant**: the later one is set once, and stays.
//!
//! Kernel counterpart: `btrfs_remount_rw` (`fs/btrfs/super.c`).

use papilio::FileSystem;
use std::sync::OnceLock;

/// The file system of a mount, and the one that took its place.
#[derive(Debug)]
pub(crate) struct ServedFileSystem {
    first: FileSystem,
    later: OnceLock<FileSystem>,
}

impl ServedFileSystem {
    /// Serves a file system as it was opened.
    pub(crate) fn new(first: FileSystem) -> Self {
        Self { first, later: OnceLock::new() }
    }

    /// Returns the file system.
    pub(crate) fn current(&self) -> &FileSystem {
        self.later.get().unwrap_or(&self.first)
    }

    /// Puts another one in its place. The caller is the only one that does so.
    pub(crate) fn replace(&self, later: FileSystem) {
        self.later.set(later).expect("it is replaced once");
        // Its devices stay open: requests that are under way use them.
        self.first.drop_cache();
    }
}

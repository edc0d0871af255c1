//! The file system that a mount shows.
//!
//! Owns [`ServedFileSystem`]. A mount with `ro` has it open for reading. A remount with `rw`, or a
//! device that is added to a seed, opens it for writing beside that, and from then on every request
//! gets the later one. So does a mount that follows a writer, with each later state. Requests that
//! are under way end with the one that they have.
//!
//! **Invariant**: one that is open for writing stays.
//!
//! Kernel counterpart: `btrfs_remount_rw` (`fs/btrfs/super.c`).

use arc_swap::{ArcSwap, Guard};
use papilio::FileSystem;
use std::sync::{Arc, OnceLock};

/// The file system of a mount, and the one whose place it took.
#[derive(Debug)]
pub(crate) struct ServedFileSystem {
    current: ArcSwap<FileSystem>,
    /// The one that was open for reading: its devices stay open.
    earlier: OnceLock<Arc<FileSystem>>,
}

impl ServedFileSystem {
    /// Serves a file system as it was opened.
    pub(crate) fn new(first: FileSystem) -> Self {
        Self { current: ArcSwap::from_pointee(first), earlier: OnceLock::new() }
    }

    /// Returns the file system.
    pub(crate) fn current(&self) -> Guard<Arc<FileSystem>> {
        self.current.load()
    }

    /// Puts one that is open for writing in its place. The caller is the only one that does so.
    pub(crate) fn replace(&self, later: FileSystem) {
        let earlier = self.current.swap(Arc::new(later));
        // Its devices stay open: requests that are under way use them, and locks of files depend on
        // them.
        earlier.drop_cache();
        self.earlier.set(earlier).expect("it is replaced once");
    }

    /// Puts a later state, which is open for reading, in its place. The earlier one is closed once
    /// no request uses it.
    pub(crate) fn follow(&self, later: FileSystem) {
        drop(self.current.swap(Arc::new(later)));
    }
}

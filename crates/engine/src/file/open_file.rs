//! A handle on an open file of a file system that is open for writing.
//!
//! Owns [`OpenFile`]: an [`OpenInode`] with what belongs to one handle, the readahead state and
//! whether I/O is direct. Reading, writing and fsync are methods in the files beside this one. Also
//! owns [`Stamp`].
//!
//! Kernel counterpart: `struct file` (`include/linux/fs.h`).

use crate::btree::LiveTree;
use crate::errors::{Error, PathError, Result};
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::namespace::Place;
use crate::transaction::Transactions;
use papilio_format::items::inode::Timespec;
use papilio_locks::Mutex;
use papilio_pagecache::{Mapping, Readahead, ReadaheadRequest};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Pages that are read ahead at most.
const READAHEAD_PAGES: u64 = 1024;

/// The times that a write sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// Sets mtime and ctime to the time of the write.
    Now,
    /// Leaves them, because the caller's client set them when it changed its own cache.
    Keep,
}

impl Stamp {
    /// Returns the time that a write sets; `None` if it leaves the times.
    pub(super) fn time(self, transactions: &Transactions) -> Option<Timespec> {
        (self == Self::Now).then(|| transactions.now())
    }
}

/// A handle on an open file. Clones share the readahead state.
#[derive(Clone, Debug)]
pub struct OpenFile {
    // In this order: the inode is dropped before the file system.
    pub(super) open: Arc<OpenInode>,
    /// The file system that the file is in.
    pub fs: Arc<FsInfo>,
    /// The file's subvolume, once it was looked up. No other subvolume gets its id.
    live: OnceLock<Arc<LiveTree>>,
    /// Whether reads and writes bypass the page cache.
    pub(super) direct: bool,
    /// Whether the subvolume was writable when the handle was opened, or opened for writing. Then
    /// the handle writes data even if the subvolume has become read-only since.
    writes: Arc<AtomicBool>,
    readahead: Arc<Mutex<Readahead>>,
}

impl OpenFile {
    /// Opens the regular file at `place`.
    pub fn new(fs: &Arc<FsInfo>, place: Place) -> Self {
        let open = fs.open_inode(place);
        let usable = fs.check_usable(place.tree);
        if usable.is_ok_and(|live| !live.is_referenced()) {
            // As the files that were open when the subvolume was deleted.
            open.set_deleted();
        }
        Self {
            open,
            fs: Arc::clone(fs),
            live: OnceLock::new(),
            direct: false,
            writes: Arc::new(AtomicBool::new(fs.check_changeable(place.tree).is_ok())),
            readahead: Arc::new(Mutex::new(Readahead::new(READAHEAD_PAGES))),
        }
    }

    /// Sets whether reads and writes bypass the page cache (`O_DIRECT`).
    pub fn set_direct(&mut self, direct: bool) {
        self.direct = direct;
    }

    /// Marks a file that was created without a name: it is deleted with its last handle.
    pub fn set_unnamed(&self) {
        self.open.set_unnamed();
    }

    /// Checks that the subvolume can be written, and lets the handle write from now on.
    ///
    /// # Errors
    /// [`PathError::ReadOnly`], [`PathError::NoSubvolume`].
    pub fn begin_writing(&self) -> Result<()> {
        self.fs.check_changeable(self.open.place().tree)?;
        self.writes.store(true, Ordering::Release);
        Ok(())
    }

    /// Checks that the handle may write data: as in the kernel, a subvolume that becomes read-only
    /// refuses later opens, not writes by handles that it let write.
    ///
    /// # Errors
    /// [`PathError::ReadOnly`], [`PathError::NoSubvolume`].
    pub(super) fn check_writable(&self) -> Result<()> {
        match self.writes.load(Ordering::Acquire) {
            true => self.fs.check_usable(self.open.place().tree).map(drop),
            false => self.begin_writing(),
        }
    }

    /// Returns the size in bytes, with changes that only memory has.
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub fn size(&self) -> Result<u64> {
        self.open.size(self.live()?)
    }

    /// Publishes all changes of the file that only memory and device have.
    ///
    /// # Errors
    /// An error of the device or of changing trees.
    pub fn flush(&self) -> Result<()> {
        self.open.flush(&self.fs)
    }

    /// Returns the tree of the file's subvolume.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(super) fn live(&self) -> Result<&LiveTree> {
        if let Some(live) = self.live.get() {
            return Ok(live);
        }
        let live = self.fs.transactions()?.live().get(self.open.place().tree)?;
        Ok(self.live.get_or_init(|| live))
    }

    /// Returns whether requests wait for a device.
    pub fn waits(&self) -> bool {
        self.fs.volume().waits()
    }

    /// Returns the file's pages, if this handle uses them.
    pub(super) fn cached(&self) -> Option<&Mapping> {
        self.open.mapping.as_ref().filter(|_| !self.direct)
    }

    /// Returns the pages to read ahead after an access to `pages`, of which some are `missing` from
    /// the cache.
    pub(super) fn next_readahead(
        &self,
        pages: Range<u64>,
        missing: bool,
        file_pages: u64,
    ) -> Option<ReadaheadRequest> {
        // Several threads on one handle: the order of a second thread's accesses says nothing.
        self.readahead.try_lock()?.access(pages, missing, file_pages)
    }

    /// Returns the error for an offset past the largest file size.
    pub(super) fn too_large(&self) -> Error {
        Error::path(format!("inode {}", self.open.place().inode).as_bytes(), PathError::TooLarge)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Data of a file without a name is dropped with its last handle, not written by the next
        // flush.
        if self.open.is_unlinked() {
            self.fs.dirty_inodes.forget_unlinked(&self.open);
        }
    }
}

//! fsync: making one inode durable.
//!
//! Owns [`OpenFile::sync`], [`OpenFile::sync_data`] and [`FsInfo::sync_inode`]. An fsync writes the
//! log tree and shares the log's flush with other threads. Changes that the log cannot express
//! force a full commit. [`NameChanges`](crate::fsync_log::name_changes) knows which directory
//! entries have to be logged with an inode.
//!
//! Locks, in this order: the inode's fsync lock, its data lock (shared), the transaction's, the one
//! on names, [`super::changed_files`] (leaves). Kernel counterpart: `btrfs_sync_file`
//! (`fs/btrfs/file.c`).

use crate::errors::{Error, Result};
use crate::file::changed_files::{ChangedRanges, DataState};
use crate::file::fs_info::FsInfo;
use crate::file::open_file::OpenFile;
use crate::file::open_inode::OpenInode;
use crate::fsync_log::log_inode::{LogRequest, Logged, WithNames, log_file};
use crate::namespace::Place;
use crate::transaction::{Handle, Synced};
use papilio_format::InodeNumber;
use std::ops::Range;
use std::sync::Arc;

/// Tree blocks that logging an inode may take, counted in items.
pub const LOG_ITEMS: u64 = 6;

impl OpenFile {
    /// Makes all earlier changes of the file durable, and its names where they changed (`fsync`).
    /// Logs the file in the running transaction's log, or commits where the log cannot express the
    /// change or is turned off.
    ///
    /// # Errors
    /// As `FileSystem::sync`.
    pub fn sync(&self) -> Result<()> {
        self.flush()?;
        self.fs.sync_inode(self.open.place(), Some(&self.open))
    }

    /// Makes all data written earlier durable, with all that is needed to read it: the size, the
    /// extents, and the names of a new file (`fdatasync`). Times, attributes and names of a file
    /// that had some before may be lost. Writes nothing where none of that changed since it was
    /// last durable; data overwritten in place is flushed.
    ///
    /// # Errors
    /// As [`OpenFile::sync`].
    pub fn sync_data(&self) -> Result<()> {
        let (open, fs) = (&self.open, &*self.fs);
        let transactions = fs.transactions()?;
        let place = open.place();
        let (generation, state) = {
            // A thread that publishes the file holds the first lock, or the second one exclusively.
            let _one = open.fsync.lock();
            let _shared = open.data.read();
            let generation = transactions.generation();
            let item = open.item(&*transactions.live().get(place.tree)?)?;
            let in_memory = open.has_data_in_memory(&item);
            let state = match open.changed.data_state(generation) {
                DataState::Unchanged if item.generation >= generation => DataState::Changed,
                DataState::Logged(_) if !transactions.is_logged(place.tree, place.inode) => {
                    DataState::Changed
                }
                state if !in_memory => state,
                _ => DataState::Changed,
            };
            (generation, state)
        };
        match state {
            DataState::Changed => return self.sync(),
            DataState::Unchanged => transactions.wait_for_commit()?,
            DataState::Logged(ticket) => match transactions.sync_log(ticket)? {
                Synced::Durable => {}
                Synced::NeedsCommit => return fs.commit_transaction(generation),
            },
        }
        fs.volume().flush()?;
        // A device was lost: only a newer superblock on the others tells that it is out of date.
        if fs.volume().needs_commit() { transactions.commit_anyway() } else { Ok(()) }
    }
}

impl OpenInode {
    /// Returns the sectors whose items a change of `length` bytes from `offset` on may touch. They
    /// include those between the file's end and `offset`, and the first sector of a file of at most
    /// one, whose bytes may be inline.
    pub(super) fn changed_range(&self, fs: &FsInfo, offset: u64, length: u64) -> Result<Range<u64>> {
        let sector = u64::from(fs.volume().geometry().sector_size);
        let live = fs.transactions()?.live().get(self.place().tree)?;
        let size = self.item(&live)?.size;
        let from = offset.min(size);
        let start = if size <= sector { 0 } else { from - from % sector };
        let end = offset.saturating_add(length).checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        Ok(start..end)
    }

    /// Logs the file.
    fn log_open(&self, fs: &FsInfo, flushed: bool) -> Result<Logged> {
        let _one = self.fsync.lock();
        let _shared = self.data.read();
        fs.log_inode(self.place(), Some(&self.changed), flushed)
    }
}

impl FsInfo {
    /// Makes an inode durable. Its changes in memory were flushed before.
    pub fn sync_inode(&self, place: Place, open: Option<&Arc<OpenInode>>) -> Result<()> {
        let transactions = self.transactions()?;
        if !self.tree_log {
            return self.commit();
        }
        // All changes that must become durable are in this transaction or an earlier one.
        let generation = transactions.generation();
        let log = |flushed| match open {
            Some(open) => open.log_open(self, flushed),
            None => self.log_inode(place, None, flushed),
        };
        let mut logged = log(false)?;
        if let Logged::NeedsFlush(files) = &logged {
            for &inode in files {
                self.flush_place(Place { inode, ..place })?;
            }
            logged = log(true)?;
        }
        let why = match logged {
            Logged::Nothing => return transactions.wait_for_commit(),
            Logged::Entered(ticket) => match transactions.sync_log(ticket)? {
                Synced::Durable => return Ok(()),
                Synced::NeedsCommit => "it refers to something that only this transaction has",
            },
            Logged::NeedsNames | Logged::NeedsFlush(_) => {
                unreachable!("names were included, and files flushed")
            }
            Logged::NeedsCommit(why) => why,
        };
        tracing::debug!("fsync of {place:?} commits: {why}");
        self.commit_transaction(generation)
    }

    /// Logs an inode; `changed` has the changed ranges of a file. Other files that must be logged
    /// with it are logged as the tree has them. Returns [`Logged::NeedsFlush`] if they have
    /// unpublished data, unless they were `flushed`.
    /// Where the log finds no space, only a commit makes the inode durable.
    fn log_inode(&self, place: Place, changed: Option<&ChangedRanges>, flushed: bool) -> Result<Logged> {
        match self.enter_inode(place, changed, flushed) {
            // The log is unchanged, or marked unusable. All data has its space already.
            Err(Error::NoSpace { .. }) => Ok(Logged::NeedsCommit("there is no space for the log")),
            logged => logged,
        }
    }

    fn enter_inode(&self, place: Place, changed: Option<&ChangedRanges>, flushed: bool) -> Result<Logged> {
        self.transactions()?.change(LOG_ITEMS, |handle| {
            let names = &self.name_changes;
            if changed.is_some() {
                // Held shared: other threads may log files, and change names that do not concern
                // this one.
                let _shared = names.changing();
                if !names.concern(handle.generation(), place.tree, place.inode) {
                    match self.log_with(handle, place, changed, None)? {
                        Logged::NeedsNames => {}
                        logged => return Ok(logged),
                    }
                }
            }
            let _entering = names.entering();
            self.log_with(handle, place, changed, Some(flushed))
        })
    }

    fn log_with(
        &self,
        handle: &Handle<'_>,
        place: Place,
        changed: Option<&ChangedRanges>,
        with_names: Option<bool>,
    ) -> Result<Logged> {
        let generation = handle.generation();
        let ranges = changed.and_then(|changed| changed.of(generation));
        let changed_of = |inode: InodeNumber| self.changed_files.of(generation, Place { inode, ..place });
        // Only files without a page cache. Dirty pages are not flushed here: the background thread,
        // an fsync of that file, or a sync writes them back.
        let unflushed = |inode: InodeNumber| {
            let dirty = self.dirty_inodes.get(Place { inode, ..place });
            with_names == Some(false) && dirty.is_some_and(|open| open.mapping.is_none())
        };
        let names = WithNames { changes: &self.name_changes, changed_of: &changed_of, unflushed: &unflushed };
        let logged = log_file(
            handle,
            &LogRequest {
                live: &*handle.live_tree(place.tree)?,
                inode: place.inode,
                changed: ranges.as_ref(),
                names: with_names.map(|_| names),
                how: self.tuning.log_items,
            },
        )?;
        if let (Logged::Entered(ticket), Some(changed)) = (&logged, changed) {
            changed.logged(generation, *ticket);
        }
        Ok(logged)
    }
}

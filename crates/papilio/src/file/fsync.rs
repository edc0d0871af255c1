//! fsync: making one inode durable.
//!
//! Owns [`OpenFile::sync`], [`OpenFile::sync_data`] and [`FsInfo::sync_inode`]. An fsync writes the log tree and shares the
//! log's flush with other threads. Changes that the log cannot express force a full commit.
//! [`NameChanges`](crate::fsync_log::name_changes) knows which directory entries have to be logged with an inode.
//!
//! Locks, in this order: the inode's fsync lock, its data lock (shared), the transaction's, the one on names,
//! [`super::changed_files`] (leaves). Kernel counterpart: `btrfs_sync_file` (`fs/btrfs/file.c`).

use crate::errors::Result;
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
pub(crate) const LOG_ITEMS: u64 = 6;

impl OpenFile {
    /// Makes all that was changed of this file before the call durable, and the names that it has by then,
    /// where they changed (`fsync`). That is an entry in the log of the running transaction, or a commit where the
    /// log cannot say it or is turned off.
    ///
    /// # Errors
    /// What [`FileSystem::sync`](crate::FileSystem::sync) returns.
    pub(crate) fn sync(&self) -> Result<()> {
        self.flush()?;
        self.fs.sync_inode(self.open.place(), Some(&self.open))
    }

    /// Makes all data that was written to this file before the call durable, and what it takes to read it back:
    /// the size, which extents there are, the names of a new file; but not times, attributes, or names of a file
    /// that had some before (`fdatasync`). Where nothing of that changed since it was made durable last, nothing
    /// is written; what was overwritten in place is flushed.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub(crate) fn sync_data(&self) -> Result<()> {
        let (open, fs) = (&self.open, &*self.fs);
        let transactions = fs.transactions()?;
        let (generation, place) = (transactions.generation(), open.place());
        let state = {
            // Who brings it to the trees holds it exclusively.
            let _shared = open.data.read();
            let item = open.item(&*transactions.live().get(place.tree)?)?;
            let in_memory = open.has_data_in_memory(&item);
            match open.changed.data_state(generation) {
                DataState::Unchanged if item.generation >= generation => DataState::Changed,
                DataState::Logged(_) if !transactions.is_logged(place.tree, place.inode) => {
                    DataState::Changed
                }
                state if !in_memory => state,
                _ => DataState::Changed,
            }
        };
        match state {
            DataState::Changed => return self.sync(),
            DataState::Unchanged => transactions.wait_for_commit()?,
            DataState::Logged(ticket) => match transactions.sync_log(ticket)? {
                Synced::Durable => {}
                Synced::NeedsCommit => return fs.commit_transaction(generation),
            },
        }
        fs.volume().flush()
    }
}

impl OpenInode {
    /// The sectors of a file whose items a change of `length` bytes from `offset` on may touch: also those
    /// between its end and `offset`, and its first, whose bytes may lie in the item.
    pub(super) fn changed_range(&self, fs: &FsInfo, offset: u64, length: u64) -> Result<Range<u64>> {
        let sector = u64::from(fs.volume().geometry().sector_size);
        let live = fs.transactions()?.live().get(self.place().tree)?;
        let size = self.item(&live)?.size;
        let from = offset.min(size);
        let start = if size <= sector { 0 } else { from - from % sector };
        let end = offset.saturating_add(length).checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        Ok(start..end)
    }

    /// Enters an self file into the log.
    fn log_open(&self, fs: &FsInfo, flushed: bool) -> Result<Logged> {
        let _one = self.fsync.lock();
        let _shared = self.data.read();
        fs.log_inode(self.place(), Some(&self.changed), flushed)
    }
}

impl FsInfo {
    /// Makes an inode durable, whose changes in memory were flushed.
    pub(crate) fn sync_inode(&self, place: Place, open: Option<&Arc<OpenInode>>) -> Result<()> {
        let transactions = self.transactions()?;
        if !self.tree_log {
            return self.commit();
        }
        // What is to be durable was changed in this transaction or before.
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
                Synced::NeedsCommit => "something that it needs is new",
            },
            Logged::NeedsNames | Logged::NeedsFlush(_) => unreachable!("both were done"),
            Logged::NeedsCommit(why) => why,
        };
        tracing::debug!("fsync of {place:?} is a commit: {why}");
        self.commit_transaction(generation)
    }

    /// Enters an inode into the log, of which `changed` changed where it is a file. Other files that go with it are
    /// as the tree has them; where they have data past the trees and were not `flushed`, that is to be done first.
    fn log_inode(&self, place: Place, changed: Option<&ChangedRanges>, flushed: bool) -> Result<Logged> {
        self.transactions()?.change(LOG_ITEMS, |handle| {
            let names = &self.name_changes;
            if changed.is_some() {
                // Others may do the same, and change names that are of no concern here.
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
        // Pages of a cache go to the trees when there is time, with an fsync of their own, or with a commit.
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

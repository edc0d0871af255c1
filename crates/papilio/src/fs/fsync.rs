//! fsync: what makes one inode durable.
//!
//! Owns [`File::sync`], [`File::sync_data`] and [`Inode::sync`], and which ranges of files changed in the running transaction
//! ([`ChangedFiles`]). Where the log can say all of it, the log is written, together with those of others who wait;
//! else it is a commit. Which names go with it, [`NameChanges`](crate::fsync_log::name_changes) knows.
//!
//! Invariants: a change is noted here in the transaction that makes it, before anybody can log the file;
//! what is noted of an earlier transaction is forgotten. Locks, in this order: an inode's fsync lock, its data
//! lock (shared), the transaction's, the one on names, the table of files, a file's ranges (leaves). Kernel counterpart:
//! `btrfs_sync_file` (`fs/btrfs/file.c`).

use crate::errors::Result;
use crate::fs::open_inodes::OpenInode;
use crate::fs::{File, FileSystem, Inode};
use crate::fsync_log::log_inode::{LogRequest, Logged, WithNames, log_file};
use crate::namespace::Place;
use crate::space::RangeSet;
use crate::transaction::{Handle, LogTicket, Synced};
use papilio_format::items::inode::FileKind;
use papilio_format::{Generation, InodeNumber};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Tree blocks that logging an inode may take, counted in items.
pub(super) const LOG_ITEMS: u64 = 6;

/// Files of one transaction whose changed ranges are kept after they were closed.
const MAX_CHANGED_FILES: usize = 1 << 16;

/// The ranges of a file that changed in the running transaction and that the log does not have.
#[derive(Debug, Default)]
pub(super) struct ChangedRanges {
    state: Mutex<Changed>,
}

#[derive(Debug, Default)]
struct Changed {
    /// The first transaction of which all changes are known.
    known_from: Generation,
    /// The one that the ranges changed in.
    generation: Generation,
    ranges: RangeSet,
    /// What entered it into the log last.
    logged: Option<LogTicket>,
}

/// Where the data of a file is, and what reading it takes.
enum DataState {
    /// Some is not in the log of the running transaction, or that is not known.
    Changed,
    /// All is in the log, or in an earlier transaction.
    Logged(LogTicket),
    /// All is in earlier transactions.
    Unchanged,
}

impl ChangedRanges {
    /// Notes a change; says whether it is the first in its transaction.
    fn note(&self, generation: Generation, range: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        let first = state.generation != generation;
        if first {
            state.generation = generation;
            state.ranges.clear();
        }
        state.ranges.cover(range);
        first
    }

    /// What changed in the running transaction, if all of it is known.
    fn of(&self, generation: Generation) -> Option<RangeSet> {
        let state = self.state.lock();
        let ranges = if state.generation == generation { state.ranges.clone() } else { RangeSet::default() };
        (state.known_from <= generation).then_some(ranges)
    }

    /// The log of transaction `generation` has all of it.
    fn logged(&self, generation: Generation, ticket: LogTicket) {
        let mut state = self.state.lock();
        state.known_from = state.known_from.min(generation);
        state.ranges.clear();
        state.logged = Some(ticket);
    }

    fn data_state(&self, generation: Generation) -> DataState {
        let state = self.state.lock();
        if state.known_from > generation || state.generation == generation && !state.ranges.is_empty() {
            return DataState::Changed;
        }
        match state.logged {
            Some(ticket) if ticket.generation() == generation => DataState::Logged(ticket),
            _ => DataState::Unchanged,
        }
    }
}

/// Files whose data changed in the running transaction, also those that were closed since.
#[derive(Debug, Default)]
pub(crate) struct ChangedFiles {
    state: Mutex<KnownFiles>,
}

#[derive(Debug, Default)]
struct KnownFiles {
    generation: Generation,
    files: HashMap<Place, Arc<ChangedRanges>>,
    /// They were too many to be kept.
    lost: bool,
}

impl ChangedFiles {
    /// What is known of a file that is opened.
    pub(super) fn open(&self, place: Place) -> Arc<ChangedRanges> {
        let state = self.state.lock();
        if let Some(known) = state.files.get(&place) {
            return Arc::clone(known);
        }
        let known_from = if state.lost { Generation(state.generation.0 + 1) } else { Generation(0) };
        let changed = Changed { known_from, ..Changed::default() };
        Arc::new(ChangedRanges { state: Mutex::new(changed) })
    }

    fn insert(&self, generation: Generation, place: Place, changed: &Arc<ChangedRanges>) {
        let mut state = self.state.lock();
        if state.generation != generation {
            *state = KnownFiles { generation, ..KnownFiles::default() };
        }
        if state.files.len() >= MAX_CHANGED_FILES {
            state.files.clear();
            state.lost = true;
        }
        if !state.lost {
            state.files.insert(place, Arc::clone(changed));
        }
    }

    /// What changed of a file, open or not, if that is known.
    fn of(&self, generation: Generation, place: Place) -> Option<RangeSet> {
        let state = self.state.lock();
        if state.generation != generation {
            return Some(RangeSet::default());
        }
        match state.files.get(&place) {
            Some(changed) => changed.of(generation),
            None => (!state.lost).then(RangeSet::default),
        }
    }
}

impl OpenInode {
    /// Notes that a range of its data changes.
    pub(super) fn note_changed(&self, files: &ChangedFiles, generation: Generation, range: &Range<u64>) {
        if self.changed.note(generation, range) {
            files.insert(generation, self.place(), &self.changed);
        }
    }
}

impl File {
    /// Makes all that was changed of this file before the call durable, and the names that it has by then,
    /// where they changed (`fsync`). That is an entry in the log of the running transaction, or a commit where the
    /// log cannot say it or is turned off.
    ///
    /// # Errors
    /// What [`FileSystem::sync`](crate::FileSystem::sync) returns.
    pub fn sync(&self) -> Result<()> {
        let fs = self.inode().file_system();
        fs.transactions()?;
        let Some(open) = self.open_arc() else { return fs.commit() };
        fs.flush(open)?;
        fs.sync_inode(self.inode().place(), Some(open))
    }

    /// Makes all data that was written to this file before the call durable, and what it takes to read it back:
    /// the size, which extents there are, the names of a new file; but not times, attributes, or names of a file
    /// that had some before (`fdatasync`). Where nothing of that changed since it was made durable last, nothing
    /// is written; what was overwritten in place is flushed.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_data(&self) -> Result<()> {
        let fs = self.inode().file_system();
        let transactions = fs.transactions()?;
        let Some(open) = self.open_arc() else { return fs.commit() };
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
        fs.mounted.volume().flush()
    }
}

impl Inode {
    /// Makes this inode durable as [`File::sync`] does, whatever kind it is: a directory with all of its names,
    /// those that are new or gone, and new directories below it with theirs. The data of a file goes with it, the
    /// data of files in a directory need not.
    ///
    /// # Errors
    /// What [`FileSystem::sync`](crate::FileSystem::sync) returns.
    pub fn sync(&self) -> Result<()> {
        match self.kind() {
            FileKind::Regular => self.open()?.sync(),
            _ => self.file_system().sync_inode(self.place(), None),
        }
    }
}

impl FileSystem {
    /// The sectors of a file whose items a change of `length` bytes from `offset` on may touch: also those
    /// between its end and `offset`, and its first, whose bytes may lie in the item.
    pub(super) fn changed_range(&self, open: &OpenInode, offset: u64, length: u64) -> Result<Range<u64>> {
        let sector = u64::from(self.mounted.volume().geometry().sector_size);
        let live = self.transactions()?.live().get(open.place().tree)?;
        let size = open.item(&live)?.size;
        let from = offset.min(size);
        let start = if size <= sector { 0 } else { from - from % sector };
        let end = offset.saturating_add(length).checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        Ok(start..end)
    }

    /// Makes an inode durable, whose changes in memory were flushed.
    fn sync_inode(&self, place: Place, open: Option<&Arc<OpenInode>>) -> Result<()> {
        let transactions = self.transactions()?;
        if !self.mounted.tree_log {
            return self.commit();
        }
        // What is to be durable was changed in this transaction or before.
        let generation = transactions.generation();
        let log = |flushed| match open {
            Some(open) => self.log_open(open, flushed),
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

    /// Enters an open file into the log.
    fn log_open(&self, open: &OpenInode, flushed: bool) -> Result<Logged> {
        let _one = open.fsync.lock();
        let _shared = open.data.read();
        self.log_inode(open.place(), Some(&open.changed), flushed)
    }

    /// Enters an inode into the log, of which `changed` changed where it is a file. Other files that go with it are
    /// as the tree has them; where they have data past the trees and were not `flushed`, that is to be done first.
    fn log_inode(&self, place: Place, changed: Option<&ChangedRanges>, flushed: bool) -> Result<Logged> {
        self.transactions()?.change(LOG_ITEMS, |handle| {
            let names = &self.mounted.name_changes;
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
        let changed_of =
            |inode: InodeNumber| self.mounted.changed_files.of(generation, Place { inode, ..place });
        // Pages of a cache go to the trees when there is time, with an fsync of their own, or with a commit.
        let unflushed = |inode: InodeNumber| {
            let dirty = self.mounted.dirty_inodes.get(Place { inode, ..place });
            with_names == Some(false) && dirty.is_some_and(|open| open.mapping.is_none())
        };
        let names =
            WithNames { changes: &self.mounted.name_changes, changed_of: &changed_of, unflushed: &unflushed };
        let logged = log_file(
            handle,
            &LogRequest {
                live: &*handle.live_tree(place.tree)?,
                inode: place.inode,
                changed: ranges.as_ref(),
                names: with_names.map(|_| names),
                how: self.mounted.tuning.log_items,
            },
        )?;
        if let (Logged::Entered(ticket), Some(changed)) = (&logged, changed) {
            changed.logged(generation, *ticket);
        }
        Ok(logged)
    }
}

//! fsync: what makes one file durable.
//!
//! Owns [`File::sync`] and what it needs to know of the running transaction: which ranges of an open file
//! changed ([`ChangedRanges`]), and which names changed in ways that a log cannot say ([`NameChanges`]). Where
//! the log can say all of it, the log is written, together with those of others who wait; else it is a commit.
//!
//! Invariants: a change is noted here in the transaction that makes it, before anybody can log the file;
//! what is noted of an earlier transaction is forgotten. Locks, in this order: an inode's fsync lock, its data
//! lock (shared), the transaction's; the tables here are leaves. Kernel counterparts: `btrfs_sync_file`
//! (`fs/btrfs/file.c`), `btrfs_record_unlink_dir` (`fs/btrfs/tree-log.c`).

use crate::errors::Result;
use crate::fs::open_inodes::OpenInode;
use crate::fs::{File, FileSystem};
use crate::fsync_log::log_inode::{LogRequest, Logged, forget_inode, log_file};
use crate::namespace::Place;
use crate::space::RangeSet;
use crate::transaction::Synced;
use papilio_format::{Generation, InodeNumber, TreeId};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;

/// Tree blocks that logging a file may take, counted in items.
const LOG_ITEMS: u64 = 6;

/// The ranges of an open file that changed in the running transaction and that the log does not have.
#[derive(Debug)]
pub(super) struct ChangedRanges {
    state: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    /// The first transaction of which all changes are known.
    known_from: Generation,
    /// The one that the ranges changed in.
    generation: Generation,
    ranges: RangeSet,
}

impl ChangedRanges {
    /// Of a file that is opened in transaction `now` and was last changed in `transid`.
    pub(super) fn new(now: Generation, transid: Generation) -> Self {
        let known_from = if transid < now { now } else { Generation(now.0 + 1) };
        Self { state: Mutex::new(Changed { known_from, generation: now, ranges: RangeSet::default() }) }
    }

    /// Notes a change.
    pub(super) fn note(&self, generation: Generation, range: &Range<u64>) {
        let mut state = self.state.lock();
        if state.generation != generation {
            state.generation = generation;
            state.ranges.clear();
        }
        state.ranges.cover(range);
    }

    /// What changed in the running transaction, if all of it is known.
    fn of(&self, generation: Generation) -> Option<RangeSet> {
        let state = self.state.lock();
        let ranges = if state.generation == generation { state.ranges.clone() } else { RangeSet::default() };
        (state.known_from <= generation).then_some(ranges)
    }

    /// The log of transaction `generation` has all of it.
    fn logged(&self, generation: Generation) {
        let mut state = self.state.lock();
        state.known_from = state.known_from.min(generation);
        state.ranges.clear();
    }
}

/// Names that changed in the running transaction.
#[derive(Debug, Default)]
pub(crate) struct NameChanges {
    state: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    generation: Generation,
    /// Names that were taken from something that still exists.
    moved_away: HashSet<(Place, Vec<u8>)>,
    /// Inodes that got a further name.
    linked: HashSet<Place>,
    /// Inodes that lost a name and have others.
    lost: HashSet<Place>,
}

impl NameChanges {
    fn with<R>(&self, generation: Generation, run: impl FnOnce(&mut Names) -> R) -> R {
        let mut names = self.state.lock();
        if names.generation != generation {
            *names = Names { generation, ..Names::default() };
        }
        run(&mut names)
    }

    /// An inode is given a further name.
    pub(super) fn linked(&self, generation: Generation, place: Place) {
        self.with(generation, |names| names.linked.insert(place));
    }

    /// A name is taken from an inode that keeps others, or gets another.
    pub(super) fn moved(&self, generation: Generation, directory: Place, name: &[u8], inode: Option<Place>) {
        self.with(generation, |names| {
            names.moved_away.insert((directory, name.to_vec()));
            names.lost.extend(inode);
        });
    }

    /// Whether the inode got a further name; `None` where it lost one.
    fn is_linked(&self, generation: Generation, place: Place) -> Option<bool> {
        self.with(generation, |names| (!names.lost.contains(&place)).then(|| names.linked.contains(&place)))
    }

    fn is_moved_away(&self, generation: Generation, directory: Place, name: &[u8]) -> bool {
        self.with(generation, |names| {
            !names.moved_away.is_empty() && names.moved_away.contains(&(directory, name.to_vec()))
        })
    }
}

impl File {
    /// Makes all that was changed of this file before the call durable, and the names that lead to it where
    /// they are new (`fsync`). That is an entry in the log of the running transaction, or a commit where the
    /// log cannot say it or is turned off.
    ///
    /// # Errors
    /// What [`FileSystem::sync`](crate::FileSystem::sync) returns.
    pub fn sync(&self) -> Result<()> {
        let fs = self.inode().file_system();
        let transactions = fs.transactions()?;
        let Some(open) = self.open_arc() else { return transactions.commit() };
        fs.flush(open)?;
        if !fs.mounted.tree_log {
            return transactions.commit();
        }
        let why = match fs.log_inode(open)? {
            Logged::Nothing => return transactions.wait_for_commit(),
            Logged::Entered(ticket) => match transactions.sync_log(ticket)? {
                Synced::Durable => return Ok(()),
                Synced::NeedsCommit => "something that it needs is new",
            },
            Logged::NeedsCommit(why) => why,
        };
        tracing::debug!("fsync of {:?} is a commit: {why}", open.place());
        transactions.commit()
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

    /// Enters a file into the log.
    fn log_inode(&self, open: &OpenInode) -> Result<Logged> {
        let _one = open.fsync.lock();
        let _shared = open.data.read();
        let place = open.place();
        self.transactions()?.change(LOG_ITEMS, |handle| {
            let generation = handle.generation();
            let names = &self.mounted.name_changes;
            let Some(linked) = names.is_linked(generation, place) else {
                return Ok(Logged::NeedsCommit("it was renamed"));
            };
            let changed = open.changed.of(generation);
            let live = handle.live_tree(place.tree)?;
            let moved_away = |directory: InodeNumber, name: &[u8]| {
                let directory = Place { tree: place.tree, inode: directory };
                names.is_moved_away(generation, directory, name)
            };
            let logged = log_file(
                handle,
                &LogRequest {
                    live: &live,
                    inode: place.inode,
                    changed: changed.as_ref(),
                    linked,
                    moved_away: &moved_away,
                    how: self.mounted.tuning.log_items,
                },
            )?;
            if matches!(logged, Logged::Entered(_)) {
                open.changed.logged(generation);
            }
            Ok(logged)
        })
    }

    /// An inode lost its last name: the log is not to bring it back.
    pub(super) fn forget_logged(&self, tree: TreeId, inode: InodeNumber) -> Result<()> {
        let transactions = self.transactions()?;
        if !transactions.is_logged(tree, inode) {
            return Ok(());
        }
        transactions.change_to_free(LOG_ITEMS, |handle| {
            let live = handle.live_tree(tree)?;
            forget_inode(handle, &live, inode)
        })
    }
}

//! Which ranges of files changed in the running transaction, for fsync.
//!
//! Owns [`ChangedFiles`] and [`ChangedRanges`].
//!
//! Invariants:
//! - A change is noted in the transaction that makes it, before any thread can log the file.
//! - Notes of an earlier transaction are dropped.
//!
//! Locks: the table of files, then the ranges of one file. Both are leaves.

use crate::namespace::Place;
use crate::space::RangeSet;
use crate::transaction::LogTicket;
use papilio_format::Generation;
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Files of one transaction whose changed ranges are kept after they were closed.
const MAX_CHANGED_FILES: usize = 1 << 16;

/// The ranges of a file that changed in the running transaction and that the log does not have.
#[derive(Debug, Default)]
pub(crate) struct ChangedRanges {
    state: Mutex<Changed>,
}

#[derive(Debug, Default)]
struct Changed {
    /// The first transaction for which all changes are noted.
    known_from: Generation,
    /// The transaction of `ranges`.
    generation: Generation,
    ranges: RangeSet,
    /// The log ticket of the last time the file was logged.
    logged: Option<LogTicket>,
}

/// Where the file's data is, to decide what `fdatasync` must do.
pub(super) enum DataState {
    /// Some is not in the running transaction's log, or that is not known.
    Changed,
    /// All is in the log or in an earlier transaction.
    Logged(LogTicket),
    /// All is in earlier transactions.
    Unchanged,
}

impl ChangedRanges {
    /// Notes a change. Returns whether it is the first in its transaction.
    pub(super) fn note(&self, generation: Generation, range: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        let first = state.generation != generation;
        if first {
            state.generation = generation;
            state.ranges.clear();
        }
        state.ranges.cover(range);
        first
    }

    /// Returns the ranges that changed in transaction `generation`; `None` if not all are known.
    pub(super) fn of(&self, generation: Generation) -> Option<RangeSet> {
        let state = self.state.lock();
        let ranges = if state.generation == generation { state.ranges.clone() } else { RangeSet::default() };
        (state.known_from <= generation).then_some(ranges)
    }

    /// Notes that the log of transaction `generation` has all changes.
    pub(super) fn logged(&self, generation: Generation, ticket: LogTicket) {
        let mut state = self.state.lock();
        state.known_from = state.known_from.min(generation);
        state.ranges.clear();
        state.logged = Some(ticket);
    }

    pub(super) fn data_state(&self, generation: Generation) -> DataState {
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
    /// Whether files were dropped because there were too many.
    lost: bool,
}

impl ChangedFiles {
    /// Returns the noted ranges of a file that is being opened.
    pub(crate) fn open(&self, place: Place) -> Arc<ChangedRanges> {
        let state = self.state.lock();
        if let Some(known) = state.files.get(&place) {
            return Arc::clone(known);
        }
        let known_from = if state.lost { Generation(state.generation.0 + 1) } else { Generation(0) };
        let changed = Changed { known_from, ..Changed::default() };
        Arc::new(ChangedRanges { state: Mutex::new(changed) })
    }

    pub(super) fn insert(&self, generation: Generation, place: Place, changed: &Arc<ChangedRanges>) {
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

    /// Returns the changed ranges of a file, open or closed; `None` if not all are known.
    pub(super) fn of(&self, generation: Generation, place: Place) -> Option<RangeSet> {
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

//! The directories that move later.
//!
//! Owns [`Waiting`]. A directory waits for one inode, and others may wait for it.
//!
//! Kernel counterparts: `pending_dir_moves`, `waiting_dir_moves` (`fs/btrfs/send.c`).

use super::id::Id;
use std::collections::{BTreeMap, HashSet};

/// A directory that waits.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) number: u64,
    /// The directories whose entries change.
    pub(super) touched: Vec<Id>,
}

/// Directories that wait until another one has moved.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    numbers: HashSet<u64>,
    /// By the number of the inode that they wait for.
    moves: BTreeMap<u64, Vec<Move>>,
}

impl Waiting {
    /// Whether an inode waits.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// Lets a directory wait for the inode `blocking`.
    pub(super) fn add(&mut self, blocking: u64, waiting: Move) {
        self.numbers.insert(waiting.number);
        self.moves.entry(blocking).or_default().push(waiting);
    }

    /// Takes the directories that wait for an inode. They still count as waiting.
    pub(super) fn take(&mut self, number: u64) -> Vec<Move> {
        self.moves.remove(&number).unwrap_or_default()
    }

    /// Returns an inode that directories wait for.
    pub(super) fn first(&self) -> Option<u64> {
        self.moves.keys().next().copied()
    }

    /// Notes that a directory has moved.
    pub(super) fn end(&mut self, number: u64) {
        self.numbers.remove(&number);
    }
}

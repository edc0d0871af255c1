//! The blocks that a log has: what it took, and what of that it may use again.
//!
//! Owns [`LogBlocks`]. Every sync leaves a new state of the log on disk, and its changed blocks lie in new
//! places; without reuse, a transaction with many fsyncs would need room for all its states.
//!
//! Invariants: a block that left the trees is in the last state that was synced, perhaps, and in no later one. So
//! it goes from `left` to `free` when a state that was frozen after it left is durable, superblock and all: while
//! the next superblock is being written, neither the state that it names nor the one before is touched. Nothing
//! is given back to the space before a commit without the log is on disk. Lock: a leaf. Kernel counterpart: the
//! pinning of freed log blocks (`btrfs_free_tree_block`, `fs/btrfs/extent-tree.c`).

use crate::space::LogicalRange;
use papilio_format::LogicalAddress;
use papilio_locks::Mutex;
use std::collections::BTreeSet;

/// The blocks of a log.
#[derive(Debug, Default)]
pub(super) struct LogBlocks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All, whatever became of them.
    taken: Vec<LogicalRange>,
    /// No tree in memory has them any more; what is on disk may.
    left: Vec<LogicalAddress>,
    /// Nothing on disk leads to them.
    free: BTreeSet<LogicalAddress>,
}

impl LogBlocks {
    /// A block that may be written again. The lowest, so that what is written together lies together.
    pub(super) fn reuse(&self) -> Option<LogicalAddress> {
        self.state.lock().free.pop_first()
    }

    /// The log got a new one.
    pub(super) fn take(&self, range: LogicalRange) {
        self.state.lock().taken.push(range);
    }

    /// No tree in memory has it any more.
    pub(super) fn leave(&self, address: LogicalAddress) {
        self.state.lock().left.push(address);
    }

    /// What left before a state is frozen: to be called before the first tree of it is.
    pub(super) fn take_left(&self) -> Vec<LogicalAddress> {
        std::mem::take(&mut self.state.lock().left)
    }

    /// The state is durable: what left before it was frozen is free.
    pub(super) fn free(&self, left: Vec<LogicalAddress>) {
        let mut state = self.state.lock();
        for address in left {
            assert!(state.free.insert(address), "the log's block at {address} left once");
        }
    }

    /// The state did not get to disk.
    pub(super) fn put_back(&self, left: Vec<LogicalAddress>) {
        self.state.lock().left.extend(left);
    }

    /// The log ends: all that it took.
    pub(super) fn end(&self) -> Vec<LogicalRange> {
        std::mem::take(&mut *self.state.lock()).taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_free_when_a_state_without_it_is_durable() {
        let blocks = LogBlocks::default();
        let address = |number: u64| LogicalAddress(number << 14);
        for number in 1..=3 {
            blocks.take(LogicalRange { start: address(number), length: 1 << 14 });
        }
        blocks.leave(address(3));
        blocks.leave(address(1));
        assert_eq!(blocks.reuse(), None, "the state on disk may have it");
        let left = blocks.take_left();
        blocks.leave(address(2));
        assert_eq!(blocks.reuse(), None, "the next state is not durable yet");
        blocks.free(left);
        assert_eq!(
            [blocks.reuse(), blocks.reuse(), blocks.reuse()],
            [Some(address(1)), Some(address(3)), None]
        );
        let left = blocks.take_left();
        blocks.put_back(left);
        assert_eq!(blocks.reuse(), None, "the state did not get to disk");
        assert_eq!(blocks.take_left(), [address(2)]);
        assert_eq!(blocks.end().len(), 3);
        assert!(blocks.end().is_empty());
    }
}

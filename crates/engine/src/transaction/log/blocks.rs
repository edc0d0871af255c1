//! The tree blocks of a log: those it allocated, and those of them that it may reuse.
//!
//! Owns [`LogBlocks`]. Every log sync leaves a new state of the log on disk, with its changed
//! blocks at new addresses. Without reuse, a transaction with many fsyncs would need space for all
//! those states.
//!
//! Blocks are allocated many at once, and reused round by round, in the order of their addresses.
//! Where the log has several times the blocks that its trees need, most of them are free when their
//! turn comes. So the blocks of one sync are adjacent and go to the device in few writes.
//!
//! **Invariants**
//! - A block that left the log's trees may be in the last synced state, but in no later one.
//! - Such a block moves from `left` to `free` once a state that was frozen after it left is
//!   durable, superblock included. While the next superblock is being written, neither the state
//!   that it names nor the one before is overwritten.
//! - The log's blocks are released only after a commit without the log is on disk.
//!
//! **Locks**: one, a leaf.
//!
//! Kernel counterpart: the pinning of freed log blocks (`btrfs_free_tree_block`,
//! `fs/btrfs/extent-tree.c`).

use crate::space::LogicalRange;
use papilio_format::LogicalAddress;
use papilio_locks::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;

/// The blocks of a log.
#[derive(Debug, Default)]
pub(in crate::transaction) struct LogBlocks {
    state: Mutex<LogBlockState>,
}

#[derive(Debug, Default)]
struct LogBlockState {
    /// All blocks that the log ever allocated.
    taken: Vec<LogicalRange>,
    /// Blocks in no tree in memory that the state on disk may still use.
    left: Vec<LogicalAddress>,
    /// Blocks that nothing on disk leads to.
    free: BTreeSet<LogicalAddress>,
    /// Blocks that were allocated ahead and never used.
    fresh: VecDeque<LogicalAddress>,
    /// The block that was reused last.
    reused: LogicalAddress,
}

/// Bytes of blocks that a log takes before it reuses any, where there is room.
const ROUND: u64 = 32 << 20;
/// The part of the free space for metadata that a log takes before it reuses any blocks: one in so
/// many.
const PART: u64 = 24;

impl LogBlocks {
    /// Returns whether the log should take new blocks before it reuses its own. `available` are the
    /// free bytes for metadata.
    pub(in crate::transaction) fn wants_more(&self, available: u64) -> bool {
        let taken: u64 = {
            let state = self.state.lock();
            state.taken.len() as u64 * state.taken.first().map_or(0, |range| range.length)
        };
        taken < ROUND && taken < available / PART
    }

    /// Returns a block that may be overwritten: the next one after the last.
    pub(in crate::transaction) fn reuse(&self) -> Option<LogicalAddress> {
        let mut state = self.state.lock();
        let behind = (Bound::Excluded(state.reused), Bound::Unbounded);
        let address = *state.free.range(behind).next().or_else(|| state.free.first())?;
        state.free.remove(&address);
        state.reused = address;
        Some(address)
    }

    /// Adds a newly allocated block.
    pub(in crate::transaction) fn take(&self, range: LogicalRange) {
        self.state.lock().taken.push(range);
    }

    /// Adds a block that was allocated ahead.
    pub(in crate::transaction) fn take_ahead(&self, range: LogicalRange) {
        let mut state = self.state.lock();
        state.taken.push(range);
        state.fresh.push_back(range.start);
    }

    /// Returns a block that was allocated ahead: the first of them.
    pub(in crate::transaction) fn fresh(&self) -> Option<LogicalAddress> {
        self.state.lock().fresh.pop_front()
    }

    /// Notes that no tree in memory has the block any more.
    pub(in crate::transaction) fn leave(&self, address: LogicalAddress) {
        self.state.lock().left.push(address);
    }

    /// Takes the blocks that left before a state is frozen. Called before the state's first tree is
    /// frozen.
    pub(in crate::transaction) fn take_left(&self) -> Vec<LogicalAddress> {
        std::mem::take(&mut self.state.lock().left)
    }

    /// Frees blocks that left before a state was frozen, once that state is durable.
    pub(in crate::transaction) fn free(&self, left: Vec<LogicalAddress>) {
        let mut state = self.state.lock();
        for address in left {
            assert!(state.free.insert(address), "the log's block at {address} left twice");
        }
    }

    /// Takes blocks back whose state did not reach the disk.
    pub(in crate::transaction) fn put_back(&self, left: Vec<LogicalAddress>) {
        self.state.lock().left.extend(left);
    }

    /// Ends the log and returns everything that it allocated.
    pub(in crate::transaction) fn end(&self) -> Vec<LogicalRange> {
        std::mem::take(&mut *self.state.lock()).taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_free_once_a_state_without_it_is_durable() {
        let blocks = LogBlocks::default();
        let address = |number: u64| LogicalAddress(number << 14);
        for number in 1..=3 {
            blocks.take(LogicalRange { start: address(number), length: 1 << 14 });
        }
        blocks.leave(address(3));
        blocks.leave(address(1));
        assert_eq!(blocks.reuse(), None, "the state on disk may still use it");
        let left = blocks.take_left();
        blocks.leave(address(2));
        assert_eq!(blocks.reuse(), None, "the next state is not durable yet");
        blocks.free(left);
        assert_eq!(
            [blocks.reuse(), blocks.reuse(), blocks.reuse()],
            [Some(address(1)), Some(address(3)), None]
        );
        // The next round.
        blocks.leave(address(1));
        blocks.leave(address(3));
        let left = blocks.take_left();
        blocks.free(left);
        assert_eq!([blocks.reuse(), blocks.reuse(), blocks.reuse()], [1, 2, 3].map(|n| Some(address(n))));
        blocks.leave(address(2));
        let left = blocks.take_left();
        blocks.put_back(left);
        assert_eq!(blocks.reuse(), None, "the state did not reach the disk");
        assert_eq!(blocks.take_left(), [address(2)]);
        assert_eq!(blocks.end().len(), 3);
        assert!(blocks.end().is_empty());
    }

    #[test]
    fn a_log_takes_a_part_of_what_is_free_up_to_a_round() {
        let blocks = LogBlocks::default();
        assert!(blocks.wants_more(1 << 20));
        assert!(!blocks.wants_more(0));
        for number in 1..=64u64 {
            blocks.take(LogicalRange { start: LogicalAddress(number << 14), length: 1 << 14 });
        }
        // One MiB is taken.
        assert!(!blocks.wants_more(PART << 20));
        assert!(blocks.wants_more((PART + 1) << 20));
        for number in 65..=ROUND >> 14 {
            assert!(blocks.wants_more(1 << 40));
            blocks.take(LogicalRange { start: LogicalAddress(number << 14), length: 1 << 14 });
        }
        assert!(!blocks.wants_more(1 << 40));
    }
}

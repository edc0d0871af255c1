//! Space: which bytes of the logical address space are free, and who may have them.
//!
//! A byte of a block group is in exactly one state:
//!
//! ```text
//!             allocate, claim            extent_inserted
//!     free  ------------------> reserved ----------------> used
//!      ^  ^                       |   |                      |
//!      |  +------- release -------+   | pin_reserved         | extent_removed
//!      |                              v                      v
//!      +------------- unpin -------- pinned <----------------+
//! ```
//!
//! or excluded: the places of superblocks, which the free-space tree calls free and nobody may use.
//! Pinned bytes are still what the last superblock leads to; they become free once the superblocks
//! of the transaction that removed them are on disk, so that a crash always finds the old trees.
//!
//! Lock: [`Space`] has one, held for a few map operations at a time and never over I/O; it is a leaf
//! of the lock order.

mod block_group;
pub(crate) mod chunk_allocation;
mod free_space;
mod free_space_items;
pub(crate) mod free_space_tree;
pub(crate) mod load;
mod range_set;
mod reservation;
#[allow(clippy::module_inception)]
mod space;
mod space_info;
pub(crate) mod superblock_exclusions;
#[cfg(test)]
mod tests;

pub(crate) use block_group::BlockGroupUpdate;
pub(crate) use range_set::RangeSet;
pub(crate) use reservation::Reservation;
pub(crate) use space::{NewBlockGroup, Pinned, Space};

use papilio_format::LogicalAddress;
use std::ops::Range;

/// A range of logical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogicalRange {
    /// The first byte.
    pub(crate) start: LogicalAddress,
    /// Bytes.
    pub(crate) length: u64,
}

impl LogicalRange {
    /// The first address behind it.
    pub(crate) fn end(&self) -> LogicalAddress {
        LogicalAddress(self.start.0.saturating_add(self.length))
    }

    fn of(range: Range<u64>) -> Self {
        Self { start: LogicalAddress(range.start), length: range.end - range.start }
    }

    fn bytes(&self) -> Range<u64> {
        self.start.0..self.end().0
    }
}

/// What space is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SpaceKind {
    /// File data.
    Data,
    /// Tree blocks but the chunk tree's.
    Metadata,
    /// Tree blocks of the chunk tree.
    System,
}

/// Sums over block groups, in bytes of the logical address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceTotals {
    /// Their lengths.
    pub(crate) total: u64,
    /// Held by items of the extent tree.
    pub(crate) used: u64,
    /// Allocated, the item not inserted yet.
    pub(crate) reserved: u64,
    /// Free once the running commit, or the next, is on disk.
    pub(crate) pinned: u64,
    /// Free now, in read-only block groups too.
    pub(crate) free: u64,
}

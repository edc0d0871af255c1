//! Space: the free bytes of the logical address space, and their allocation.
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
//! or *excluded*: superblock locations, which the free-space tree calls free and which are never
//! allocated. Pinned bytes are still reachable from the last superblock. They become free once the
//! superblocks of the transaction that removed them are on disk, so that after a crash the old
//! trees are intact.
//!
//! **Locks**: [`Space`] has one, held for a few map operations at a time and never across I/O; it
//! is a leaf of the lock order.

pub(crate) mod allocatable;
mod block_group;
mod choice;
pub mod chunk_allocation;
mod free_space;
mod free_space_items;
pub(crate) mod free_space_tree;
pub mod load;
mod range_set;
mod reservation;
#[allow(clippy::module_inception)]
mod space;
mod space_info;
pub mod superblock_exclusions;
#[cfg(test)]
mod tests;

pub use block_group::{BlockGroupUpdate, NewBlockGroup};
pub(crate) use range_set::RangeSet;
pub(crate) use reservation::Reservation;
pub(crate) use space::left_in_mixed;
pub use space::{MetadataNeed, Pinned, Space, extent_error};

use papilio_format::LogicalAddress;
use std::ops::Range;

/// A range of logical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalRange {
    /// The first address.
    pub start: LogicalAddress,
    /// Length in bytes.
    pub length: u64,
}

impl LogicalRange {
    /// Returns the first address after the range.
    pub fn end(&self) -> LogicalAddress {
        LogicalAddress(self.start.0.saturating_add(self.length))
    }

    fn of(range: Range<u64>) -> Self {
        Self { start: LogicalAddress(range.start), length: range.end - range.start }
    }

    pub(crate) fn bytes(&self) -> Range<u64> {
        self.start.0..self.end().0
    }
}

/// The kinds of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceKind {
    /// File data.
    Data,
    /// Tree blocks, except the chunk tree's.
    Metadata,
    /// Tree blocks of the chunk tree.
    System,
}

/// Sums over block groups, in bytes of the logical address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceTotals {
    /// Total length.
    pub(crate) total: u64,
    /// Bytes with an extent item.
    pub(crate) used: u64,
    /// Allocated bytes whose extent item is not yet inserted.
    pub(crate) reserved: u64,
    /// Bytes that become free once the running or the next commit is on disk.
    pub(crate) pinned: u64,
    /// Free bytes, including those in read-only block groups.
    pub(crate) free: u64,
}

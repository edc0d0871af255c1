//! The memory that all open inodes of a file system share.
//!
//! Owns [`MemoryBudgets`]. Locks: none.

use crate::data::checksum_cache::ChecksumBudget;
use crate::data::ordered_budget::OrderedBudget;
use std::sync::Arc;

/// Memory that the open inodes of a file system share.
#[derive(Debug)]
pub(super) struct MemoryBudgets {
    /// For cached checksums.
    pub(super) checksums: Arc<ChecksumBudget>,
    /// For ordered extents.
    pub(super) ordered: Arc<OrderedBudget>,
}

impl MemoryBudgets {
    /// Creates budgets of `checksum_bytes` bytes for cached checksums and about `ordered_bytes` for
    /// ordered extents.
    pub(super) fn new(checksum_bytes: usize, ordered_bytes: usize) -> Self {
        Self {
            checksums: ChecksumBudget::new(checksum_bytes),
            ordered: Arc::new(OrderedBudget::new(ordered_bytes)),
        }
    }

    /// Returns the bytes that cached checksums take, and ordered extents.
    pub(super) fn used(&self) -> (usize, usize) {
        (self.checksums.used(), self.ordered.used())
    }
}

//! The space of logs: kept out of the free space while they are replayed.
//!
//! Owns [`LogSpace`]. Neither a log's blocks nor the data extents that were written since the last commit are in
//! the extent tree: without this, the replay would be given the very space that it reads from.
//! Invariants: everything is claimed before anything is allocated; what the replay has no use for is
//! pinned, not free, until the superblocks that know no log are on disk. Takes no lock. Kernel counterparts:
//! `btrfs_pin_extent_for_log_replay`, `btrfs_exclude_logged_extents` (`fs/btrfs/extent-tree.c`).

use super::log_trees::LogContents;
use crate::errors::Result;
use crate::space::{LogicalRange, Space};
use crate::transaction::Transactions;
use papilio_format::LogicalAddress;
use std::collections::BTreeMap;

/// What was claimed and has no owner yet.
#[derive(Debug)]
pub(super) struct LogSpace {
    blocks: Vec<LogicalRange>,
    extents: BTreeMap<LogicalAddress, u64>,
}

impl LogSpace {
    /// Takes the blocks of the logs, and those of their extents that the extent tree does not have, out of
    /// the free space.
    ///
    /// # Errors
    /// A part that is not free; or a block of the extent tree that cannot be read.
    pub(super) fn claim(transactions: &Transactions, contents: &LogContents) -> Result<Self> {
        let space = transactions.space();
        let mut claimed = Self { blocks: Vec::new(), extents: BTreeMap::new() };
        for &start in &contents.blocks {
            let range = LogicalRange { start, length: transactions.node_size() };
            space.claim(range)?;
            claimed.blocks.push(range);
        }
        for (&start, &length) in &contents.extents {
            if transactions.has_data_extent(start, length)? {
                continue;
            }
            space.claim(LogicalRange { start, length })?;
            claimed.extents.insert(start, length);
        }
        Ok(claimed)
    }

    /// Takes an extent over for its first reference; false where the extent has references already.
    pub(super) fn take(&mut self, address: LogicalAddress) -> bool {
        self.extents.remove(&address).is_some()
    }

    /// The replay is over: what nothing refers to is free with the next commit.
    pub(super) fn finish(self, space: &Space) {
        let unused = self.extents.iter().map(|(&start, &length)| LogicalRange { start, length });
        for range in self.blocks.iter().copied().chain(unused) {
            space.pin_reserved(range);
        }
    }
}

//! The space of logs, kept out of the free space during their replay.
//!
//! Owns [`LogSpace`]. Neither a log's blocks nor the data extents written since the last commit are
//! in the extent tree. Unless claimed here, the replay could allocate the very space that it reads
//! from.
//!
//! **Invariants**
//! - Everything is claimed before anything is allocated.
//! - Space that the replay does not use is pinned, not free, until superblocks without a log are on
//!   disk.
//!
//! Locks: none.
//!
//! Kernel counterparts: `btrfs_pin_extent_for_log_replay`, `btrfs_exclude_logged_extents`
//! (`fs/btrfs/extent-tree.c`).

use super::log_trees::LogContents;
use crate::errors::Result;
use crate::space::{LogicalRange, Space};
use crate::transaction::Transactions;
use papilio_format::LogicalAddress;
use std::collections::BTreeMap;

/// Claimed space that nothing refers to yet.
#[derive(Debug)]
pub(super) struct LogSpace {
    blocks: Vec<LogicalRange>,
    extents: BTreeMap<LogicalAddress, u64>,
}

impl LogSpace {
    /// Claims the blocks of the logs, and those of their data extents that the extent tree does not
    /// have.
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

    /// Takes over an extent for its first reference. Returns false if the extent tree has the
    /// extent already.
    pub(super) fn take(&mut self, address: LogicalAddress) -> bool {
        self.extents.remove(&address).is_some()
    }

    /// Ends the replay: the next commit frees the space that nothing refers to.
    pub(super) fn finish(self, space: &Space) {
        let unused = self.extents.iter().map(|(&start, &length)| LogicalRange { start, length });
        for range in self.blocks.iter().copied().chain(unused) {
            space.pin_reserved(range);
        }
    }
}

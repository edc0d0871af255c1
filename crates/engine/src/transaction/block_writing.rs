//! Writing tree blocks to the devices.
//!
//! Owns [`Transactions::write_blocks`], which writes all tree blocks of commits and of log syncs:
//! checked, sorted by address, with adjacent blocks in one write.
//!
//! Locks: none. The blocks are frozen, and the caller owns the buffer.
//!
//! Kernel counterpart: `btree_write_cache_pages` (`fs/btrfs/extent_io.c`).

use super::transaction::Transactions;
use crate::btree::{TreeBlock, sealed};
use crate::errors::{BlockFault, Error, Result};
use crate::volume::LogicalWrite;
use papilio_device::AlignedBuffer;
use std::sync::Arc;

/// Bytes of tree blocks that are sealed and written together.
const WRITE_BATCH: usize = 1 << 20;

impl Transactions {
    /// Checks and writes frozen blocks. `buffer` holds the sealed bytes; the caller keeps it from
    /// one call to the next.
    ///
    /// # Errors
    /// A block that fails its checks, in which case no block of its batch is written; errors of
    /// writing.
    pub(super) fn write_blocks(
        &self,
        blocks: &mut Vec<Arc<TreeBlock>>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        blocks.sort_unstable_by_key(|block| block.address());
        blocks.dedup_by_key(|block| block.address());
        let geometry = self.volume.geometry();
        let node_size = geometry.node_size as usize;
        let batch_bytes = WRITE_BATCH.min(blocks.len() * node_size);
        if buffer.len() < batch_bytes {
            *buffer = AlignedBuffer::for_direct_io(batch_bytes);
        }
        for batch in blocks.chunks(WRITE_BATCH / node_size) {
            for (block, bytes) in batch.iter().zip(buffer.chunks_exact_mut(node_size)) {
                sealed(block, &geometry, bytes).map_err(|reason| Error::TreeBlock {
                    tree: block.owner(),
                    address: block.address(),
                    copies: 0,
                    reason: BlockFault::Corrupt(reason),
                })?;
            }
            let mut writes: Vec<_> = runs(batch)
                .map(|(from, to)| {
                    LogicalWrite::new(batch[from].address(), &buffer[from * node_size..to * node_size])
                })
                .collect();
            self.volume.write_many(&mut writes);
            writes.into_iter().try_for_each(|write| write.result)?;
        }
        Ok(())
    }
}

/// Splits a batch of sorted blocks into runs of adjacent ones, as (start, end) indexes.
fn runs(batch: &[Arc<TreeBlock>]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || {
        let from = next;
        let first = batch.get(from)?;
        let size = first.bytes().len() as u64;
        next += 1;
        while batch
            .get(next)
            .is_some_and(|block| block.address().0 == first.address().0 + (next - from) as u64 * size)
        {
            next += 1;
        }
        Some((from, next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::BlockIdentity;
    use crate::btree::testing::TestForest;
    use papilio_format::{Generation, LogicalAddress, objectid};

    const NODE: u64 = 4096;

    fn block(forest: &TestForest, number: u64) -> Arc<TreeBlock> {
        let identity = BlockIdentity {
            address: LogicalAddress((1 << 30) + number * NODE),
            generation: Generation(1),
            owner: objectid::FS_TREE,
            stamp: 1,
        };
        forest.leaf(&identity)
    }

    #[test]
    fn adjacent_blocks_are_written_together() {
        let forest = TestForest::new(NODE as u32);
        let runs_of = |numbers: &[u64]| -> Vec<(usize, usize)> {
            let blocks: Vec<_> = numbers.iter().map(|number| block(&forest, *number)).collect();
            runs(&blocks).collect()
        };
        assert!(runs_of(&[]).is_empty());
        assert_eq!(runs_of(&[5]), [(0, 1)]);
        assert_eq!(runs_of(&[5, 6, 7]), [(0, 3)]);
        assert_eq!(runs_of(&[5, 6, 8, 10, 11, 12]), [(0, 2), (2, 3), (3, 6)]);
    }
}

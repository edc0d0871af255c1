//! Rewriting all tree blocks in their places.
//!
//! Owns [`rewrite_all`].

use super::reader::{BlockReader, block_error};
use papilio_engine::errors::Result;
use papilio_engine::volume::{LogicalWrite, Volume};
use papilio_format::node::NodeExpectation;
use papilio_format::{LogicalAddress, objectid};

/// The tree blocks that are written at once.
const BATCH: usize = 128;

/// Writes the new form of all blocks, durably, and returns the number of those that were written.
/// If `compare`, blocks whose copies all have it are left alone.
///
/// # Errors
/// A block of which no copy is good, or an error of a device.
pub(super) fn rewrite_all(
    volume: &Volume,
    reader: &BlockReader<'_>,
    blocks: &[LogicalAddress],
    compare: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64> {
    let mut written = 0;
    for (number, batch) in blocks.chunks(BATCH).enumerate() {
        written += rewrite(volume, reader, batch, compare)?;
        progress((number * BATCH + batch.len()) as u64, blocks.len() as u64);
    }
    volume.flush()?;
    Ok(written)
}

fn rewrite(
    volume: &Volume,
    reader: &BlockReader<'_>,
    batch: &[LogicalAddress],
    compare: bool,
) -> Result<u64> {
    let mut blocks = Vec::with_capacity(batch.len());
    for &address in batch {
        // The extent tree, which lists all blocks, stands for the tree that owns this one.
        let tree = objectid::EXTENT_TREE;
        let bytes = reader.read(tree, &NodeExpectation::at(address))?;
        let new = reader.rewritten(bytes).map_err(|reason| block_error(tree, address, 1, reason))?;
        if !compare || !reader.is_written(address, &new)? {
            blocks.push((address, new));
        }
    }
    let mut writes: Vec<_> =
        blocks.iter().map(|(address, bytes)| LogicalWrite::new(*address, bytes)).collect();
    volume.write_many(&mut writes);
    writes.into_iter().try_for_each(|write| write.result)?;
    Ok(blocks.len() as u64)
}

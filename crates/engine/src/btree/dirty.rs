//! The blocks of a frozen tree that are not yet on disk.
//!
//! Owns [`dirty_blocks`] and [`sealed`].
//!
//! **Locks**: none; a frozen tree does not change.

use super::block::TreeBlock;
use crate::errors::Result;
use papilio_format::{Corrupt, Geometry, Node, NodeExpectation};
use std::sync::Arc;

/// Collects all dirty blocks of the tree at `root`. Blocks below a clean block are clean.
pub(crate) fn dirty_blocks(root: &Arc<TreeBlock>, found: &mut Vec<Arc<TreeBlock>>) {
    dirty_blocks_since(root, 0, found);
}

/// [`dirty_blocks`] for a tree whose blocks up to the freeze `since` are already on disk.
pub(crate) fn dirty_blocks_since(root: &Arc<TreeBlock>, since: u64, found: &mut Vec<Arc<TreeBlock>>) {
    if root.stamp() <= since {
        return;
    }
    found.push(Arc::clone(root));
    for child in root.links.iter().flatten() {
        dirty_blocks_since(child, since, found);
    }
}

/// Writes the block into `buffer` in its on-disk form: gap zeroed, checksum computed. Then checks
/// it with the code that checks blocks when they are read.
///
/// # Errors
/// The violation that the check finds: a bug, which must not reach the disk.
pub(crate) fn sealed(block: &TreeBlock, geometry: &Geometry, buffer: &mut [u8]) -> Result<(), Corrupt> {
    block.copy_clean(buffer);
    let sum = geometry.checksum_type.compute(&buffer[32..]);
    buffer[..32].copy_from_slice(sum.padded());
    let expected = NodeExpectation {
        level: Some(block.level()),
        generation: Some(block.generation()),
        owner: Some(block.owner()),
        ..NodeExpectation::at(block.address())
    };
    Node::check_summed(buffer, &expected, geometry).map(|_| ())
}

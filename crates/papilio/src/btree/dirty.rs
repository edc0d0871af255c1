//! What a frozen tree holds that is not on disk yet.
//!
//! Owns [`dirty_blocks`] and [`sealed`]. Takes no lock: a frozen tree does not change.

use super::TreeBlock;
use crate::errors::Result;
use papilio_format::{Corrupt, Geometry, Node, NodeExpectation};
use std::sync::Arc;

/// Adds all blocks of the tree at `root` that are not on disk: those that are dirty, and no others can
/// have dirty ones below them.
pub(crate) fn dirty_blocks(root: &Arc<TreeBlock>, found: &mut Vec<Arc<TreeBlock>>) {
    dirty_blocks_since(root, 0, found);
}

/// As [`dirty_blocks`], of a tree whose blocks up to the freeze `since` are on disk already.
pub(crate) fn dirty_blocks_since(root: &Arc<TreeBlock>, since: u64, found: &mut Vec<Arc<TreeBlock>>) {
    if root.stamp() <= since {
        return;
    }
    found.push(Arc::clone(root));
    for child in root.links.iter().flatten() {
        dirty_blocks_since(child, since, found);
    }
}

/// Puts the block into `buffer` as it goes to disk: its gap zeroed, its checksum computed; checked by
/// the same code that checks what is read.
///
/// # Errors
/// What the check finds: a fault of ours, which must not get to disk.
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

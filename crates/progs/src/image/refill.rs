//! A tree with other items in the same blocks.
//!
//! Owns [`refill`].
//!
//! **Invariants**
//! - Every block keeps its address, level and generation, so that its parent still fits.
//! - No leaf becomes empty.

use super::chunks::{BlockImage, TreeImage};
use super::source::fault;
use papilio_engine::errors::Result;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{Geometry, Key, LogicalAddress, Node, NodeExpectation};
use std::ops::Range;

/// Returns the blocks of a tree with the given items, which are in order.
///
/// # Errors
/// Items that do not fit into the leaves, or are fewer than them.
pub(super) fn refill(
    tree: &TreeImage,
    items: &[(Key, Vec<u8>)],
    geometry: &Geometry,
) -> Result<Vec<(LogicalAddress, Vec<u8>)>> {
    let leaves = &tree.levels[0];
    let shares = shares(items, leaves.len(), geometry.node_size as usize - NodeHeader::SIZE);
    let Some(shares) = shares else {
        let (count, leaves) = (items.len(), leaves.len());
        return fault(format_args!("{count} items do not fit into the {leaves} leaves of a tree"));
    };
    let mut blocks = Vec::new();
    let mut first_keys = Vec::new();
    for (leaf, share) in leaves.iter().zip(shares) {
        let items = &items[share];
        first_keys.push(items.first().map_or(Key::MIN, |(key, _)| *key));
        blocks.push(leaf_of(leaf, items));
    }
    for level in &tree.levels[1..] {
        let mut children = first_keys.into_iter();
        first_keys = Vec::new();
        for node in level {
            let count = Node::of_checked(&node.bytes).len();
            let keys: Vec<_> = children.by_ref().take(count).collect();
            first_keys.push(keys.first().copied().unwrap_or(Key::MIN));
            blocks.push(node_of(node, &keys));
        }
    }
    for (address, bytes) in &mut blocks {
        let sum = geometry.checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
        bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
        Node::check(bytes, &NodeExpectation::at(*address), geometry)
            .or_else(|reason| fault(format_args!("the new block {address}: {reason}")))?;
    }
    Ok(blocks)
}

/// Distributes items over leaves, each of which gets as many as fit, but at least one.
fn shares(items: &[(Key, Vec<u8>)], leaves: usize, capacity: usize) -> Option<Vec<Range<usize>>> {
    if leaves == 1 && items.is_empty() {
        return Some(std::iter::once(0..0).collect());
    }
    let mut shares = Vec::with_capacity(leaves);
    let mut at = 0;
    for leaf in 0..leaves {
        let last = items.len().checked_sub(leaves - leaf - 1)?;
        let (start, mut free) = (at, capacity);
        while at < last {
            let size = ItemHeader::SIZE + items[at].1.len();
            let Some(rest) = free.checked_sub(size) else { break };
            free = rest;
            at += 1;
        }
        if at == start {
            return None;
        }
        shares.push(start..at);
    }
    (at == items.len()).then_some(shares)
}

fn with_count(block: &BlockImage, count: usize) -> Vec<u8> {
    let header = NodeHeader { item_count: count as u32, ..Node::of_checked(&block.bytes).header() };
    let mut bytes = vec![0; block.bytes.len()];
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    bytes
}

fn leaf_of(leaf: &BlockImage, items: &[(Key, Vec<u8>)]) -> (LogicalAddress, Vec<u8>) {
    let mut bytes = with_count(leaf, items.len());
    let mut end = bytes.len();
    for (slot, (key, data)) in items.iter().enumerate() {
        end -= data.len();
        bytes[end..end + data.len()].copy_from_slice(data);
        let offset = (end - NodeHeader::SIZE) as u32;
        let header = ItemHeader { key: *key, offset, size: data.len() as u32 };
        let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
        bytes[at..at + ItemHeader::SIZE].copy_from_slice(&header.to_bytes());
    }
    (leaf.address, bytes)
}

fn node_of(node: &BlockImage, keys: &[Key]) -> (LogicalAddress, Vec<u8>) {
    let mut bytes = with_count(node, keys.len());
    let old = Node::of_checked(&node.bytes);
    for (slot, key) in keys.iter().enumerate() {
        let pointer = KeyPointer { key: *key, ..old.child(slot) };
        let at = NodeHeader::SIZE + slot * KeyPointer::SIZE;
        bytes[at..at + KeyPointer::SIZE].copy_from_slice(&pointer.to_bytes());
    }
    (node.address, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::ItemType;

    #[test]
    fn every_leaf_gets_an_item() {
        let items: Vec<_> =
            (0..5).map(|number| (Key::new(number, ItemType::CHUNK_ITEM, 0), vec![0; 75])).collect();
        assert_eq!(shares(&items, 1, 500).unwrap(), std::slice::from_ref(&(0..5)));
        assert_eq!(shares(&items, 3, 500).unwrap(), [0..3, 3..4, 4..5]);
        assert_eq!(shares(&items, 3, 200).unwrap(), [0..2, 2..4, 4..5]);
        assert_eq!(shares(&items, 2, 200), None);
        assert_eq!(shares(&items, 6, 200), None);
        assert_eq!(shares(&[], 1, 200).unwrap(), std::slice::from_ref(&(0..0)));
        assert_eq!(shares(&items, 5, 99), None);
    }
}

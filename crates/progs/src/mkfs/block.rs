//! Encodes sorted items into tree blocks.
//!
//! Owns [`Shape`], the distribution of a tree's items over blocks, and [`BlockEncoder`]. The trees
//! of a new file system are small: one leaf, or a few leaves below one node.
//!
//! **Invariant:** every block passes the reader's checks before it is returned.
//!
//! Kernel counterparts: `struct btrfs_header` and `btrfs_item`.

use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::features::SuperblockFlags;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::superblock::Geometry;
use papilio_format::{Key, LogicalAddress, Node, NodeExpectation, TreeId, Uuid};
use std::ops::Range;

/// The items of a tree, sorted by key.
pub(crate) type Items = Vec<(Key, Vec<u8>)>;

/// The back reference revision "mixed", in the top byte of a header's flags
/// (`BTRFS_MIXED_BACKREF_REV`).
const MIXED_BACKREF_REVISION: u64 = 1 << 56;

/// How the items of a tree are distributed: leaves, and one node above several leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The indexes of the items in each leaf.
    leaves: Vec<Range<usize>>,
    /// The first key of each leaf; the smallest key for an empty tree.
    first_keys: Vec<Key>,
}

impl Default for Shape {
    /// The shape of an empty tree: one leaf.
    fn default() -> Self {
        Self { leaves: std::iter::once(0..0).collect(), first_keys: vec![Key::MIN] }
    }
}

impl Shape {
    /// Distributes items by filling one leaf after the other.
    pub(super) fn of(items: &Items, node_size: u32) -> Self {
        let capacity = node_size as usize - NodeHeader::SIZE;
        let mut leaves = Self::default().leaves;
        let mut used = 0;
        for (at, (_, data)) in items.iter().enumerate() {
            let size = ItemHeader::SIZE + data.len();
            assert!(size <= capacity, "an item of {} bytes in a block of {node_size}", data.len());
            if used + size > capacity {
                leaves.push(at..at);
                used = 0;
            }
            used += size;
            leaves.last_mut().expect("at least one leaf").end = at + 1;
        }
        assert!(leaves.len() <= capacity / KeyPointer::SIZE, "a new tree has at most two levels");
        let first_key = |leaf: &Range<usize>| items.get(leaf.start).map_or(Key::MIN, |(key, _)| *key);
        let first_keys = leaves.iter().map(first_key).collect();
        Self { leaves, first_keys }
    }

    /// Returns the level of the root.
    pub(super) fn level(&self) -> u8 {
        u8::from(self.leaves.len() > 1)
    }

    /// Returns the number of blocks: the leaves, then the node above them.
    pub(super) fn blocks(&self) -> usize {
        self.leaves.len() + usize::from(self.level())
    }

    /// Returns the level and first key of block `at`.
    pub(super) fn block(&self, at: usize) -> (u8, Key) {
        match self.first_keys.get(at) {
            Some(key) => (0, *key),
            None => (1, self.first_keys[0]),
        }
    }
}

/// Encodes blocks; has the fields that all blocks share.
pub(crate) struct BlockEncoder<'a> {
    /// The geometry. Its generation is that of the blocks.
    pub(crate) geometry: &'a Geometry,
    /// The UUID of the chunk tree, which is in every block.
    pub(crate) chunk_tree_uuid: Uuid,
}

impl BlockEncoder<'_> {
    /// Encodes the blocks of a tree. `addresses` has an address for each block, in the shape's
    /// order.
    pub(super) fn tree(
        &self,
        owner: TreeId,
        items: &Items,
        shape: &Shape,
        addresses: &[LogicalAddress],
    ) -> Vec<Vec<u8>> {
        assert_eq!(addresses.len(), shape.blocks(), "an address for each block");
        let mut blocks: Vec<_> = shape
            .leaves
            .iter()
            .zip(addresses)
            .map(|(leaf, address)| self.leaf(owner, *address, &items[leaf.clone()]))
            .collect();
        if shape.level() == 1 {
            let root = addresses[shape.leaves.len()];
            blocks.push(self.node(owner, root, 1, &shape.first_keys, addresses));
        }
        blocks
    }

    /// Encodes a leaf with all of `items`, which fit.
    pub(crate) fn leaf(&self, owner: TreeId, address: LogicalAddress, items: &[(Key, Vec<u8>)]) -> Vec<u8> {
        let mut block = self.begin(owner, address, 0, items.len());
        // Item headers grow from the front, data from the back. Offsets count from the end of the
        // block's header.
        let mut end = block.len();
        for (slot, (key, data)) in items.iter().enumerate() {
            end -= data.len();
            block[end..end + data.len()].copy_from_slice(data);
            let offset = (end - NodeHeader::SIZE) as u32;
            let header = ItemHeader { key: *key, offset, size: data.len() as u32 };
            let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
            block[at..at + ItemHeader::SIZE].copy_from_slice(&header.to_bytes());
        }
        self.finish(block, address, owner)
    }

    /// Encodes a node of `level` above children of the same generation. Further children than first
    /// keys are ignored.
    pub(crate) fn node(
        &self,
        owner: TreeId,
        address: LogicalAddress,
        level: u8,
        first_keys: &[Key],
        children: &[LogicalAddress],
    ) -> Vec<u8> {
        let mut block = self.begin(owner, address, level, first_keys.len());
        for (slot, (key, child)) in first_keys.iter().zip(children).enumerate() {
            let pointer = KeyPointer { key: *key, address: *child, generation: self.geometry.generation };
            let at = NodeHeader::SIZE + slot * KeyPointer::SIZE;
            block[at..at + KeyPointer::SIZE].copy_from_slice(&pointer.to_bytes());
        }
        self.finish(block, address, owner)
    }

    fn begin(&self, owner: TreeId, address: LogicalAddress, level: u8, items: usize) -> Vec<u8> {
        let header = NodeHeader {
            csum: [0; CHECKSUM_SIZE],
            fsid: self.geometry.metadata_uuid,
            address,
            flags: SuperblockFlags::WRITTEN.bits() | MIXED_BACKREF_REVISION,
            chunk_tree_uuid: self.chunk_tree_uuid,
            generation: self.geometry.generation,
            owner,
            item_count: items as u32,
            level,
        };
        let mut block = vec![0; self.geometry.node_size as usize];
        block[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        block
    }

    fn finish(&self, mut block: Vec<u8>, address: LogicalAddress, owner: TreeId) -> Vec<u8> {
        let sum = self.geometry.checksum_type.compute(&block[CHECKSUM_SIZE..]);
        block[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
        if let Err(reason) = Node::check(&block, &NodeExpectation::at(address), self.geometry) {
            panic!("a new block of tree {owner} is invalid: {reason}");
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::ItemType;

    fn items(count: u64, size: usize) -> Items {
        (0..count).map(|at| (Key::new(at + 1, ItemType::ROOT_ITEM, 0), vec![at as u8; size])).collect()
    }

    #[test]
    fn one_leaf_needs_no_node() {
        let shape = Shape::of(&items(8, 439), 4096);
        assert_eq!((shape.level(), shape.blocks()), (0, 1));
        assert_eq!(shape.block(0), (0, Key::new(1, ItemType::ROOT_ITEM, 0)));
        assert_eq!(Shape::of(&Items::new(), 4096), Shape::default());
    }

    #[test]
    fn items_that_exceed_a_leaf_go_to_the_next() {
        // 8 items of 439 and 25 bytes fit in 4096 - 101.
        let shape = Shape::of(&items(17, 439), 4096);
        assert_eq!(shape.leaves, [0..8, 8..16, 16..17]);
        assert_eq!((shape.level(), shape.blocks()), (1, 4));
        assert_eq!(shape.block(1), (0, Key::new(9, ItemType::ROOT_ITEM, 0)));
        assert_eq!(shape.block(3), (1, Key::new(1, ItemType::ROOT_ITEM, 0)));
    }
}

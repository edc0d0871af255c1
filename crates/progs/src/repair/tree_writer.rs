//! Writes whole trees from sorted items, of any height, without the extent tree.
//!
//! Owns [`NewTree`]: planned with the number of blocks that its items need, then written to blocks
//! that the caller found.
//!
//! **Invariant**: every block passes the reader's checks before any is written.

use super::super::check::recount::NewBlock;
use super::editor::{Items, MAX_LEVEL, encode, encode_node, refuse};
use papilio_engine::errors::Result;
use papilio_engine::volume::Volume;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::objectid::Objectid;
use papilio_format::{Generation, Key, LogicalAddress, Node, NodeExpectation, TreeId, Uuid};
use std::fmt;
use std::ops::Range;

/// The header flags of a block on disk: WRITTEN, and the back reference revision "mixed".
const FLAGS: u64 = 1 | 1 << 56;

/// A tree that is not written yet.
#[derive(Debug)]
pub(super) struct NewTree<'a> {
    owner: TreeId,
    items: &'a Items,
    leaves: Vec<Range<usize>>,
    /// The number of blocks of each level, from the leaves up; the last one is 1.
    levels: Vec<usize>,
    most_pointers: usize,
}

impl<'a> NewTree<'a> {
    /// Distributes items, which are sorted. Blocks stay a tenth empty, for the changes to come.
    ///
    /// # Errors
    /// An item that no leaf has room for; too many items for a tree.
    pub(super) fn plan(owner: TreeId, items: &'a Items, node_size: u32) -> Result<Self> {
        let room = node_size as usize - NodeHeader::SIZE;
        let fill = room - room / 10;
        let (mut leaves, mut used): (Vec<Range<usize>>, _) = (Vec::new(), fill);
        for (at, (key, data)) in items.iter().enumerate() {
            let need = ItemHeader::SIZE + data.len();
            if need > room {
                return refuse(format!("item {key} does not fit into a leaf"));
            }
            if used + need > fill {
                leaves.push(at..at);
                used = 0;
            }
            used += need;
            leaves.last_mut().expect("pushed for the first item").end = at + 1;
        }
        if leaves.is_empty() {
            leaves.push(0..0);
        }
        let most_pointers = (room / KeyPointer::SIZE) * 9 / 10;
        let mut levels = vec![leaves.len()];
        while levels[levels.len() - 1] > 1 {
            levels.push(levels[levels.len() - 1].div_ceil(most_pointers));
        }
        if levels.len() > usize::from(MAX_LEVEL) {
            return refuse(format!("tree {owner} would have more than {MAX_LEVEL} levels"));
        }
        Ok(Self { owner, items, leaves, levels, most_pointers })
    }

    pub(super) fn owner(&self) -> TreeId {
        self.owner
    }

    /// Returns the number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.levels.iter().sum()
    }

    /// Returns the level of the root.
    pub(super) fn level(&self) -> u8 {
        (self.levels.len() - 1) as u8
    }

    /// Returns the blocks at these addresses, leaves first; the last one is the root.
    pub(super) fn at(&self, addresses: &[LogicalAddress]) -> Vec<NewBlock> {
        let first_key = |leaf: &Range<usize>| self.items.get(leaf.start).map_or(Key::MIN, |(key, _)| *key);
        let mut keys: Vec<Key> = self.leaves.iter().map(first_key).collect();
        let mut blocks = Vec::with_capacity(self.blocks());
        let mut free = addresses.iter();
        for level in 0..self.levels.len() {
            for (first_key, address) in keys.iter().zip(&mut free) {
                let (address, first_key) = (*address, *first_key);
                blocks.push(NewBlock { address, owner: self.owner, level: level as u8, first_key });
            }
            keys = keys.chunks(self.most_pointers).map(|part| part[0]).collect();
        }
        blocks
    }

    /// Writes all blocks to the addresses.
    ///
    /// # Errors
    /// A block that the reader would refuse, before anything is written; failures of a device.
    pub(super) fn write(
        &self,
        volume: &Volume,
        chunk_tree_uuid: Uuid,
        generation: Generation,
        addresses: &[LogicalAddress],
    ) -> Result<()> {
        let list = self.at(addresses);
        assert_eq!(list.len(), self.blocks(), "an address for each block");
        let geometry = volume.geometry();
        let mut blocks: Vec<(LogicalAddress, Vec<u8>)> = Vec::with_capacity(list.len());
        let (mut number, mut below) = (0, 0..0);
        for block in &list {
            let level = block.level;
            let empty = empty_block(volume, chunk_tree_uuid, self.owner, level, block.address, generation);
            let mut bytes = if block.level == 0 {
                encode(&empty, &self.items[self.leaves[blocks.len()].clone()].to_vec())?
            } else {
                if usize::from(block.level) != number {
                    number = usize::from(block.level);
                    let start: usize = self.levels[..number - 1].iter().sum();
                    below = start..start + self.levels[number - 1];
                }
                let end = below.end.min(below.start + self.most_pointers);
                let pointer = |child: &NewBlock| KeyPointer {
                    key: child.first_key,
                    address: child.address,
                    generation,
                };
                let pointers: Vec<_> = list[below.start..end].iter().map(pointer).collect();
                below.start = end;
                encode_node(&empty, &pointers)?
            };
            seal(volume, &mut bytes);
            if let Err(reason) = Node::check(&bytes, &NodeExpectation::at(block.address), &geometry) {
                return refuse(format!("a new block of tree {}: {reason}", self.owner));
            }
            blocks.push((block.address, bytes));
        }
        blocks.iter().try_for_each(|(address, bytes)| volume.write(*address, bytes))
    }
}

impl fmt::Display for NewTree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (items, blocks) = (self.items.len(), self.blocks());
        let tree = Objectid(self.owner.0);
        write!(f, "tree {tree}: write it anew, {items} items in {blocks} new blocks")
    }
}

/// Writes the checksum of a block into it.
pub(super) fn seal(volume: &Volume, bytes: &mut [u8]) {
    let sum = volume.geometry().checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
    bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
}

/// Returns a block without items; `generation` must not be later than that of its parent.
pub(super) fn empty_block(
    volume: &Volume,
    chunk_tree_uuid: Uuid,
    owner: TreeId,
    level: u8,
    address: LogicalAddress,
    generation: Generation,
) -> Vec<u8> {
    let geometry = volume.geometry();
    let header = NodeHeader {
        csum: [0; CHECKSUM_SIZE],
        fsid: geometry.metadata_uuid,
        address,
        flags: FLAGS,
        chunk_tree_uuid,
        generation,
        owner,
        item_count: 0,
        level,
    };
    let mut bytes = vec![0; geometry.node_size as usize];
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::ItemType;

    fn items(count: u64, size: usize) -> Items {
        (0..count).map(|at| (Key::new(at + 1, ItemType::ROOT_ITEM, 0), vec![at as u8; size])).collect()
    }

    #[test]
    fn items_fill_levels_of_nodes() {
        let owner = TreeId(1);
        let empty = Items::new();
        assert_eq!(NewTree::plan(owner, &empty, 4096).unwrap().levels, [1]);
        let one = items(8, 400);
        assert_eq!(NewTree::plan(owner, &one, 4096).unwrap().levels, [1]);
        // 3,596 bytes of a leaf hold 8 items of 439 and 25; a node has 108 of 121 pointers.
        let many = items(8 * 108 * 2 + 1, 400);
        let tree = NewTree::plan(owner, &many, 4096).unwrap();
        assert_eq!((&tree.levels[..], tree.level(), tree.blocks()), (&[217, 3, 1][..], 2, 221));
        let addresses: Vec<_> = (0..221).map(|at| LogicalAddress(at * 4096)).collect();
        let list = tree.at(&addresses);
        assert_eq!(list.len(), 221);
        assert_eq!((list[217].level, list[217].first_key), (1, list[0].first_key));
        assert_eq!((list[218].level, list[218].first_key), (1, list[108].first_key));
        assert_eq!((list[220].level, list[220].first_key), (2, list[0].first_key));
        assert!(NewTree::plan(owner, &items(1, 4096), 4096).is_err());
    }
}

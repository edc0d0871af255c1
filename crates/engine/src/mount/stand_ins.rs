//! Internal blocks made of scanned leaves, in the place of blocks that cannot be read.
//!
//! Owns [`ScannedLeaves`]. A lost internal block leaves its leaves without a parent. Those that a
//! scan found are put below new internal blocks, in memory only.
//!
//! **Invariants**
//! - The leaves below a stand-in belong to the tree, are not newer than the lost block, and have
//!   disjoint, ascending keys in the lost block's range. Of overlapping leaves the newest is taken.
//! - Whether a leaf was part of the lost block is not known: it may be older, and another one may
//!   be missing. [`StandIns::covers`] tells which keys that concerns.
//!
//! **Locks**: `made`, while one stand-in is made.

use crate::btree::{StandIns, TreeBlock};
use crate::options::rescue::FoundBlock;
use papilio_format::node::{KeyPointer, NodeExpectation, NodeHeader};
use papilio_format::superblock::MAX_LEVEL;
use papilio_format::{Geometry, Key, LogicalAddress, TreeId, Uuid};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The leaves that a scan found, by tree.
#[derive(Debug)]
pub(super) struct ScannedLeaves {
    leaves: HashMap<TreeId, Vec<FoundBlock>>,
    geometry: Geometry,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    /// By tree and the address of the lost block.
    blocks: HashMap<(TreeId, LogicalAddress), Option<Arc<TreeBlock>>>,
    /// The keys below stand-ins: the first one, and the first behind.
    ranges: Vec<(TreeId, Key, Option<Key>)>,
}

/// An entry of a block to make.
struct StandInEntry {
    pointer: KeyPointer,
    block: Option<Arc<TreeBlock>>,
}

impl ScannedLeaves {
    /// Keeps the leaves among `blocks`.
    pub(super) fn new(blocks: &[FoundBlock], geometry: Geometry) -> Self {
        let mut leaves: HashMap<TreeId, Vec<FoundBlock>> = HashMap::new();
        for block in blocks.iter().filter(|block| block.level == 0 && block.keys.is_some()) {
            leaves.entry(block.owner).or_default().push(*block);
        }
        for of_tree in leaves.values_mut() {
            of_tree.sort_by_key(|leaf| (std::cmp::Reverse(leaf.generation), leaf.address));
            of_tree.dedup_by_key(|leaf| (leaf.generation, leaf.address));
        }
        Self { leaves, geometry, made: Mutex::default() }
    }

    fn make(&self, tree: TreeId, expected: &NodeExpectation, bound: Option<Key>) -> Option<Arc<TreeBlock>> {
        let level = expected.level.filter(|level| *level > 0)?;
        let first_key = expected.first_key.unwrap_or(Key::MIN);
        let mut chosen: BTreeMap<Key, (Key, &FoundBlock)> = BTreeMap::new();
        for leaf in self.leaves.get(&tree)? {
            let Some((first, last)) = leaf.keys else { continue };
            let inside = first >= first_key && bound.is_none_or(|bound| last < bound);
            let is_older = expected.generation.is_none_or(|generation| leaf.generation <= generation);
            let before = chosen.range(..=last).next_back();
            if inside && is_older && before.is_none_or(|(_, (end, _))| *end < first) {
                chosen.insert(first, (last, leaf));
            }
        }
        let mut entries: Vec<StandInEntry> = Vec::new();
        for (key, (_, leaf)) in chosen {
            let pointer = KeyPointer { key, address: leaf.address, generation: leaf.generation };
            entries.push(StandInEntry { pointer, block: None });
        }
        let most = (self.geometry.node_size as usize - NodeHeader::SIZE) / KeyPointer::SIZE;
        for at in 1..MAX_LEVEL {
            if entries.is_empty() {
                return None;
            }
            let groups = entries.len().div_ceil(most);
            let made = entries
                .chunks(entries.len().div_ceil(groups))
                .map(|group| self.block(tree, expected, at, group))
                .collect::<Option<Vec<_>>>()?;
            entries = made;
            if at >= level && entries.len() == 1 {
                // A root may be higher than the lost one, a block below it may not.
                let fits = at == level || expected.first_key.is_none();
                return entries.pop().filter(|_| fits)?.block;
            }
        }
        None
    }

    fn block(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        level: u8,
        group: &[StandInEntry],
    ) -> Option<StandInEntry> {
        let generation = group.iter().map(|entry| entry.pointer.generation).max()?;
        let generation = expected.generation.unwrap_or(generation);
        let header = NodeHeader {
            csum: [0; 32],
            fsid: self.geometry.metadata_uuid,
            address: expected.address,
            flags: 1 | 1 << 56,
            chunk_tree_uuid: Uuid::nil(),
            generation,
            owner: tree,
            item_count: group.len() as u32,
            level,
        };
        let mut bytes = header.to_bytes().to_vec();
        group.iter().for_each(|entry| bytes.extend(entry.pointer.to_bytes()));
        bytes.resize(self.geometry.node_size as usize, 0);
        let links = group.iter().map(|entry| entry.block.clone()).collect();
        let block = TreeBlock::in_memory(bytes, links, &self.geometry).ok()?;
        let key = group.first()?.pointer.key;
        let pointer = KeyPointer { key, address: expected.address, generation };
        Some(StandInEntry { pointer, block: Some(Arc::new(block)) })
    }
}

impl StandIns for ScannedLeaves {
    fn stand_in(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        bound: Option<Key>,
    ) -> Option<Arc<TreeBlock>> {
        let mut made = self.made.lock();
        if let Some(known) = made.blocks.get(&(tree, expected.address)) {
            return known.clone();
        }
        let block = self.make(tree, expected, bound);
        if block.is_some() {
            made.ranges.push((tree, expected.first_key.unwrap_or(Key::MIN), bound));
        }
        made.blocks.insert((tree, expected.address), block.clone());
        block
    }

    fn replaces_inner_blocks(&self) -> bool {
        true
    }

    fn covers(&self, tree: TreeId, first: Key, last: Key) -> bool {
        let overlaps = |(of, from, bound): &(TreeId, Key, Option<Key>)| {
            *of == tree && *from <= last && bound.is_none_or(|bound| first < bound)
        };
        self.made.lock().ranges.iter().any(overlaps)
    }
}

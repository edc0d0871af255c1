//! Tree blocks that no walk reached, since the blocks above them are damaged.
//!
//! Owns [`Orphans`]. If the extent tree was read completely, it says which blocks are alive, with
//! their generations, and which trees refer to them. Otherwise all metadata chunks are scanned, and
//! newer leaves come before older ones.
//!
//! A block that no back reference gives to a damaged part may still take its place, if none gives
//! it to another. It may be an older state, so [`Found::is_certain`] is false.
//!
//! **Invariant**: no memory is spent on blocks of trees that are not damaged.

use super::super::check::damage::Damage;
use super::super::check::inventory::Inventory;
use super::super::check::recount::Claimant;
use super::editor::children;
use papilio_engine::btree::{Forest, TreeBlock};
use papilio_engine::volume::Volume;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::node::{KeyPointer, NodeHeader, owner_allowed};
use papilio_format::{Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// A block that no walk reached.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    owner: TreeId,
    level: u8,
    generation: u64,
    first: Key,
    /// Whether the extent tree lists this very block.
    vouched: bool,
}

/// A block that was found for a damaged part, with all that is below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundSubtree {
    pub(super) pointer: KeyPointer,
    pub(super) level: u8,
    pub(super) last: Key,
}

/// The blocks for a damaged part: disjoint, ascending.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) parts: Vec<FoundSubtree>,
    /// Whether back references say that all of them belong there.
    pub(super) is_certain: bool,
}

/// Whether a block may belong to a damaged part.
fn is_inside(orphan: &Orphan, damage: &Damage) -> bool {
    orphan.first >= damage.key
        && damage.bound.is_none_or(|bound| orphan.first < bound)
        && owner_allowed(damage.tree, orphan.owner)
}

/// The places of metadata chunks that have the header of a block of that place. The first round
/// that needs them looks at all places, further rounds at these only: the blocks that a repair
/// writes are in trees. They are looked for again if the chunks changed.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    chunks: Vec<LogicalAddress>,
    found: Vec<LogicalAddress>,
}

impl Candidates {
    fn get(&mut self, volume: &Volume) -> &[LogicalAddress] {
        let map = volume.chunk_map();
        let tree_chunks = BlockGroupFlags::METADATA.union(BlockGroupFlags::SYSTEM);
        let chunks = || map.iter().filter(|chunk| chunk.flags().intersects(tree_chunks));
        let starts: Vec<_> = chunks().map(|chunk| chunk.start()).collect();
        if starts == self.chunks {
            return &self.found;
        }
        let geometry = volume.geometry();
        let size = u64::from(geometry.node_size);
        let mut bytes = vec![0; geometry.sector_size as usize];
        let mut is_block = |address: LogicalAddress| {
            (0..volume.copies(address).unwrap_or(0)).any(|copy| {
                volume.read_copy(address, &mut bytes, copy).is_ok()
                    && NodeHeader::parse_prefix(&bytes).is_ok_and(|(header, _)| header.address == address)
            })
        };
        self.found.clear();
        for chunk in chunks() {
            let first = chunk.start().0.next_multiple_of(size);
            let all = (first..chunk.end().0.saturating_sub(size - 1)).step_by(size as usize);
            self.found.extend(all.map(LogicalAddress).filter(|address| is_block(*address)));
        }
        self.chunks = starts;
        &self.found
    }
}

/// All orphans of the damaged trees.
#[derive(Debug)]
pub(super) struct Orphans {
    blocks: BTreeMap<LogicalAddress, Orphan>,
    /// Whether only blocks that the extent tree lists count.
    only_vouched: bool,
    /// Whether every block that no walk reached is known: the extent tree lists all blocks, and
    /// each listed one can be read.
    all_known: bool,
    /// The damaged parts that lack a block, as back references say: the addresses of both.
    owed: BTreeSet<(LogicalAddress, LogicalAddress)>,
    forest: Arc<Forest>,
}

impl Orphans {
    /// Finds the orphans of all trees with damaged parts.
    pub(super) fn find(volume: &Arc<Volume>, inventory: &Inventory, candidates: &mut Candidates) -> Self {
        let trees: BTreeSet<TreeId> = inventory.damages.iter().map(|damage| damage.tree).collect();
        let only_vouched = inventory.whole.contains(&objectid::EXTENT_TREE);
        let forest = Forest::new(Arc::clone(volume), 8 << 20);
        let all_known = only_vouched;
        let (blocks, owed) = (BTreeMap::new(), BTreeSet::new());
        let mut orphans = Self { blocks, only_vouched, all_known, owed, forest };
        if trees.is_empty() {
            return orphans;
        }
        if only_vouched {
            for extent in inventory.references.extents.iter().filter(|extent| !extent.is_data()) {
                let address = LogicalAddress(extent.start);
                if !inventory.seen.contains_key(&address) {
                    orphans.look(inventory, &trees, address);
                }
            }
            orphans.look_at_shared(inventory, &trees);
            return orphans;
        }
        for address in candidates.get(volume) {
            if !inventory.seen.contains_key(address) {
                orphans.look(inventory, &trees, *address);
            }
        }
        orphans
    }

    /// Notes the blocks that damaged parts lack. Some were reached by other trees.
    fn look_at_shared(&mut self, inventory: &Inventory, trees: &BTreeSet<TreeId>) {
        for (address, claimant) in inventory.references.unclaimed_blocks() {
            let lacks = |damage: &&Damage| match claimant {
                Claimant::Tree(tree) => damage.tree == tree,
                Claimant::Block(block) => damage.address == block,
            };
            for damage in inventory.damages.iter().filter(lacks) {
                self.owed.insert((address, damage.address));
            }
            let is_owed = inventory.damages.iter().any(|damage| lacks(&damage));
            let is_broken = inventory.seen.get(&address).is_some_and(|seen| seen.broken);
            if is_owed && !is_broken && !self.blocks.contains_key(&address) {
                self.look(inventory, trees, address);
            }
        }
    }

    /// Whether a back reference gives a block to a damaged part.
    fn is_owed(&self, block: LogicalAddress, damage: &Damage) -> bool {
        self.owed.contains(&(block, damage.address))
    }

    /// Whether a back reference gives a block to another damaged part only.
    fn is_owed_elsewhere(&self, block: LogicalAddress, damage: &Damage) -> bool {
        let mut owed = self.owed.range((block, LogicalAddress(0))..=(block, LogicalAddress(u64::MAX)));
        !self.is_owed(block, damage) && owed.next().is_some()
    }

    fn read(&self, address: LogicalAddress) -> Option<Arc<TreeBlock>> {
        let copies = self.forest.volume().copies(address).ok()?;
        let expected = NodeExpectation::at(address);
        (0..copies).find_map(|copy| self.forest.read_copy(&expected, copy).ok()).map(Arc::new)
    }

    fn look(&mut self, inventory: &Inventory, trees: &BTreeSet<TreeId>, address: LogicalAddress) {
        let Some(block) = self.read(address) else {
            self.all_known = false;
            return;
        };
        let wanted = trees.iter().any(|tree| owner_allowed(*tree, block.owner()));
        if !wanted || block.view().is_empty() {
            return;
        }
        let (level, generation) = (block.level(), block.generation().0);
        let listed = inventory.references.extent_at(address.0);
        let vouched = listed.is_some_and(|extent| {
            !extent.is_data() && (extent.level, extent.generation) == (level, generation)
        });
        if vouched || !self.only_vouched {
            let (owner, first) = (block.owner(), block.view().key(0));
            self.blocks.insert(address, Orphan { owner, level, generation, first, vouched });
        } else {
            self.all_known = false;
        }
    }

    /// Whether the blocks that [`Self::take`] returned for a part are surely all of it: no block is
    /// unknown, and none is left that could belong there.
    pub(super) fn has_all_of(&self, damage: &Damage) -> bool {
        let left = |(address, orphan): (&LogicalAddress, &Orphan)| {
            is_inside(orphan, damage) && !self.is_owed_elsewhere(*address, damage)
        };
        self.all_known && !self.blocks.iter().any(left)
    }

    /// Returns the addresses of all orphans, which must not be overwritten.
    pub(super) fn addresses(&self) -> Vec<u64> {
        self.blocks.keys().map(|address| address.0).collect()
    }

    /// Takes the blocks that belong to a damaged part, each of the part's level or below.
    pub(super) fn take(&mut self, damage: &Damage) -> Found {
        let mut parts: Vec<FoundSubtree> = Vec::new();
        let mut is_certain = self.only_vouched;
        // Old nodes lead to leaves that were replaced since, so without the extent tree only leaves
        // count.
        let highest = if self.only_vouched { damage.level } else { 0 };
        for level in (0..=highest).rev() {
            let fits = |orphan: &Orphan| orphan.level == level && is_inside(orphan, damage);
            let mut found: Vec<(LogicalAddress, Orphan)> = self
                .blocks
                .iter()
                .filter(|(at, orphan)| fits(orphan) && !self.is_owed_elsewhere(**at, damage))
                .map(|(at, orphan)| (*at, *orphan))
                .collect();
            let rank = |at: LogicalAddress, orphan: &Orphan| {
                let owed = self.is_owed(at, damage);
                (owed, orphan.vouched, orphan.owner == damage.tree, orphan.generation)
            };
            found.sort_by_key(|(at, orphan)| std::cmp::Reverse(rank(*at, orphan)));
            for (address, orphan) in found {
                if !self.blocks.contains_key(&address) {
                    continue;
                }
                let Some(last) = self.last_key(address) else { continue };
                let inside = damage.bound.is_none_or(|bound| last < bound);
                let apart = |part: &FoundSubtree| last < part.pointer.key || orphan.first > part.last;
                if inside && parts.iter().all(apart) {
                    is_certain &= self.is_owed(address, damage);
                    self.forget(address, &mut HashSet::new());
                    let generation = papilio_format::Generation(orphan.generation);
                    let pointer = KeyPointer { key: orphan.first, address, generation };
                    parts.push(FoundSubtree { pointer, level, last });
                }
            }
        }
        parts.sort_by_key(|part| part.pointer.key);
        Found { parts, is_certain }
    }

    /// Returns the last key below a block.
    fn last_key(&self, address: LogicalAddress) -> Option<Key> {
        let mut block = self.read(address)?;
        loop {
            let view = block.view();
            let slot = view.len().checked_sub(1)?;
            if block.level() == 0 {
                return Some(view.key(slot));
            }
            match self.read(view.child(slot).address) {
                Some(child) if child.level() + 1 == block.level() => block = child,
                // The damage is found by the next check.
                _ => return Some(view.key(slot)),
            }
        }
    }

    /// Removes a block and all blocks below it from the orphans.
    fn forget(&mut self, address: LogicalAddress, done: &mut HashSet<LogicalAddress>) {
        self.blocks.remove(&address);
        if !done.insert(address) {
            return;
        }
        let Some(block) = self.read(address).filter(|block| block.level() > 0) else { return };
        for child in children(&block) {
            self.forget(child.address, done);
        }
    }
}

//! The copies of tree blocks that a relocation makes.
//!
//! Owns [`CopiedBlocks`]: the copies of all planned blocks, at their new places, which lead to the
//! new places of what moves. A block whose items grow has several copies, and its parents lead to
//! all of them. A root with several copies gets new blocks above them.
//!
//! **Invariants**
//! - Copies keep owner, generation and flags, so that trees share them as they shared the block.
//! - Each place is allocated, and nothing refers to it. If copying fails, all places are free.
//! - The copies of a block have ascending keys, and the first has the block's first key.
//!
//! **Locks**: as [`super::relocate`].
//!
//! Kernel counterpart: none for blocks that grow; `replace_path` (`fs/btrfs/relocation.c`).

use super::delayed_refs::wrong_extent;
use super::moved_data::{Growth, MovedData, join_items, part_item, piece_items};
use super::relocation_plan::{PlannedBlock, RelocationPlan, disk_extent};
use super::transaction::Transactions;
use crate::btree::{BlockIdentity, TreeBlock, pointer_to};
use crate::errors::Result;
use crate::space::{LogicalRange, SpaceKind};
use papilio_format::node::{ItemHeader, KeyPointer};
use papilio_format::{Key, LogicalAddress, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Where `disk_bytenr` is in a file extent item.
const DISK_ADDRESS_AT: usize = 21;
/// The highest level of a tree block.
const MAX_LEVEL: u8 = 7;

/// A block that was made above the copies of a root.
#[derive(Debug)]
pub(super) struct AddedRoot {
    pub(super) tree: TreeId,
    pub(super) block: Arc<TreeBlock>,
}

/// The copies of planned blocks.
#[derive(Debug, Default)]
pub(super) struct CopiedBlocks {
    of: BTreeMap<LogicalAddress, Vec<Arc<TreeBlock>>>,
    /// Blocks above former roots, of each tree by ascending level.
    pub(super) added: Vec<AddedRoot>,
    /// The copies of parents by the parent's old address and the child's new one, as far as parents
    /// with full back references have several copies.
    holders: HashMap<(LogicalAddress, LogicalAddress), LogicalAddress>,
    /// The addresses of all copies.
    addresses: HashSet<LogicalAddress>,
}

impl CopiedBlocks {
    /// Returns the copies of a planned block.
    pub(super) fn of(&self, from: LogicalAddress) -> &[Arc<TreeBlock>] {
        &self.of[&from]
    }

    /// Whether the block moves.
    pub(super) fn contains(&self, from: LogicalAddress) -> bool {
        self.of.contains_key(&from)
    }

    /// Whether a copy is at this address.
    pub(super) fn has_copy_at(&self, address: LogicalAddress) -> bool {
        self.addresses.contains(&address)
    }

    /// Returns the address of the parent that leads to a copy, by the parent's old address.
    pub(super) fn parent_of(&self, copy: LogicalAddress, parent: LogicalAddress) -> LogicalAddress {
        match self.of.get(&parent).map(Vec::as_slice) {
            None => parent,
            Some([only]) => only.address(),
            Some(_) => self.holders.get(&(parent, copy)).copied().unwrap_or(parent),
        }
    }

    /// Returns the block that is the root of a tree now, whose root was the planned block `from`.
    pub(super) fn root_of(&self, tree: TreeId, from: LogicalAddress) -> &Arc<TreeBlock> {
        let added = self.added.iter().rev().find(|added| added.tree == tree);
        added.map_or(&self.of[&from][0], |added| &added.block)
    }

    /// All blocks to write.
    pub(super) fn all(&self) -> Vec<Arc<TreeBlock>> {
        let added = self.added.iter().map(|added| &added.block);
        self.of.values().flatten().chain(added).cloned().collect()
    }
}

/// The contents of a block's copies.
enum Contents {
    /// The block itself, changed in place.
    Same(Box<TreeBlock>),
    /// The items of several leaves.
    Leaves(Vec<Vec<(Key, Vec<u8>)>>),
}

impl Contents {
    fn count(&self) -> usize {
        match self {
            Self::Same(_) => 1,
            Self::Leaves(leaves) => leaves.len(),
        }
    }
}

impl Transactions {
    /// Makes the copies of the planned blocks. `None` if `growth` does not allow so many blocks.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; an item that cannot be read, or does not fit the others.
    pub(super) fn copy_blocks(
        &self,
        plan: &RelocationPlan<'_>,
        data: &BTreeMap<LogicalAddress, MovedData>,
        growth: &Growth,
    ) -> Result<Option<CopiedBlocks>> {
        let mut contents = BTreeMap::new();
        for (&from, planned) in plan.blocks.iter().filter(|(_, planned)| planned.block.level() == 0) {
            contents.insert(from, leaf_contents(&planned.block, data)?);
        }
        let mut order: Vec<_> = plan.blocks.iter().collect();
        order.sort_by_key(|(from, planned)| (planned.block.level(), **from));
        let blocks = count_blocks(&order, &contents)?;
        if blocks - plan.blocks.len() as u64 > growth.most_more_blocks {
            return Ok(None);
        }
        let reservation =
            self.space.reserve_metadata(blocks * self.node_size() + growth.commit_bytes, true)?;
        let mut places = Places { transactions: self, taken: Vec::new(), kept: false };
        drop(reservation);
        let mut copies = CopiedBlocks::default();
        for (&from, planned) in order {
            let made = match contents.remove(&from) {
                Some(contents) => self.leaf_copies(planned, contents, &mut places)?,
                None => node_copies(planned, &copies, &mut places)?,
            };
            if planned.extent.is_full() && planned.block.level() > 0 && made.len() > 1 {
                copies.note_holders(from, &made);
            }
            let made: Vec<_> = made.into_iter().map(Arc::new).collect();
            copies.addresses.extend(made.iter().map(|copy| copy.address()));
            for &tree in planned.roots.iter().filter(|_| made.len() > 1) {
                copies.add_roots(tree, &made, &mut places)?;
            }
            copies.of.insert(from, made);
        }
        places.kept = true;
        Ok(Some(copies))
    }

    fn leaf_copies(
        &self,
        planned: &PlannedBlock,
        contents: Contents,
        places: &mut Places<'_>,
    ) -> Result<Vec<TreeBlock>> {
        match contents {
            Contents::Same(block) => Ok(vec![block.relocated(places.next(block.owner())?)]),
            Contents::Leaves(leaves) => {
                let owner = planned.block.owner();
                let copy =
                    |items: &Vec<_>| Ok(planned.block.relocated_with_items(places.next(owner)?, items));
                leaves.iter().map(copy).collect()
            }
        }
    }

    /// Releases the places of copies that nothing refers to.
    pub(super) fn release_copies(&self, copies: &CopiedBlocks) {
        for &start in &copies.addresses {
            self.space.release(LogicalRange { start, length: self.node_size() });
        }
    }
}

impl CopiedBlocks {
    fn note_holders(&mut self, from: LogicalAddress, made: &[TreeBlock]) {
        for copy in made {
            for slot in 0..copy.len() {
                self.holders.insert((from, copy.view().child(slot).address), copy.address());
            }
        }
    }

    /// Adds the blocks of a tree above the copies of its root.
    fn add_roots(&mut self, tree: TreeId, made: &[Arc<TreeBlock>], places: &mut Places<'_>) -> Result<()> {
        let mut below: Vec<Arc<TreeBlock>> = made.to_vec();
        while below.len() > 1 {
            let first = &below[0];
            let level = first.level() + 1;
            let pointers: Vec<_> = below.iter().map(|block| pointer_to(block)).collect();
            let (generation, owner) = (first.generation(), tree);
            let mut above = Vec::new();
            for part in parts_of(&pointers, first.max_pointers()) {
                let address = places.next(tree)?;
                let identity = BlockIdentity { address, generation, owner, stamp: 0 };
                let empty = TreeBlock::empty_like(first, &identity, level);
                above.push(Arc::new(empty.relocated_with_pointers(address, part)));
            }
            self.addresses.extend(above.iter().map(|block| block.address()));
            self.added.extend(above.iter().map(|block| AddedRoot { tree, block: Arc::clone(block) }));
            below = above;
        }
        Ok(())
    }
}

/// Returns the number of all copies, and of blocks above roots.
fn count_blocks(
    order: &[(&LogicalAddress, &PlannedBlock)],
    contents: &BTreeMap<LogicalAddress, Contents>,
) -> Result<u64> {
    let mut counts: HashMap<LogicalAddress, usize> = HashMap::new();
    let mut all = 0;
    for (from, planned) in order {
        let block = &planned.block;
        let count = match contents.get(from) {
            Some(contents) => contents.count(),
            None => {
                let child = |slot| counts.get(&block.view().child(slot).address).copied().unwrap_or(1);
                (0..block.len()).map(child).sum::<usize>().div_ceil(block.max_pointers()).max(1)
            }
        };
        counts.insert(**from, count);
        all += count as u64;
        let (mut above, mut level) = (count, block.level());
        while above > 1 && !planned.roots.is_empty() {
            above = above.div_ceil(block.max_pointers());
            level += 1;
            all += (above * planned.roots.len()) as u64;
            if level > MAX_LEVEL {
                return Err(wrong_extent(block.address(), "would get too many levels above it"));
            }
        }
    }
    Ok(all)
}

/// The copies of an internal node.
fn node_copies(
    planned: &PlannedBlock,
    copies: &CopiedBlocks,
    places: &mut Places<'_>,
) -> Result<Vec<TreeBlock>> {
    let block = &planned.block;
    let children = (0..block.len()).map(|slot| block.view().child(slot));
    let mut pointers: Vec<KeyPointer> = Vec::with_capacity(block.len());
    for child in children {
        let Some(made) = copies.of.get(&child.address) else {
            pointers.push(child);
            continue;
        };
        // The first copy begins where the block did.
        pointers.push(KeyPointer { address: made[0].address(), ..child });
        pointers.extend(made[1..].iter().map(|copy| pointer_to(copy)));
    }
    let parts = parts_of(&pointers, block.max_pointers());
    if parts.is_empty() {
        return Ok(vec![block.relocated(places.next(block.owner())?)]);
    }
    let copy = |part: &[KeyPointer]| Ok(block.relocated_with_pointers(places.next(block.owner())?, part));
    parts.into_iter().map(copy).collect()
}

/// Splits pointers into parts of at most `most`, about the same size each.
fn parts_of(pointers: &[KeyPointer], most: usize) -> Vec<&[KeyPointer]> {
    let parts = pointers.len().div_ceil(most);
    if parts == 0 {
        return Vec::new();
    }
    pointers.chunks(pointers.len().div_ceil(parts)).collect()
}

/// The contents of a leaf, in which everything leads to the new places.
fn leaf_contents(block: &TreeBlock, data: &BTreeMap<LogicalAddress, MovedData>) -> Result<Contents> {
    let mut copy = block.without_links();
    let (mut merged, mut grows) = (BTreeSet::new(), false);
    for slot in 0..copy.len() {
        let Some(part) = disk_extent(&copy, slot)? else { continue };
        let mut item = copy.view().item(slot).to_vec();
        match data.get(&part.disk_address) {
            None => continue,
            Some(MovedData::Pieces(_)) => {
                grows = true;
                continue;
            }
            Some(MovedData::Whole(to)) => {
                item[DISK_ADDRESS_AT..DISK_ADDRESS_AT + 8].copy_from_slice(&to.0.to_le_bytes());
            }
            Some(MovedData::Parts(parts)) => {
                let extent = part_item(&copy, slot, parts)?;
                merged.insert(extent.1);
                item = extent.0;
            }
        }
        copy.replace_item(slot, &item);
    }
    if !merged.is_empty() {
        join_items(&mut copy, &merged)?;
    }
    if !grows {
        return Ok(Contents::Same(Box::new(copy)));
    }
    let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
    for slot in 0..copy.len() {
        let pieces = match disk_extent(&copy, slot)? {
            Some(part) => match data.get(&part.disk_address) {
                Some(MovedData::Pieces(pieces)) => Some(pieces),
                _ => None,
            },
            None => None,
        };
        match pieces {
            Some(pieces) => items.extend(piece_items(&copy, slot, pieces)?),
            None => items.push((copy.view().key(slot), copy.view().item(slot).to_vec())),
        }
    }
    if items.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(wrong_extent(block.address(), "has file extents that overlap"));
    }
    Ok(Contents::Leaves(split_items(items, copy.capacity())))
}

/// Splits the items of a leaf into those of several, about the same size each.
fn split_items(items: Vec<(Key, Vec<u8>)>, capacity: usize) -> Vec<Vec<(Key, Vec<u8>)>> {
    let size = |item: &(Key, Vec<u8>)| ItemHeader::SIZE + item.1.len();
    let all: usize = items.iter().map(size).sum();
    let target = all.div_ceil(all.div_ceil(capacity).max(1));
    let (mut leaves, mut used) = (Vec::new(), capacity);
    for item in items {
        let own = size(&item);
        if used >= target || used + own > capacity {
            leaves.push(Vec::new());
            used = 0;
        }
        used += own;
        leaves.last_mut().expect("the first item begins a leaf").push(item);
    }
    leaves
}

/// Places for copies, which are free again unless they are kept.
struct Places<'t> {
    transactions: &'t Transactions,
    taken: Vec<LogicalAddress>,
    kept: bool,
}

impl Places<'_> {
    /// Allocates the place of a block of this tree.
    fn next(&mut self, owner: TreeId) -> Result<LogicalAddress> {
        let node_size = self.transactions.node_size();
        let kind = if owner == objectid::CHUNK_TREE { SpaceKind::System } else { SpaceKind::Metadata };
        let range = self.transactions.allocate(kind, node_size, node_size)?;
        self.taken.push(range.start);
        Ok(range.start)
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        let length = self.transactions.node_size();
        let taken = if self.kept { Vec::new() } else { std::mem::take(&mut self.taken) };
        for start in taken {
            self.transactions.space.release(LogicalRange { start, length });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::{Generation, ItemType};

    fn item(number: u64, size: usize) -> (Key, Vec<u8>) {
        (Key::new(number, ItemType::EXTENT_DATA, 0), vec![0; size])
    }

    #[test]
    fn items_are_split_evenly_and_fit() {
        for (count, size, capacity) in [(1, 53, 400), (10, 53, 400), (13, 370, 400), (100, 1, 1000)] {
            let items: Vec<_> = (0..count).map(|number| item(number, size)).collect();
            let leaves = split_items(items.clone(), capacity);
            assert!(leaves.iter().all(|leaf| !leaf.is_empty()));
            let bytes = |leaf: &Vec<(Key, Vec<u8>)>| leaf.iter().map(|item| 25 + item.1.len()).sum::<usize>();
            assert!(leaves.iter().all(|leaf| bytes(leaf) <= capacity), "{count} {size}");
            let least = (count as usize * (25 + size)).div_ceil(capacity);
            assert!(leaves.len() <= 2 * least, "{count} of {size}: {}", leaves.len());
            assert_eq!(leaves.concat(), items);
        }
    }

    #[test]
    fn pointers_are_split_evenly() {
        let pointer = |number| KeyPointer {
            key: Key::new(number, ItemType::EXTENT_DATA, 0),
            address: LogicalAddress(number << 14),
            generation: Generation(1),
        };
        let pointers: Vec<_> = (0..1000).map(pointer).collect();
        let sizes = |most| parts_of(&pointers, most).iter().map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!(sizes(1000), [1000]);
        assert_eq!(sizes(999), [500, 500]);
        assert_eq!(sizes(493), [334, 334, 332]);
        assert!(parts_of(&[], 493).is_empty());
    }
}

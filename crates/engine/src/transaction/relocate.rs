//! Relocation: extents move to other addresses, and everything that refers to them follows.
//!
//! Owns [`Transactions::relocate`], and [`Transactions::carry_out`] for [`super::merge`]. A batch
//! moves in a transaction of its own. Each tree block that leads to a moved extent is copied
//! exactly once, whatever the number of trees that share it. The copy keeps its owner, its
//! generation, its flags and its references, so that trees share the copies as they shared the
//! originals.
//!
//! **Invariants**
//! - The batch is planned and carried out on trees without changes: every block is on disk. It is
//!   the only change of its transaction.
//! - The owners of an extent stay, so quotas have nothing to count.
//! - Nothing has changed if planning fails.
//! - The old extents stay until the superblocks are on disk. The copies are in new space, so every
//!   committed state is complete, and no reloc tree is ever on disk.
//!
//! **Locks**, in this order: `commit`; the gate, exclusively; those of trees, one at a time.
//!
//! Kernel counterpart: `relocate_tree_blocks`, `replace_path`, `replace_file_extents`
//! (`fs/btrfs/relocation.c`).

use super::delayed_refs::{Head, RefKind, Reference, wrong_extent};
use super::extent_refs::ExtentRefs;
use super::handle::{DataExtent, Handle};
use super::relocation_plan::{PlannedBlock, RelocationPlan, disk_extent};
use super::transaction::Transactions;
use crate::btree::{Change, RootPointer, TreeBlock};
use crate::errors::{Error, Result};
use crate::space::{LogicalRange, SpaceKind};
use papilio_device::AlignedBuffer;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::{FileOffset, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where `disk_bytenr` is in a file extent item.
const DISK_ADDRESS_AT: usize = 21;

/// A data extent whose bytes have been copied to new space.
#[derive(Clone, Debug)]
pub(crate) struct CopiedExtent {
    /// The old address.
    pub(crate) from: LogicalAddress,
    /// The new address.
    pub(crate) to: LogicalAddress,
    /// Bytes.
    pub(crate) length: u64,
    /// Runs of checksums, by their offset in the extent in bytes.
    pub(crate) checksums: Vec<(u64, Vec<u8>)>,
}

/// The new place of a part of a data extent, inside a new extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovedPart {
    /// Where the part begins in the old extent, in bytes.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) length: u64,
    /// The new extent.
    pub(super) extent: DataExtent,
    /// Where the part begins in it, in bytes.
    pub(super) at: u64,
}

/// Where the data of an extent goes.
#[derive(Clone, Debug)]
pub(super) enum MovedData {
    /// To this address; it stays an extent of its own.
    Whole(LogicalAddress),
    /// Into other extents. No reference lies outside these parts.
    Parts(Vec<MovedPart>),
}

/// The new place of each extent that moves, by its old address.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) blocks: BTreeMap<LogicalAddress, LogicalAddress>,
    pub(super) data: BTreeMap<LogicalAddress, MovedData>,
}

impl Moves {
    fn contains(&self, address: LogicalAddress) -> bool {
        self.blocks.contains_key(&address) || self.data.contains_key(&address)
    }
}

impl Transactions {
    /// Releases a data extent that was allocated and that nothing refers to.
    pub(crate) fn release_extent(&self, extent: DataExtent) {
        self.space().release(LogicalRange { start: extent.address, length: extent.length });
    }

    /// Moves tree blocks and data extents, in a transaction of their own, which is durable on
    /// return. Calls `moved` after the trees lead to the new places, and before the old ones may be
    /// freed. Data that is gone by now is released.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; a block or an item that cannot be read, or that contradicts
    /// another. Nothing has changed then, and the caller releases the new space of `data`. An error
    /// later makes the file system read-only.
    pub(crate) fn relocate(
        &self,
        blocks: &[LogicalAddress],
        data: &[CopiedExtent],
        moved: &mut dyn FnMut(),
    ) -> Result<()> {
        self.might_change();
        self.commit_alone(|buffer| {
            let mut plan = RelocationPlan::new(self)?;
            for &address in blocks {
                plan.add_block(address)?;
            }
            for extent in data {
                plan.add_data(extent.from)?;
            }
            let plan = plan.finish()?;
            let whole = |extent: &CopiedExtent| (extent.from, MovedData::Whole(extent.to));
            let there = |extent: &&CopiedExtent| plan.data.contains_key(&extent.from);
            let moves = data.iter().filter(there).map(whole).collect();
            let sums = data.iter().filter(there).flat_map(|extent| {
                extent
                    .checksums
                    .iter()
                    .map(|(offset, run)| (LogicalAddress(extent.to.0 + offset), run.clone()))
            });
            self.carry_out(&plan, moves, sums.collect(), buffer)?;
            for extent in data.iter().filter(|extent| !plan.data.contains_key(&extent.from)) {
                // Its last reference went after it was copied.
                self.release_extent(DataExtent { address: extent.to, length: extent.length });
            }
            moved();
            Ok(())
        })
    }

    /// Carries out a plan: `data` says where the data of its extents has been copied, and `sums`
    /// are checksums by the new address of their first sector.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] if nothing has changed. Other errors have made the file system
    /// read-only.
    pub(super) fn carry_out(
        &self,
        plan: &RelocationPlan<'_>,
        data: BTreeMap<LogicalAddress, MovedData>,
        sums: Vec<(LogicalAddress, Vec<u8>)>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        if self.quotas().is_rescanning() {
            // The rescan goes by addresses. It may have passed one of the two places.
            self.quotas().mark_inconsistent("block groups were relocated during a rescan");
        }
        let bytes = plan.blocks.len() as u64 * self.node_size();
        let reservation = self.space.reserve_metadata(bytes, true)?;
        let moves = Moves { blocks: self.place(&plan.blocks)?, data };
        drop(reservation);
        self.write_copies(plan, &moves, sums, buffer).inspect_err(|error| self.abort(error))
    }

    /// Writes the copies of the planned blocks, and switches to them.
    fn write_copies(
        &self,
        plan: &RelocationPlan<'_>,
        moves: &Moves,
        sums: Vec<(LogicalAddress, Vec<u8>)>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        let handle = Handle::new(self, None, None, self.now());
        let mut copies = Vec::with_capacity(plan.blocks.len());
        for block in plan.blocks.values() {
            copies.push(Arc::new(copy_of(block, moves)?));
        }
        self.write_blocks(&mut copies.clone(), buffer)?;
        for copy in &copies {
            self.live.forest().written(copy);
        }
        for (address, head) in merged_heads(plan, moves, &copies)? {
            self.refs.insert_new(address, head)?;
        }
        self.switch(&handle, plan, moves, sums)
    }

    /// Allocates the new place of each block.
    fn place(
        &self,
        blocks: &BTreeMap<LogicalAddress, PlannedBlock>,
    ) -> Result<BTreeMap<LogicalAddress, LogicalAddress>> {
        let node_size = self.node_size();
        let mut moves = BTreeMap::new();
        for (&from, block) in blocks {
            let chunk_tree = block.block.owner() == objectid::CHUNK_TREE;
            let kind = if chunk_tree { SpaceKind::System } else { SpaceKind::Metadata };
            match self.allocate(kind, node_size, node_size) {
                Ok(range) => moves.insert(from, range.start),
                Err(error) => {
                    for start in moves.into_values() {
                        self.space.release(LogicalRange { start, length: node_size });
                    }
                    return Err(error);
                }
            };
        }
        Ok(moves)
    }

    /// Queues the references of the new extents, drops those of the old ones, and switches trees
    /// whose roots moved.
    fn switch(
        &self,
        handle: &Handle<'_>,
        plan: &RelocationPlan<'_>,
        moves: &Moves,
        sums: Vec<(LogicalAddress, Vec<u8>)>,
    ) -> Result<()> {
        for block in plan.blocks.values() {
            if block.extent.is_full() {
                self.move_child_refs(block, moves)?;
            }
            let to = moves.blocks[&block.extent.address];
            let first_key = if block.block.len() == 0 { Key::MIN } else { block.block.first_key() };
            let mut head = new_head(&block.extent, moves);
            head.owner = Some(block.block.owner());
            head.first_key = first_key;
            head.full_backref = block.extent.is_full();
            self.refs.insert_new(to, head)?;
            self.drop_all_refs(&block.extent);
        }
        for (from, refs) in &plan.data {
            if let Some(MovedData::Whole(to)) = moves.data.get(from) {
                self.refs.insert_new(*to, new_head(refs, moves))?;
            }
            self.drop_all_refs(refs);
        }
        // The checksums come before the trees that lead to the new data: readers follow the trees,
        // and take no lock. The checksum tree itself may move, too.
        self.switch_roots(plan, moves, |tree| tree == objectid::CSUM_TREE)?;
        self.changed_trees.lock().extend(plan.blocks.values().flat_map(|block| block.roots.iter().copied()));
        self.add_sums(handle, sums)?;
        self.switch_roots(plan, moves, |tree| tree != objectid::CSUM_TREE)
    }

    /// Switches those trees to their new roots that `is_meant` picks.
    fn switch_roots(
        &self,
        plan: &RelocationPlan<'_>,
        moves: &Moves,
        is_meant: impl Fn(TreeId) -> bool,
    ) -> Result<()> {
        for block in plan.blocks.values() {
            for &tree in block.roots.iter().filter(|tree| is_meant(**tree)) {
                let (address, level) = (moves.blocks[&block.extent.address], block.block.level());
                let root = RootPointer { address, level, generation: Some(block.block.generation()) };
                self.live.get(tree)?.relocate_root(root);
            }
        }
        Ok(())
    }

    /// Adds the checksums of the data at its new places.
    fn add_sums(&self, handle: &Handle<'_>, sums: Vec<(LogicalAddress, Vec<u8>)>) -> Result<()> {
        if sums.is_empty() {
            return Ok(());
        }
        let put = |(at, data)| Change::Put { key: CsumItem::key(at), data };
        let mut sums: Vec<_> = sums.into_iter().map(put).collect();
        sums.sort_by_key(Change::key);
        self.live.get(objectid::CSUM_TREE)?.edit(handle).apply(&sums)
    }

    fn drop_all_refs(&self, extent: &ExtentRefs) {
        for &(reference, count) in &extent.refs {
            self.change_reference(extent.address, extent.length, extent.kind, reference, -i64::from(count));
        }
    }

    fn change_reference(
        &self,
        address: LogicalAddress,
        length: u64,
        kind: RefKind,
        reference: Reference,
        change: i64,
    ) {
        // The extent is on disk, so that the change waits for the commit.
        let _queued = self.refs.change(address, length, kind, reference, change, None);
    }

    /// Counts the references of a block with full back references by its new address, as far as
    /// their targets do not move.
    fn move_child_refs(&self, block: &PlannedBlock, moves: &Moves) -> Result<()> {
        let (from, to) = (block.extent.address, moves.blocks[&block.extent.address]);
        let view = block.block.view();
        for slot in 0..view.len() {
            let (address, length, kind, old, new) = if view.is_leaf() {
                let Some(extent) = disk_extent(&block.block, slot)? else { continue };
                let (old, new) = (Reference::SharedData(from), Reference::SharedData(to));
                (extent.disk_address, extent.disk_length, RefKind::Data, old, new)
            } else {
                let kind = RefKind::TreeBlock { level: view.level() - 1 };
                let (old, new) = (Reference::SharedBlock(from), Reference::SharedBlock(to));
                (view.child(slot).address, self.node_size(), kind, old, new)
            };
            if !moves.contains(address) {
                self.change_reference(address, length, kind, old, -1);
                self.change_reference(address, length, kind, new, 1);
            }
        }
        Ok(())
    }
}

/// The head of the new extent: all references of the old one, by the new addresses of parents.
fn new_head(extent: &ExtentRefs, moves: &Moves) -> Head {
    let mut head = Head::new(extent.length, extent.kind);
    head.new = true;
    // Snapshots are compared with this number to find out what they share.
    head.generation = extent.header.generation;
    head.owner = extent.owner;
    let moved = |parent: LogicalAddress| moves.blocks.get(&parent).copied().unwrap_or(parent);
    for &(reference, count) in &extent.refs {
        let reference = match reference {
            Reference::SharedBlock(parent) => Reference::SharedBlock(moved(parent)),
            Reference::SharedData(parent) => Reference::SharedData(moved(parent)),
            other => other,
        };
        head.changes.add(reference, count.into());
    }
    head
}

/// The heads of the new extents that are made of parts of old ones. Their references are counted in
/// the copies of leaves, which are in the order of the plan.
fn merged_heads(
    plan: &RelocationPlan<'_>,
    moves: &Moves,
    copies: &[Arc<TreeBlock>],
) -> Result<BTreeMap<LogicalAddress, Head>> {
    let mut heads = BTreeMap::new();
    for (from, moved) in &moves.data {
        let (MovedData::Parts(parts), Some(old)) = (moved, plan.data.get(from)) else { continue };
        for part in parts {
            let head = heads.entry(part.extent.address).or_insert_with(|| {
                let mut head = Head::new(part.extent.length, RefKind::Data);
                (head.new, head.generation, head.owner) = (true, old.header.generation, old.owner);
                head
            });
            // The least: then nothing that snapshots share seems to be newer than they are.
            head.generation = head.generation.min(old.header.generation);
        }
    }
    if heads.is_empty() {
        return Ok(heads);
    }
    for (planned, copy) in plan.blocks.values().zip(copies).filter(|(_, copy)| copy.level() == 0) {
        for slot in 0..copy.len() {
            let Some(part) = disk_extent(copy, slot)? else { continue };
            let Some(head) = heads.get_mut(&part.disk_address) else { continue };
            let key = copy.view().key(slot);
            let reference = if planned.extent.is_full() {
                Reference::SharedData(copy.address())
            } else {
                let offset = FileOffset(key.offset.wrapping_sub(part.offset));
                Reference::Data { root: copy.owner(), inode: InodeNumber(key.objectid), offset }
            };
            head.changes.add(reference, 1);
        }
    }
    Ok(heads)
}

/// The copy of a block, which leads to the new places of what moves.
fn copy_of(block: &PlannedBlock, moves: &Moves) -> Result<TreeBlock> {
    let mut copy = block.block.relocated(moves.blocks[&block.extent.address]);
    let mut merged = BTreeSet::new();
    for slot in 0..copy.len() {
        if copy.level() > 0 {
            if let Some(&to) = moves.blocks.get(&copy.view().child(slot).address) {
                copy.point_to(slot, to);
            }
        } else if let Some(part) = disk_extent(&copy, slot)?
            && let Some(to) = moves.data.get(&part.disk_address)
        {
            let mut item = copy.view().item(slot).to_vec();
            match to {
                MovedData::Whole(to) => {
                    item[DISK_ADDRESS_AT..DISK_ADDRESS_AT + 8].copy_from_slice(&to.0.to_le_bytes());
                }
                MovedData::Parts(parts) => {
                    let extent = part_item(&copy, slot, parts)?;
                    merged.insert(extent.1);
                    item = extent.0;
                }
            }
            copy.replace_item(slot, &item);
        }
    }
    if !merged.is_empty() {
        join_items(&mut copy, &merged)?;
    }
    Ok(copy)
}

/// Parses a file extent of a leaf.
fn file_extent(leaf: &TreeBlock, slot: usize) -> Result<FileExtentItem<'_>> {
    let (tree, key) = (leaf.owner(), leaf.view().key(slot));
    FileExtentItem::parse(leaf.view().item(slot)).map_err(|reason| Error::Item { tree, key, reason })
}

/// Returns the item that refers to a part of a new extent instead of an old one, and the address
/// of the new one.
fn part_item(leaf: &TreeBlock, slot: usize, parts: &[MovedPart]) -> Result<(Vec<u8>, LogicalAddress)> {
    let item = file_extent(leaf, slot)?;
    let old = match item.content {
        FileExtentContent::Regular(old) if item.compression == Compression::None => old,
        FileExtentContent::Regular(old) | FileExtentContent::Prealloc(old) => {
            return Err(wrong_extent(old.disk_address, "is not of the kind that can be merged"));
        }
        FileExtentContent::Inline(_) => unreachable!("it has an extent on disk"),
    };
    let inside = |part: &&MovedPart| {
        old.offset.checked_sub(part.offset).is_some_and(|from| from + old.length <= part.length)
    };
    let part = parts.iter().find(inside);
    let part = part.ok_or_else(|| wrong_extent(old.disk_address, "is used where no part of it moves"))?;
    let new = ExtentPart {
        disk_address: part.extent.address,
        disk_length: part.extent.length,
        offset: part.at + (old.offset - part.offset),
        length: old.length,
    };
    let content = FileExtentContent::Regular(new);
    let new = FileExtentItem { ram_bytes: part.extent.length, content, ..item };
    Ok((new.to_bytes(), part.extent.address))
}

/// Joins file extents that have become one part of a new extent. Those of several transactions stay
/// apart, so that comparisons of snapshots by transaction find what they found before.
fn join_items(leaf: &mut TreeBlock, merged: &BTreeSet<LogicalAddress>) -> Result<()> {
    let mut slot = 1;
    while slot < leaf.len() {
        match joined_item(leaf, slot, merged)? {
            Some(item) => {
                leaf.replace_item(slot - 1, &item);
                leaf.remove_items(slot, 1);
            }
            None => slot += 1,
        }
    }
    Ok(())
}

/// Returns the item that stands for those in `slot` and before it; `None` if they stay two.
fn joined_item(leaf: &TreeBlock, slot: usize, merged: &BTreeSet<LogicalAddress>) -> Result<Option<Vec<u8>>> {
    let (before, key) = (leaf.view().key(slot - 1), leaf.view().key(slot));
    let both = [before, key].iter().all(|key| key.item_type == ItemType::EXTENT_DATA);
    if !both || before.objectid != key.objectid {
        return Ok(None);
    }
    let (left, right) = (file_extent(leaf, slot - 1)?, file_extent(leaf, slot)?);
    let (FileExtentContent::Regular(one), FileExtentContent::Regular(two)) = (left.content, right.content)
    else {
        return Ok(None);
    };
    let follows = one.disk_address == two.disk_address
        && one.offset.checked_add(one.length) == Some(two.offset)
        && before.offset.checked_add(one.length) == Some(key.offset);
    if !follows || left.generation != right.generation || !merged.contains(&one.disk_address) {
        return Ok(None);
    }
    let content = FileExtentContent::Regular(ExtentPart { length: one.length + two.length, ..one });
    Ok(Some(FileExtentItem { content, ..left }.to_bytes()))
}

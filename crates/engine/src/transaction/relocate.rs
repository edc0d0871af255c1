//! Relocation: extents move to other addresses, and everything that refers to them follows.
//!
//! Owns [`Transactions::relocate`]. It moves a batch in a transaction of its own. Each
//! tree block that leads to a moved extent is copied exactly once, whatever the number of trees
//! that share it. The copy keeps its owner, its generation, its flags and its references, so that
//! trees share the copies as they shared the originals.
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

use super::delayed_refs::{Head, RefKind, Reference};
use super::extent_refs::ExtentRefs;
use super::handle::{DataExtent, Handle};
use super::relocation_plan::{PlannedBlock, RelocationPlan, disk_extent};
use super::transaction::Transactions;
use crate::btree::{Change, RootPointer, TreeBlock};
use crate::errors::Result;
use crate::space::{LogicalRange, SpaceKind};
use papilio_device::AlignedBuffer;
use papilio_format::items::csum::CsumItem;
use papilio_format::{Key, LogicalAddress, TreeId, objectid};
use std::collections::BTreeMap;
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

/// The new address of each extent that moves, by its old one.
type Moves = BTreeMap<LogicalAddress, LogicalAddress>;

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
            let node_size = self.node_size();
            let mut plan = RelocationPlan::new(self)?;
            for &address in blocks {
                plan.add_block(address)?;
            }
            for extent in data {
                plan.add_data(extent.from)?;
            }
            let plan = plan.finish()?;
            if self.quotas().is_rescanning() {
                // The rescan goes by addresses. It may have passed one of the two places.
                self.quotas().mark_inconsistent("block groups were relocated during a rescan");
            }
            let bytes = plan.blocks.len() as u64 * node_size;
            let reservation = self.space.reserve_metadata(bytes, true)?;
            let mut moves = self.place(&plan.blocks)?;
            moves.extend(data.iter().map(|extent| (extent.from, extent.to)));
            drop(reservation);
            self.carry_out(&plan, &moves, data, buffer).inspect_err(|error| self.abort(error))?;
            moved();
            Ok(())
        })
    }

    /// Writes the copies of the planned blocks, and switches to them.
    fn carry_out(
        &self,
        plan: &RelocationPlan<'_>,
        moves: &Moves,
        data: &[CopiedExtent],
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
        self.switch(&handle, plan, moves, data)
    }

    /// Allocates the new place of each block.
    fn place(&self, blocks: &BTreeMap<LogicalAddress, PlannedBlock>) -> Result<Moves> {
        let node_size = self.node_size();
        let mut moves = Moves::new();
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
        data: &[CopiedExtent],
    ) -> Result<()> {
        for block in plan.blocks.values() {
            if block.extent.is_full() {
                self.move_child_refs(block, moves)?;
            }
            let to = moves[&block.extent.address];
            let first_key = if block.block.len() == 0 { Key::MIN } else { block.block.first_key() };
            let mut head = new_head(&block.extent, moves);
            head.owner = Some(block.block.owner());
            head.first_key = first_key;
            head.full_backref = block.extent.is_full();
            self.refs.insert_new(to, head)?;
            self.drop_all_refs(&block.extent);
        }
        for extent in data {
            match plan.data.get(&extent.from) {
                Some(refs) => {
                    self.refs.insert_new(extent.to, new_head(refs, moves))?;
                    self.drop_all_refs(refs);
                }
                // Its last reference went after it was copied.
                None => self.space.release(LogicalRange { start: extent.to, length: extent.length }),
            }
        }
        // The checksums come before the trees that lead to the new data: readers follow the trees,
        // and take no lock. The checksum tree itself may move, too.
        self.switch_roots(plan, moves, |tree| tree == objectid::CSUM_TREE)?;
        self.changed_trees.lock().extend(plan.blocks.values().flat_map(|block| block.roots.iter().copied()));
        self.add_sums(handle, plan, data)?;
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
                let (address, level) = (moves[&block.extent.address], block.block.level());
                let root = RootPointer { address, level, generation: Some(block.block.generation()) };
                self.live.get(tree)?.relocate_root(root);
            }
        }
        Ok(())
    }

    /// Adds the checksums of the data at its new places.
    fn add_sums(&self, handle: &Handle<'_>, plan: &RelocationPlan<'_>, data: &[CopiedExtent]) -> Result<()> {
        let mut sums = Vec::new();
        for extent in data.iter().filter(|extent| plan.data.contains_key(&extent.from)) {
            for (offset, run) in &extent.checksums {
                let key = CsumItem::key(LogicalAddress(extent.to.0 + offset));
                sums.push(Change::Put { key, data: run.clone() });
            }
        }
        if sums.is_empty() {
            return Ok(());
        }
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
        let (from, to) = (block.extent.address, moves[&block.extent.address]);
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
            if !moves.contains_key(&address) {
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
    let moved = |parent: LogicalAddress| moves.get(&parent).copied().unwrap_or(parent);
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

/// The copy of a block, which leads to the new places of what moves.
fn copy_of(block: &PlannedBlock, moves: &Moves) -> Result<TreeBlock> {
    let mut copy = block.block.relocated(moves[&block.extent.address]);
    for slot in 0..copy.len() {
        if copy.level() > 0 {
            if let Some(&to) = moves.get(&copy.view().child(slot).address) {
                copy.point_to(slot, to);
            }
        } else if let Some(extent) = disk_extent(&copy, slot)?
            && let Some(to) = moves.get(&extent.disk_address)
        {
            let mut item = copy.view().item(slot).to_vec();
            item[DISK_ADDRESS_AT..DISK_ADDRESS_AT + 8].copy_from_slice(&to.0.to_le_bytes());
            copy.replace_item(slot, &item);
        }
    }
    Ok(copy)
}

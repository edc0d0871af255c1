//! Relocation: extents move to other addresses, and everything that refers to them follows.
//!
//! Owns [`Transactions::relocate`], and [`Transactions::carry_out`] for [`super::merge`] and
//! [`super::recompress`]. A batch moves in a transaction of its own. Each tree block that leads to
//! a moved extent is copied exactly once, whatever the number of trees that share it
//! ([`super::copied_blocks`]). The copy keeps its owner, its generation, its flags and its
//! references, so that trees share the copies as they shared the originals.
//!
//! **Invariants**
//! - The batch is planned and carried out on trees without changes: every block is on disk. It is
//!   the only change of its transaction.
//! - The owners of an extent stay, so quotas have nothing to count.
//! - Nothing has changed if planning, or making the copies, fails.
//! - The old extents stay until the superblocks are on disk. The copies are in new space, so every
//!   committed state is complete, and no reloc tree is ever on disk.
//!
//! **Locks**, in this order: `commit`; the gate, exclusively; those of trees, one at a time.
//!
//! Kernel counterpart: `relocate_tree_blocks`, `replace_path`, `replace_file_extents`
//! (`fs/btrfs/relocation.c`).

use super::copied_blocks::CopiedBlocks;
use super::data_heads::data_heads;
use super::delayed_refs::{Head, QuotaMark, RefKind, Reference};
use super::extent_refs::ExtentRefs;
use super::handle::{DataExtent, Handle};
use super::moved_data::{Growth, MovedData};
use super::relocation_plan::{PlannedBlock, RelocationPlan, disk_extent};
use super::transaction::Transactions;
use crate::btree::{Change, RootPointer, TreeBlock};
use crate::errors::Result;
use crate::space::LogicalRange;
use papilio_device::AlignedBuffer;
use papilio_format::items::csum::CsumItem;
use papilio_format::{Key, LogicalAddress, TreeId, objectid};
use std::collections::{BTreeMap, HashSet};

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

/// The mark of extents that any subvolume may reach.
const MARK: QuotaMark = QuotaMark { only: None, key: None, shared: true };

/// The new places of what moves.
struct Moves<'a> {
    copies: CopiedBlocks,
    data: &'a BTreeMap<LogicalAddress, MovedData>,
    counts: bool,
}

impl Moves<'_> {
    /// The addresses of all new data extents.
    fn new_data(&self) -> HashSet<LogicalAddress> {
        let of = |moved: &MovedData| match moved {
            MovedData::Whole(to) => vec![*to],
            MovedData::Parts(parts) => parts.iter().map(|part| part.extent.address).collect(),
            MovedData::Pieces(pieces) => pieces.iter().map(|piece| piece.place.address).collect(),
        };
        self.data.values().flat_map(of).collect()
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
            let moves: BTreeMap<_, _> = data.iter().filter(there).map(whole).collect();
            let sums = data.iter().filter(there).flat_map(|extent| {
                extent
                    .checksums
                    .iter()
                    .map(|(offset, run)| (LogicalAddress(extent.to.0 + offset), run.clone()))
            });
            self.carry_out(&plan, &moves, sums.collect(), &Growth::NONE, buffer)?;
            for extent in data.iter().filter(|extent| !plan.data.contains_key(&extent.from)) {
                // Its last reference went after it was copied.
                self.release_extent(DataExtent { address: extent.to, length: extent.length });
            }
            moved();
            Ok(())
        })
    }

    /// Carries out a plan: `data` says where the data of its extents has been copied, and `sums`
    /// are checksums by the new address of their first sector. Returns whether it did: not if there
    /// would be more blocks than `growth` allows.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or items that contradict another, if nothing has changed. Other
    /// errors have made the file system read-only.
    pub(super) fn carry_out(
        &self,
        plan: &RelocationPlan<'_>,
        data: &BTreeMap<LogicalAddress, MovedData>,
        sums: Vec<(LogicalAddress, Vec<u8>)>,
        growth: &Growth,
        buffer: &mut AlignedBuffer,
    ) -> Result<bool> {
        if self.quotas().is_rescanning() {
            // The rescan goes by addresses. It may have passed one of the two places.
            self.quotas().mark_inconsistent("block groups were relocated during a rescan");
        }
        let Some(copies) = self.copy_blocks(plan, data, growth)? else { return Ok(false) };
        let heads =
            data_heads(plan, data, &copies, growth.counts).inspect_err(|_| self.release_copies(&copies))?;
        let moves = Moves { copies, data, counts: growth.counts };
        self.write_copies(plan, &moves, heads, sums, buffer).inspect_err(|error| self.abort(error))?;
        Ok(true)
    }

    /// Writes the copies of the planned blocks, and switches to them.
    fn write_copies(
        &self,
        plan: &RelocationPlan<'_>,
        moves: &Moves<'_>,
        heads: BTreeMap<LogicalAddress, Head>,
        sums: Vec<(LogicalAddress, Vec<u8>)>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        let handle = Handle::new(self, None, None, self.now());
        let mut copies = moves.copies.all();
        self.write_blocks(&mut copies, buffer)?;
        for copy in &copies {
            self.live.forest().written(copy);
        }
        for (address, head) in heads {
            self.refs.insert_new(address, head)?;
        }
        self.switch(&handle, plan, moves, sums)
    }

    /// Queues the references of the new blocks, drops those of the old extents, and switches trees
    /// whose roots moved.
    fn switch(
        &self,
        handle: &Handle<'_>,
        plan: &RelocationPlan<'_>,
        moves: &Moves<'_>,
        sums: Vec<(LogicalAddress, Vec<u8>)>,
    ) -> Result<()> {
        for planned in plan.blocks.values() {
            if planned.extent.is_full() {
                self.move_child_refs(planned, moves)?;
            }
            for (number, copy) in moves.copies.of(planned.extent.address).iter().enumerate() {
                let head = self.copy_head(planned, copy, number > 0, moves);
                self.refs.insert_new(copy.address(), head)?;
            }
            self.drop_all_refs(&planned.extent, None);
        }
        for added in &moves.copies.added {
            let mut head = self.block_head(&added.block, added.tree, moves.counts);
            head.generation = added.block.generation();
            head.changes.add(Reference::Tree(added.tree), 1);
            self.refs.insert_new(added.block.address(), head)?;
        }
        for (from, refs) in &plan.data {
            let changes = moves.counts && matches!(moves.data.get(from), Some(MovedData::Pieces(_)));
            self.drop_all_refs(refs, changes.then_some(MARK));
        }
        // The checksums come before the trees that lead to the new data: readers follow the trees,
        // and take no lock. The checksum tree itself may move, too.
        self.switch_roots(plan, moves, |tree| tree == objectid::CSUM_TREE)?;
        self.changed_trees.lock().extend(plan.blocks.values().flat_map(|block| block.roots.iter().copied()));
        self.add_sums(handle, sums)?;
        self.switch_roots(plan, moves, |tree| tree != objectid::CSUM_TREE)
    }

    /// A head for a new block, without references.
    fn block_head(&self, block: &TreeBlock, owner: TreeId, counts: bool) -> Head {
        let mut head = Head::new(self.node_size(), RefKind::TreeBlock { level: block.level() });
        head.new = true;
        head.owner = Some(owner);
        head.first_key = if block.len() == 0 { Key::MIN } else { block.first_key() };
        head.touch = counts.then_some(MARK);
        head
    }

    /// The head of a block's copy: all references of the block, by the new addresses of parents.
    /// The first copy stands for the block where quotas count, `more` is for the others.
    fn copy_head(&self, planned: &PlannedBlock, copy: &TreeBlock, more: bool, moves: &Moves<'_>) -> Head {
        let mut head = self.block_head(copy, copy.owner(), more && moves.counts);
        // Snapshots are compared with this number to find out what they share.
        head.generation = planned.extent.header.generation;
        head.full_backref = planned.extent.is_full();
        for &(reference, count) in &planned.extent.refs {
            let reference = match reference {
                Reference::SharedBlock(parent) => {
                    Reference::SharedBlock(moves.copies.parent_of(copy.address(), parent))
                }
                other => other,
            };
            head.changes.add(reference, count.into());
        }
        head
    }

    /// Switches those trees to their new roots that `is_meant` picks.
    fn switch_roots(
        &self,
        plan: &RelocationPlan<'_>,
        moves: &Moves<'_>,
        is_meant: impl Fn(TreeId) -> bool,
    ) -> Result<()> {
        for planned in plan.blocks.values() {
            for &tree in planned.roots.iter().filter(|tree| is_meant(**tree)) {
                let block = moves.copies.root_of(tree, planned.extent.address);
                let (address, level) = (block.address(), block.level());
                let root = RootPointer { address, level, generation: Some(block.generation()) };
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

    fn drop_all_refs(&self, extent: &ExtentRefs, touch: Option<QuotaMark>) {
        let (address, length) = (extent.address, extent.length);
        for &(reference, count) in &extent.refs {
            // The extent is on disk, so that the change waits for the commit.
            let _queued = self.refs.change(address, length, extent.kind, reference, -i64::from(count), touch);
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

    /// Counts the references of a block with full back references by its new addresses, as far as
    /// their targets do not move.
    fn move_child_refs(&self, planned: &PlannedBlock, moves: &Moves<'_>) -> Result<()> {
        let stays = |address| !moves.data.contains_key(&address) && !moves.copies.contains(address);
        self.change_child_refs(&planned.block, -1, stays)?;
        let is_new: HashSet<_> = moves.new_data();
        for copy in moves.copies.of(planned.extent.address) {
            let is_old = |address| !is_new.contains(&address) && !moves.copies.has_copy_at(address);
            self.change_child_refs(copy, 1, is_old)?;
        }
        Ok(())
    }

    /// Changes the references that a block has by its address to those targets that `is_meant`
    /// picks.
    fn change_child_refs(
        &self,
        block: &TreeBlock,
        change: i64,
        is_meant: impl Fn(LogicalAddress) -> bool,
    ) -> Result<()> {
        let (own, view) = (block.address(), block.view());
        for slot in 0..view.len() {
            let (address, length, kind, reference) = if view.is_leaf() {
                let Some(extent) = disk_extent(block, slot)? else { continue };
                (extent.disk_address, extent.disk_length, RefKind::Data, Reference::SharedData(own))
            } else {
                let kind = RefKind::TreeBlock { level: view.level() - 1 };
                (view.child(slot).address, self.node_size(), kind, Reference::SharedBlock(own))
            };
            if is_meant(address) {
                self.change_reference(address, length, kind, reference, change);
            }
        }
        Ok(())
    }
}

//! Dropping the tree of a deleted subvolume, a bounded piece at a time.
//!
//! Owns [`DropTree`], a depth-first walk.
//! - A block that only this tree refers to is entered. The walk drops the references to its
//!   children, then the one to the block.
//! - A shared block loses one reference and is not entered. If this tree owns it, references to its
//!   children are counted by this tree's id, which is invalid once the tree is gone. So its whole
//!   subtree is *converted* first: each block's own address counts instead of the id
//!   (FULL_BACKREF).
//!
//! **Invariants**
//! - Between two pieces, the path from the root down to the node at `drop_level` is intact and
//!   belongs to this tree alone. Everything left of the path is gone, and the child at
//!   `drop_progress` in that node is next. The root item records this by the kernel's rules, so
//!   that both can resume after a crash.
//! - A conversion that a crash cut short can be repeated: a second one finds nothing to change in
//!   blocks that are done.
//! - Nothing else changes the tree, because the transaction that deleted it has ended.
//!
//! **Locks**: `sharing`, from the look-up of a block's references to the action that follows.
//!
//! Kernel counterpart: `btrfs_drop_snapshot`, `walk_down_proc`, `walk_up_proc`, `do_walk_down`
//! (`fs/btrfs/extent-tree.c`). Entering a block is their stage DROP_REFERENCE, converting is
//! UPDATE_BACKREF.

use crate::btree::{LiveTree, Tree, TreeBlock};
use crate::errors::{BlockFault, Error, Result};
use crate::transaction::Handle;
use papilio_format::items::root::RawRootItem;
use papilio_format::{Corrupt, Generation, Key, LogicalAddress, TreeId, objectid};
use std::sync::Arc;

/// Levels of shared blocks that are marked for quotas; more would take too much memory.
const MARKED_LEVELS: u8 = 3;

/// Items and blocks that are marked under one handle, at most, for the same reason.
const MARKED_ITEMS: usize = 1 << 20;

/// The progress of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropProgress {
    /// The whole tree is gone.
    Done,
    /// The child with this key is next, in a node above level 0.
    Dropping {
        /// The first key of the next child.
        key: Key,
        /// The level of the node that contains the key.
        level: u8,
    },
    /// A conversion is under way. Nothing was dropped since the last recorded progress.
    Converting,
}

/// A node on the path, and its next slot.
#[derive(Debug)]
struct DropStep {
    block: Arc<TreeBlock>,
    slot: usize,
    /// Whether references to its children are counted by its address.
    full: bool,
    /// An upper bound: all keys below the node are smaller.
    bound: Option<Key>,
}

impl DropStep {
    /// The upper bound of the keys below a slot.
    fn bound_of(&self, slot: usize) -> Option<Key> {
        if slot + 1 < self.block.len() { Some(self.block.view().key(slot + 1)) } else { self.bound }
    }
}

/// The walk through the tree of a deleted subvolume.
#[derive(Debug)]
pub(super) struct DropTree {
    tree: Tree,
    /// Blocks up to this generation are older than the subvolume, so others own them.
    origin: Generation,
    started: bool,
    resume: Option<(Key, u8)>,
    path: Vec<DropStep>,
    /// The path through the subtree that is being converted.
    converting: Vec<DropStep>,
    /// The shared block whose subtree was converted last.
    converted: Option<LogicalAddress>,
    /// References that this piece may still change.
    budget: usize,
}

impl DropTree {
    /// A walk through `tree` that resumes where its root item says.
    pub(super) fn new(tree: &LiveTree) -> Self {
        let record = tree.record().expect("every subvolume has a root record");
        let origin = match tree.id() {
            // No reference is counted by the id of relocation trees, so no block is converted.
            objectid::TREE_RELOC => Generation(u64::MAX),
            _ => Generation(record.key_offset),
        };
        let item: RawRootItem = record.item;
        let resume = (item.drop_progress.objectid != 0).then_some((item.drop_progress, item.drop_level));
        Self {
            tree: tree.tree(),
            origin,
            started: false,
            resume,
            path: Vec::new(),
            converting: Vec::new(),
            converted: None,
            budget: 0,
        }
    }

    fn id(&self) -> TreeId {
        self.tree.id()
    }

    /// Changes about `budget` references. The returned [`DropProgress`] is valid even if an error
    /// stopped the walk: all changes before it are complete.
    pub(super) fn run(&mut self, handle: &Handle<'_>, budget: usize) -> (DropProgress, Result<()>) {
        self.budget = budget;
        let result = if self.started { Ok(()) } else { self.start(handle) };
        let result = result.and_then(|()| self.walk(handle));
        (self.progress(), result)
    }

    fn progress(&self) -> DropProgress {
        if !self.converting.is_empty() || !self.started {
            return DropProgress::Converting;
        }
        // A leaf is entered and left in one step, unless it cannot be read.
        match self.path.iter().rev().find(|step| step.slot < step.block.len() && step.block.level() > 0) {
            Some(step) => {
                DropProgress::Dropping { key: step.block.view().key(step.slot), level: step.block.level() }
            }
            None => DropProgress::Done,
        }
    }

    /// Enters the root and all nodes down to where an earlier walk stopped.
    fn start(&mut self, handle: &Handle<'_>) -> Result<()> {
        let root = self.tree.root_block()?;
        let (refs, full) = handle.block_refs(root.address(), root.level())?;
        if refs > 1 {
            return Err(self.fault(&root, "references", 1, refs));
        }
        let root = DropStep { block: root, slot: 0, full, bound: None };
        self.counted_by(&root)?;
        let mut path = vec![root];
        if let Some((key, level)) = self.resume {
            loop {
                let step = path.last_mut().expect("the path starts with the root");
                let found = step.block.view().search(&key);
                if step.block.level() <= level {
                    step.slot = found.unwrap_or_else(|slot| slot);
                    break;
                }
                step.slot = found.unwrap_or_else(|slot| slot.saturating_sub(1));
                let (slot, bound) = (step.slot, step.bound_of(step.slot));
                let child = self.tree.child(&step.block, slot, bound)?;
                let (_, full) = handle.block_refs(child.address(), child.level())?;
                let child = DropStep { block: child, slot: 0, full, bound };
                self.counted_by(&child)?;
                path.push(child);
            }
        }
        self.path = path;
        self.started = true;
        Ok(())
    }

    fn walk(&mut self, handle: &Handle<'_>) -> Result<()> {
        loop {
            while !self.converting.is_empty() {
                if self.budget == 0 {
                    return Ok(());
                }
                self.convert_next(handle)?;
            }
            let Some(step) = self.path.last() else { return Ok(()) };
            if step.block.level() == 0 || step.slot >= step.block.len() {
                self.leave(handle)?;
            } else if self.budget == 0 {
                return Ok(());
            } else {
                self.drop_child(handle)?;
            }
        }
    }

    fn spend(&mut self, references: usize) {
        self.budget = self.budget.saturating_sub(references);
    }

    /// Enters the next child, or drops the reference to it.
    fn drop_child(&mut self, handle: &Handle<'_>) -> Result<()> {
        let step = self.path.last().expect("the caller checked that the path is not empty");
        let pointer = step.block.view().child(step.slot);
        let level = step.block.level() - 1;
        let sharing = handle.lock_sharing();
        let (refs, full) = handle.block_refs(pointer.address, level)?;
        if refs > 1 {
            let must_convert = pointer.generation > self.origin
                && !(level == 0 && full)
                && self.converted != Some(pointer.address);
            if must_convert {
                drop(sharing);
                let child = self.tree.child(&step.block, step.slot, step.bound_of(step.slot))?;
                let bound = step.bound_of(step.slot);
                self.converted = Some(pointer.address);
                return self.convert(handle, child, bound);
            }
            let parent = self.counted_by(step)?;
            handle.drop_block_ref(pointer.address, level, self.id(), parent, false);
            drop(sharing);
            let marked = if handle.transactions().quotas().is_counting() {
                self.mark_subtree(handle, level)
            } else {
                0
            };
            self.path.last_mut().expect("the path is not empty").slot += 1;
            self.spend(1 + marked);
            return Ok(());
        }
        // Only this tree leads to the block, so its references cannot change any more.
        drop(sharing);
        let bound = step.bound_of(step.slot);
        let child = self.tree.child(&step.block, step.slot, bound)?;
        let child = DropStep { block: child, slot: 0, full, bound };
        // Check the owner now, before any of the block's references are dropped.
        self.counted_by(&child)?;
        self.path.push(child);
        Ok(())
    }

    /// Marks for quotas all that the shared child at the current slot leads to: this tree no longer
    /// reaches it. Returns the number of blocks. Where that is too much, or cannot be read, the
    /// numbers of quotas become inconsistent (the kernel's `drop_subtree_threshold`).
    fn mark_subtree(&self, handle: &Handle<'_>, level: u8) -> usize {
        let quotas = handle.transactions().quotas();
        if level >= MARKED_LEVELS {
            quotas.mark_inconsistent("a deleted subvolume shares too many blocks with others");
            return 0;
        }
        let step = self.path.last().expect("the caller checked that the path is not empty");
        let mut marked = 0;
        let bound = step.bound_of(step.slot);
        if let Err(error) = self.mark_child(handle, &step.block, step.slot, bound, &mut marked) {
            quotas.mark_inconsistent(&format!("the blocks that a deleted subvolume shares: {error}"));
        } else if marked > MARKED_ITEMS {
            quotas.mark_inconsistent("a deleted subvolume shares too many extents with others");
        }
        marked
    }

    fn mark_child(
        &self,
        handle: &Handle<'_>,
        block: &TreeBlock,
        slot: usize,
        bound: Option<Key>,
        marked: &mut usize,
    ) -> Result<()> {
        let child = self.tree.child(block, slot, bound)?;
        handle.touch_block(&child, self.id());
        *marked += 1;
        if child.level() == 0 {
            *marked += child.len();
            return handle.touch_data_of(&child, self.id());
        }
        for slot in 0..child.len() {
            if *marked > MARKED_ITEMS {
                return Ok(());
            }
            let bound = if slot + 1 < child.len() { Some(child.view().key(slot + 1)) } else { bound };
            self.mark_child(handle, &child, slot, bound, marked)?;
        }
        Ok(())
    }

    /// Drops the last block of the path, whose children are all gone.
    fn leave(&mut self, handle: &Handle<'_>) -> Result<()> {
        let step = self.path.last().expect("the caller checked that the path is not empty");
        let (address, level) = (step.block.address(), step.block.level());
        let parent = match self.path.iter().nth_back(1) {
            Some(above) => self.counted_by(above)?,
            // The root has no parent that could count it.
            None => step.full.then_some(address),
        };
        let mut changed = 1;
        if level == 0 {
            let by = self.counted_by(step)?;
            handle.touch_data_of(&step.block, self.id())?;
            handle.change_child_refs(&step.block, self.id(), by, -1)?;
            changed += step.block.len();
        }
        handle.drop_block_ref(address, level, self.id(), parent, true);
        self.path.pop();
        if let Some(above) = self.path.last_mut() {
            above.slot += 1;
        }
        self.spend(changed);
        Ok(())
    }

    /// How references to the children of a block that only this tree refers to are counted: by the
    /// block's address, or by this tree's id (`None`).
    fn counted_by(&self, step: &DropStep) -> Result<Option<LogicalAddress>> {
        if step.full {
            return Ok(Some(step.block.address()));
        }
        if step.block.owner() == self.id() {
            return Ok(None);
        }
        Err(self.fault(&step.block, "owner", self.id().0, step.block.owner().0))
    }

    fn fault(&self, block: &TreeBlock, field: &'static str, expected: u64, found: u64) -> Error {
        let reason = BlockFault::Corrupt(Corrupt::NodeIdentity { field, expected, found });
        Error::TreeBlock { tree: self.id(), address: block.address(), copies: 1, reason }
    }

    /// Makes references to a block's children count by the block, and puts it on the path of
    /// conversion.
    fn convert(&mut self, handle: &Handle<'_>, block: Arc<TreeBlock>, bound: Option<Key>) -> Result<()> {
        // A block of another owner, and everything below it, is counted by that owner's id.
        if block.owner() != self.id() {
            return Ok(());
        }
        let sharing = handle.lock_sharing();
        let (_, full) = handle.block_refs(block.address(), block.level())?;
        if !full {
            handle.change_child_refs(&block, self.id(), Some(block.address()), 1)?;
            handle.change_child_refs(&block, self.id(), None, -1)?;
            handle.set_full_backref(&block);
            self.spend(2 * block.len());
        }
        drop(sharing);
        if block.level() > 0 {
            self.converting.push(DropStep { block, slot: 0, full: true, bound });
        }
        Ok(())
    }

    /// Continues the conversion with the next child.
    fn convert_next(&mut self, handle: &Handle<'_>) -> Result<()> {
        let step = self.converting.last_mut().expect("the caller checked that the path is not empty");
        if step.slot >= step.block.len() {
            self.converting.pop();
            return Ok(());
        }
        let slot = step.slot;
        let pointer = step.block.view().child(slot);
        if pointer.generation <= self.origin {
            step.slot += 1;
            return Ok(());
        }
        let bound = step.bound_of(slot);
        let child = self.tree.child(&step.block, slot, bound)?;
        step.slot += 1;
        self.spend(1);
        self.convert(handle, child, bound)
    }
}

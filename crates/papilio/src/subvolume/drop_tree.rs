//! Taking apart the tree of a deleted subvolume, a bounded piece at a time.
//!
//! Owns [`DropTree`]. The walk goes depth first. A block that only this tree refers to is entered: the
//! references of what it points to are dropped, then its own. A block that others share loses one
//! reference, and is not entered. But where it belongs to this tree, what it points to is counted by this
//! tree's id, which nobody can resolve once the tree is gone: before it is let go, its whole subtree is
//! *converted*, so that each block's own address counts in place of the id (FULL_BACKREF).
//!
//! Invariants:
//! - Between two pieces the path from the root down to the node `drop_level` is intact and belongs to this
//!   tree alone, what lies left of the path is gone, and what `drop_progress` names in that node is next.
//!   The root item says so, by the kernel's rules, so that a crash is gone on from by us as by the kernel.
//! - A conversion changes nothing that a second one would change again: one that a crash cut short is
//!   repeated.
//! - Nobody changes the tree: it was deleted in a transaction that has ended.
//!
//! Locks: `sharing`, from asking for a block's references to acting on them. Kernel counterpart:
//! `btrfs_drop_snapshot`, `walk_down_proc`, `walk_up_proc`, `do_walk_down` (`fs/btrfs/extent-tree.c`);
//! entering a block is their stage DROP_REFERENCE, converting is UPDATE_BACKREF.

use crate::btree::{LiveTree, Tree, TreeBlock};
use crate::errors::{BlockFault, Error, Result};
use crate::transaction::Handle;
use papilio_format::items::root::RawRootItem;
use papilio_format::{Corrupt, Generation, Key, LogicalAddress, TreeId};
use std::sync::Arc;

/// Where the walk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The tree is gone.
    Done,
    /// More is to be dropped, from this place on, whose level is above 0.
    Dropping {
        /// First key of what is next.
        key: Key,
        /// The level of the node that names it.
        level: u8,
    },
    /// In the middle of a conversion: what was dropped did not change.
    Converting,
}

/// A node on the path, and what of it is next.
#[derive(Debug)]
struct Step {
    block: Arc<TreeBlock>,
    slot: usize,
    /// What it points to is counted by its address.
    full: bool,
    /// All keys below are smaller.
    bound: Option<Key>,
}

impl Step {
    /// The bound of the keys below a slot.
    fn bound_of(&self, slot: usize) -> Option<Key> {
        if slot + 1 < self.block.len() { Some(self.block.view().key(slot + 1)) } else { self.bound }
    }
}

/// The walk through the tree of a deleted subvolume.
#[derive(Debug)]
pub(super) struct DropTree {
    tree: Tree,
    /// What is not newer was there before the subvolume: it belongs to others.
    origin: Generation,
    started: bool,
    resume: Option<(Key, u8)>,
    path: Vec<Step>,
    /// The nodes on the way through a subtree that is being converted.
    converting: Vec<Step>,
    /// The shared block whose subtree was converted last.
    converted: Option<LogicalAddress>,
    /// References that may still be changed in this piece.
    budget: usize,
}

impl DropTree {
    /// The walk through `tree`, from where its root item says.
    pub(super) fn new(tree: &LiveTree) -> Self {
        let record = tree.record().expect("a subvolume has one");
        let item: RawRootItem = record.item;
        let resume = (item.drop_progress.objectid != 0).then_some((item.drop_progress, item.drop_level));
        Self {
            tree: tree.tree(),
            origin: Generation(record.key_offset),
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

    /// Changes about `budget` references. What is dropped is told by `Progress`, also where an error
    /// stopped the walk: then what was changed before it is right.
    pub(super) fn run(&mut self, handle: &Handle<'_>, budget: usize) -> (Progress, Result<()>) {
        self.budget = budget;
        let result = if self.started { Ok(()) } else { self.start(handle) };
        let result = result.and_then(|()| self.walk(handle));
        (self.progress(), result)
    }

    fn progress(&self) -> Progress {
        if !self.converting.is_empty() || !self.started {
            return Progress::Converting;
        }
        // A leaf is entered and left in one go, unless it could not be read.
        match self.path.iter().rev().find(|step| step.slot < step.block.len() && step.block.level() > 0) {
            Some(step) => {
                Progress::Dropping { key: step.block.view().key(step.slot), level: step.block.level() }
            }
            None => Progress::Done,
        }
    }

    /// Enters the root, and all nodes down to where an earlier walk stopped.
    fn start(&mut self, handle: &Handle<'_>) -> Result<()> {
        let root = self.tree.root_block()?;
        let (refs, full) = handle.block_refs(root.address(), root.level())?;
        if refs > 1 {
            return Err(self.fault(&root, "references", 1, refs));
        }
        let root = Step { block: root, slot: 0, full, bound: None };
        self.counted_by(&root)?;
        let mut path = vec![root];
        if let Some((key, level)) = self.resume {
            loop {
                let step = path.last_mut().expect("the root is there");
                let found = step.block.view().search(&key);
                if step.block.level() <= level {
                    step.slot = found.unwrap_or_else(|slot| slot);
                    break;
                }
                step.slot = found.unwrap_or_else(|slot| slot.saturating_sub(1));
                let (slot, bound) = (step.slot, step.bound_of(step.slot));
                let child = self.tree.child(&step.block, slot, bound)?;
                let (_, full) = handle.block_refs(child.address(), child.level())?;
                let child = Step { block: child, slot: 0, full, bound };
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
        let step = self.path.last().expect("the caller saw it");
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
            handle.drop_block_ref(pointer.address, level, self.id(), parent);
            drop(sharing);
            self.path.last_mut().expect("seen above").slot += 1;
            self.spend(1);
            return Ok(());
        }
        // Nobody else can reach it, so that this stays.
        drop(sharing);
        let bound = step.bound_of(step.slot);
        let child = self.tree.child(&step.block, step.slot, bound)?;
        let child = Step { block: child, slot: 0, full, bound };
        // Now, not when half of it is dropped.
        self.counted_by(&child)?;
        self.path.push(child);
        Ok(())
    }

    /// Drops the block that ends the path, all of whose children are gone.
    fn leave(&mut self, handle: &Handle<'_>) -> Result<()> {
        let step = self.path.last().expect("the caller saw it");
        let (address, level) = (step.block.address(), step.block.level());
        let parent = match self.path.iter().nth_back(1) {
            Some(above) => self.counted_by(above)?,
            // The root has no parent that could count.
            None => step.full.then_some(address),
        };
        let mut changed = 1;
        if level == 0 {
            let by = self.counted_by(step)?;
            handle.change_child_refs(&step.block, self.id(), by, -1)?;
            changed += step.block.len();
        }
        handle.drop_block_ref(address, level, self.id(), parent);
        self.path.pop();
        if let Some(above) = self.path.last_mut() {
            above.slot += 1;
        }
        self.spend(changed);
        Ok(())
    }

    /// By what the references of a block count that only this tree refers to: its address, or, `None`,
    /// this tree's id.
    fn counted_by(&self, step: &Step) -> Result<Option<LogicalAddress>> {
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

    /// Makes what a block points to count by the block, and puts it on the path of conversion.
    fn convert(&mut self, handle: &Handle<'_>, block: Arc<TreeBlock>, bound: Option<Key>) -> Result<()> {
        // What belongs to others is counted by their id, and so is all below.
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
            self.converting.push(Step { block, slot: 0, full: true, bound });
        }
        Ok(())
    }

    /// Goes on with the conversion by one child.
    fn convert_next(&mut self, handle: &Handle<'_>) -> Result<()> {
        let step = self.converting.last_mut().expect("the caller saw it");
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

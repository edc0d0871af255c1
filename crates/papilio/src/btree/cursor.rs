//! The cursor: a place in a tree, as a value on the stack.
//!
//! Owns [`Cursor`]. Invariants: `path[level]` for levels 0 to the root's holds the block and the slot
//! that lead to the current item, or every entry is empty and the cursor is nowhere; a path's blocks
//! each met what their parent says, so that keys ascend over the whole walk. Kernel counterpart:
//! `struct btrfs_path`, `btrfs_search_slot`, `btrfs_next_leaf` (`fs/btrfs/ctree.c`).

use crate::btree::forest::block_error;
use crate::btree::{Item, Tree, TreeBlock};
use crate::errors::Result;
use papilio_format::superblock::MAX_LEVEL;
use papilio_format::{Key, NodeExpectation};
use std::sync::Arc;

/// Leaves read ahead at most, once a walk has shown itself sequential.
const READAHEAD_LEAVES: usize = 16;

#[derive(Clone, Debug)]
struct Step {
    block: Arc<TreeBlock>,
    slot: usize,
    /// All keys below are smaller: the next key of the nearest ancestor that has one.
    bound: Option<Key>,
}

/// A place in a tree.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    tree: &'a Tree,
    path: [Option<Step>; MAX_LEVEL as usize],
    /// Leaves entered one after the other, which tells how far to read ahead.
    run: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor that is nowhere.
    pub(crate) fn new(tree: &'a Tree) -> Self {
        Self { tree, path: Default::default(), run: 0 }
    }

    /// Leaves every place.
    pub(crate) fn clear(&mut self) {
        self.path = Default::default();
        self.run = 0;
    }

    /// The key here; `None` past the last item.
    #[inline]
    pub(crate) fn key(&self) -> Option<Key> {
        let leaf = self.path[0].as_ref()?;
        Some(leaf.block.view().key(leaf.slot))
    }

    /// The bytes of the item here.
    #[inline]
    pub(crate) fn data(&self) -> Option<&[u8]> {
        let leaf = self.path[0].as_ref()?;
        Some(leaf.block.view().item(leaf.slot))
    }

    /// The item here, with its leaf.
    pub(crate) fn item(&self) -> Option<Item> {
        let leaf = self.path[0].as_ref()?;
        Some(Item::new(Arc::clone(&leaf.block), leaf.slot))
    }

    /// Goes to the first item whose key is `key` or larger. Nearby keys are found from the current
    /// leaf without a walk from the root.
    ///
    /// # Errors
    /// A block on the way that cannot be read; the cursor is then nowhere.
    pub(crate) fn seek(&mut self, key: &Key) -> Result<()> {
        if self.seek_in_leaf(key) {
            return Ok(());
        }
        let result = self.seek_from_root(key);
        if result.is_err() {
            self.clear();
        }
        result
    }

    /// Whether the current leaf surely holds the place of `key`, and the cursor went there.
    fn seek_in_leaf(&mut self, key: &Key) -> bool {
        let Some(leaf) = &mut self.path[0] else { return false };
        let view = leaf.block.view();
        if *key < view.key(0) || *key > view.key(view.len() - 1) {
            return false;
        }
        leaf.slot = view.search(key).unwrap_or_else(|slot| slot);
        true
    }

    fn seek_from_root(&mut self, key: &Key) -> Result<()> {
        self.clear();
        let mut block = self.tree.root_block()?;
        let mut bound = None;
        loop {
            let view = block.view();
            let level = usize::from(block.level());
            if view.is_empty() {
                // Only the root leaf of an empty tree passes the checks with no items.
                self.clear();
                return Ok(());
            }
            if level == 0 {
                let slot = view.search(key).unwrap_or_else(|slot| slot);
                let past_end = slot == view.len();
                self.path[0] = Some(Step { slot: slot.min(view.len() - 1), block, bound });
                return if past_end { self.step() } else { Ok(()) };
            }
            // The child to take is the last whose first key is not beyond the key.
            let slot = view.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
            let step = Step { block, slot, bound };
            let (child, child_bound) = self.child_of(&step)?;
            self.path[level] = Some(step);
            (block, bound) = (child, child_bound);
        }
    }

    /// The block that a step's slot points to, and the bound of its keys.
    fn child_of(&self, step: &Step) -> Result<(Arc<TreeBlock>, Option<Key>)> {
        let view = step.block.view();
        let bound = if step.slot + 1 < view.len() { Some(view.key(step.slot + 1)) } else { step.bound };
        if let Some(child) = step.block.link(step.slot) {
            return Ok((Arc::clone(child), bound));
        }
        let expected = self.expectation(&step.block, step.slot);
        let id = self.tree.id();
        let child = self.tree.forest().block(id, &expected)?;
        child
            .stays_below(bound)
            .and_then(|()| if child.view().is_empty() { Err(empty_child()) } else { Ok(()) })
            .map_err(|reason| block_error(id, expected.address, 1, reason.into()))?;
        Ok((child, bound))
    }

    fn expectation(&self, parent: &TreeBlock, slot: usize) -> NodeExpectation {
        let pointer = parent.view().child(slot);
        NodeExpectation {
            address: pointer.address,
            level: Some(parent.level() - 1),
            generation: Some(pointer.generation),
            owner: Some(self.tree.id()),
            first_key: Some(pointer.key),
        }
    }

    /// Goes to the next item; past the last one the cursor is nowhere.
    ///
    /// # Errors
    /// A block on the way that cannot be read; the cursor is then nowhere.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Some(leaf) = &mut self.path[0] else { return Ok(()) };
        if leaf.slot + 1 < leaf.block.view().len() {
            leaf.slot += 1;
            return Ok(());
        }
        self.run += 1;
        let result = self.turn(true);
        if result.is_err() {
            self.clear();
        }
        result
    }

    /// Goes to the item before; from nowhere, to the last item of the tree.
    ///
    /// # Errors
    /// A block on the way that cannot be read; the cursor is then nowhere.
    pub(crate) fn step_back(&mut self) -> Result<()> {
        let result = match &mut self.path[0] {
            None => self.seek_last(),
            Some(leaf) if leaf.slot > 0 => {
                leaf.slot -= 1;
                Ok(())
            }
            Some(_) => self.turn(false),
        };
        if result.is_err() {
            self.clear();
        }
        result
    }

    fn seek_last(&mut self) -> Result<()> {
        let root = self.tree.root_block()?;
        if root.view().is_empty() {
            return Ok(());
        }
        self.descend(root, None, false)
    }

    /// Goes to the neighbouring leaf: up to the first level with another slot, and down again.
    fn turn(&mut self, forward: bool) -> Result<()> {
        let turning = self.path[1..].iter_mut().flatten().find_map(|step| {
            let slot = if forward {
                Some(step.slot + 1).filter(|&slot| slot < step.block.view().len())
            } else {
                step.slot.checked_sub(1)
            }?;
            step.slot = slot;
            Some(step.clone())
        });
        let Some(step) = turning else {
            self.clear();
            return Ok(());
        };
        if forward && step.block.level() == 1 {
            self.read_ahead(&step);
        }
        let (child, bound) = self.child_of(&step)?;
        self.descend(child, bound, forward)
    }

    /// Fills the path from `block` down, along the first slots or the last.
    fn descend(&mut self, mut block: Arc<TreeBlock>, mut bound: Option<Key>, first: bool) -> Result<()> {
        loop {
            let level = usize::from(block.level());
            let slot = if first { 0 } else { block.view().len() - 1 };
            let step = Step { block, slot, bound };
            if level == 0 {
                self.path[0] = Some(step);
                return Ok(());
            }
            let (child, child_bound) = self.child_of(&step)?;
            self.path[level] = Some(step);
            (block, bound) = (child, child_bound);
        }
    }

    /// Reads the leaves that a sequential walk will enter next, in growing batches.
    fn read_ahead(&self, parent: &Step) {
        if self.run < 2 {
            return;
        }
        let window = (1usize << self.run.min(8)).min(READAHEAD_LEAVES);
        // One batch per window: in between, the leaves are there already.
        if !parent.slot.is_multiple_of(window) {
            return;
        }
        let end = (parent.slot + window).min(parent.block.view().len());
        let on_disk = (parent.slot..end).filter(|&slot| parent.block.link(slot).is_none());
        let blocks = on_disk.map(|slot| self.expectation(&parent.block, slot));
        self.tree.forest().prefetch(blocks);
    }
}

pub(super) fn empty_child() -> papilio_format::Corrupt {
    papilio_format::Corrupt::Field {
        what: "tree block",
        field: "item_count",
        value: 0,
        why: "only the root of an empty tree has no items",
    }
}

//! The cursor: a position in a tree, as a value on the stack.
//!
//! Owns [`Cursor`].
//!
//! **Invariants**
//! - Either `path[level]` holds block and slot of the current item for each level up to the root's,
//!   or every entry is empty and the cursor has no position.
//! - Every block on the path met its parent's expectations, so keys ascend over the whole walk.
//!
//! Kernel counterpart: `struct btrfs_path`, `btrfs_search_slot`, `btrfs_next_leaf`
//! (`fs/btrfs/ctree.c`).

use crate::btree::block::TreeBlock;
use crate::btree::tree::{Item, Tree};
use crate::errors::Result;
use papilio_format::Key;
use papilio_format::superblock::MAX_LEVEL;
use std::sync::Arc;

/// Most leaves read ahead once a walk is known to be sequential.
const READAHEAD_LEAVES: usize = 16;

#[derive(Clone, Debug)]
struct CursorStep {
    block: Arc<TreeBlock>,
    slot: usize,
    /// Upper bound of the keys: the next key of the nearest ancestor that has one.
    bound: Option<Key>,
}

/// A position in a tree.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    tree: &'a Tree,
    path: [Option<CursorStep>; MAX_LEVEL as usize],
    /// Number of leaves entered in sequence, which sets the readahead window.
    run: usize,
    /// The key behind the block that could not be read last.
    behind_fault: Option<Key>,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor without a position.
    pub fn new(tree: &'a Tree) -> Self {
        Self { tree, path: Default::default(), run: 0, behind_fault: None }
    }

    /// Clears the position.
    pub(crate) fn clear(&mut self) {
        self.path = Default::default();
        self.run = 0;
    }

    /// Returns the first key behind the block whose reading failed last. `None` if that block is
    /// the last of the tree, or its root.
    pub fn behind_fault(&self) -> Option<Key> {
        self.behind_fault
    }

    /// Returns the current key; `None` past the last item.
    #[inline]
    pub fn key(&self) -> Option<Key> {
        let leaf = self.path[0].as_ref()?;
        Some(leaf.block.view().key(leaf.slot))
    }

    /// Returns the data of the current item.
    #[inline]
    pub fn data(&self) -> Option<&[u8]> {
        let leaf = self.path[0].as_ref()?;
        Some(leaf.block.view().item(leaf.slot))
    }

    /// Returns the current item with its leaf.
    pub fn item(&self) -> Option<Item> {
        let leaf = self.path[0].as_ref()?;
        Some(Item::new(Arc::clone(&leaf.block), leaf.slot))
    }

    /// Moves to the first item whose key is `key` or larger. A key within the current leaf is found
    /// without a descent from the root.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read; the cursor then has no position.
    pub fn seek(&mut self, key: &Key) -> Result<()> {
        if self.seek_in_leaf(key) {
            return Ok(());
        }
        let result = self.seek_from_root(key);
        if result.is_err() {
            self.clear();
        }
        result
    }

    /// Moves within the current leaf if it is certain to contain the position of `key`. Returns
    /// whether it did.
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
        self.behind_fault = None;
        let mut block = self.tree.root_block()?;
        let mut bound = None;
        loop {
            let view = block.view();
            let level = usize::from(block.level());
            if view.is_empty() {
                // Only the root leaf of an empty tree can pass the checks without items.
                self.clear();
                return Ok(());
            }
            if level == 0 {
                let slot = view.search(key).unwrap_or_else(|slot| slot);
                let past_end = slot == view.len();
                self.path[0] = Some(CursorStep { slot: slot.min(view.len() - 1), block, bound });
                return if past_end { self.step() } else { Ok(()) };
            }
            // Descend into the last child whose first key is at most `key`.
            let slot = view.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
            let step = CursorStep { block, slot, bound };
            let (child, child_bound) = self.child_of(&step)?;
            self.path[level] = Some(step);
            (block, bound) = (child, child_bound);
        }
    }

    /// Returns the block that a step's slot points to, and the bound of its keys.
    fn child_of(&mut self, step: &CursorStep) -> Result<(Arc<TreeBlock>, Option<Key>)> {
        let view = step.block.view();
        let bound = if step.slot + 1 < view.len() { Some(view.key(step.slot + 1)) } else { step.bound };
        let child = self.tree.child(&step.block, step.slot, bound);
        Ok((child.inspect_err(|_| self.behind_fault = bound)?, bound))
    }

    /// Moves to the next item; past the last one the cursor has no position.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read; the cursor then has no position.
    pub fn step(&mut self) -> Result<()> {
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

    /// Moves to the previous item; without a position, to the last item of the tree.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read; the cursor then has no position.
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

    /// Moves to the adjacent leaf: ascends to the first level with another slot, then descends.
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
            let step = CursorStep { block, slot, bound };
            if level == 0 {
                self.path[0] = Some(step);
                return Ok(());
            }
            let (child, child_bound) = self.child_of(&step)?;
            self.path[level] = Some(step);
            (block, bound) = (child, child_bound);
        }
    }

    /// Reads the leaves that a sequential walk enters next, in growing batches.
    fn read_ahead(&self, parent: &CursorStep) {
        if self.run < 2 {
            return;
        }
        let window = (1usize << self.run.min(8)).min(READAHEAD_LEAVES);
        // One batch per window; in between, the leaves are cached already.
        if !parent.slot.is_multiple_of(window) {
            return;
        }
        let end = (parent.slot + window).min(parent.block.view().len());
        let on_disk = (parent.slot..end).filter(|&slot| parent.block.link(slot).is_none());
        let blocks = on_disk.map(|slot| parent.block.child_expectation(slot, self.tree.id()));
        self.tree.forest().prefetch(blocks);
    }
}

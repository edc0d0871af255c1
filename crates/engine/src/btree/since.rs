//! Walks over the leaves that recent transactions wrote, by item and by leaf.
//!
//! Invariant: a parent's pointer names its child's generation, and changing a block changes all
//! blocks above it. So nothing below an old pointer is new, and is not read.
//!
//! Kernel counterpart: `btrfs_search_forward` (`fs/btrfs/ctree.c`).

use crate::btree::block::TreeBlock;
use crate::btree::tree::Tree;
use crate::errors::{Error, Result};
use papilio_format::{Generation, Key, Node, NodeExpectation};
use std::ops::RangeInclusive;

/// Receives the generation of a leaf, a key and an item; returns whether to go on.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Generation, Key, &[u8]) -> bool;

/// Leaves that are read ahead at once.
const AHEAD: usize = 64;

impl Tree {
    /// Passes the leaves that the transaction `oldest` or a later one wrote to `visit`, in order,
    /// until it returns false. A block below the root that cannot be read goes to `fault`, and the
    /// walk goes on behind it.
    ///
    /// # Errors
    /// The root cannot be read.
    pub fn visit_leaves(
        &self,
        oldest: Generation,
        visit: &mut dyn FnMut(Node<'_>) -> bool,
        fault: &mut dyn FnMut(Error),
    ) -> Result<()> {
        let root = self.root_block()?;
        if root.generation() >= oldest {
            self.leaves_below(&root, None, oldest, visit, fault);
        }
        Ok(())
    }

    /// Returns false if `visit` did. The depth of calls is that of the tree.
    fn leaves_below(
        &self,
        block: &TreeBlock,
        bound: Option<Key>,
        oldest: Generation,
        visit: &mut dyn FnMut(Node<'_>) -> bool,
        fault: &mut dyn FnMut(Error),
    ) -> bool {
        let view = block.view();
        if block.level() == 0 {
            return visit(view);
        }
        for slot in 0..view.len() {
            if block.level() == 1 && slot % AHEAD == 0 {
                let ahead = slot..view.len().min(slot + AHEAD);
                self.read_ahead(block, ahead, oldest);
            }
            if view.child(slot).generation < oldest {
                continue;
            }
            let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
            match self.child(block, slot, bound) {
                Ok(child) if !self.leaves_below(&child, bound, oldest, visit, fault) => return false,
                Ok(_) => {}
                Err(error) => fault(error),
            }
        }
        true
    }

    /// Reads children into the cache, except for those that only memory has.
    fn read_ahead(&self, block: &TreeBlock, slots: std::ops::Range<usize>, oldest: Generation) {
        let view = block.view();
        let wanted = slots.filter(|slot| block.link(*slot).is_none()).map(|slot| view.child(slot));
        let wanted = wanted.filter(|child| child.generation >= oldest);
        self.forest().prefetch(wanted.map(|child| NodeExpectation {
            level: Some(block.level() - 1),
            generation: Some(child.generation),
            ..NodeExpectation::at(child.address)
        }));
    }

    /// Passes the items with these keys to `visit`, in order, if the transaction `oldest` or a
    /// later one wrote their leaf. Ends early when `visit` returns false.
    ///
    /// # Errors
    /// A block that cannot be read.
    pub fn visit_since(
        &self,
        keys: &RangeInclusive<Key>,
        oldest: Generation,
        visit: Visit<'_>,
    ) -> Result<()> {
        let root = self.root_block()?;
        if root.generation() >= oldest && !keys.is_empty() {
            self.visit_below(&root, None, keys, oldest, visit)?;
        }
        Ok(())
    }

    /// Returns false if `visit` did. The depth of calls is that of the tree.
    fn visit_below(
        &self,
        block: &TreeBlock,
        bound: Option<Key>,
        keys: &RangeInclusive<Key>,
        oldest: Generation,
        visit: Visit<'_>,
    ) -> Result<bool> {
        let view = block.view();
        let is_leaf = block.level() == 0;
        let found = view.search(keys.start());
        // The child before the place of a missing key may hold it.
        let first = found.unwrap_or_else(|slot| if is_leaf { slot } else { slot.saturating_sub(1) });
        for slot in first..view.len() {
            let key = view.key(slot);
            if key > *keys.end() {
                break;
            }
            let goes_on = if is_leaf {
                visit(block.generation(), key, view.item(slot))
            } else if view.child(slot).generation < oldest {
                true
            } else {
                let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
                let child = self.child(block, slot, bound)?;
                self.visit_below(&child, bound, keys, oldest, visit)?
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

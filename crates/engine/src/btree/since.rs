//! A walk over the leaves that recent transactions wrote.
//!
//! Invariant: a parent's pointer names its child's generation, and changing a block changes all
//! blocks above it. So nothing below an old pointer is new, and is not read.
//!
//! Kernel counterpart: `btrfs_search_forward` (`fs/btrfs/ctree.c`).

use crate::btree::block::TreeBlock;
use crate::btree::tree::Tree;
use crate::errors::Result;
use papilio_format::{Generation, Key};
use std::ops::RangeInclusive;

/// Receives the generation of a leaf, a key and an item; returns whether to go on.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Generation, Key, &[u8]) -> bool;

impl Tree {
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

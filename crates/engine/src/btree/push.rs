//! Moving items to a neighbouring leaf instead of splitting.
//!
//! Owns [`Edit::push`]. A leaf that is too full for an insertion moves items to a neighbour with
//! free space. Otherwise ascending insertions in the middle of a tree would leave every leaf half
//! empty. Only neighbours that are already writable take part, so no extra blocks are copied on
//! disk.
//!
//! **Locks**: none; the editor holds the tree's.
//!
//! Kernel counterpart: `push_leaf_left`, `push_leaf_right` (`fs/btrfs/ctree.c`).

use super::block::TreeBlock;
use super::change::{Edit, Op};
use crate::errors::Result;
use papilio_format::node::ItemHeader;
use std::sync::Arc;

/// Only batches up to this length push; longer ones fill leaves by themselves.
const SMALL_BATCH: usize = 4;

impl Edit<'_> {
    /// Makes space for `ops` in the leaf at `slot` of `node` if it has too little and a neighbour
    /// has enough. Returns whether items moved, so that the leaf of the first of `ops` must be
    /// looked up again.
    pub(super) fn push(&self, node: &mut TreeBlock, slot: usize, ops: &[Op<'_>]) -> Result<bool> {
        if node.level() != 1 || ops.len() > SMALL_BATCH {
            return Ok(false);
        }
        let Some(leaf) = self.own_leaf(node, slot) else { return Ok(false) };
        let need: usize = ops.iter().filter_map(|op| op.data).map(|data| data.len() + ItemHeader::SIZE).sum();
        let free = leaf.view().free_space();
        let last = leaf.view().key(leaf.len() - 1);
        // Appending starts a new leaf and leaves this one full.
        let appends = ops.iter().all(|op| op.key > last) && slot + 1 == node.len();
        if free >= need || appends || leaf.len() < 2 {
            return Ok(false);
        }
        let capacity = leaf.capacity();
        let takes = |neighbour: Option<&Arc<TreeBlock>>| {
            neighbour.is_some_and(|block| block.view().free_space() + free >= 2 * need + capacity / 16)
        };
        if slot > 0 && takes(self.own_leaf(node, slot - 1)) {
            return self.push_left(node, slot);
        }
        if takes(self.own_leaf(node, slot + 1)) {
            return self.push_right(node, slot);
        }
        Ok(false)
    }

    /// Returns the leaf in a slot if it may be changed in place.
    fn own_leaf<'n>(&self, node: &'n TreeBlock, slot: usize) -> Option<&'n Arc<TreeBlock>> {
        node.link(slot).filter(|leaf| leaf.stamp() > self.frozen)
    }

    /// Moves the first items to the previous leaf until both are about equally full.
    fn push_left(&self, node: &mut TreeBlock, slot: usize) -> Result<bool> {
        let (mut left, mut leaf) = self.take_pair(node, slot - 1);
        let wanted = leaf.used().saturating_sub(left.used()) / 2;
        let count = items_within(&leaf, wanted, 0..leaf.len() - 1);
        if count > 0 {
            self.writable(&mut left)?.append_items(&leaf, 0, count);
            self.writable(&mut leaf)?.remove_items(0, count);
        }
        node.set_child(slot - 1, left);
        node.set_child(slot, leaf);
        Ok(count > 0)
    }

    /// Moves the last items to the next leaf until both are about equally full.
    fn push_right(&self, node: &mut TreeBlock, slot: usize) -> Result<bool> {
        let (mut leaf, mut right) = self.take_pair(node, slot);
        let wanted = leaf.used().saturating_sub(right.used()) / 2;
        let count = items_within(&leaf, wanted, (1..leaf.len()).rev());
        if count > 0 {
            let old = TreeBlock::clone(&right);
            let first = leaf.len() - count;
            let new = self.writable(&mut right)?;
            new.remove_items(0, old.len());
            new.append_items(&leaf, first, leaf.len());
            new.append_items(&old, 0, old.len());
            self.writable(&mut leaf)?.remove_items(first, count);
        }
        node.set_child(slot, leaf);
        node.set_child(slot + 1, right);
        Ok(count > 0)
    }

    /// Takes the leaves of a slot and the next with their links, so that they can be changed in
    /// place.
    fn take_pair(&self, node: &mut TreeBlock, slot: usize) -> (Arc<TreeBlock>, Arc<TreeBlock>) {
        let mut take = |slot| node.take_link(slot).expect("the caller saw the link");
        (take(slot), take(slot + 1))
    }
}

/// Returns how many items, in the order of `slots`, fit into `bytes` with their headers.
fn items_within(leaf: &TreeBlock, bytes: usize, slots: impl Iterator<Item = usize>) -> usize {
    let view = leaf.view();
    let mut sum = 0;
    slots
        .take_while(|&slot| {
            sum += view.item_header(slot).size as usize + ItemHeader::SIZE;
            sum <= bytes
        })
        .count()
}

//! Moving items to a neighbouring leaf instead of splitting.
//!
//! Owns [`Edit::push`]. A leaf that would be split for want of room gives items to a neighbour that has
//! some, so that leaves are fuller: ascending keys in the middle of a tree would leave each leaf half empty
//! otherwise. Only neighbours that are changed already take part: nothing is copied for it on disk.
//!
//! Takes no lock; the editor holds the tree's. Kernel counterpart: `push_leaf_left`, `push_leaf_right`
//! (`fs/btrfs/ctree.c`).

use super::TreeBlock;
use super::change::{Edit, Op};
use crate::errors::Result;
use papilio_format::node::ItemHeader;
use std::sync::Arc;

/// Batches up to this long are made room for; longer ones fill leaves by themselves.
const SMALL_BATCH: usize = 4;

impl Edit<'_> {
    /// Makes room for `ops` in the leaf at `slot` of `node` where it has none and a neighbour has; says
    /// whether items were moved, so that the leaf for the first of `ops` is to be looked up again.
    pub(super) fn push(&self, node: &mut TreeBlock, slot: usize, ops: &[Op<'_>]) -> Result<bool> {
        if node.level() != 1 || ops.len() > SMALL_BATCH {
            return Ok(false);
        }
        let Some(leaf) = self.own_leaf(node, slot) else { return Ok(false) };
        let need: usize = ops.iter().filter_map(|op| op.data).map(|data| data.len() + ItemHeader::SIZE).sum();
        let free = leaf.view().free_space();
        let last = leaf.view().key(leaf.len() - 1);
        // What comes behind the last item begins a new leaf and leaves this one full.
        let appends = ops.iter().all(|op| op.key > last) && slot + 1 == node.len();
        if free >= need || appends || leaf.len() < 2 {
            return Ok(false);
        }
        let room = leaf.room();
        let takes = |neighbour: Option<&Arc<TreeBlock>>| {
            neighbour.is_some_and(|block| block.view().free_space() + free >= 2 * need + room / 16)
        };
        if slot > 0 && takes(self.own_leaf(node, slot - 1)) {
            return self.push_left(node, slot);
        }
        if takes(self.own_leaf(node, slot + 1)) {
            return self.push_right(node, slot);
        }
        Ok(false)
    }

    /// The leaf in a slot, if it may be changed where it is.
    fn own_leaf<'n>(&self, node: &'n TreeBlock, slot: usize) -> Option<&'n Arc<TreeBlock>> {
        node.link(slot).filter(|leaf| leaf.stamp() > self.frozen)
    }

    /// Moves first items to the leaf before, until both are about as full.
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

    /// Moves last items to the leaf behind, until both are about as full.
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

    /// The leaves of a slot and the next, their links taken so that they can be changed in place.
    fn take_pair(&self, node: &mut TreeBlock, slot: usize) -> (Arc<TreeBlock>, Arc<TreeBlock>) {
        let mut take = |slot| node.take_link(slot).expect("the caller saw the link");
        (take(slot), take(slot + 1))
    }
}

/// How many items, in this order, are at most `bytes` with their headers.
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

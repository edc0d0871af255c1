//! Applying sorted changes to a tree in memory, in one descent.
//!
//! Owns [`Edit`], the recursion behind [`super::TreeEditor`].
//!
//! **Invariants**
//! - A block changes only while it is writable: made since the tree's last freeze, and copied first
//!   if a reader holds it.
//! - After every step the parent's pointer names the child's address, generation and first key.
//! - Only the root of an empty tree is ever left empty.
//! - An error leaves the tree well formed, with some of the changes applied.
//!
//! **Locks**: none; the editor holds the tree's.
//!
//! Kernel counterpart: `btrfs_search_slot`, `btrfs_cow_block`, `split_leaf`, `split_node`,
//! `btrfs_del_items`, `balance_level` (`fs/btrfs/ctree.c`).

use super::allocator::NodeAllocator;
use super::block::TreeBlock;
use super::edit::{BlockIdentity, pointer_to};
use super::forest::block_error;
use super::live::LiveTree;
use crate::errors::Result;
use papilio_format::Key;
use papilio_format::node::ItemHeader;
use std::sync::Arc;

/// One change of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op<'a> {
    pub(super) key: Key,
    /// The item's data; `None` removes the item.
    pub(super) data: Option<&'a [u8]>,
}

/// One descent.
pub(super) struct Edit<'a> {
    pub(super) tree: &'a LiveTree,
    pub(super) allocator: &'a dyn NodeAllocator,
    /// Blocks with a stamp up to this one are copied before they change.
    pub(super) frozen: u64,
}

impl Edit<'_> {
    fn identity(&self, level: u8, first_key: &Key) -> Result<BlockIdentity> {
        Ok(BlockIdentity {
            address: self.allocator.allocate(self.tree, level, first_key)?,
            generation: self.allocator.generation(),
            owner: self.tree.id(),
            stamp: self.allocator.stamp(),
        })
    }

    /// Allocates an empty block for the same tree as `node`.
    fn sibling(&self, node: &TreeBlock, level: u8, first_key: &Key) -> Result<TreeBlock> {
        Ok(TreeBlock::empty_like(node, &self.identity(level, first_key)?, level))
    }

    /// Returns the block for changing, and copies it first if it was frozen or a reader holds it.
    /// An error leaves it unchanged.
    pub(super) fn writable<'n>(&self, node: &'n mut Arc<TreeBlock>) -> Result<&'n mut TreeBlock> {
        if node.stamp() <= self.frozen {
            let first_key = if node.len() == 0 { Key::MIN } else { node.first_key() };
            let identity = self.identity(node.level(), &first_key)?;
            if self.allocator.moves() && Arc::get_mut(node).is_some() {
                self.allocator.free(self.tree, node)?;
                let block = Arc::get_mut(node).expect("seen above");
                block.move_to(&identity);
                return Ok(block);
            }
            let copy = node.copy_as(&identity);
            self.allocator.copied(self.tree, node, &copy).inspect_err(|_| self.allocator.changed())?;
            *node = Arc::new(copy);
        }
        Ok(Arc::make_mut(node))
    }

    /// Applies `ops` (sorted, not empty) to the subtree at `node`. Overflow goes to `right`: blocks
    /// of the same level that follow `node`.
    pub(super) fn apply(
        &self,
        node: &mut TreeBlock,
        ops: &[Op<'_>],
        right: &mut Vec<TreeBlock>,
    ) -> Result<()> {
        if node.level() == 0 { self.apply_leaf(node, ops, right) } else { self.apply_node(node, ops, right) }
    }

    fn apply_leaf(&self, leaf: &mut TreeBlock, ops: &[Op<'_>], right: &mut Vec<TreeBlock>) -> Result<()> {
        let mut current = 0;
        let mut index = 0;
        while let Some(op) = ops.get(index) {
            while right.get(current).is_some_and(|next| op.key >= next.first_key()) {
                current += 1;
            }
            let target = block_at(leaf, right, current);
            match (target.view().search(&op.key), op.data) {
                (Err(_), None) => index += 1,
                (Ok(slot), None) => {
                    self.allocator.changed();
                    let run = removal_run(target, slot, &ops[index..]);
                    target.remove_items(slot, run);
                    if target.len() == 0 && current > 0 {
                        // A sibling split off by this call has become empty.
                        let empty = right.remove(current - 1);
                        self.allocator.free(self.tree, &empty)?;
                        current -= 1;
                    }
                    index += run;
                }
                (Ok(slot), Some(data)) => {
                    self.allocator.changed();
                    let old = target.view().item_header(slot).size as usize;
                    if target.view().free_space() + old >= data.len() {
                        target.replace_item(slot, data);
                    } else {
                        target.remove_items(slot, 1);
                        let new = self.insert_splitting(target, slot, &op.key, data)?;
                        right.splice(current..current, new);
                    }
                    index += 1;
                }
                (Err(slot), Some(data)) => {
                    // If there is no space for a sibling, nothing has changed.
                    if target.view().free_space() >= data.len() + ItemHeader::SIZE {
                        target.insert_item(slot, &op.key, data);
                    } else {
                        let new = self.insert_splitting(target, slot, &op.key, data)?;
                        right.splice(current..current, new);
                    }
                    self.allocator.changed();
                    index += 1;
                }
            }
        }
        Ok(())
    }

    /// Inserts an item that does not fit into the leaf. Returns the new leaves that follow it.
    fn insert_splitting(
        &self,
        leaf: &mut TreeBlock,
        slot: usize,
        key: &Key,
        data: &[u8],
    ) -> Result<Vec<TreeBlock>> {
        let count = leaf.len();
        assert!(data.len() + ItemHeader::SIZE <= leaf.capacity(), "an item fits into a leaf");
        if leaf.view().free_space() >= data.len() + ItemHeader::SIZE {
            leaf.insert_item(slot, key, data);
            return Ok(Vec::new());
        }
        if slot == count {
            // Ascending insertion leaves full leaves behind.
            let mut next = self.sibling(leaf, 0, key)?;
            next.insert_item(0, key, data);
            return Ok(vec![next]);
        }
        match split_place(leaf, slot, data.len() + ItemHeader::SIZE) {
            Some(split) => {
                let first =
                    if split.index == slot && !split.new_left { *key } else { leaf.view().key(split.index) };
                let mut next = self.sibling(leaf, 0, &first)?;
                next.append_items(leaf, split.index, count);
                leaf.remove_items(split.index, count - split.index);
                if split.new_left {
                    leaf.insert_item(slot, key, data);
                } else {
                    next.insert_item(slot - split.index, key, data);
                }
                Ok(vec![next])
            }
            None => {
                let mut middle = self.sibling(leaf, 0, key)?;
                // After an error here the middle leaf is already allocated.
                let last = self.sibling(leaf, 0, &leaf.view().key(slot));
                let mut last = last.inspect_err(|_| self.allocator.changed())?;
                middle.insert_item(0, key, data);
                last.append_items(leaf, slot, count);
                leaf.remove_items(slot, count - slot);
                Ok(vec![middle, last])
            }
        }
    }

    fn apply_node(&self, node: &mut TreeBlock, ops: &[Op<'_>], right: &mut Vec<TreeBlock>) -> Result<()> {
        let mut rest = ops;
        let mut current = 0;
        let mut pushed = false;
        while let Some(op) = rest.first() {
            while right.get(current).is_some_and(|next| op.key >= next.first_key()) {
                current += 1;
            }
            let next_node = right.get(current).map(TreeBlock::first_key);
            let target = block_at(node, right, current);
            let slot = target.view().search(&op.key).unwrap_or_else(|slot| slot.saturating_sub(1));
            let bound = if slot + 1 < target.len() { Some(target.view().key(slot + 1)) } else { next_node };
            let here = bound.map_or(rest.len(), |bound| rest.partition_point(|op| op.key < bound));
            let (mine, later) = rest.split_at(here.max(1));
            // Push at most once per operation; after that the leaf is split.
            pushed = !pushed && self.push(target, slot, mine)?;
            if pushed {
                continue;
            }
            rest = later;
            let mut new = Vec::new();
            let result = self.apply_child(target, slot, mine, &mut new);
            let grown = !new.is_empty();
            self.insert_children(node, right, current, slot + 1, new)?;
            result?;
            if !grown && mine.iter().any(|op| op.data.is_none()) {
                let target = block_at(node, right, current);
                self.rebalance(target, slot)?;
            }
            let target = block_at(node, right, current);
            if target.len() == 0 && current > 0 {
                let empty = right.remove(current - 1);
                self.allocator.free(self.tree, &empty)?;
                current -= 1;
            }
            if block_at(node, right, current).len() == 0 && (!right.is_empty() || !rest.is_empty()) {
                return self.refill(node, rest, right);
            }
        }
        Ok(())
    }

    /// Continues after a node lost all its children while changes remain. The next node's children
    /// move up, or new leaves with the remaining insertions become its children.
    fn refill(&self, node: &mut TreeBlock, rest: &[Op<'_>], right: &mut Vec<TreeBlock>) -> Result<()> {
        if !right.is_empty() {
            let mut next = right.remove(0);
            next.move_pointers_to(0, node);
            self.allocator.free(self.tree, &next)?;
            return if rest.is_empty() { Ok(()) } else { self.apply_node(node, rest, right) };
        }
        let Some(first) = rest.iter().position(|op| op.data.is_some()) else { return Ok(()) };
        let rest = &rest[first..];
        let mut leaf = self.sibling(node, 0, &rest[0].key)?;
        let mut chain = Vec::new();
        self.apply(&mut leaf, rest, &mut chain)?;
        chain.insert(0, leaf);
        for level in 1..node.level() {
            let mut above = vec![self.sibling(node, level, &chain[0].first_key())?];
            for child in chain {
                let last = above.last_mut().expect("there is one");
                if last.len() == last.max_pointers() {
                    above.push(self.sibling(node, level, &child.first_key())?);
                }
                let last = above.last_mut().expect("there is one");
                last.insert_pointer(last.len(), &pointer_to(&child), Some(Arc::new(child)));
            }
            chain = above;
        }
        self.insert_children(node, right, 0, 0, chain)
    }

    /// Applies `ops` to the child in `slot` and updates the slot. An empty child is freed and its
    /// slot removed.
    fn apply_child(
        &self,
        node: &mut TreeBlock,
        slot: usize,
        ops: &[Op<'_>],
        new: &mut Vec<TreeBlock>,
    ) -> Result<()> {
        let mut child = self.take_child(node, slot)?;
        let result = self.writable(&mut child).and_then(|child| self.apply(child, ops, new));
        if child.len() > 0 {
            node.set_child(slot, child);
            return result;
        }
        if new.is_empty() {
            node.remove_pointer(slot);
        } else {
            node.set_child(slot, Arc::new(new.remove(0)));
        }
        result.and(self.allocator.free(self.tree, &child))
    }

    /// Takes the child out of `slot` with its link, so that it can be changed in place.
    fn take_child(&self, node: &mut TreeBlock, slot: usize) -> Result<Arc<TreeBlock>> {
        match node.take_link(slot) {
            Some(child) => Ok(child),
            None => self.load_child(node, slot),
        }
    }

    fn load_child(&self, node: &TreeBlock, slot: usize) -> Result<Arc<TreeBlock>> {
        let id = self.tree.id();
        let expected = node.child_expectation(slot, id);
        let child = self.tree.forest().block(id, &expected)?;
        let bound = (slot + 1 < node.len()).then(|| node.view().key(slot + 1));
        child.check_child(bound).map_err(|reason| block_error(id, expected.address, 1, reason.into()))?;
        Ok(child)
    }

    /// Inserts pointers to `children` from `slot` of the node at `current` on; splits full nodes.
    fn insert_children(
        &self,
        node: &mut TreeBlock,
        right: &mut Vec<TreeBlock>,
        mut current: usize,
        mut slot: usize,
        children: Vec<TreeBlock>,
    ) -> Result<()> {
        for child in children {
            let target = block_at(node, right, current);
            let count = target.len();
            if count == target.max_pointers() {
                let at = if slot == count { count } else { count / 2 };
                let first = if at == count { child.first_key() } else { target.view().key(at) };
                let mut next = self.sibling(target, target.level(), &first)?;
                target.move_pointers_to(at, &mut next);
                right.insert(current, next);
                if slot > at || at == count {
                    slot -= at;
                    current += 1;
                }
            }
            let target = block_at(node, right, current);
            target.insert_pointer(slot, &pointer_to(&child), Some(Arc::new(child)));
            slot += 1;
        }
        Ok(())
    }

    /// Merges the child in `slot` with a neighbour if it is nearly empty and both fit into one
    /// block.
    fn rebalance(&self, node: &mut TreeBlock, slot: usize) -> Result<()> {
        if slot >= node.len() || node.len() < 2 {
            return Ok(());
        }
        let small = match node.link(slot) {
            Some(child) => child.used() < child.capacity() / 4,
            None => false,
        };
        if !small {
            return Ok(());
        }
        let left = if slot > 0 { slot - 1 } else { slot };
        // An unreadable neighbour is not an error: merging only saves space.
        let neighbour = if left == slot { slot + 1 } else { left };
        let Ok(other) = self.child(node, neighbour) else { return Ok(()) };
        let this = self.child(node, slot)?;
        if this.used() + other.used() > other.capacity() * 7 / 8 {
            return Ok(());
        }
        // Drop the links, so that both can be changed in place.
        node.unlink(left);
        node.unlink(left + 1);
        let (mut first, mut second) = if left == slot { (this, other) } else { (other, this) };
        let into = self.writable(&mut first)?;
        // Make a leaf writable too, although it is only read: if it is shared, its references now
        // pass to this tree.
        let from = self.writable(&mut second)?;
        if into.level() == 0 {
            into.append_items(from, 0, from.len());
        } else {
            from.move_pointers_to(0, into);
        }
        node.set_child(left, first);
        node.remove_pointer(left + 1);
        self.allocator.free(self.tree, &second)
    }

    /// Returns the child in `slot`; its link stays.
    fn child(&self, node: &TreeBlock, slot: usize) -> Result<Arc<TreeBlock>> {
        match node.link(slot) {
            Some(child) => Ok(Arc::clone(child)),
            None => self.load_child(node, slot),
        }
    }

    /// Adds levels above `root` until one block leads to it and all of `right`.
    pub(super) fn grow(&self, root: Arc<TreeBlock>, right: Vec<TreeBlock>) -> Result<Arc<TreeBlock>> {
        let (mut root, mut right) = (root, right);
        while !right.is_empty() {
            let level = root.level() + 1;
            let mut above = self.sibling(&root, level, &root.first_key())?;
            above.insert_pointer(0, &pointer_to(&root), Some(root));
            let mut more = Vec::new();
            let children = std::mem::take(&mut right);
            // Append one by one, so that the last of the new nodes grows.
            for child in children {
                let last = more.len();
                let slot = block_at(&mut above, &mut more, last).len();
                self.insert_children(&mut above, &mut more, last, slot, vec![child])?;
            }
            root = Arc::new(above);
            right = more;
        }
        Ok(root)
    }

    /// Removes root levels with at most one child.
    pub(super) fn shrink(&self, root: &mut Arc<TreeBlock>) -> Result<()> {
        while root.level() > 0 && root.len() <= 1 {
            let mut below = if root.len() == 1 {
                let mut child = self.take_child(Arc::make_mut(root), 0)?;
                self.writable(&mut child)?;
                child
            } else {
                Arc::new(self.sibling(root, 0, &Key::MIN)?)
            };
            std::mem::swap(root, &mut below);
            self.allocator.free(self.tree, &below)?;
        }
        Ok(())
    }
}

/// Returns block `current` of the sequence `block`, `right`.
fn block_at<'b>(block: &'b mut TreeBlock, right: &'b mut [TreeBlock], current: usize) -> &'b mut TreeBlock {
    match current {
        0 => block,
        _ => &mut right[current - 1],
    }
}

/// Returns how many of the first `ops` remove consecutive items from `slot` on.
fn removal_run(leaf: &TreeBlock, slot: usize, ops: &[Op<'_>]) -> usize {
    let view = leaf.view();
    ops.iter()
        .enumerate()
        .take_while(|(i, op)| op.data.is_none() && slot + i < view.len() && view.key(slot + i) == op.key)
        .count()
}

struct SplitPlace {
    /// The first item that moves to the right leaf.
    index: usize,
    /// Whether the new item stays in the left leaf.
    new_left: bool,
}

/// Returns where to split a leaf so that it and a new item of `need` bytes at `slot` fit into two
/// leaves, as evenly as possible; `None` if they need three.
fn split_place(leaf: &TreeBlock, slot: usize, need: usize) -> Option<SplitPlace> {
    let (capacity, total, count) = (leaf.capacity(), leaf.used(), leaf.len());
    let view = leaf.view();
    let mut left = 0;
    let mut best: Option<(usize, SplitPlace)> = None;
    for index in 0..=count {
        for new_left in [true, false] {
            let fits_side = if new_left { slot <= index } else { slot >= index };
            let (l, r) = if new_left { (left + need, total - left) } else { (left, total - left + need) };
            if !fits_side || l == 0 || r == 0 || l > capacity || r > capacity {
                continue;
            }
            let uneven = l.abs_diff(r);
            if best.as_ref().is_none_or(|(least, _)| uneven < *least) {
                best = Some((uneven, SplitPlace { index, new_left }));
            }
        }
        if index < count {
            left += view.item_header(index).size as usize + ItemHeader::SIZE;
        }
    }
    best.map(|(_, place)| place)
}

//! A tree that was written block by block beside the trees, and takes the place of one.
//!
//! Owns [`BuiltTree`] and its publication. The writer allocates a place for each block and writes
//! it there, outside of any handle, as it does with data. No tree refers to the blocks until
//! [`Transactions::replace_tree`], and memory holds only their places.
//!
//! **Invariant**: the blocks are on the devices before they are published.
//!
//! **Locks**: `commit`, the gate exclusively, the root tree's writer, delayed references.

use super::delayed_refs::{Head, RefKind, Reference};
use super::transaction::Transactions;
use crate::btree::{RootPointer, Tree};
use crate::errors::Result;
use crate::space::SpaceKind;
use papilio_format::items::root::{RootItem, root_key};
use papilio_format::{Generation, Key, LogicalAddress, TreeId};

/// A block that was written.
#[derive(Clone, Copy, Debug)]
pub struct BuiltBlock {
    /// Its address.
    pub address: LogicalAddress,
    /// Its level.
    pub level: u8,
    /// Its first key; the smallest key for an empty leaf.
    pub first_key: Key,
}

/// A whole tree.
#[derive(Clone, Debug)]
pub struct BuiltTree {
    /// The generation of all blocks.
    pub generation: Generation,
    /// All blocks; the root is the last one.
    pub blocks: Vec<BuiltBlock>,
}

impl Transactions {
    /// Allocates a place for a block that the caller writes.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`].
    pub fn allocate_built_block(&self) -> Result<LogicalAddress> {
        let node_size = self.node_size();
        self.allocate(SpaceKind::Metadata, node_size, node_size).map(|range| range.start)
    }

    /// Puts `built` in the place of the tree `id`, which is no subvolume, and frees the blocks of
    /// the old one. Does not commit.
    ///
    /// # Errors
    /// A block of the old tree that cannot be read, or [`crate::Error::NoSpace`]. Nothing has
    /// changed on disk.
    pub fn replace_tree(&self, id: TreeId, built: &BuiltTree) -> Result<()> {
        self.change_first(1, |handle| {
            let live = self.live.get(id)?;
            for (address, level) in blocks_of(&live.tree())? {
                handle.drop_block_ref(address, level, id, None, true);
            }
            for block in &built.blocks {
                let mut head = Head::new(self.node_size(), RefKind::TreeBlock { level: block.level });
                head.new = true;
                head.generation = built.generation;
                head.first_key = block.first_key;
                head.changes.add(Reference::Tree(id), 1);
                self.refs.insert_new(block.address, head)?;
            }
            let root = built.blocks.last().expect("a tree has a root");
            let generation = built.generation;
            let record = live.update_record(|record| {
                record.item.address = root.address;
                record.item.level = root.level;
                record.item.generation = generation;
                record.item.bytes_used = built.blocks.len() as u64 * self.node_size();
                *record
            });
            let record = record.expect("a tree that can be replaced has a root item");
            let key = Key { offset: record.key_offset, ..root_key(id) };
            self.live.root_tree().edit(handle).put(key, &RootItem::new(record.item).to_bytes())?;
            let (address, level) = (root.address, root.level);
            live.relocate_root(RootPointer { address, level, generation: Some(generation) });
            Ok(())
        })
    }
}

/// Returns the addresses and levels of all blocks of a tree, without reading its leaves.
fn blocks_of(tree: &Tree) -> Result<Vec<(LogicalAddress, u8)>> {
    let root = tree.root();
    let mut blocks = vec![(root.address, root.level)];
    let mut pending = if root.level > 0 { vec![tree.root_block()?] } else { Vec::new() };
    while let Some(node) = pending.pop() {
        let below = node.level() - 1;
        for slot in 0..node.len() {
            blocks.push((node.view().child(slot).address, below));
            if below > 0 {
                pending.push(tree.child(&node, slot, None)?);
            }
        }
    }
    Ok(blocks)
}

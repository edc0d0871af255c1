//! Iterates over the blocks of trees, for tools that show their structure.
//!
//! Owns [`TreeRoot`], [`TreeBlocks`] and [`Block`]. Unlike a cursor, the walk continues after a
//! block that cannot be read.
//!
//! **Invariant:** every block matches the pointer in its parent (level, generation, owner, first
//! key), and its keys are below the parent's next key. No block is visited twice, and the walk of
//! any bytes ends.
//!
//! Kernel counterpart: none; `btrfs inspect-internal dump-tree` shows the same blocks.

use crate::descent::{Descent, NextBlock};
use papilio_engine::btree::{Forest, RootPointer, Tree, TreeBlock};
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::item_error;
use papilio_engine::items::trees::{Trees, root_pointer};
use papilio_format::items::any::AnyItem;
use papilio_format::items::root::RootItem;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{
    Corrupt, Generation, Geometry, ItemType, Key, LogicalAddress, Node, NodeExpectation, TreeId, objectid,
};
use std::sync::Arc;

/// Number of blocks to read ahead at once.
const READ_AHEAD: usize = 16;

/// The root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeRoot {
    /// Its id. All log trees share one, as do all relocation trees: [`TreeRoot::key`] differs.
    pub id: TreeId,
    /// The key of its root item; `None` for the root, chunk and log root trees, whose roots are in
    /// the superblock.
    pub key: Option<Key>,
    /// The address of its root block.
    pub address: LogicalAddress,
    /// The level of its root block.
    pub level: u8,
    /// The generation of its root block, if it is recorded.
    pub generation: Option<Generation>,
}

impl TreeRoot {
    fn new(tree: &Tree, key: Option<Key>) -> Self {
        let RootPointer { address, level, generation } = tree.root();
        Self { id: tree.id(), key, address, level, generation }
    }

    /// Returns a root that no root item names.
    pub(crate) fn of(id: TreeId, address: LogicalAddress, level: u8, generation: Generation) -> Self {
        Self { id, key: None, address, level, generation: Some(generation) }
    }

    fn expectation(&self) -> NodeExpectation {
        NodeExpectation {
            level: Some(self.level),
            generation: self.generation,
            owner: Some(self.id),
            ..NodeExpectation::at(self.address)
        }
    }
}

/// Returns all trees: the root tree, the chunk tree, those with an item in the root tree, in its
/// order, and with a log, the log root tree and the logs.
///
/// # Errors
/// A tree block or root item that cannot be read.
pub fn tree_roots(trees: &Trees) -> Result<Vec<TreeRoot>> {
    let mut roots = vec![TreeRoot::new(&trees.root_tree(), None), TreeRoot::new(&trees.chunk_tree(), None)];
    append_named_roots(&trees.root_tree(), &mut roots)?;
    if let Some(log) = log_root_tree(trees) {
        roots.push(TreeRoot::new(&log, None));
        append_named_roots(&log, &mut roots)?;
    }
    Ok(roots)
}

/// Returns the log root tree, if the file system has a log.
fn log_root_tree(trees: &Trees) -> Option<Tree> {
    // Opening a file system for writing has replayed its log.
    if trees.transactions().is_some() {
        return None;
    }
    let (address, level) = trees.forest().volume().superblock().log_root()?;
    // Its generation is not recorded; usually it is that of the last commit plus one.
    Some(trees.forest().tree(objectid::TREE_LOG, RootPointer { address, level, generation: None }))
}

/// Appends the trees that have an item in a tree of roots, in its order.
pub(crate) fn append_named_roots(tree: &Tree, roots: &mut Vec<TreeRoot>) -> Result<()> {
    for item in tree.items() {
        let item = item?;
        if item.key.item_type == ItemType::ROOT_ITEM {
            let root = RootItem::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
            let RootPointer { address, level, generation } = root_pointer(&root);
            let id = TreeId(item.key.objectid);
            roots.push(TreeRoot { id, key: Some(item.key), address, level, generation });
        }
    }
    Ok(())
}

/// Returns the roots of the trees with id `id`. Only logs and relocation trees can be several.
///
/// # Errors
/// [`Error::MissingItem`] if there is none, or as [`tree_roots`].
pub fn roots_of(trees: &Trees, id: TreeId) -> Result<Vec<TreeRoot>> {
    match id {
        objectid::ROOT_TREE => return Ok(vec![TreeRoot::new(&trees.root_tree(), None)]),
        objectid::CHUNK_TREE => return Ok(vec![TreeRoot::new(&trees.chunk_tree(), None)]),
        _ => {}
    }
    let mut found = tree_roots(trees)?;
    found.retain(|root| root.id == id);
    match found.is_empty() {
        true => Err(Error::MissingItem {
            tree: objectid::ROOT_TREE,
            key: Key::new(id.0, ItemType::ROOT_ITEM, 0),
            what: "no such tree",
        }),
        false => Ok(found),
    }
}

/// A valid tree block.
#[derive(Clone, Debug)]
pub struct Block {
    block: Arc<TreeBlock>,
    geometry: Geometry,
}

impl Block {
    /// Returns its header.
    pub fn header(&self) -> NodeHeader {
        self.block.view().header()
    }

    /// Returns its keys, with items or pointers.
    pub fn node(&self) -> Node<'_> {
        self.block.view()
    }

    /// Returns its address.
    pub fn address(&self) -> LogicalAddress {
        self.block.address()
    }

    /// Returns its level, 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.block.level()
    }

    /// Returns the properties of the file system that parsing its items needs.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Iterates over the items of a leaf, decoded; an internal block has none.
    pub fn items(&self) -> impl Iterator<Item = BlockItem<'_>> {
        let node = self.node();
        let owner = self.block.owner();
        let count = if node.is_leaf() { node.len() } else { 0 };
        (0..count).map(move |slot| {
            let header = node.item_header(slot);
            let data = node.item(slot);
            BlockItem {
                slot,
                header,
                data,
                decoded: AnyItem::parse(&header.key, owner, data, &self.geometry),
            }
        })
    }

    /// Iterates over the children of an internal block; a leaf has none.
    pub fn children(&self) -> impl Iterator<Item = KeyPointer> {
        let node = self.node();
        let count = if node.is_leaf() { 0 } else { node.len() };
        (0..count).map(move |slot| node.child(slot))
    }
}

/// An item of a leaf.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockItem<'a> {
    /// Its slot.
    pub slot: usize,
    /// Its key, and the location of its bytes.
    pub header: ItemHeader,
    /// Its bytes.
    pub data: &'a [u8],
    /// The decoded item.
    pub decoded: Result<AnyItem<'a>, Corrupt>,
}

/// An iterator over the blocks of a tree, parents before children; depth first, in the order of
/// keys, unless [`TreeBlocks::breadth_first`] changes that. A block that cannot be read yields an
/// error; the walk skips the blocks below it and continues.
#[derive(Debug)]
pub struct TreeBlocks {
    forest: Arc<Forest>,
    tree: TreeId,
    descent: Descent,
    /// Whether to visit children.
    follow: bool,
}

impl TreeBlocks {
    /// Iterates over all blocks of a tree.
    pub fn of_tree(forest: &Arc<Forest>, root: &TreeRoot) -> Self {
        let descent = Descent::new(root.expectation());
        Self { forest: Arc::clone(forest), tree: root.id, descent, follow: true }
    }

    /// Returns the block at `address`, of any tree, and with `follow` iterates over those below it.
    pub fn at(forest: &Arc<Forest>, address: LogicalAddress, follow: bool) -> Self {
        let descent = Descent::new(NodeExpectation::at(address));
        Self { forest: Arc::clone(forest), tree: TreeId(0), descent, follow }
    }

    /// With `breadth`, visits the blocks of each level before those of the level below.
    pub fn breadth_first(mut self, breadth: bool) -> Self {
        self.descent = self.descent.breadth_first(breadth);
        self
    }

    fn visit(&mut self, next: &NextBlock) -> Result<Block> {
        let address = next.expected.address;
        let block = self.forest.block(self.tree, &next.expected)?;
        block.stays_below(next.bound).map_err(|reason| Error::TreeBlock {
            tree: self.tree,
            address,
            copies: 1,
            reason: reason.into(),
        })?;
        if self.tree == TreeId(0) {
            self.tree = block.owner();
        }
        if self.follow {
            self.descent.enter(block.view(), next.bound, self.tree);
        }
        Ok(Block { block, geometry: self.forest.volume().geometry() })
    }

    /// Reads the next run of siblings at once, before the first of them is visited.
    fn read_ahead(&mut self) {
        let upcoming = self.descent.upcoming();
        if !upcoming.len().is_multiple_of(READ_AHEAD) {
            return;
        }
        let mut siblings = upcoming.take(READ_AHEAD).map(|next| next.expected).peekable();
        let Some(level) = siblings.peek().map(|next| next.level) else { return };
        self.forest.prefetch(siblings.take_while(|sibling| sibling.level == level));
    }
}

impl Iterator for TreeBlocks {
    type Item = Result<Block>;

    fn next(&mut self) -> Option<Result<Block>> {
        self.read_ahead();
        let next = self.descent.next()?;
        Some(self.visit(&next))
    }
}

//! Trees block by block, for those who want to look at them rather than through them.
//!
//! Owns [`TreeRoot`], [`TreeBlocks`] and [`Block`]. Unlike a cursor, the walk goes on behind a block
//! that cannot be read. Invariant: every block meets what its parent says of it (level, generation,
//! owner, first key) and stays below its parent's next key, so that no block is met twice and the walk
//! ends, whatever the bytes. Kernel counterpart: none; `btrfs inspect-internal dump-tree` shows what
//! this yields.

use crate::btree::{Forest, RootPointer, Tree, TreeBlock};
use crate::errors::{Error, Result};
use crate::items::item_error;
use crate::items::trees::{Trees, root_pointer};
use papilio_format::items::any::AnyItem;
use papilio_format::items::root::RootItem;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{
    Corrupt, Generation, Geometry, ItemType, Key, LogicalAddress, Node, NodeExpectation, TreeId, objectid,
};
use std::sync::Arc;

/// Blocks read ahead at once.
const READ_AHEAD: usize = 16;

/// Where a tree starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    /// Its id. All log trees share one, and all relocation trees: [`TreeRoot::key`] tells them apart.
    pub id: TreeId,
    /// The key of its root item; `None` for the root, chunk and log root trees, which the superblock
    /// names.
    pub key: Option<Key>,
    /// The address of its root block.
    pub address: LogicalAddress,
    /// The level of its root block.
    pub level: u8,
    /// The transaction that wrote its root block, where that is recorded.
    pub generation: Option<Generation>,
}

impl TreeRoot {
    fn new(tree: &Tree, key: Option<Key>) -> Self {
        let RootPointer { address, level, generation } = tree.root();
        Self { id: tree.id(), key, address, level, generation }
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

/// All trees: the root tree, the chunk tree, those that the root tree names in its order, and the log
/// root tree and the logs where there is one.
///
/// # Errors
/// A tree block or root item that cannot be read.
pub(crate) fn tree_roots(trees: &Trees) -> Result<Vec<TreeRoot>> {
    let mut roots = vec![TreeRoot::new(&trees.root_tree(), None), TreeRoot::new(&trees.chunk_tree(), None)];
    append_named_roots(&trees.root_tree(), &mut roots)?;
    if let Some(log) = log_root_tree(trees) {
        roots.push(TreeRoot::new(&log, None));
        append_named_roots(&log, &mut roots)?;
    }
    Ok(roots)
}

/// The tree of log trees, where there is a log.
fn log_root_tree(trees: &Trees) -> Option<Tree> {
    // Whoever opens a file system for writing has replayed its log.
    if trees.transactions().is_some() {
        return None;
    }
    let (address, level) = trees.forest().volume().superblock().log_root()?;
    // Its generation is the next one in most cases, and recorded nowhere.
    Some(trees.forest().tree(objectid::TREE_LOG, RootPointer { address, level, generation: None }))
}

fn append_named_roots(tree: &Tree, roots: &mut Vec<TreeRoot>) -> Result<()> {
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

/// The roots of the trees with id `id`: one, but for logs and relocation trees.
///
/// # Errors
/// [`Error::MissingItem`] where there is none, or as [`tree_roots`].
pub(crate) fn roots_of(trees: &Trees, id: TreeId) -> Result<Vec<TreeRoot>> {
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

/// A tree block that passed every check.
#[derive(Clone, Debug)]
pub struct Block {
    block: Arc<TreeBlock>,
    geometry: Geometry,
}

impl Block {
    /// Its header.
    pub fn header(&self) -> NodeHeader {
        self.block.view().header()
    }

    /// Its keys, items or pointers.
    pub fn node(&self) -> Node<'_> {
        self.block.view()
    }

    /// Its address.
    pub fn address(&self) -> LogicalAddress {
        self.block.address()
    }

    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.block.level()
    }

    /// What readers of its items need to know.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The items of a leaf, decoded; none in an internal block.
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

    /// The children of an internal block; none in a leaf.
    pub fn children(&self) -> impl Iterator<Item = KeyPointer> {
        let node = self.node();
        let count = if node.is_leaf() { 0 } else { node.len() };
        (0..count).map(move |slot| node.child(slot))
    }
}

/// An item with its place in a leaf.
#[derive(Clone, Debug)]
pub struct BlockItem<'a> {
    /// Its slot.
    pub slot: usize,
    /// Its key and where its bytes are.
    pub header: ItemHeader,
    /// Its bytes.
    pub data: &'a [u8],
    /// What they mean.
    pub decoded: Result<AnyItem<'a>, Corrupt>,
}

/// A block to visit.
#[derive(Debug)]
struct Visit {
    expected: NodeExpectation,
    /// All keys below are smaller.
    bound: Option<Key>,
}

/// The blocks of a tree, each before what is below it, in the order of keys. A block that cannot be
/// read is an error in its place, and what is below it is left out; the walk goes on.
#[derive(Debug)]
pub struct TreeBlocks {
    forest: Arc<Forest>,
    tree: TreeId,
    /// What is still to visit, the next one last.
    stack: Vec<Visit>,
    follow: bool,
}

impl TreeBlocks {
    /// All blocks of a tree.
    pub(crate) fn of_tree(forest: &Arc<Forest>, root: &TreeRoot) -> Self {
        let visit = Visit { expected: root.expectation(), bound: None };
        Self { forest: Arc::clone(forest), tree: root.id, stack: vec![visit], follow: true }
    }

    /// The block at `address`, of whatever tree, and with `follow` those below it.
    pub(crate) fn at(forest: &Arc<Forest>, address: LogicalAddress, follow: bool) -> Self {
        let visit = Visit { expected: NodeExpectation::at(address), bound: None };
        Self { forest: Arc::clone(forest), tree: TreeId(0), stack: vec![visit], follow }
    }

    fn visit(&mut self, visit: &Visit) -> Result<Block> {
        let address = visit.expected.address;
        let block = self.forest.block(self.tree, &visit.expected)?;
        block.stays_below(visit.bound).map_err(|reason| Error::TreeBlock {
            tree: self.tree,
            address,
            copies: 1,
            reason: reason.into(),
        })?;
        if self.tree == TreeId(0) {
            self.tree = block.owner();
        }
        if self.follow && block.level() > 0 {
            self.push_children(&block, visit.bound);
        }
        Ok(Block { block, geometry: self.forest.volume().geometry() })
    }

    fn push_children(&mut self, block: &TreeBlock, bound: Option<Key>) {
        let view = block.view();
        let first = self.stack.len();
        for slot in 0..view.len() {
            let pointer = view.child(slot);
            let expected = NodeExpectation {
                address: pointer.address,
                level: Some(block.level() - 1),
                generation: Some(pointer.generation),
                owner: Some(self.tree),
                first_key: Some(pointer.key),
            };
            let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
            self.stack.push(Visit { expected, bound });
        }
        self.stack[first..].reverse();
    }

    /// Before the first of a run of siblings is read, reads all of them at once.
    fn read_ahead(&self) {
        let Some(next) = self.stack.last() else { return };
        if !self.stack.len().is_multiple_of(READ_AHEAD) {
            return;
        }
        let siblings = self.stack.iter().rev().take(READ_AHEAD).map(|visit| visit.expected);
        let level = next.expected.level;
        self.forest.prefetch(siblings.take_while(|sibling| sibling.level == level));
    }
}

impl Iterator for TreeBlocks {
    type Item = Result<Block>;

    fn next(&mut self) -> Option<Result<Block>> {
        self.read_ahead();
        let visit = self.stack.pop()?;
        Some(self.visit(&visit))
    }
}

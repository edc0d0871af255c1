//! The root set of an extent: the subvolumes that reach it.
//!
//! Owns [`RootFinder`], which follows back references up to the roots of subvolumes, in one state
//! of the file system: that of the last commit, or the one that is about to be committed.
//!
//! **Invariants**
//! - A block that belongs to a subvolume and is younger than its last snapshot is reached by that
//!   subvolume alone. The same holds for data whose references all name that subvolume. Other
//!   blocks are looked up once and remembered.
//! - The walk only goes upwards, so that it ends.
//!
//! Locks: none. The state must not change meanwhile.
//!
//! Kernel counterpart: `btrfs_find_all_roots` (`fs/btrfs/backref.c`).

use super::super::root_sets::{RootSet, RootSets};
use crate::btree::{Cursor, Forest, LiveTree, RootPointer, Tree, TreeBlock};
use crate::errors::{Error, Result};
use crate::transaction::delayed_refs::{RefKind, Reference};
use crate::transaction::extent_items::extent_info;
use crate::transaction::live_trees::LiveTrees;
use papilio_format::items::back_ref::BackRef;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::root::{RawRootItem, RootItem};
use papilio_format::{
    FileOffset, Generation, InodeNumber, ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid,
};
use std::collections::HashMap;
use std::sync::Arc;

/// The state that a [`RootFinder`] looks at.
pub(super) enum View<'a> {
    /// That of a commit, given its root tree.
    Committed(Tree),
    /// The trees as they are now.
    Live(&'a LiveTrees),
}

/// A subvolume's tree, and facts from its root item.
#[derive(Clone, Debug)]
struct Root {
    tree: Tree,
    last_snapshot: Generation,
    /// Keys below are dropped already, if the subvolume is being deleted.
    dropped_below: Key,
}

/// Finds root sets in one state.
pub(super) struct RootFinder<'a> {
    view: View<'a>,
    forest: Arc<Forest>,
    node_size: u64,
    extent_tree: Tree,
    roots: HashMap<TreeId, Option<Root>>,
    blocks: HashMap<LogicalAddress, RootSet>,
}

impl<'a> RootFinder<'a> {
    /// A finder in the given state.
    ///
    /// # Errors
    /// A block or an item of the root tree that cannot be read.
    pub(super) fn new(forest: &Arc<Forest>, view: View<'a>) -> Result<Self> {
        let extent_tree = match &view {
            View::Live(live) => live.get(objectid::EXTENT_TREE)?.tree(),
            View::Committed(root_tree) => match committed(forest, root_tree, objectid::EXTENT_TREE)? {
                Some((tree, _)) => tree,
                None => {
                    let key = Key::new(objectid::EXTENT_TREE.0, ItemType::ROOT_ITEM, 0);
                    let what = "the root item of a tree";
                    return Err(Error::MissingItem { tree: objectid::ROOT_TREE, key, what });
                }
            },
        };
        let node_size = forest.volume().geometry().node_size.into();
        Ok(Self {
            view,
            forest: Arc::clone(forest),
            node_size,
            extent_tree,
            roots: HashMap::new(),
            blocks: HashMap::new(),
        })
    }

    /// The extent tree of the state.
    pub(super) fn extent_tree(&self) -> &Tree {
        &self.extent_tree
    }

    fn last_snapshot(&mut self, id: TreeId) -> Result<Option<Generation>> {
        Ok(self.root(id)?.map(|root| root.last_snapshot))
    }

    /// Returns the root set of an extent, which is empty if the state has no such extent. `key` is
    /// the first key of a tree block, if the caller knows it.
    ///
    /// # Errors
    /// Blocks and items that cannot be read; references that lead nowhere.
    pub(super) fn roots_of(
        &mut self,
        sets: &mut RootSets,
        address: LogicalAddress,
        length: u64,
        kind: RefKind,
        key: Option<Key>,
    ) -> Result<RootSet> {
        let Some(info) = extent_info(&self.extent_tree, address, length, kind)? else {
            return Ok(RootSet::EMPTY);
        };
        let references = info.references(&self.extent_tree)?;
        if let Some(tree) = only_tree(&references) {
            if !objectid::is_subvolume(tree) {
                return Ok(RootSet::EMPTY);
            }
            if self.last_snapshot(tree)?.is_some_and(|last| info.header.generation > last) {
                return Ok(sets.single(tree));
            }
        }
        let shared: Vec<LogicalAddress> = references
            .iter()
            .filter_map(|reference| match reference {
                BackRef::SharedData { parent, .. } => Some(*parent),
                _ => None,
            })
            .collect();
        let level = match kind {
            RefKind::TreeBlock { level } => level,
            RefKind::Data => 0,
        };
        let mut found = RootSet::EMPTY;
        for reference in &references {
            let more = match *reference {
                BackRef::Owner { .. } => RootSet::EMPTY,
                BackRef::TreeBlock { root } | BackRef::Data { root, .. } if !objectid::is_subvolume(root) => {
                    RootSet::EMPTY
                }
                BackRef::TreeBlock { root } => {
                    let key = match key.or(info.first_key()) {
                        Some(key) => key,
                        None => self.first_key(root, address, level)?,
                    };
                    self.through_tree(sets, root, address, level, &key)?
                }
                // The root of a relocation tree.
                BackRef::SharedBlock { parent } if parent == address => RootSet::EMPTY,
                BackRef::SharedBlock { parent } => self.block(sets, parent, level + 1, None)?,
                BackRef::Data { root, inode, offset, count } => {
                    self.through_files(sets, root, inode, offset, count, address, &shared)?
                }
                BackRef::SharedData { parent, .. } => self.block(sets, parent, 0, None)?,
            };
            found = sets.union(found, more);
        }
        Ok(found)
    }

    /// The root set of a tree block.
    fn block(
        &mut self,
        sets: &mut RootSets,
        address: LogicalAddress,
        level: u8,
        key: Option<Key>,
    ) -> Result<RootSet> {
        if let Some(&set) = self.blocks.get(&address) {
            return Ok(set);
        }
        let kind = RefKind::TreeBlock { level };
        let set = self.roots_of(sets, address, self.node_size, kind, key)?;
        self.blocks.insert(address, set);
        Ok(set)
    }

    /// The root set of a block that was met in subvolume `root`.
    fn met(&mut self, sets: &mut RootSets, root: &Root, block: &TreeBlock) -> Result<RootSet> {
        let id = root.tree.id();
        if root.tree.root().address == block.address()
            || block.owner() == id && block.generation() > root.last_snapshot
        {
            return Ok(sets.single(id));
        }
        let view = block.view();
        let key = (!view.is_empty()).then(|| view.key(0));
        self.block(sets, block.address(), block.level(), key)
    }

    /// The root set of a block's parent in tree `id`.
    fn through_tree(
        &mut self,
        sets: &mut RootSets,
        id: TreeId,
        address: LogicalAddress,
        level: u8,
        key: &Key,
    ) -> Result<RootSet> {
        let nowhere = || Error::MissingItem {
            tree: id,
            key: *key,
            what: "the parent of a tree block that refers to this tree",
        };
        let root = self.root(id)?.ok_or_else(nowhere)?;
        if root.tree.root().address == address {
            return Ok(sets.single(id));
        }
        let mut block = root.tree.root_block()?;
        let mut bound = None;
        loop {
            if block.level() <= level {
                return Err(nowhere());
            }
            let view = block.view();
            let slot = view.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
            if block.level() == level + 1 {
                if view.child(slot).address != address {
                    return Err(nowhere());
                }
                return self.met(sets, &root, &block);
            }
            bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
            let child = root.tree.child(&block, slot, bound)?;
            block = child;
        }
    }

    /// The root set of the leaves in which `count` items of a file refer to data. Items in leaves
    /// that count by their own address (`shared`) belong to other references.
    #[allow(clippy::too_many_arguments)]
    fn through_files(
        &mut self,
        sets: &mut RootSets,
        id: TreeId,
        inode: InodeNumber,
        offset: FileOffset,
        count: u32,
        address: LogicalAddress,
        shared: &[LogicalAddress],
    ) -> Result<RootSet> {
        // The offset is that of the extent's first byte, which may lie before the file's.
        let first = if offset.0 > i64::MAX as u64 { 0 } else { offset.0 };
        let from = Key::new(inode.0, ItemType::EXTENT_DATA, first);
        let nowhere =
            || Error::MissingItem { tree: id, key: from, what: "a file extent that refers to this data" };
        let root = self.root(id)?.ok_or_else(nowhere)?;
        let mut cursor: Cursor<'_> = root.tree.seek(&from.max(root.dropped_below))?;
        let (mut left, mut found, mut last) = (count, RootSet::EMPTY, None);
        while left > 0 {
            let item = cursor
                .item()
                .filter(|item| item.key.objectid == inode.0 && item.key.item_type == ItemType::EXTENT_DATA);
            let item = item.ok_or_else(nowhere)?;
            let leaf = item.leaf();
            let fault = |reason| Error::Item { tree: id, key: item.key, reason };
            let extent = FileExtentItem::parse(item.data()).map_err(fault)?;
            if let FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) = extent.content
                && part.disk_address == address
                && item.key.offset.wrapping_sub(part.offset) == offset.0
                && leaf.owner() == id
                && !shared.contains(&leaf.address())
            {
                left -= 1;
                if last != Some(leaf.address()) {
                    last = Some(leaf.address());
                    let more = self.met(sets, &root, leaf)?;
                    found = sets.union(found, more);
                }
            }
            cursor.step()?;
        }
        Ok(found)
    }

    /// Reads a block for its first key.
    fn first_key(&self, tree: TreeId, address: LogicalAddress, level: u8) -> Result<Key> {
        // Needed even for the root, whose key leads to it from itself.
        let expected = NodeExpectation { level: Some(level), ..NodeExpectation::at(address) };
        let block = self.forest.block(tree, &expected)?;
        let view = block.view();
        Ok(if view.is_empty() { Key::MIN } else { view.key(0) })
    }

    fn root(&mut self, id: TreeId) -> Result<Option<Root>> {
        if let Some(root) = self.roots.get(&id) {
            return Ok(root.clone());
        }
        let found = match &self.view {
            View::Live(live) => {
                live.find(id)?.and_then(|tree: Arc<LiveTree>| Some((tree.tree(), tree.record()?.item)))
            }
            View::Committed(root_tree) => committed(&self.forest, root_tree, id)?,
        };
        let root = found.map(|(tree, item)| Root {
            tree,
            last_snapshot: item.last_snapshot,
            dropped_below: if item.refs == 0 { item.drop_progress } else { Key::MIN },
        });
        self.roots.insert(id, root.clone());
        Ok(root)
    }
}

/// Opens a tree of a commit.
fn committed(forest: &Arc<Forest>, root_tree: &Tree, id: TreeId) -> Result<Option<(Tree, RawRootItem)>> {
    let last = Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX);
    let found = root_tree.last_up_to(&last)?;
    let Some(item) =
        found.filter(|item| item.key.objectid == id.0 && item.key.item_type == ItemType::ROOT_ITEM)
    else {
        return Ok(None);
    };
    let fault = |reason| Error::Item { tree: objectid::ROOT_TREE, key: item.key, reason };
    let root = RootItem::parse(item.data()).map_err(fault)?;
    let pointer = RootPointer { address: root.address, level: root.level, generation: Some(root.generation) };
    Ok(Some((forest.tree(id, pointer), root.into_raw())))
}

/// The tree that all references name, if it is one.
fn only_tree(references: &[BackRef]) -> Option<TreeId> {
    let mut only = None;
    for reference in references.iter().filter_map(Reference::of) {
        let tree = match reference {
            Reference::Tree(root) | Reference::Data { root, .. } => root,
            Reference::SharedBlock(_) | Reference::SharedData(_) => return None,
        };
        if *only.get_or_insert(tree) != tree {
            return None;
        }
    }
    only
}

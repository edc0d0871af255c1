//! The trees of an open, writable file system, by id.
//!
//! Owns [`LiveTrees`].
//!
//! **Invariants**
//! - There is one [`LiveTree`] for a tree id, so that all writers of a tree change the same one.
//! - Root items in the root tree are out of date until a commit updates them.
//!
//! **Locks**: the map's, for one look-up or insertion at a time.
//!
//! Kernel counterpart: `btrfs_get_fs_root` (`fs/btrfs/disk-io.c`).

use crate::btree::{Forest, LiveTree, RootPointer, RootRecord};
use crate::errors::{Error, PathError, Result};
use papilio_format::items::root::RootItem;
use papilio_format::{ItemType, Key, TreeId, objectid};
use papilio_locks::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// All trees that were opened so far.
#[derive(Debug)]
pub struct LiveTrees {
    forest: Arc<Forest>,
    root_tree: Arc<LiveTree>,
    chunk_tree: Arc<LiveTree>,
    open: RwLock<HashMap<TreeId, Arc<LiveTree>>>,
}

impl LiveTrees {
    /// The trees below the roots `root` and `chunk_root`.
    pub(crate) fn new(forest: &Arc<Forest>, root: RootPointer, chunk_root: RootPointer) -> Self {
        Self {
            forest: Arc::clone(forest),
            root_tree: Arc::new(LiveTree::new(forest, objectid::ROOT_TREE, root, None)),
            chunk_tree: Arc::new(LiveTree::new(forest, objectid::CHUNK_TREE, chunk_root, None)),
            open: RwLock::default(),
        }
    }

    /// The root tree.
    pub fn root_tree(&self) -> &Arc<LiveTree> {
        &self.root_tree
    }

    /// The chunk tree.
    pub fn chunk_tree(&self) -> &Arc<LiveTree> {
        &self.chunk_tree
    }

    /// The forest that the trees belong to.
    pub(crate) fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns the tree `id`, or `None` if there is none.
    ///
    /// # Errors
    /// A tree block or a root item that cannot be read.
    pub fn find(&self, id: TreeId) -> Result<Option<Arc<LiveTree>>> {
        match id {
            objectid::ROOT_TREE => return Ok(Some(Arc::clone(&self.root_tree))),
            objectid::CHUNK_TREE => return Ok(Some(Arc::clone(&self.chunk_tree))),
            _ => {}
        }
        if let Some(tree) = self.open.read().get(&id) {
            return Ok(Some(Arc::clone(tree)));
        }
        let root_tree = self.root_tree.tree();
        let last = Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX);
        let found = root_tree.last_up_to(&last)?;
        let Some(item) =
            found.filter(|item| item.key.objectid == id.0 && item.key.item_type == ItemType::ROOT_ITEM)
        else {
            return Ok(None);
        };
        let root = RootItem::parse(item.data()).map_err(|reason| Error::Item {
            tree: objectid::ROOT_TREE,
            key: item.key,
            reason,
        })?;
        let pointer =
            RootPointer { address: root.address, level: root.level, generation: Some(root.generation) };
        let record = RootRecord { item: root.into_raw(), key_offset: item.key.offset };
        let mut open = self.open.write();
        // Another thread may have inserted the tree first; then that one is used.
        let tree = open
            .entry(id)
            .or_insert_with(|| Arc::new(LiveTree::new(&self.forest, id, pointer, Some(record))));
        Ok(Some(Arc::clone(tree)))
    }

    /// Returns the tree `id` if it was opened before.
    pub(crate) fn opened(&self, id: TreeId) -> Option<Arc<LiveTree>> {
        self.open.read().get(&id).map(Arc::clone)
    }

    /// Returns a tree that must exist.
    ///
    /// # Errors
    /// As [`LiveTrees::find`], and [`Error::MissingItem`]; [`PathError::NoSubvolume`] for a
    /// subvolume, which may have been deleted and cleaned while the caller had one of its files.
    pub fn get(&self, id: TreeId) -> Result<Arc<LiveTree>> {
        self.find(id)?.ok_or_else(|| match objectid::is_subvolume(id) {
            true => Error::path(format!("subvolume {id}").as_bytes(), PathError::NoSubvolume),
            false => Error::MissingItem {
                tree: objectid::ROOT_TREE,
                key: Key::new(id.0, ItemType::ROOT_ITEM, 0),
                what: "the root item of a tree",
            },
        })
    }

    /// Adds a tree that was just created.
    pub(crate) fn insert(&self, tree: Arc<LiveTree>) {
        self.open.write().insert(tree.id(), tree);
    }

    /// Removes a tree that was dropped.
    pub fn remove(&self, id: TreeId) {
        self.open.write().remove(&id);
    }
}

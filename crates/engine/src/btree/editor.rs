//! The editor: exclusive write access to a tree.
//!
//! Owns [`TreeEditor`] and [`Change`]. An error leaves the tree well formed, with some of the
//! changes applied.
//!
//! **Locks**: an editor holds its tree's `writer` lock, and takes `root` for each descent, see
//! [`super::live`].
//!
//! Kernel counterpart: `btrfs_search_slot` with an insertion length, `btrfs_insert_empty_items`,
//! `btrfs_del_items` (`fs/btrfs/ctree.c`).

use super::allocator::NodeAllocator;
use super::block::TreeBlock;
use super::change::{Edit, Op};
use super::edit::BlockIdentity;
use super::live::LiveTree;
use super::tree::{Item, Tree};
use crate::errors::{Error, Result};
use papilio_format::{Generation, Geometry, Key, TreeId};
use papilio_locks::MutexGuard;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl LiveTree {
    /// Returns an editor for the tree; waits for the current writer.
    pub fn edit<'a>(&'a self, allocator: &'a dyn NodeAllocator) -> TreeEditor<'a> {
        let _writer = self.writer.lock();
        let geometry = self.forest.volume().geometry();
        TreeEditor { tree: self, allocator, geometry, _writer }
    }
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Inserts the item or replaces its data.
    Put {
        /// Key of the item.
        key: Key,
        /// Data of the item.
        data: Vec<u8>,
    },
    /// Removes the item if it exists.
    Remove {
        /// Key of the item.
        key: Key,
    },
}

impl Change {
    /// Returns the key of the item.
    pub fn key(&self) -> Key {
        match self {
            Change::Put { key, .. } | Change::Remove { key } => *key,
        }
    }
}

/// Exclusive write access to a tree, until it is dropped.
pub struct TreeEditor<'a> {
    tree: &'a LiveTree,
    allocator: &'a dyn NodeAllocator,
    geometry: Geometry,
    _writer: MutexGuard<'a, ()>,
}

impl<'a> TreeEditor<'a> {
    /// Returns the tree id.
    pub(crate) fn id(&self) -> TreeId {
        self.tree.id
    }

    /// Returns the edited tree.
    pub(crate) fn live(&self) -> &'a LiveTree {
        self.tree
    }

    /// Returns the generation of the running transaction.
    pub fn generation(&self) -> Generation {
        self.allocator.generation()
    }

    /// Returns the geometry: node size, sector size and features.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the current tree for searches. Drop it before the next change.
    pub fn tree(&self) -> Tree {
        self.tree.tree()
    }

    /// Returns the item with exactly this key. Drop it before the next change.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Item>> {
        self.tree().get(key)
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// [`Error::ItemExists`], an unreadable block, or [`Error::NoSpace`].
    pub fn insert(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if self.get(&key)?.is_some() {
            return Err(Error::ItemExists { tree: self.id(), key });
        }
        self.run(&[Op { key, data: Some(data) }])
    }

    /// Replaces an item's data by data of any size.
    ///
    /// # Errors
    /// [`Error::MissingItem`], or the errors of [`TreeEditor::put`].
    pub fn replace(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if self.get(&key)?.is_none() {
            return Err(Error::MissingItem { tree: self.id(), key, what: "an item to replace" });
        }
        self.run(&[Op { key, data: Some(data) }])
    }

    /// Inserts an item or replaces its data.
    ///
    /// # Errors
    /// An unreadable block, or [`Error::NoSpace`].
    pub fn put(&mut self, key: Key, data: &[u8]) -> Result<()> {
        self.get(&key)?;
        self.run(&[Op { key, data: Some(data) }])
    }

    /// Removes an item. Returns whether it existed.
    ///
    /// # Errors
    /// An unreadable block, or [`Error::NoSpace`] (a shared block has to be copied).
    pub fn remove(&mut self, key: Key) -> Result<bool> {
        if self.get(&key)?.is_none() {
            return Ok(false);
        }
        self.run(&[Op { key, data: None }])?;
        Ok(true)
    }

    /// Removes all items with keys in `range`. Returns their number.
    ///
    /// # Errors
    /// See [`TreeEditor::remove`].
    pub(crate) fn remove_range(&mut self, range: RangeInclusive<Key>) -> Result<u64> {
        /// Most items removed in one pass: more than fit into a leaf.
        const BATCH: usize = 1024;
        let mut removed = 0;
        loop {
            let keys = self
                .tree()
                .range(range.clone())
                .take(BATCH)
                .map(|item| item.map(|item| item.key))
                .collect::<Result<Vec<_>>>()?;
            let ops: Vec<_> = keys.iter().map(|&key| Op { key, data: None }).collect();
            if ops.is_empty() {
                return Ok(removed);
            }
            self.run(&ops)?;
            removed += ops.len() as u64;
            if ops.len() < BATCH {
                return Ok(removed);
            }
        }
    }

    /// Applies changes in one descent.
    ///
    /// # Errors
    /// An unreadable block, or [`Error::NoSpace`].
    ///
    /// # Panics
    /// Unless the changes are in strictly ascending order of key.
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        assert!(changes.is_sorted_by(|a, b| a.key() < b.key()), "changes ascend by key");
        if changes.is_empty() {
            return Ok(());
        }
        self.get(&changes[0].key())?;
        let ops: Vec<_> = changes
            .iter()
            .map(|change| match change {
                Change::Put { key, data } => Op { key: *key, data: Some(data) },
                Change::Remove { key } => Op { key: *key, data: None },
            })
            .collect();
        self.run(&ops)
    }

    /// Makes the root block this tree's own in the running transaction and returns it. A snapshot
    /// starts with a copy of it.
    ///
    /// # Errors
    /// See [`TreeEditor::put`].
    pub(crate) fn own_root(&mut self) -> Result<Arc<TreeBlock>> {
        self.run(&[])?;
        Ok(Arc::clone(self.tree.root.read().live().expect("a writable root is in memory")))
    }

    /// Makes all blocks up to `stamp` immutable, like [`LiveTree::freeze`].
    pub(crate) fn freeze(&mut self, stamp: u64) {
        self.tree.frozen.fetch_max(stamp, Ordering::Relaxed);
    }

    fn run(&mut self, ops: &[Op<'_>]) -> Result<()> {
        let tree = self.tree;
        let edit = Edit { tree, allocator: self.allocator, frozen: tree.frozen.load(Ordering::Relaxed) };
        let mut guard = tree.root.write();
        let mut root = match guard.take_live() {
            Some(block) => block,
            None => guard.root_block()?,
        };
        let mut right = Vec::new();
        let result = edit
            .writable(&mut root)
            .and_then(|block| if ops.is_empty() { Ok(()) } else { edit.apply(block, ops, &mut right) });
        let result = result.and_then(|()| {
            root = edit.grow(Arc::clone(&root), right)?;
            edit.shrink(&mut root)
        });
        *guard = Tree::with_root(Arc::clone(&tree.forest), tree.id, root);
        tree.version.fetch_add(1, Ordering::Release);
        if !ops.is_empty() {
            tree.changed_in.store(self.generation().0, Ordering::Release);
        }
        result
    }
}

/// Creates the root of a new, empty tree: a leaf without items.
pub fn empty_root(template: &TreeBlock, identity: &BlockIdentity) -> Arc<TreeBlock> {
    Arc::new(TreeBlock::empty_like(template, identity, 0))
}

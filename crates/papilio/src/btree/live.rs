//! A tree that changes: its root in memory, one writer at a time, readers who never wait for it.
//!
//! Owns [`LiveTree`] and [`TreeEditor`]. A reader clones the root and walks what it holds; a writer
//! copies a block first where a reader holds it. A *freeze* (a commit, a snapshot) declares all blocks
//! made so far unchangeable: later changes copy them to new places, so that what was frozen can be
//! written out, or shared, at leisure.
//!
//! Locks: `writer` (held by an editor), then `root` (exclusively only while blocks in memory are
//! changed, not while a device is read, as far as the path was warmed before), and in it those of who gives and takes
//! blocks (see [`NodeAllocator`]). Of several subvolumes, the writers in the order of their ids; after them the root
//! tree's or the UUID tree's; no other trees' writers are held together. A record's lock is a leaf.
//! Kernel counterpart: `struct btrfs_root` (`fs/btrfs/ctree.h`).

use super::change::{Edit, Op};
use super::edit::BlockIdentity;
use super::{Forest, Item, NodeAllocator, RootPointer, Tree, TreeBlock};
use crate::errors::{Error, Result};
use papilio_format::items::root::RawRootItem;
use papilio_format::{Generation, Geometry, Key, TreeId, objectid};
use papilio_locks::{Mutex, MutexGuard, RwLock};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the root tree says of a tree, besides where its root is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RootRecord {
    /// The root item; its root pointer is brought up to date at a commit.
    pub(crate) item: RawRootItem,
    /// The offset of the root item's key.
    pub(crate) key_offset: u64,
}

/// The locks of a tree, its root's and its writer's: made in places of their own for trees that one thread changes at
/// once, so that `lock-order` tells them apart.
fn locks_of(tree: Tree) -> (RwLock<Tree>, Mutex<()>) {
    #[track_caller]
    fn new(tree: Tree) -> (RwLock<Tree>, Mutex<()>) {
        (RwLock::new(tree), Mutex::new(()))
    }
    match tree.id() {
        objectid::ROOT_TREE => new(tree),
        objectid::CHUNK_TREE => new(tree),
        objectid::DEV_TREE => new(tree),
        objectid::EXTENT_TREE => new(tree),
        objectid::BLOCK_GROUP_TREE => new(tree),
        objectid::FREE_SPACE_TREE => new(tree),
        objectid::CSUM_TREE => new(tree),
        objectid::UUID_TREE => new(tree),
        objectid::TREE_LOG => new(tree),
        _subvolume => new(tree),
    }
}

/// A tree that changes.
#[derive(Debug)]
pub(crate) struct LiveTree {
    id: TreeId,
    forest: Arc<Forest>,
    root: RwLock<Tree>,
    writer: Mutex<()>,
    frozen: AtomicU64,
    /// Changes so far.
    version: AtomicU64,
    /// Absent for the trees that the superblock names.
    record: Mutex<Option<RootRecord>>,
    /// The record is there and has references.
    referenced: AtomicBool,
}

impl LiveTree {
    /// A tree with its root on disk.
    pub(crate) fn new(
        forest: &Arc<Forest>,
        id: TreeId,
        root: RootPointer,
        record: Option<RootRecord>,
    ) -> Self {
        Self::of(forest.tree(id, root), record)
    }

    /// A tree whose root is `root`, which belongs to it alone.
    pub(crate) fn of_block(
        forest: &Arc<Forest>,
        id: TreeId,
        root: Arc<TreeBlock>,
        record: Option<RootRecord>,
    ) -> Self {
        Self::of(Tree::with_root(Arc::clone(forest), id, root), record)
    }

    fn of(tree: Tree, record: Option<RootRecord>) -> Self {
        let (id, forest) = (tree.id(), Arc::clone(tree.forest()));
        let (root, writer) = locks_of(tree);
        Self {
            id,
            forest,
            root,
            writer,
            frozen: AtomicU64::new(0),
            version: AtomicU64::new(0),
            referenced: AtomicBool::new(is_referenced(record.as_ref())),
            record: Mutex::new(record),
        }
    }

    /// Its id.
    pub(crate) fn id(&self) -> TreeId {
        self.id
    }

    /// The forest it stands in.
    pub(crate) fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// The tree as it is now. Holding it makes the next change copy its path.
    pub(crate) fn tree(&self) -> Tree {
        self.root.read().clone()
    }

    /// A number that is another one after each change: what was read of the tree after asking for it holds
    /// for as long as it stays.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// What the root tree says of it.
    pub(crate) fn record(&self) -> Option<RootRecord> {
        *self.record.lock()
    }

    /// Changes what the root tree will say of it.
    pub(crate) fn update_record<R>(&self, change: impl FnOnce(&mut RootRecord) -> R) -> Option<R> {
        let mut record = self.record.lock();
        let result = record.as_mut().map(change);
        self.referenced.store(is_referenced(record.as_ref()), Ordering::Release);
        result
    }

    /// Whether the root tree has an item for it, with references: not so any more once a subvolume is deleted,
    /// which is said before anything of it is freed.
    pub(crate) fn is_referenced(&self) -> bool {
        self.referenced.load(Ordering::Acquire)
    }

    /// Starts changing it; waits for another writer to end.
    pub(crate) fn edit<'a>(&'a self, allocator: &'a dyn NodeAllocator) -> TreeEditor<'a> {
        let _writer = self.writer.lock();
        let geometry = self.forest.volume().geometry();
        TreeEditor { tree: self, allocator, geometry, _writer }
    }

    /// Declares all blocks made up to `stamp` unchangeable and returns the tree as of now. Nobody has begun to change
    /// it with an older clock and not ended.
    pub(crate) fn freeze(&self, stamp: u64) -> Tree {
        let _writer = self.writer.lock();
        self.frozen.fetch_max(stamp, Ordering::Relaxed);
        self.tree()
    }

    /// Declares all blocks made so far unchangeable by moving `clock` on, while no writer is half-way; returns the
    /// tree as of now and the stamp up to which it is frozen. For a tree that is changed meanwhile: a stamp that was
    /// taken before the writer ended would leave the blocks that it made after that out.
    pub(crate) fn freeze_now(&self, clock: &AtomicU64) -> (Tree, u64) {
        let _writer = self.writer.lock();
        let stamp = clock.fetch_add(1, Ordering::AcqRel);
        self.frozen.fetch_max(stamp, Ordering::Relaxed);
        (self.tree(), stamp)
    }

    /// Drops what is kept in memory of blocks made up to `stamp`, all of which are on disk by now and
    /// can be read again.
    pub(crate) fn settle(&self, stamp: u64) {
        let _writer = self.writer.lock();
        let mut root = self.root.write();
        let Some(mut block) = root.take_live() else { return };
        settle_block(&mut block, stamp);
        *root = Tree::with_root(Arc::clone(&self.forest), self.id, block);
    }
}

fn is_referenced(record: Option<&RootRecord>) -> bool {
    record.is_some_and(|record| record.item.refs > 0)
}

/// Replaces a block that is on disk by a clean one, and drops the links to those below a newer one.
fn settle_block(block: &mut Arc<TreeBlock>, stamp: u64) {
    if block.stamp() == 0 || block.level() == 0 && block.stamp() > stamp {
        return;
    }
    if block.stamp() <= stamp {
        *block = Arc::new(block.without_links());
        return;
    }
    let node = Arc::make_mut(block);
    for slot in 0..node.len() {
        match node.link(slot).map(|child| child.stamp() <= stamp) {
            Some(true) => node.unlink(slot),
            Some(false) if node.level() > 1 => {
                let mut child = node.take_link(slot).expect("seen above");
                settle_block(&mut child, stamp);
                node.set_child(slot, child);
            }
            _ => {}
        }
    }
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Inserts the item, or gives it other data.
    Put {
        /// Its key.
        key: Key,
        /// Its data.
        data: Vec<u8>,
    },
    /// Removes the item, if it is there.
    Remove {
        /// Its key.
        key: Key,
    },
}

impl Change {
    /// The key of the item.
    pub(crate) fn key(&self) -> Key {
        match self {
            Change::Put { key, .. } | Change::Remove { key } => *key,
        }
    }
}

/// The right to change a tree, until it is dropped.
pub(crate) struct TreeEditor<'a> {
    tree: &'a LiveTree,
    allocator: &'a dyn NodeAllocator,
    geometry: Geometry,
    _writer: MutexGuard<'a, ()>,
}

impl<'a> TreeEditor<'a> {
    /// The tree's id.
    pub(crate) fn id(&self) -> TreeId {
        self.tree.id
    }

    /// The tree that is edited.
    pub(crate) fn live(&self) -> &'a LiveTree {
        self.tree
    }

    /// The running transaction.
    pub(crate) fn generation(&self) -> Generation {
        self.allocator.generation()
    }

    /// Node and sector size, features.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The tree as it is now, to be searched. Drop it before the next change.
    pub(crate) fn tree(&self) -> Tree {
        self.tree.tree()
    }

    /// The item with exactly this key. Drop it before the next change.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Item>> {
        self.tree().get(key)
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// [`Error::ItemExists`], a block that cannot be read, [`Error::NoSpace`].
    pub(crate) fn insert(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if self.get(&key)?.is_some() {
            return Err(Error::ItemExists { tree: self.id(), key });
        }
        self.run(&[Op { key, data: Some(data) }])
    }

    /// Gives an item other data, of any size.
    ///
    /// # Errors
    /// [`Error::MissingItem`], or as [`TreeEditor::insert`].
    pub(crate) fn replace(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if self.get(&key)?.is_none() {
            return Err(Error::MissingItem { tree: self.id(), key, what: "an item to be changed" });
        }
        self.run(&[Op { key, data: Some(data) }])
    }

    /// Inserts an item, or gives it other data.
    ///
    /// # Errors
    /// A block that cannot be read, [`Error::NoSpace`].
    pub(crate) fn put(&mut self, key: Key, data: &[u8]) -> Result<()> {
        self.get(&key)?;
        self.run(&[Op { key, data: Some(data) }])
    }

    /// Removes an item; says whether it was there.
    ///
    /// # Errors
    /// A block that cannot be read, [`Error::NoSpace`] (a shared block has to be copied).
    pub(crate) fn remove(&mut self, key: Key) -> Result<bool> {
        if self.get(&key)?.is_none() {
            return Ok(false);
        }
        self.run(&[Op { key, data: None }])?;
        Ok(true)
    }

    /// Removes all items with keys in `range`; says how many.
    ///
    /// # Errors
    /// As [`TreeEditor::remove`].
    pub(crate) fn remove_range(&mut self, range: RangeInclusive<Key>) -> Result<u64> {
        /// Removed at once: more than a leaf holds.
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

    /// Carries out changes in one descent.
    ///
    /// # Errors
    /// A block that cannot be read, [`Error::NoSpace`].
    ///
    /// # Panics
    /// Unless the changes ascend by key, each key once.
    pub(crate) fn apply(&mut self, changes: &[Change]) -> Result<()> {
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

    /// Makes the root block the tree's own in this transaction, and returns it: a snapshot begins with
    /// a copy of it.
    ///
    /// # Errors
    /// As [`TreeEditor::put`].
    pub(crate) fn own_root(&mut self) -> Result<Arc<TreeBlock>> {
        self.run(&[])?;
        Ok(Arc::clone(self.tree.root.read().live().expect("a writable root is in memory")))
    }

    /// Declares what was made up to `stamp` unchangeable, as [`LiveTree::freeze`] does.
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
        result
    }
}

/// The root of a new, empty tree: a leaf without items.
pub(crate) fn empty_root(template: &TreeBlock, identity: &BlockIdentity) -> Arc<TreeBlock> {
    Arc::new(TreeBlock::empty_like(template, identity, 0))
}

//! A tree that changes: its root in memory, one writer at a time, and readers that never wait for
//! it.
//!
//! Owns [`LiveTree`]; [`super::TreeEditor`] changes it. A reader clones the root and walks the
//! blocks it reaches. A writer copies a block first if a reader holds it. A *freeze* (by a commit
//! or a snapshot) makes all existing blocks immutable: later changes copy them to new addresses.
//! The frozen state can be written out, or shared, at any later time.
//!
//! **Locks**, in order of acquisition:
//! - `writer`, held by an editor. The writers of several subvolumes are acquired in order of tree
//!   id; then the root tree's or the UUID tree's. No other trees' writers are held together.
//! - `root`, exclusively while blocks in memory change. No device is read under it if the path was
//!   cached beforehand.
//! - the locks of the block allocator (see [`super::NodeAllocator`]).
//! - `record` is a leaf.
//!
//! Kernel counterpart: `struct btrfs_root` (`fs/btrfs/ctree.h`).

use super::block::TreeBlock;
use super::forest::Forest;
use super::tree::{RootPointer, Tree};
use papilio_format::items::root::RawRootItem;
use papilio_format::{Generation, TreeId, objectid};
use papilio_locks::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The root tree's information about a tree, except the location of its root.
#[derive(Clone, Copy, Debug)]
pub struct RootRecord {
    /// The root item; a commit updates its root pointer.
    pub(crate) item: RawRootItem,
    /// Offset of the root item's key.
    pub(crate) key_offset: u64,
}

/// Creates the root lock and the writer lock of a tree. Trees that one thread changes at the same
/// time get locks created on different source lines, so that `lock-order` can distinguish them.
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
        objectid::QUOTA_TREE => new(tree),
        objectid::TREE_LOG => new(tree),
        _subvolume => new(tree),
    }
}

/// A tree that changes.
#[derive(Debug)]
pub struct LiveTree {
    pub(super) id: TreeId,
    pub(super) forest: Arc<Forest>,
    pub(super) root: RwLock<Tree>,
    pub(super) writer: Mutex<()>,
    pub(super) frozen: AtomicU64,
    /// Number of changes so far.
    pub(super) version: AtomicU64,
    /// The last transaction since the mount that changed items; 0 if none did.
    pub(super) changed_in: AtomicU64,
    /// `None` for the trees that the superblock names.
    record: Mutex<Option<RootRecord>>,
    /// Whether there is a record with references.
    referenced: AtomicBool,
    /// Whether the subvolume was deleted in this mount, and stays for inodes that are in use.
    held: AtomicBool,
}

impl LiveTree {
    /// Creates a tree with its root on disk.
    pub(crate) fn new(
        forest: &Arc<Forest>,
        id: TreeId,
        root: RootPointer,
        record: Option<RootRecord>,
    ) -> Self {
        Self::of(forest.tree(id, root), record)
    }

    /// Creates a tree with the root block `root`, which belongs to it alone.
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
            changed_in: AtomicU64::new(0),
            referenced: AtomicBool::new(is_referenced(record.as_ref())),
            held: AtomicBool::new(false),
            record: Mutex::new(record),
        }
    }

    /// Returns the tree id.
    pub fn id(&self) -> TreeId {
        self.id
    }

    /// Returns the forest that the tree belongs to.
    pub(crate) fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns the current tree. Holding it makes the next change copy its path.
    pub fn tree(&self) -> Tree {
        self.root.read().clone()
    }

    /// Returns a number that every change increments. Results read from the tree after this call
    /// are current as long as the number is the same.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns whether transaction `generation` has changed items of the tree. A snapshot of a tree
    /// gives it a new root block, which is no such change.
    pub(crate) fn is_changed_in(&self, generation: Generation) -> bool {
        self.changed_in.load(Ordering::Acquire) == generation.0
    }

    /// Notes that transaction `generation` has changed the tree, without a change of its items.
    pub(crate) fn note_change(&self, generation: Generation) {
        self.changed_in.store(generation.0, Ordering::Release);
    }

    /// Returns the root tree's information about the tree.
    pub(crate) fn record(&self) -> Option<RootRecord> {
        *self.record.lock()
    }

    /// Returns what `read` takes from the root tree's information.
    pub(crate) fn with_record<R>(&self, read: impl FnOnce(&RootRecord) -> R) -> Option<R> {
        self.record.lock().as_ref().map(read)
    }

    /// Changes the information for the root tree.
    pub(crate) fn update_record<R>(&self, change: impl FnOnce(&mut RootRecord) -> R) -> Option<R> {
        let mut record = self.record.lock();
        let result = record.as_mut().map(change);
        self.referenced.store(is_referenced(record.as_ref()), Ordering::Release);
        result
    }

    /// Returns whether the root tree has an item with references for the tree. Deleting a subvolume
    /// clears this before any of its blocks are freed.
    pub(crate) fn is_referenced(&self) -> bool {
        self.referenced.load(Ordering::Acquire)
    }

    /// Returns whether the tree can be read and changed: it is referenced, or held.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_referenced() || self.is_held()
    }

    /// Returns whether the subvolume was deleted, and stays for inodes that are in use.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Keeps a subvolume that is about to be deleted for inodes that are in use, or ends that. The
    /// caller holds the writer lock, and ends it before any block is freed.
    pub(crate) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Release);
    }

    /// Makes all blocks with stamps up to `stamp` immutable and returns the current tree. No writer
    /// that read an older clock is still active.
    pub(crate) fn freeze(&self, stamp: u64) -> Tree {
        let _writer = self.writer.lock();
        self.frozen.fetch_max(stamp, Ordering::Relaxed);
        self.tree()
    }

    /// Advances `clock` and makes all existing blocks immutable, while no writer is active. Returns
    /// the current tree and the stamp up to which it is frozen.
    ///
    /// This is for a tree that others may be changing. A stamp taken before the writer finished
    /// would miss the blocks that it makes afterwards.
    pub(crate) fn freeze_now(&self, clock: &AtomicU64) -> (Tree, u64) {
        let _writer = self.writer.lock();
        let stamp = clock.fetch_add(1, Ordering::AcqRel);
        self.frozen.fetch_max(stamp, Ordering::Relaxed);
        (self.tree(), stamp)
    }

    /// Replaces the root by a copy with the same contents, which is on disk. The tree has no
    /// changes that are not.
    pub(crate) fn relocate_root(&self, root: RootPointer) {
        let _writer = self.writer.lock();
        *self.root.write() = self.forest.tree(self.id, root);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Drops blocks with stamps up to `stamp` from memory. All of them are on disk and can be read
    /// again.
    ///
    /// A subvolume that was not changed since is left with a pointer to its root: there may be
    /// thousands. The other trees keep their root blocks, which are read all the time.
    pub(crate) fn settle(&self, stamp: u64) {
        let _writer = self.writer.lock();
        let mut root = self.root.write();
        let Some(mut block) = root.take_live() else { return };
        if block.stamp() <= stamp && objectid::is_subvolume(self.id) {
            *root = self.forest.tree(self.id, root.root());
            return;
        }
        settle_block(&mut block, stamp);
        *root = Tree::with_root(Arc::clone(&self.forest), self.id, block);
    }
}

fn is_referenced(record: Option<&RootRecord>) -> bool {
    record.is_some_and(|record| record.item.refs > 0)
}

/// Replaces a block on disk by a clean one, and drops links from newer blocks to blocks on disk.
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

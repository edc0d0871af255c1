//! Log trees: what was fsynced since the last commit, on disk beside it.
//!
//! Owns [`LogTrees`] and the way of a log to disk: changes are entered into a log tree for each subvolume
//! ([`Transactions::enter_log`]) and made durable together ([`Transactions::sync_log`]), those of all who wait
//! at once: log trees, their root tree, a flush, the first superblock copy, which names the root tree and
//! bears the generation of the last commit.
//!
//! Invariants: a log belongs to the running transaction, and its blocks bear its generation; nothing of it is
//! in the extent tree, and all its blocks stay taken until a commit without it is on disk; no block that a
//! superblock on disk leads to is written again. Where the log cannot say what has to be durable (a chunk or
//! a feature bit that only the next commit makes known), the answer is [`Synced::NeedsCommit`].
//!
//! Locks, in this order: `commit`, a tree's writer, `log` (a leaf, for one operation on the lists). Kernel
//! counterparts: `start_log_trans`, `btrfs_sync_log`, `free_log_tree` (`fs/btrfs/tree-log.c`), `alloc_log_tree`
//! (`fs/btrfs/disk-io.c`).

use super::handle::Handle;
use super::transaction::Transactions;
use crate::btree::{
    BlockIdentity, LiveTree, NodeAllocator, Tree, TreeBlock, TreeEditor, dirty_blocks_since, empty_root,
};
use crate::errors::{Error, Result};
use crate::space::{LogicalRange, SpaceKind};
use papilio_format::items::inode::FileKind;
use papilio_format::items::root::{RawRootItem, RootItem};
use papilio_format::superblock::RawSuperblock;
use papilio_format::{Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(super) struct LogTrees {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The root tree of log trees.
    root: Option<Arc<LiveTree>>,
    trees: BTreeMap<TreeId, Arc<LiveTree>>,
    /// Subvolumes whose log changed since the last sync.
    changed: BTreeSet<TreeId>,
    /// All blocks that were taken.
    blocks: Vec<LogicalRange>,
    /// A change of it stopped half-way: it is not synced any more.
    broken: bool,
    /// Inodes that are in the log.
    inodes: BTreeSet<(TreeId, InodeNumber)>,
    /// Changes entered, and how many of them are on disk.
    entered: u64,
    synced: u64,
    /// The clock of freezes when the last sync froze the log trees, and when it froze their root tree. Not
    /// one for both: others change log trees in between.
    synced_stamp: u64,
    root_synced_stamp: u64,
}

/// What was entered into the log and waits to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTicket {
    generation: Generation,
    entered: u64,
}

/// What syncing a log came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Synced {
    /// It is durable.
    Durable,
    /// Only a commit makes it so.
    NeedsCommit,
}

impl LogTrees {
    /// Ends the log: what it took is free once the commit is on disk.
    pub(super) fn take_blocks(&self) -> Vec<LogicalRange> {
        std::mem::take(&mut *self.state.lock()).blocks
    }
}

/// Gives a log its blocks.
struct LogAllocator<'a, 't> {
    handle: &'a Handle<'t>,
    log: &'a LogTrees,
}

impl LogAllocator<'_, '_> {
    fn take(&self) -> Result<LogicalAddress> {
        let range = self.handle.allocate_untracked(SpaceKind::Metadata)?;
        self.log.state.lock().blocks.push(range);
        Ok(range.start)
    }
}

impl NodeAllocator for LogAllocator<'_, '_> {
    fn generation(&self) -> Generation {
        self.handle.generation()
    }

    fn stamp(&self) -> u64 {
        self.handle.stamp()
    }

    fn allocate(&self, _tree: &LiveTree, _level: u8, _first_key: &Key) -> Result<LogicalAddress> {
        self.take()
    }

    /// It stays taken: a superblock on disk may lead to it.
    fn free(&self, _tree: &LiveTree, _block: &TreeBlock) -> Result<()> {
        Ok(())
    }

    fn copied(&self, _tree: &LiveTree, _old: &TreeBlock, _new: &TreeBlock) -> Result<()> {
        Ok(())
    }
}

impl Transactions {
    /// Whether the running transaction's log has this inode.
    pub(crate) fn is_logged(&self, subvolume: TreeId, inode: InodeNumber) -> bool {
        self.log.state.lock().inodes.contains(&(subvolume, inode))
    }

    /// Changes the log of a subvolume: `change` gets an editor of its tree, and returns the inodes that the
    /// log has by then.
    ///
    /// # Errors
    /// What `change` returns; [`Error::NoSpace`].
    pub(crate) fn enter_log(
        &self,
        handle: &Handle<'_>,
        subvolume: TreeId,
        change: impl FnOnce(&mut TreeEditor<'_>) -> Result<Vec<InodeNumber>>,
    ) -> Result<LogTicket> {
        let allocator = LogAllocator { handle, log: &self.log };
        let tree = self.log_tree(handle, subvolume)?;
        let inodes = change(&mut tree.edit(&allocator)).inspect_err(|_| self.break_log())?;
        let mut state = self.log.state.lock();
        state.changed.insert(subvolume);
        state.inodes.extend(inodes.into_iter().map(|inode| (subvolume, inode)));
        state.entered += 1;
        Ok(LogTicket { generation: handle.generation(), entered: state.entered })
    }

    /// The log tree of a subvolume, made where there is none.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn log_tree(&self, handle: &Handle<'_>, subvolume: TreeId) -> Result<Arc<LiveTree>> {
        if let Some(tree) = self.log.state.lock().trees.get(&subvolume) {
            return Ok(Arc::clone(tree));
        }
        let tree = self.new_log_tree(&LogAllocator { handle, log: &self.log })?;
        // Another may have been quicker: its tree is the one, and a block of this is lost until the commit.
        let mut state = self.log.state.lock();
        Ok(Arc::clone(state.trees.entry(subvolume).or_insert(tree)))
    }

    /// The log of the running transaction is not what it has to be: fsyncs are commits until it ends.
    pub(crate) fn break_log(&self) {
        self.log.state.lock().broken = true;
    }

    /// An inode was taken out of the log.
    pub(crate) fn forget_logged(&self, subvolume: TreeId, inode: InodeNumber) {
        self.log.state.lock().inodes.remove(&(subvolume, inode));
    }

    fn new_log_tree(&self, allocator: &LogAllocator<'_, '_>) -> Result<Arc<LiveTree>> {
        let template = self.live.root_tree().tree().root_block()?;
        let identity = BlockIdentity {
            address: allocator.take()?,
            generation: allocator.generation(),
            owner: objectid::TREE_LOG,
            stamp: allocator.stamp(),
        };
        let root = empty_root(&template, &identity);
        Ok(Arc::new(LiveTree::of_block(self.live.forest(), objectid::TREE_LOG, root, None)))
    }

    /// Makes durable what was entered into the log with `ticket`, and before.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`] after an earlier failure; else the failure of this, which latches the
    /// file system read-only, as nobody knows what is on disk then.
    pub(crate) fn sync_log(&self, ticket: LogTicket) -> Result<Synced> {
        let state = self.commit.lock();
        self.check_running()?;
        if state.written.generation >= ticket.generation {
            // A commit came in between.
            return Ok(Synced::Durable);
        }
        let features = *self.features.lock();
        if self.log.state.lock().broken
            || state.superblock_changed
            || self.chunks.has_pending()
            || !state.written.incompat_flags.contains(features)
        {
            return Ok(Synced::NeedsCommit);
        }
        let result = self.sync_log_locked(ticket, &state.written);
        match &result {
            // Nothing was written that anything leads to.
            Err(Error::NoSpace { .. }) => return Ok(Synced::NeedsCommit),
            Err(error) => self.abort(error),
            Ok(()) => {}
        }
        result.map(|()| Synced::Durable)
    }

    fn sync_log_locked(&self, ticket: LogTicket, written: &RawSuperblock) -> Result<()> {
        let (changed, since, root_since, upto) = {
            let mut log = self.log.state.lock();
            if log.synced >= ticket.entered {
                return Ok(());
            }
            let changed: Vec<_> = std::mem::take(&mut log.changed)
                .into_iter()
                .map(|id| (id, Arc::clone(&log.trees[&id])))
                .collect();
            (changed, log.synced_stamp, log.root_synced_stamp, log.entered)
        };
        // No commit ends the transaction meanwhile: that takes the lock which the caller holds.
        let handle = Handle::new(self, None, None, self.now());
        let allocator = LogAllocator { handle: &handle, log: &self.log };
        let stamp = self.stamp.fetch_add(1, Ordering::AcqRel);
        let mut frozen: Vec<Tree> = Vec::with_capacity(changed.len());
        let mut roots = Vec::with_capacity(changed.len());
        for (id, tree) in &changed {
            let tree = tree.freeze(stamp);
            let root = tree.root_block()?;
            roots.push((log_root_key(*id), log_root_item(&root, self.node_size())));
            drop(root);
            frozen.push(tree);
        }
        let root_tree = self.log.state.lock().root.clone();
        let root_tree = match root_tree {
            Some(tree) => tree,
            None => {
                let tree = self.new_log_tree(&allocator)?;
                self.log.state.lock().root = Some(Arc::clone(&tree));
                tree
            }
        };
        for (key, item) in roots {
            root_tree.edit(&allocator).put(key, &item)?;
        }
        let root_stamp = self.stamp.fetch_add(1, Ordering::AcqRel);
        let root = root_tree.freeze(root_stamp);
        let root_block = root.root_block()?;
        let superblock =
            RawSuperblock { log_root: root_block.address(), log_root_level: root_block.level(), ..*written };
        let mut blocks = Vec::new();
        dirty_blocks_since(&root_block, root_since, &mut blocks);
        for tree in &frozen {
            dirty_blocks_since(&tree.root_block()?, since, &mut blocks);
        }
        self.write_blocks(blocks)?;
        drop((frozen, root_block, root));
        self.volume.flush()?;
        self.volume.write_log_superblock(&superblock)?;
        let mut log = self.log.state.lock();
        log.synced = upto;
        log.synced_stamp = stamp;
        log.root_synced_stamp = root_stamp;
        Ok(())
    }
}

/// The key by which the root tree of log trees finds that of a subvolume.
pub(crate) const fn log_root_key(subvolume: TreeId) -> Key {
    Key::new(objectid::TREE_LOG.0, ItemType::ROOT_ITEM, subvolume.0)
}

/// The root item of a log tree, as the kernel makes it.
fn log_root_item(root: &TreeBlock, node_size: u64) -> [u8; RawRootItem::SIZE] {
    let mut item = RawRootItem::parse(&[0; RawRootItem::SIZE]).expect("zeros are a root item");
    item.inode.generation = Generation(1);
    item.inode.size = 3;
    item.inode.nlink = 1;
    item.inode.nbytes = node_size;
    item.inode.mode = FileKind::Directory.mode_bits() | 0o755;
    item.generation = root.generation();
    item.address = root.address();
    item.level = root.level();
    item.refs = 1;
    RootItem::new(item).to_bytes()
}

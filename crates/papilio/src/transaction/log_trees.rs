//! Log trees: what was fsynced since the last commit, on disk beside it.
//!
//! Owns [`LogTrees`]: changes are entered into a log tree for each subvolume ([`Transactions::enter_log`]), which
//! [`super::log_sync`] makes durable.
//!
//! Invariants: a log belongs to the running transaction, and its blocks bear its generation; nothing of it is
//! in the extent tree, and all its blocks stay taken until a commit without it is on disk; no block that a
//! superblock on disk leads to is written again (see [`super::log_blocks`]). All blocks of a log stay in memory,
//! and in no cache of what is on disk.
//!
//! Locks, in this order: a tree's writer, `log` (a leaf, for one operation on the lists). Kernel counterparts:
//! `start_log_trans`, `free_log_tree` (`fs/btrfs/tree-log.c`), `alloc_log_tree` (`fs/btrfs/disk-io.c`).

use super::handle::Handle;
use super::log_blocks::LogBlocks;
use super::log_queue::{LogQueue, LogTicket};
use super::transaction::Transactions;
use crate::btree::{BlockIdentity, LiveTree, NodeAllocator, TreeBlock, TreeEditor, empty_root};
use crate::errors::Result;
use crate::space::{LogicalRange, SpaceKind};
use papilio_format::{Generation, InodeNumber, Key, LogicalAddress, TreeId, objectid};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(super) struct LogTrees {
    pub(super) state: Mutex<State>,
    pub(super) blocks: LogBlocks,
    pub(super) queue: LogQueue,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The root tree of log trees.
    pub(super) root: Option<Arc<LiveTree>>,
    pub(super) trees: BTreeMap<TreeId, Arc<LiveTree>>,
    /// Subvolumes whose log changed since the last sync.
    pub(super) changed: BTreeSet<TreeId>,
    /// A change of it stopped half-way: it is not synced any more.
    pub(super) broken: bool,
    /// Inodes that are in the log.
    inodes: BTreeSet<(TreeId, InodeNumber)>,
    /// Changes entered.
    pub(super) entered: u64,
    /// Up to which stamp the blocks of each log tree are on disk, and those of their root tree.
    pub(super) synced: BTreeMap<TreeId, u64>,
    pub(super) root_synced: u64,
}

impl LogTrees {
    /// Ends the log: what it took is free once the commit is on disk.
    pub(super) fn take_blocks(&self) -> Vec<LogicalRange> {
        *self.state.lock() = State::default();
        self.blocks.end()
    }
}

/// Gives a log its blocks.
pub(super) struct LogAllocator<'a, 't> {
    pub(super) handle: &'a Handle<'t>,
    pub(super) log: &'a LogTrees,
}

impl LogAllocator<'_, '_> {
    fn take(&self) -> Result<LogicalAddress> {
        if let Some(address) = self.log.blocks.reuse() {
            return Ok(address);
        }
        let range = self.handle.allocate_untracked(SpaceKind::Metadata)?;
        self.log.blocks.take(range);
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

    fn free(&self, _tree: &LiveTree, block: &TreeBlock) -> Result<()> {
        self.log.blocks.leave(block.address());
        Ok(())
    }

    fn copied(&self, tree: &LiveTree, old: &TreeBlock, _new: &TreeBlock) -> Result<()> {
        self.free(tree, old)
    }

    fn moves(&self) -> bool {
        true
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
        // Marked before the tree can be frozen.
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

    pub(super) fn new_log_tree(&self, allocator: &LogAllocator<'_, '_>) -> Result<Arc<LiveTree>> {
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
}

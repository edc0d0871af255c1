//! Log trees: changes fsynced since the last commit, on disk beside it.
//!
//! Owns [`Transactions::enter_log`], which enters changes into the log tree of a subvolume, and
//! [`LogAllocator`], which provides its blocks. [`super::log_sync`] makes the changes durable.
//!
//! **Invariants**
//! - A log belongs to the running transaction, and its blocks carry that generation.
//! - Nothing of a log is in the extent tree. Its blocks stay allocated until a commit without it is
//!   on disk.
//! - A block that a superblock on disk leads to is never overwritten (see [`super::log_blocks`]).
//! - All blocks of a log stay in memory, outside the cache of blocks that are on disk.
//!
//! **Locks**, in this order: a tree's writer; that of [`RunningLog`], a leaf.
//!
//! Kernel counterparts: `start_log_trans` (`fs/btrfs/tree-log.c`), `alloc_log_tree`
//! (`fs/btrfs/disk-io.c`).

use super::handle::Handle;
use super::log_queue::LogTicket;
use super::log_state::RunningLog;
use super::transaction::Transactions;
use crate::btree::{BlockIdentity, LiveTree, NodeAllocator, TreeBlock, TreeEditor, empty_root};
use crate::errors::Result;
use crate::space::SpaceKind;
use papilio_format::{Generation, InodeNumber, Key, LogicalAddress, TreeId, objectid};
use std::sync::Arc;

/// Blocks that a log takes at once, beside the one that it needs, while there is much space.
const AHEAD: usize = 15;

/// Allocates and frees blocks of a log.
pub(super) struct LogAllocator<'a, 't> {
    pub(super) handle: &'a Handle<'t>,
    pub(super) log: &'a RunningLog,
}

impl LogAllocator<'_, '_> {
    fn take(&self) -> Result<LogicalAddress> {
        let blocks = &self.log.blocks;
        if let Some(address) = blocks.fresh() {
            return Ok(address);
        }
        let transactions = self.handle.transactions();
        let space = transactions.space();
        // In memory adjacent blocks save nothing, and blocks used lately are in the processor's
        // caches.
        let wants_more =
            transactions.volume().waits() && blocks.wants_more(space.available(SpaceKind::Metadata));
        if !wants_more && let Some(address) = blocks.reuse() {
            return Ok(address);
        }
        let range = self.handle.allocate_untracked(SpaceKind::Metadata)?;
        blocks.take(range);
        // The next ones lie behind it: blocks of other trees do not come between.
        for _ in 0..if wants_more { AHEAD } else { 0 } {
            let Ok(range) = self.handle.allocate_ahead(SpaceKind::Metadata) else { break };
            blocks.take_ahead(range);
        }
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
    /// Whether the inode is in the running transaction's log.
    pub fn is_logged(&self, subvolume: TreeId, inode: InodeNumber) -> bool {
        self.log.state.lock().inodes.contains(&(subvolume, inode))
    }

    /// Changes the log of a subvolume. `change` gets an editor of its tree, and returns the inodes
    /// that it added.
    ///
    /// # Errors
    /// Errors of `change`; [`Error::NoSpace`](crate::Error::NoSpace).
    pub(crate) fn enter_log(
        &self,
        handle: &Handle<'_>,
        subvolume: TreeId,
        change: impl FnOnce(&mut TreeEditor<'_>) -> Result<Vec<InodeNumber>>,
    ) -> Result<LogTicket> {
        let allocator = LogAllocator { handle, log: &self.log };
        let tree = self.log_tree(handle, subvolume)?;
        // A failed change marks the log broken while the editor still keeps syncs from freezing the
        // tree.
        let inodes = change(&mut tree.edit(&allocator)).inspect_err(|_| self.break_log())?;
        let mut state = self.log.state.lock();
        state.changed.insert(subvolume);
        state.inodes.extend(inodes.into_iter().map(|inode| (subvolume, inode)));
        state.entered += 1;
        Ok(LogTicket { generation: handle.generation(), entered: state.entered })
    }

    /// Returns the log tree of a subvolume, and creates it if there is none.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace).
    pub(crate) fn log_tree(&self, handle: &Handle<'_>, subvolume: TreeId) -> Result<Arc<LiveTree>> {
        if let Some(tree) = self.log.state.lock().trees.get(&subvolume) {
            return Ok(Arc::clone(tree));
        }
        let tree = self.new_log_tree(&LogAllocator { handle, log: &self.log })?;
        // Another thread may have created one first. Then that one is used, and this block is lost
        // until the commit.
        let mut state = self.log.state.lock();
        Ok(Arc::clone(state.trees.entry(subvolume).or_insert(tree)))
    }

    /// Marks the running transaction's log unusable: until it ends, fsyncs are commits.
    pub fn break_log(&self) {
        self.log.state.lock().broken = true;
    }

    /// Notes that an inode was removed from the log.
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

//! Writing a log to disk.
//!
//! Owns [`Transactions::sync_log`], which makes durable what all waiting threads have entered. It
//! writes the log trees and their root tree, flushes, and writes the first superblock copy. That
//! copy names the log's root tree and carries the generation of the last commit. Some things a log
//! cannot express: a new chunk or feature bit, which only the next commit records. The answer is
//! then [`Synced::NeedsCommit`].
//!
//! **Locks**, in this order: `commit`; a tree's writer; those of the log (leaves). A thread that
//! waits for another's sync holds none.
//!
//! Kernel counterpart: `btrfs_sync_log` (`fs/btrfs/tree-log.c`).

use super::queue::{LogTicket, Pace};
use super::trees::LogAllocator;
use crate::btree::{LiveTree, Tree, TreeBlock, dirty_blocks_since};
use crate::errors::{Error, Result};
use crate::transaction::Handle;
use crate::transaction::Transactions;
use crate::transaction::commit_state::CommitState;
use papilio_format::items::inode::FileKind;
use papilio_format::items::root::{RawRootItem, RootItem};
use papilio_format::{Generation, ItemType, Key, TreeId, objectid};
use std::sync::Arc;
use std::time::Instant;

/// The result of a log sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Synced {
    /// The log is durable.
    Durable,
    /// Only a commit makes the changes durable.
    NeedsCommit,
}

/// The state of a log that a sync makes durable.
struct LogState {
    changed: Vec<ChangedLog>,
    /// The log root tree's blocks are on disk up to this stamp.
    root_since: u64,
    upto: LogTicket,
}

/// A log tree that changed.
struct ChangedLog {
    subvolume: TreeId,
    tree: Arc<LiveTree>,
    /// Its blocks are on disk up to this stamp.
    since: u64,
}

/// The stamps up to which a sync wrote the log trees, in the order of [`LogState::changed`], and
/// their root tree.
struct Written {
    stamps: Vec<u64>,
    root: u64,
}

impl Transactions {
    /// Makes everything entered into the log up to `ticket` durable.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`] after an earlier failure; else the failure of this sync. It
    /// makes the file system read-only, because the state on disk is unknown.
    pub(crate) fn sync_log(&self, ticket: LogTicket) -> Result<Synced> {
        let pace = if self.volume.waits() { Pace::Device } else { Pace::Memory };
        let Some(lead) = self.log.queue.wait(ticket, pace) else { return Ok(Synced::Durable) };
        lead.let_others_enter();
        let mut state = self.commit.lock();
        self.check_running()?;
        if state.written.generation >= ticket.generation {
            // A commit came in between.
            return Ok(Synced::Durable);
        }
        if self.needs_commit(&state) {
            return Ok(Synced::NeedsCommit);
        }
        let begun = Instant::now();
        match self.sync_log_locked(ticket.generation, &mut state) {
            Ok(synced) => {
                lead.took(begun.elapsed());
                Ok(synced)
            }
            // Nothing was written that anything leads to.
            Err(Error::NoSpace { .. }) => Ok(Synced::NeedsCommit),
            Err(error) => {
                self.abort(&error);
                Err(error)
            }
        }
    }

    /// Whether something changed that only a commit can record for a replay.
    fn needs_commit(&self, state: &CommitState) -> bool {
        let features = *self.features.lock();
        state.superblock_changed
            || self.volume.needs_commit()
            || self.chunks.has_pending()
            || !state.written.incompat_flags.contains(features)
    }

    fn sync_log_locked(&self, generation: Generation, state: &mut CommitState) -> Result<Synced> {
        // This must precede the first freeze.
        let left = self.log.blocks.take_left();
        let log = self.take_log_state(generation);
        let written = self.write_log(&log, state);
        if let Ok(Some(written)) = written {
            {
                let mut state = self.log.state.lock();
                let subvolumes = log.changed.iter().map(|changed| changed.subvolume);
                state.synced.extend(subvolumes.zip(written.stamps));
                state.root_synced = written.root;
            }
            self.log.blocks.free(left);
            self.log.queue.synced(log.upto);
            return Ok(Synced::Durable);
        }
        self.log.blocks.put_back(left);
        self.log.state.lock().changed.extend(log.changed.iter().map(|changed| changed.subvolume));
        written.map(|_| Synced::NeedsCommit)
    }

    fn take_log_state(&self, generation: Generation) -> LogState {
        let mut log = self.log.state.lock();
        let changed = std::mem::take(&mut log.changed);
        let of = |subvolume| ChangedLog {
            subvolume,
            tree: Arc::clone(&log.trees[&subvolume]),
            since: log.synced.get(&subvolume).copied().unwrap_or(0),
        };
        LogState {
            changed: changed.into_iter().map(of).collect(),
            root_since: log.root_synced,
            upto: LogTicket { generation, entered: log.entered },
        }
    }

    /// Writes a state of the log. Returns `None` if a change of it stopped half-way, or if
    /// something entered meanwhile needs a commit.
    fn write_log(&self, log: &LogState, state: &mut CommitState) -> Result<Option<Written>> {
        // No commit can end the transaction meanwhile: the caller holds the lock that a commit
        // takes.
        let handle = Handle::new(self, None, None, self.now());
        let allocator = LogAllocator { handle: &handle, log: &self.log };
        let (frozen, stamps): (Vec<Tree>, Vec<u64>) =
            log.changed.iter().map(|changed| changed.tree.freeze_now(&self.stamp)).unzip();
        // Other threads entered changes until their tree was frozen, and those may lie in a new
        // chunk.
        if self.needs_commit(state) {
            return Ok(None);
        }
        let root_tree = {
            let log = self.log.state.lock();
            if log.broken {
                return Ok(None);
            }
            log.root.clone()
        };
        let root_tree = match root_tree {
            Some(tree) => tree,
            None => {
                let tree = self.new_log_tree(&allocator)?;
                self.log.state.lock().root = Some(Arc::clone(&tree));
                tree
            }
        };
        for (changed, tree) in log.changed.iter().zip(&frozen) {
            let item = log_root_item(&*tree.root_block()?, self.node_size());
            root_tree.edit(&allocator).put(log_root_key(changed.subvolume), &item)?;
        }
        let (root, root_stamp) = root_tree.freeze_now(&self.stamp);
        let root = root.root_block()?;
        let mut blocks = Vec::new();
        dirty_blocks_since(&root, log.root_since, &mut blocks);
        for (changed, tree) in log.changed.iter().zip(&frozen) {
            dirty_blocks_since(&tree.root_block()?, changed.since, &mut blocks);
        }
        let place = (root.address(), root.level());
        drop((frozen, root));
        self.write_blocks(&mut blocks, &mut state.buffer)?;
        self.volume.flush()?;
        self.volume.write_log_superblock(&state.written, place, &mut state.log_superblocks)?;
        if self.volume.needs_commit() {
            return Ok(None);
        }
        Ok(Some(Written { stamps, root: root_stamp }))
    }
}

/// The key of a subvolume's log in the log root tree.
pub(crate) const fn log_root_key(subvolume: TreeId) -> Key {
    Key::new(objectid::TREE_LOG.0, ItemType::ROOT_ITEM, subvolume.0)
}

/// The root item of a log tree, as the kernel writes it.
fn log_root_item(root: &TreeBlock, node_size: u64) -> [u8; RawRootItem::SIZE] {
    let mut item = RawRootItem::parse(&[0; RawRootItem::SIZE]).expect("all zeros parse as a root item");
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

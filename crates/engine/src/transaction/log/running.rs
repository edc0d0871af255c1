//! The log of the running transaction.
//!
//! Owns [`RunningLog`]: the log trees, their blocks, and the threads that wait for them.
//!
//! **Locks**: `state`, a leaf, for one operation on the lists.
//!
//! Kernel counterpart: the `log_root_tree` and `log_root` of roots (`fs/btrfs/ctree.h`),
//! `free_log_tree` (`fs/btrfs/tree-log.c`).

use super::blocks::LogBlocks;
use super::queue::LogQueue;
use crate::btree::LiveTree;
use crate::space::LogicalRange;
use papilio_format::{InodeNumber, TreeId};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(in crate::transaction) struct RunningLog {
    pub(in crate::transaction) state: Mutex<State>,
    pub(in crate::transaction) blocks: LogBlocks,
    pub(in crate::transaction) queue: LogQueue,
}

#[derive(Debug, Default)]
pub(in crate::transaction) struct State {
    /// The root tree of log trees.
    pub(in crate::transaction) root: Option<Arc<LiveTree>>,
    pub(in crate::transaction) trees: BTreeMap<TreeId, Arc<LiveTree>>,
    /// Subvolumes whose log changed since the last sync.
    pub(in crate::transaction) changed: BTreeSet<TreeId>,
    /// Whether a change of the log stopped half-way. The log is then not synced any more.
    pub(in crate::transaction) broken: bool,
    /// Inodes that are in the log.
    pub(in crate::transaction) inodes: BTreeSet<(TreeId, InodeNumber)>,
    /// The number of changes entered.
    pub(in crate::transaction) entered: u64,
    /// The stamp up to which the blocks of each log tree are on disk.
    pub(in crate::transaction) synced: BTreeMap<TreeId, u64>,
    /// The stamp up to which the blocks of the log root tree are on disk.
    pub(in crate::transaction) root_synced: u64,
}

impl RunningLog {
    /// Ends the log and returns its blocks, which are free once the commit is on disk.
    pub(in crate::transaction) fn take_blocks(&self) -> Vec<LogicalRange> {
        *self.state.lock() = State::default();
        self.blocks.end()
    }
}

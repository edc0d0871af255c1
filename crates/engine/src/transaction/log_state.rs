//! The log of the running transaction.
//!
//! Owns [`RunningLog`]: the log trees, their blocks, and the threads that wait for them.
//!
//! **Locks**: `state`, a leaf, for one operation on the lists.
//!
//! Kernel counterpart: the `log_root_tree` and `log_root` of roots (`fs/btrfs/ctree.h`),
//! `free_log_tree` (`fs/btrfs/tree-log.c`).

use super::log_blocks::LogBlocks;
use super::log_queue::LogQueue;
use crate::btree::LiveTree;
use crate::space::LogicalRange;
use papilio_format::{InodeNumber, TreeId};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(super) struct RunningLog {
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
    /// Whether a change of the log stopped half-way. The log is then not synced any more.
    pub(super) broken: bool,
    /// Inodes that are in the log.
    pub(super) inodes: BTreeSet<(TreeId, InodeNumber)>,
    /// The number of changes entered.
    pub(super) entered: u64,
    /// The stamp up to which the blocks of each log tree are on disk.
    pub(super) synced: BTreeMap<TreeId, u64>,
    /// The stamp up to which the blocks of the log root tree are on disk.
    pub(super) root_synced: u64,
}

impl RunningLog {
    /// Ends the log and returns its blocks, which are free once the commit is on disk.
    pub(super) fn take_blocks(&self) -> Vec<LogicalRange> {
        *self.state.lock() = State::default();
        self.blocks.end()
    }
}

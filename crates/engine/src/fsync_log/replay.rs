//! The replay of logs, in order.
//!
//! Owns [`replay`] and [`Replay`], the replay of one log. It walks each log three times: for the
//! inodes, so that all exist; for the directory entries; and for attributes, names and extents.
//! Last, it recounts the links of every inode that gained or lost a name.
//!
//! **Invariant**: everything happens in one transaction, whose commit ends the logs.
//!
//! Locks: those of the transaction only.
//!
//! Kernel counterpart: `btrfs_recover_log_trees`, `replay_one_buffer` (`fs/btrfs/tree-log.c`).

use super::log_space::LogSpace;
use super::log_trees::{LogTree, LogTrees};
use crate::btree::{LiveTree, Tree};
use crate::errors::{Error, Result};
use crate::items::{inode, item_error};
use crate::transaction::Start;
use crate::transaction::{Handle, Transactions};
use papilio_format::items::inode::InodeItem;
use papilio_format::{Corrupt, Geometry, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Items that a replay reserves space for. It allocates the rest as it goes, because nothing else
/// changes the file system yet. So a nearly full file system can be replayed.
const RESERVED_ITEMS: u64 = 1;

/// Replays the logs that the superblock points to into their subvolumes and commits, which ends the
/// logs. Called before anything else changes.
///
/// # Errors
/// [`Error::LogReplay`] for a log that cannot be read or contradicts its subvolume, in which case
/// nothing was written; or for a failed commit, after which the log is still there.
pub(crate) fn replay(transactions: &Transactions, root: LogicalAddress, level: u8) -> Result<()> {
    let failed = |subvolume| move |cause| Error::LogReplay { subvolume, cause: Box::new(cause) };
    let geometry = transactions.volume().geometry();
    let forest = transactions.live().forest();
    let logs = LogTrees::open(forest, root, level, geometry.generation).map_err(failed(None))?;
    let contents = logs.contents(&geometry).map_err(failed(None))?;
    let mut space = LogSpace::claim(transactions, &contents).map_err(failed(None))?;
    drop(contents);
    transactions.change(Start::items(RESERVED_ITEMS).steal(), |handle| {
        for log in &logs.logs {
            replay_log(handle, log, &geometry, &mut space).map_err(failed(Some(log.subvolume)))?;
        }
        Ok(())
    })?;
    space.finish(transactions.space());
    transactions.update_superblock(|superblock| {
        superblock.log_root = LogicalAddress(0);
        superblock.log_root_level = 0;
    });
    transactions.commit().map_err(failed(None))
}

/// Replays one log, unless its subvolume was deleted.
fn replay_log(handle: &Handle<'_>, log: &LogTree, geometry: &Geometry, space: &mut LogSpace) -> Result<()> {
    let Some(live) = handle.transactions().live().find(log.subvolume)? else { return Ok(()) };
    if live.record().is_some_and(|record| record.item.refs == 0) {
        return Ok(());
    }
    let mut replay = Replay {
        handle,
        log: log.tree.clone(),
        live,
        geometry: *geometry,
        space,
        recount: BTreeSet::new(),
        unlinked: BTreeSet::new(),
    };
    replay.run()
}

/// The replay of one log.
pub(super) struct Replay<'a> {
    pub(super) handle: &'a Handle<'a>,
    /// The log tree.
    pub(super) log: Tree,
    /// The subvolume.
    pub(super) live: Arc<LiveTree>,
    pub(super) geometry: Geometry,
    pub(super) space: &'a mut LogSpace,
    /// Inodes whose links are to be recounted.
    pub(super) recount: BTreeSet<InodeNumber>,
    /// Inodes that had no name when they were logged. All of their items are skipped.
    unlinked: BTreeSet<InodeNumber>,
}

impl Replay<'_> {
    fn run(&mut self) -> Result<()> {
        self.replay_inodes()?;
        self.replay_entries()?;
        self.replay_rest()?;
        self.count_links()
    }

    fn replay_inodes(&mut self) -> Result<()> {
        let log = self.log.clone();
        for item in log.items() {
            let item = item?;
            if item.key.item_type != ItemType::INODE_ITEM {
                continue;
            }
            let number = InodeNumber(item.key.objectid);
            let logged = InodeItem::parse(item.data()).map_err(|reason| item_error(&log, &item, reason))?;
            if logged.nlink == 0 {
                self.unlinked.insert(number);
            } else {
                self.replay_inode(number, &logged)?;
            }
        }
        Ok(())
    }

    fn replay_entries(&mut self) -> Result<()> {
        let log = self.log.clone();
        for item in log.items() {
            let item = item?;
            if item.key.item_type == ItemType::DIR_INDEX && !self.is_skipped(&item.key) {
                self.replay_entry(&item)?;
            }
        }
        Ok(())
    }

    fn replay_rest(&mut self) -> Result<()> {
        let log = self.log.clone();
        for item in log.items() {
            let item = item?;
            if self.is_skipped(&item.key) {
                continue;
            }
            match item.key.item_type {
                ItemType::XATTR_ITEM => self.put(item.key, item.data())?,
                ItemType::INODE_REF | ItemType::INODE_EXTREF => self.replay_refs(&item)?,
                ItemType::EXTENT_DATA => self.replay_extent(&item)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn is_skipped(&self, key: &Key) -> bool {
        self.unlinked.contains(&InodeNumber(key.objectid))
    }

    /// The subvolume's id.
    pub(super) fn id(&self) -> TreeId {
        self.live.id()
    }

    /// Reads an inode of the subvolume as it is now.
    pub(super) fn inode(&self, number: InodeNumber) -> Result<Option<InodeItem>> {
        inode::inode(&self.live.tree(), number)
    }

    /// Reads the inode that an item of the log belongs to.
    pub(super) fn inode_of(&self, key: &Key) -> Result<InodeItem> {
        self.inode(InodeNumber(key.objectid))?.ok_or_else(|| {
            let reason = Corrupt::field("log", "key.objectid", key.objectid, "no such inode");
            Error::Item { tree: objectid::TREE_LOG, key: *key, reason }
        })
    }

    /// Puts an item into the subvolume unchanged.
    pub(super) fn put(&self, key: Key, data: &[u8]) -> Result<()> {
        self.live.edit(self.handle).put(key, data)
    }
}

//! The log trees on disk.
//!
//! Owns [`LogTrees`], [`LogTree`], [`LogContents`] and [`LogUsage`]: from the superblock's pointer
//! to one tree for each subvolume with a log, and to the space that these trees use.
//!
//! **Invariant**: once [`LogTrees::contents`] succeeds, every block has been read and checked.
//!
//! Locks: none.
//!
//! Kernel counterpart: `walk_log_tree`, `process_one_buffer` (`fs/btrfs/tree-log.c`).

use crate::btree::{Forest, RootPointer, Tree, TreeBlock};
use crate::errors::{Error, Result};
use crate::transaction::log_root_key;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeItem;
use papilio_format::items::root::RootItem;
use papilio_format::{
    Corrupt, FileOffset, Generation, Geometry, ItemType, Key, LogicalAddress, TreeId, objectid,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The log of one subvolume.
#[derive(Debug)]
pub(crate) struct LogTree {
    /// The subvolume.
    pub(crate) subvolume: TreeId,
    /// Its log tree.
    pub(crate) tree: Tree,
}

/// All logs of a file system.
#[derive(Debug)]
pub(crate) struct LogTrees {
    root: Tree,
    /// The logs, ascending by subvolume.
    pub(crate) logs: Vec<LogTree>,
}

/// The size of a file system's logs.
#[cfg(feature = "unstable")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogUsage {
    /// Number of log trees: one for each subvolume.
    pub logs: usize,
    /// Number of tree blocks, those of the tree of log trees among them.
    pub blocks: usize,
    /// Number of data extents that the logs point to.
    pub extents: usize,
    /// Bytes of these extents on disk.
    pub extent_bytes: u64,
}

/// Reads and checks the logs that the superblock points to, as a replay does before it begins.
///
/// # Errors
/// As [`LogTrees::open`] and [`LogTrees::contents`].
#[cfg(feature = "unstable")]
pub fn log_usage(
    forest: &Arc<Forest>,
    address: LogicalAddress,
    level: u8,
    geometry: &Geometry,
) -> Result<LogUsage> {
    let logs = LogTrees::open(forest, address, level, geometry.generation)?;
    let contents = logs.contents(geometry)?;
    Ok(LogUsage {
        logs: logs.logs.len(),
        blocks: contents.blocks.len(),
        extents: contents.extents.len(),
        extent_bytes: contents.extents.values().fold(0, |sum, length| sum.saturating_add(*length)),
    })
}

/// The blocks of log trees and the data extents that they point to.
#[derive(Debug, Default)]
pub(crate) struct LogContents {
    /// The addresses of the blocks.
    pub(crate) blocks: BTreeSet<LogicalAddress>,
    /// The addresses of the data extents, with their lengths in bytes.
    pub(crate) extents: BTreeMap<LogicalAddress, u64>,
}

impl LogTrees {
    /// Opens the logs in the tree of log trees at `address`, which the transaction after
    /// `committed` wrote.
    ///
    /// # Errors
    /// A block or an item that cannot be read.
    pub(crate) fn open(
        forest: &Arc<Forest>,
        address: LogicalAddress,
        level: u8,
        committed: Generation,
    ) -> Result<Self> {
        let generation = Some(Generation(committed.0.saturating_add(1)));
        let root = forest.tree(objectid::TREE_LOG, RootPointer { address, level, generation });
        let mut logs = Vec::new();
        for item in root.range(log_root_key(TreeId(0))..=log_root_key(TreeId(u64::MAX))) {
            let item = item?;
            let fault = |reason| Error::Item { tree: objectid::TREE_LOG, key: item.key, reason };
            let subvolume = TreeId(item.key.offset);
            if !objectid::is_subvolume(subvolume) {
                return Err(fault(Corrupt::field(
                    "log root item",
                    "key.offset",
                    subvolume.0,
                    "not a subvolume",
                )));
            }
            let found = RootItem::parse(item.data()).map_err(fault)?;
            let pointer = RootPointer {
                address: found.address,
                level: found.level,
                generation: Some(found.generation),
            };
            logs.push(LogTree { subvolume, tree: forest.tree(objectid::TREE_LOG, pointer) });
        }
        Ok(Self { root, logs })
    }

    /// Reads and checks all blocks of all logs.
    ///
    /// # Errors
    /// A block or an item that cannot be read; a block that occurs twice; an extent that
    /// contradicts itself or another.
    pub(crate) fn contents(&self, geometry: &Geometry) -> Result<LogContents> {
        let mut contents = LogContents::default();
        contents.add_tree(&self.root, geometry)?;
        for log in &self.logs {
            contents.add_tree(&log.tree, geometry)?;
        }
        Ok(contents)
    }
}

impl LogContents {
    fn add_tree(&mut self, tree: &Tree, geometry: &Geometry) -> Result<()> {
        let root = tree.root_block()?;
        // Inode and end of the previous extent, which may lie in the previous leaf.
        let mut end = None;
        self.add_block(tree, &root, None, geometry, &mut end)
    }

    fn add_block(
        &mut self,
        tree: &Tree,
        block: &TreeBlock,
        bound: Option<Key>,
        geometry: &Geometry,
        end: &mut Option<(u64, u64)>,
    ) -> Result<()> {
        if !self.blocks.insert(block.address()) {
            let key = block.view().key(0);
            let reason = Corrupt::field("log tree", "block", block.address().0, "the block occurs twice");
            return Err(Error::Item { tree: tree.id(), key, reason });
        }
        let view = block.view();
        for slot in 0..view.len() {
            if view.is_leaf() {
                let (key, data) = (view.key(slot), view.item(slot));
                self.add_item(&key, data, geometry, end).map_err(|reason| Error::Item {
                    tree: tree.id(),
                    key,
                    reason,
                })?;
                continue;
            }
            let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
            let child = tree.child(block, slot, bound)?;
            self.add_block(tree, &child, bound, geometry, end)?;
        }
        Ok(())
    }

    fn add_item(
        &mut self,
        key: &Key,
        data: &[u8],
        geometry: &Geometry,
        end: &mut Option<(u64, u64)>,
    ) -> Result<(), Corrupt> {
        if key.item_type == ItemType::INODE_ITEM {
            return InodeItem::parse(data).map(drop);
        }
        if key.item_type != ItemType::EXTENT_DATA {
            return Ok(());
        }
        let extent = FileExtentItem::parse(data)?;
        let stop = extent.end(FileOffset(key.offset), geometry.sector_size).ok_or_else(|| {
            Corrupt::field("file extent", "length", extent.length(), "reaches past the largest offset")
        })?;
        if end.is_some_and(|(inode, end)| inode == key.objectid && end > key.offset) {
            return Err(Corrupt::field(
                "file extent",
                "key.offset",
                key.offset,
                "overlaps the previous extent",
            ));
        }
        *end = Some((key.objectid, stop.0));
        let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = extent.content else {
            return Ok(());
        };
        check_part(&extent, &part)?;
        if part.is_hole() {
            return Ok(());
        }
        let known = self.extents.entry(part.disk_address).or_insert(part.disk_length);
        if *known != part.disk_length {
            let value = part.disk_length;
            return Err(Corrupt::field(
                "file extent",
                "disk_length",
                value,
                "differs from another item of the same extent",
            ));
        }
        Ok(())
    }
}

/// Refuses an extent item that readers could not interpret.
fn check_part(extent: &FileExtentItem<'_>, part: &ExtentPart) -> Result<(), Corrupt> {
    if part.length == 0 {
        return Err(Corrupt::field("file extent", "length", 0, "an extent must not be empty"));
    }
    if part.is_hole() {
        return Ok(());
    }
    let whole = if extent.compression == Compression::None { part.disk_length } else { extent.ram_bytes };
    // The parser proved that the sum stays inside 64 bits.
    if part.disk_length == 0 || part.offset + part.length > whole {
        return Err(Corrupt::field("file extent", "length", part.length, "exceeds the extent on disk"));
    }
    Ok(())
}

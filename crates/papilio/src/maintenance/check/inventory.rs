//! The results of a check that a repair needs beside the report.
//!
//! Owns [`Inventory`] and [`Damage`].

use super::references::References;
use super::roots::Root;
use super::walker::Seen;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::{Key, LogicalAddress, TreeId, Uuid};
use std::collections::{BTreeSet, HashMap};

/// A part of a tree that could not be visited: everything below one pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) tree: TreeId,
    /// The key of the tree's root item; `Key::MIN` for a tree that the superblock points to.
    pub(crate) item: Key,
    /// The block with the pointer; `None` for the root.
    pub(crate) parent: Option<LogicalAddress>,
    /// The key of the pointer; `Key::MIN` for the root.
    pub(crate) key: Key,
    /// The first key past the part.
    pub(crate) bound: Option<Key>,
    /// The block that the pointer names.
    pub(crate) address: LogicalAddress,
    /// The level that it should have.
    pub(crate) level: u8,
}

/// Everything that a check found in use.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) damages: Vec<Damage>,
    /// The blocks of all trees, and those that could not be read.
    pub(crate) seen: HashMap<LogicalAddress, Seen>,
    pub(crate) references: References,
    pub(crate) roots: Vec<Root>,
    pub(crate) chunks: Vec<(LogicalAddress, ChunkItem)>,
    /// The UUID of the chunk tree, which all blocks have in their headers.
    pub(crate) chunk_tree_uuid: Uuid,
    /// The trees that were read completely.
    pub(crate) whole: BTreeSet<TreeId>,
    /// The tree that has the block group items.
    pub(crate) group_tree: TreeId,
}

impl Inventory {
    /// Whether all trees that refer to extents were read completely; the extent tree counts too.
    pub(crate) fn is_whole(&self) -> bool {
        self.damages.is_empty()
    }
}

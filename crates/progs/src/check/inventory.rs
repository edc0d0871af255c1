//! The results of a check that a repair needs beside the report.
//!
//! Owns [`Inventory`].

use super::damage::Damage;
use super::references::References;
use super::roots::Root;
use super::walker::Seen;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::{LogicalAddress, TreeId, Uuid};
use std::collections::{BTreeSet, HashMap};

/// Everything that a check found in use.
#[derive(Debug)]
pub struct Inventory {
    pub(crate) damages: Vec<Damage>,
    /// The blocks of all trees, and those that could not be read.
    pub(crate) seen: HashMap<LogicalAddress, Seen>,
    /// The blocks of the log of fsyncs.
    pub(crate) log_blocks: Vec<LogicalAddress>,
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

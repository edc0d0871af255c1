//! The root trees among the tree blocks that a scan found.
//!
//! Owns [`find_roots`] and [`FoundRoot`]. Every commit writes a new root of the root tree, so its
//! generation is the commit's. Of the blocks of one generation those of the highest level can be
//! its root.
//!
//! Kernel counterpart: none; `btrfs-find-root` does it alike.

use super::block_scan::BlockScan;
use crate::dump::{TreeBlocks, TreeRoot};
use papilio_engine::btree::{Forest, RootPointer};
use papilio_engine::mount::rescue_forest;
use papilio_engine::options::rescue::FoundBlock;
use papilio_engine::volume::Volume;
use papilio_format::{Generation, LogicalAddress, TreeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block that may be the root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundRoot {
    /// The address of the block.
    pub address: LogicalAddress,
    /// Its level.
    pub level: u8,
    /// Its generation, which is that of the commit.
    pub generation: Generation,
    /// The tree.
    pub tree: TreeId,
    /// Blocks of the tree that can be read, this one included.
    pub blocks: u64,
    /// Blocks that cannot be read, besides all those below them.
    pub missing: u64,
    /// Whether other blocks of the same generation have the same level.
    pub is_ambiguous: bool,
}

impl FoundRoot {
    /// Returns whether the whole tree can be read.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }
}

/// Returns the blocks that may be roots of `tree`, the newest first, without reading below them.
pub(crate) fn roots_of(scan: &BlockScan, tree: TreeId) -> Vec<FoundRoot> {
    let mut by_generation: BTreeMap<Generation, Vec<&FoundBlock>> = BTreeMap::new();
    for block in scan.blocks.iter().filter(|block| block.owner == tree && block.keys.is_some()) {
        by_generation.entry(block.generation).or_default().push(block);
    }
    let mut roots = Vec::new();
    for (generation, mut blocks) in by_generation.into_iter().rev() {
        let level = blocks.iter().map(|block| block.level).max().unwrap_or_default();
        blocks.retain(|block| block.level == level);
        blocks.sort_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        let is_ambiguous = blocks.len() > 1;
        roots.extend(blocks.into_iter().map(|block| FoundRoot {
            address: block.address,
            level,
            generation,
            tree,
            blocks: 0,
            missing: 0,
            is_ambiguous,
        }));
    }
    roots
}

/// Counts the blocks below a root.
pub(crate) fn count_blocks(forest: &Arc<Forest>, root: &FoundRoot) -> FoundRoot {
    let tree = TreeRoot::of(root.tree, root.address, root.level, root.generation);
    let mut counted = FoundRoot { blocks: 0, missing: 0, ..*root };
    for block in TreeBlocks::of_tree(forest, &tree) {
        match block {
            Ok(_) => counted.blocks += 1,
            Err(_) => counted.missing += 1,
        }
    }
    counted
}

/// Returns the roots of `tree`, the newest first, with the blocks below them counted. The volume
/// has all chunks that are known.
pub fn find_roots(volume: &Arc<Volume>, scan: &BlockScan, tree: TreeId) -> Vec<FoundRoot> {
    let known = volume.geometry().generation;
    volume.set_generation(known.max(scan.newest()));
    let forest = rescue_forest(volume, 64 << 20);
    roots_of(scan, tree).iter().map(|root| count_blocks(&forest, root)).collect()
}

/// Returns the pointer to a root.
pub(crate) fn pointer(root: &FoundRoot) -> RootPointer {
    RootPointer { address: root.address, level: root.level, generation: Some(root.generation) }
}

//! Statistics of a tree: its blocks, how full they are, and the distances between siblings.
//!
//! Owns [`TreeStats`]. Seeks and clusters are counted as by `btrfs inspect-internal tree-stats`:
//! among an internal block and its children, in order, a block not adjacent to the one before it is
//! a seek.

use crate::dump::{self, Block, TreeBlocks, TreeRoot};
use papilio_engine::btree::Forest;
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::trees::Trees;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::superblock::MAX_LEVEL;
use papilio_format::{ItemType, LogicalAddress, TreeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most errors that are kept; further ones are only counted.
const KEPT_ERRORS: usize = 32;

/// Statistics of one tree.
#[derive(Debug)]
#[non_exhaustive]
pub struct TreeStats {
    /// The tree.
    pub root: TreeRoot,
    /// Bytes of one block.
    pub block_bytes: u32,
    /// Blocks on each level, leaves first.
    pub blocks_by_level: [u64; MAX_LEVEL as usize],
    /// Items in leaves.
    pub items: u64,
    /// Bytes of items, without their headers.
    pub item_bytes: u64,
    /// Unused bytes of leaves.
    pub leaf_free_bytes: u64,
    /// Unused bytes of internal blocks.
    pub node_free_bytes: u64,
    /// Bytes of file data inside leaves, as stored.
    pub inline_bytes: u64,
    /// Distances between blocks.
    pub layout: Layout,
    /// The first few blocks that could not be read.
    pub errors: Vec<Error>,
    /// The number of blocks that could not be read.
    pub bad_blocks: u64,
}

/// Distances between the blocks of a tree, by logical address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// Seeks to a higher address.
    pub forward_seeks: u64,
    /// Seeks to a lower address.
    pub backward_seeks: u64,
    /// Sum of the distances of all seeks, in bytes.
    pub seek_bytes: u64,
    /// Number of seeks by distance in bytes.
    pub seeks_by_distance: BTreeMap<u64, u64>,
    /// Runs of two or more adjacent blocks that end with a seek.
    pub clusters: u64,
    /// Bytes of all clusters.
    pub cluster_bytes: u64,
    /// Bytes of the smallest cluster; 0 if there is none.
    pub cluster_min: u64,
    /// Bytes of the largest cluster; of one block if there is none.
    pub cluster_max: u64,
    /// The lowest address of a block.
    pub lowest: LogicalAddress,
    /// The highest address of a block.
    pub highest: LogicalAddress,
}

impl TreeStats {
    /// Returns the number of levels, 1 for a single leaf.
    pub fn levels(&self) -> usize {
        usize::from(self.root.level) + 1
    }

    /// Returns the number of blocks that could be read.
    pub fn blocks(&self) -> u64 {
        self.blocks_by_level.iter().sum()
    }

    /// Returns the number of leaves that could be read.
    pub fn leaves(&self) -> u64 {
        self.blocks_by_level[0]
    }

    /// Returns the bytes of all blocks that could be read.
    pub fn bytes(&self) -> u64 {
        self.blocks().saturating_mul(self.block_bytes.into())
    }

    /// Returns the used fraction of the leaves, 0 to 1.
    pub fn leaf_fill(&self) -> f64 {
        match self.leaves().saturating_mul(self.block_bytes.into()) {
            0 => 0.0,
            bytes => 1.0 - self.leaf_free_bytes as f64 / bytes as f64,
        }
    }

    fn add(&mut self, block: &Block) {
        let node = block.node();
        self.blocks_by_level[usize::from(block.level())] += 1;
        let free = node.free_space() as u64;
        if block.level() > 0 {
            self.node_free_bytes += free;
            self.layout.add(block.address(), block.children().map(|child| child.address), self.block_bytes);
            return;
        }
        self.leaf_free_bytes += free;
        self.items += node.len() as u64;
        for slot in 0..node.len() {
            let header = node.item_header(slot);
            self.item_bytes += u64::from(header.size);
            if header.key.item_type == ItemType::EXTENT_DATA
                && let Ok(FileExtentItem { content: FileExtentContent::Inline(data), .. }) =
                    FileExtentItem::parse(node.item(slot))
            {
                self.inline_bytes += data.len() as u64;
            }
        }
    }
}

impl Layout {
    fn new(root: LogicalAddress, block_bytes: u32) -> Self {
        Self {
            forward_seeks: 0,
            backward_seeks: 0,
            seek_bytes: 0,
            seeks_by_distance: BTreeMap::new(),
            clusters: 0,
            cluster_bytes: 0,
            cluster_min: 0,
            cluster_max: block_bytes.into(),
            lowest: root,
            highest: root,
        }
    }

    /// Returns the number of seeks.
    pub fn seeks(&self) -> u64 {
        self.forward_seeks + self.backward_seeks
    }

    /// Returns the bytes from the lowest block to the highest.
    pub fn spread(&self) -> u64 {
        self.highest.0 - self.lowest.0
    }

    fn add(
        &mut self,
        parent: LogicalAddress,
        children: impl Iterator<Item = LogicalAddress>,
        block_bytes: u32,
    ) {
        let block_bytes = u64::from(block_bytes);
        let mut last = parent;
        let mut cluster = block_bytes;
        for child in children {
            // The end of a block that was read fits 64 bits, as that of its chunk does. A pointer
            // to an unreadable block can have any address.
            let adjacent = last.0.saturating_add(block_bytes);
            if adjacent == child.0 {
                cluster += block_bytes;
            } else {
                let distance = adjacent.abs_diff(child.0);
                self.seek_bytes = self.seek_bytes.saturating_add(distance);
                *self.seeks_by_distance.entry(distance).or_default() += 1;
                match last < child {
                    true => self.forward_seeks += 1,
                    false => self.backward_seeks += 1,
                }
                self.end_cluster(cluster, block_bytes);
                cluster = block_bytes;
            }
            last = child;
            self.lowest = self.lowest.min(child);
            self.highest = self.highest.max(child);
        }
    }

    fn end_cluster(&mut self, bytes: u64, block_bytes: u64) {
        if bytes == block_bytes {
            return;
        }
        self.cluster_min = if self.clusters == 0 { bytes } else { self.cluster_min.min(bytes) };
        self.cluster_max = self.cluster_max.max(bytes);
        self.clusters += 1;
        self.cluster_bytes += bytes;
    }
}

/// Returns the statistics of the trees with id `id`. Only logs and relocation trees can be several.
///
/// # Errors
/// As [`dump::roots_of`]. Blocks that cannot be read are part of the statistics.
pub fn tree_stats(trees: &Trees, id: TreeId) -> Result<Vec<TreeStats>> {
    let roots = dump::roots_of(trees, id)?;
    Ok(roots.into_iter().map(|root| stats_of(trees.forest(), root)).collect())
}

fn stats_of(forest: &Arc<Forest>, root: TreeRoot) -> TreeStats {
    let block_bytes = forest.volume().geometry().node_size;
    let mut stats = TreeStats {
        root,
        block_bytes,
        blocks_by_level: Default::default(),
        items: 0,
        item_bytes: 0,
        leaf_free_bytes: 0,
        node_free_bytes: 0,
        inline_bytes: 0,
        layout: Layout::new(root.address, block_bytes),
        errors: Vec::new(),
        bad_blocks: 0,
    };
    for block in TreeBlocks::of_tree(forest, &root) {
        match block {
            Ok(block) => stats.add(&block),
            Err(error) => {
                stats.bad_blocks += 1;
                if stats.errors.len() < KEPT_ERRORS {
                    stats.errors.push(error);
                }
            }
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeks_and_clusters() {
        let block = 4096;
        let mut layout = Layout::new(LogicalAddress(10 * 4096), block);
        // Two blocks adjacent to the parent, then a seek forward and a seek backward.
        let children = [11, 12, 20, 5].map(|index| LogicalAddress(index * 4096));
        layout.add(LogicalAddress(10 * 4096), children.into_iter(), block);
        assert_eq!((layout.forward_seeks, layout.backward_seeks), (1, 1));
        assert_eq!(layout.seek_bytes, (7 + 16) * 4096);
        assert_eq!((layout.clusters, layout.cluster_bytes), (1, 3 * 4096));
        assert_eq!((layout.cluster_min, layout.cluster_max), (3 * 4096, 3 * 4096));
        assert_eq!(layout.spread(), 15 * 4096);
        assert_eq!(layout.seeks_by_distance, BTreeMap::from([(7 * 4096, 1), (16 * 4096, 1)]));
    }

    #[test]
    fn absurd_pointers_do_not_overflow() {
        let mut layout = Layout::new(LogicalAddress(u64::MAX - 4095), 4096);
        let children = [LogicalAddress(4096), LogicalAddress(u64::MAX - 4095)];
        layout.add(LogicalAddress(u64::MAX - 4095), children.into_iter(), 4096);
        assert_eq!(layout.seeks(), 2);
    }
}

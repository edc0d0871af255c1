//! Space for new tree blocks, found without the extent tree.
//!
//! Owns [`FreeBlocks`]. A block is free if it is in a chunk of its kind, holds no superblock copy,
//! and neither a walk of the trees nor the extent tree, as far as it could be read, knows anything
//! there.
//!
//! Kernel counterpart: none; `btrfs check --init-extent-tree` pins what it finds.

use super::super::check::inventory::Inventory;
use papilio_engine::errors::{Error, Result};
use papilio_engine::space::superblock_exclusions::superblock_exclusions;
use papilio_engine::volume::Volume;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{LogicalAddress, TreeId, objectid};

/// Free ranges, each with start and end; the last one is taken first.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn take(&mut self, size: u64) -> Option<LogicalAddress> {
        loop {
            let (start, end) = self.0.last_mut()?;
            let at = start.next_multiple_of(size);
            if at + size <= *end {
                *start = at + size;
                return Some(LogicalAddress(at));
            }
            self.0.pop();
        }
    }
}

/// The free blocks of the metadata chunks, and of the system chunks.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    metadata: Ranges,
    system: Ranges,
    node_size: u64,
    /// Whether a block of a metadata chunk was wanted and none was left.
    ran_out: bool,
}

/// The reason for which a change has to wait for a new chunk.
pub(super) const NO_ROOM: &str = "no chunk has room for another tree block";

impl FreeBlocks {
    /// Finds all free blocks. `reserved` are blocks that no walk found and that may be
    /// needed.
    pub(super) fn new(volume: &Volume, inventory: &Inventory, reserved: &[u64]) -> Self {
        let node_size = u64::from(volume.geometry().node_size);
        let blocks = inventory.seen.keys().map(|address| address.0).chain(reserved.iter().copied());
        let mut used: Vec<(u64, u64)> =
            blocks.map(|start| (start, start.saturating_add(node_size))).collect();
        used.extend(inventory.references.used_ranges());
        let map = volume.chunk_map();
        for chunk in map.iter() {
            used.extend(superblock_exclusions(chunk).into_iter().map(|range| (range.start.0, range.end.0)));
        }
        used.sort_unstable();
        let (mut metadata, mut system) = (Vec::new(), Vec::new());
        for chunk in map.iter() {
            let list = match chunk.flags() {
                flags if flags.contains(BlockGroupFlags::SYSTEM) => &mut system,
                flags if flags.contains(BlockGroupFlags::METADATA) => &mut metadata,
                _ => continue,
            };
            let (mut at, end) = (chunk.start().0, chunk.end().0);
            // A long extent before may reach into the chunk; extents do not cross chunks.
            let first = used.partition_point(|range| range.0 < at);
            for range in used[first..].iter().take_while(|range| range.0 < end) {
                if range.0 > at {
                    list.push((at, range.0));
                }
                at = at.max(range.1);
            }
            if at < end {
                list.push((at, end));
            }
        }
        metadata.reverse();
        system.reverse();
        Self { metadata: Ranges(metadata), system: Ranges(system), node_size, ran_out: false }
    }

    /// Takes a block for a tree.
    pub(super) fn take(&mut self, tree: TreeId) -> Result<LogicalAddress> {
        let is_system = tree == objectid::CHUNK_TREE;
        let ranges = if is_system { &mut self.system } else { &mut self.metadata };
        match ranges.take(self.node_size) {
            Some(address) => Ok(address),
            None => {
                self.ran_out |= !is_system;
                Err(Error::Invalid(NO_ROOM.to_owned()))
            }
        }
    }

    /// Whether a block was wanted that only a new metadata chunk could give.
    pub(super) fn ran_out(&self) -> bool {
        self.ran_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_inside_their_ranges() {
        let mut ranges = Ranges(vec![(100, 120), (31, 64), (10, 15)]);
        let taken: Vec<_> = std::iter::from_fn(|| ranges.take(16)).map(|address| address.0).collect();
        assert_eq!(taken, [32, 48]);
    }
}

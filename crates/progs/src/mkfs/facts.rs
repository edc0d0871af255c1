//! Where the trees of a new file system are, and the other facts from which their items follow.
//!
//! Owns [`Facts`] and [`TreePlace`].

use super::block::Shape;
use super::chunks::{Chunk, ChunkLayout};
use super::options::Choice;
use papilio_format::items::device::DeviceItem;
use papilio_format::{DeviceId, Generation, Key, LogicalAddress, TreeId};
use std::collections::BTreeMap;

/// The generation of everything in a new file system.
pub(super) const GENERATION: Generation = Generation(1);

/// The addresses of a tree's blocks, and how its items are distributed over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreePlace {
    pub(super) id: TreeId,
    pub(super) shape: Shape,
    /// Leaves first, root last.
    pub(super) blocks: Vec<LogicalAddress>,
}

impl TreePlace {
    pub(super) fn root(&self) -> LogicalAddress {
        *self.blocks.last().expect("a tree has at least one block")
    }
}

/// Everything that determines the content of the trees.
pub(super) struct Facts<'a> {
    pub(super) choice: &'a Choice,
    pub(super) chunks: &'a ChunkLayout,
    pub(super) places: &'a [TreePlace],
    /// Bytes of each device, by devid from 1 on.
    pub(super) totals: &'a [u64],
}

impl Facts<'_> {
    /// Returns all blocks by address, each with its tree, level and first key.
    pub(super) fn blocks(&self) -> BTreeMap<LogicalAddress, (TreeId, u8, Key)> {
        let of_tree = |tree: &TreePlace| {
            let block = |(at, address): (usize, &LogicalAddress)| {
                let (level, first_key) = tree.shape.block(at);
                (*address, (tree.id, level, first_key))
            };
            tree.blocks.iter().enumerate().map(block).collect::<Vec<_>>()
        };
        self.places.iter().flat_map(of_tree).collect()
    }

    /// Returns the bytes of a chunk that blocks use.
    pub(super) fn used(&self, chunk: &Chunk) -> u64 {
        let blocks = self.places.iter().flat_map(|tree| &tree.blocks);
        let inside = blocks.filter(|block| (chunk.start..chunk.end()).contains(block));
        inside.count() as u64 * u64::from(self.choice.node_size)
    }

    /// Returns the bytes of the file system.
    pub(super) fn total_bytes(&self) -> u64 {
        self.totals.iter().sum()
    }

    /// Returns the device items by devid, for the chunk tree and the superblocks.
    pub(super) fn device_items(&self) -> impl Iterator<Item = DeviceItem> + '_ {
        (0..self.totals.len()).map(|at| self.device_item(at))
    }

    fn device_item(&self, at: usize) -> DeviceItem {
        let devid = DeviceId(at as u64 + 1);
        DeviceItem {
            devid,
            total_bytes: self.totals[at],
            bytes_used: self.chunks.bytes_on(devid),
            io_align: self.choice.sector_size,
            io_width: self.choice.sector_size,
            sector_size: self.choice.sector_size,
            device_type: 0,
            generation: Generation(0),
            start_offset: 0,
            dev_group: 0,
            seek_speed: 0,
            bandwidth: 0,
            uuid: self.choice.uuids.devices[at],
            fsid: self.choice.uuids.in_blocks(),
        }
    }

    /// Returns the place of a tree.
    pub(super) fn tree(&self, id: TreeId) -> &TreePlace {
        self.places.iter().find(|tree| tree.id == id).expect("every tree has a place")
    }
}

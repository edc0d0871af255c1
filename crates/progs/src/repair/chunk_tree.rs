//! Writes a chunk tree that a scan made, in the place of one that cannot be read.
//!
//! Owns [`NewChunkTree`]. Its blocks go to places of the system chunks where the scan found no
//! block. Then the superblock names it. The rounds of the repair mend the device extents and the
//! extent tree to match.
//!
//! **Invariant**: a map that lacks a chunk, or has one whose bounds are guessed, is not written.
//!
//! Userspace counterpart: `btrfs rescue chunk-recover`.

use super::super::salvage::block_scan::BlockScan;
use super::super::salvage::rebuild::{Rebuilt, SuperblockSource, rebuilt_volume};
use super::editor::{Items, current_superblock, refuse, write_superblock};
use super::tree_writer::NewTree;
use papilio_device::Device;
use papilio_engine::errors::Result;
use papilio_engine::space::superblock_exclusions::superblock_exclusions;
use papilio_engine::volume::Volume;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::node::NodeHeader;
use papilio_format::{ItemType, Key, LogicalAddress, Uuid, objectid};
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes of the superblock's array of system chunks.
const ARRAY_BYTES: usize = 2048;

/// A chunk tree that is not written yet.
#[derive(Clone, Debug)]
pub struct NewChunkTree {
    rebuilt: Rebuilt,
    chunks: Vec<(LogicalAddress, ChunkItem)>,
    devices: Vec<DeviceItem>,
    /// The addresses of all blocks that were found.
    taken: HashSet<u64>,
    chunk_tree_uuid: Uuid,
}

impl NewChunkTree {
    /// Makes the tree of a scan.
    ///
    /// # Errors
    /// The chunk tree can be read; no superblock is good; chunks are lost or guessed.
    pub fn new(devices: &[Arc<dyn Device>], rebuilt: Rebuilt, scan: &BlockScan) -> Result<Self> {
        let Some(sources) = rebuilt.chunks else { return refuse("the chunk tree can be read") };
        if !matches!(rebuilt.superblock, SuperblockSource::Good { .. }) {
            return refuse("no superblock copy is good");
        }
        if rebuilt.root.is_some() {
            return refuse("the root tree cannot be read either");
        }
        if sources.lost > 0 || sources.blocks > 0 {
            return refuse(format!(
                "the map is not complete: {} block groups are lost, {} chunks known by their blocks only",
                sources.lost, sources.blocks
            ));
        }
        let found = rebuilt.options().rescue.found.as_ref().and_then(|found| found.chunk_tree.clone());
        let Some(found) = found else { return refuse("the chunk tree can be read") };
        let mut items = found.devices;
        for item in &mut items {
            let mut used = 0u64;
            for (_, chunk) in &found.chunks {
                let stripes = chunk.stripes.iter().filter(|stripe| stripe.devid == item.devid).count() as u64;
                used = used.saturating_add(chunk.stripe_bytes().unwrap_or(0).saturating_mul(stripes));
            }
            item.bytes_used = used;
            if item.total_bytes < used {
                return refuse(format!("the size of device {} is lost", item.devid));
            }
        }
        let taken = scan.blocks.iter().map(|block| block.address.0).collect();
        let Some(first) = scan.blocks.first() else { return refuse("no block was found") };
        let mut bytes = vec![0; scan.node_size as usize];
        let read = devices[first.device].read_at(&mut bytes, first.offset);
        let header = NodeHeader::parse_prefix(&bytes);
        let (Ok(()), Ok((header, _))) = (read, header) else {
            return refuse("a block cannot be read any more");
        };
        let chunk_tree_uuid = header.chunk_tree_uuid;
        Ok(Self { rebuilt, chunks: found.chunks, devices: items, taken, chunk_tree_uuid })
    }

    /// Writes the tree, then the superblocks. Returns the changes.
    ///
    /// # Errors
    /// No room in the system chunks; failures of a device.
    pub(crate) fn write(&self, devices: &[Arc<dyn Device>]) -> Result<Vec<String>> {
        let volume = rebuilt_volume(devices, &self.rebuilt)?;
        let items = self.items();
        let plan = NewTree::plan(objectid::CHUNK_TREE, &items, volume.geometry().node_size)?;
        let addresses = self.places(&volume, plan.blocks())?;
        let mut raw = current_superblock(&volume)?;
        plan.write(&volume, self.chunk_tree_uuid, raw.generation, &addresses)?;
        let mut array = Vec::new();
        for (start, chunk) in self.chunks.iter().filter(|(_, chunk)| is_system(chunk)) {
            let key = chunk_key(*start);
            array.extend(key.to_bytes());
            array.extend(chunk.to_bytes());
        }
        if array.len() > ARRAY_BYTES {
            return refuse("the system chunks do not fit into the superblock");
        }
        raw.sys_chunk_array_size = array.len() as u32;
        array.resize(ARRAY_BYTES, 0);
        raw.sys_chunk_array.copy_from_slice(&array);
        (raw.chunk_root, raw.chunk_root_level) = (addresses[addresses.len() - 1], plan.level());
        raw.chunk_root_generation = raw.generation;
        write_superblock(&volume, &raw)?;
        Ok(vec![plan.to_string(), "superblock: set the chunk tree and the system chunks".to_owned()])
    }

    fn items(&self) -> Items {
        let device = |item: &DeviceItem| {
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, item.devid.0);
            (key, item.to_bytes().to_vec())
        };
        let chunk = |(start, chunk): &(LogicalAddress, ChunkItem)| (chunk_key(*start), chunk.to_bytes());
        let mut items: Items = self.devices.iter().map(device).collect();
        items.extend(self.chunks.iter().map(chunk));
        items.sort_by_key(|(key, _)| *key);
        items
    }

    /// Finds blocks in the system chunks that nothing was found in.
    fn places(&self, volume: &Volume, count: usize) -> Result<Vec<LogicalAddress>> {
        let size = u64::from(volume.geometry().node_size);
        let mut places = Vec::new();
        for chunk in volume.chunk_map().iter().filter(|chunk| chunk.flags().contains(BlockGroupFlags::SYSTEM))
        {
            let excluded = superblock_exclusions(chunk);
            let first = chunk.start().0.next_multiple_of(size);
            for at in (first..chunk.end().0.saturating_sub(size - 1)).step_by(size as usize) {
                let apart = excluded.iter().all(|range| at + size <= range.start.0 || at >= range.end.0);
                if apart && !self.taken.contains(&at) {
                    places.push(LogicalAddress(at));
                }
                if places.len() == count {
                    return Ok(places);
                }
            }
        }
        refuse("the system chunks have no room for a chunk tree")
    }
}

fn chunk_key(start: LogicalAddress) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0)
}

fn is_system(chunk: &ChunkItem) -> bool {
    chunk.flags.contains(BlockGroupFlags::SYSTEM)
}

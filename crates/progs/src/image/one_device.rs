//! The trees of a file system of several devices that is restored to one.
//!
//! Owns [`OneDevice`]. Chunks get one stripe, device extents follow them, the other devices
//! disappear, and block groups lose their profile. All of it happens in the blocks where the trees
//! are: there is no transaction, so it works for damaged file systems, too.

use super::chunks::{Chunks, TreeImage};
use super::mapping::on_one_device;
use super::refill::refill;
use super::source::{Source, fault};
use papilio_engine::errors::Result;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::{DeviceExtent, DeviceItem};
use papilio_format::items::root::RootItem;
use papilio_format::node::NodeHeader;
use papilio_format::superblock::{RawSuperblock, SYSTEM_CHUNK_ARRAY_SIZE};
use papilio_format::{Geometry, ItemType, Key, LogicalAddress, Node, NodeExpectation, objectid};
use std::collections::BTreeMap;
use std::io::{Read, Seek};

/// The changes.
#[derive(Debug)]
pub(super) struct OneDevice {
    pub(super) superblock: RawSuperblock,
    pub(super) chunks: Vec<(LogicalAddress, ChunkItem)>,
    /// Blocks that take the place of those in the dump.
    pub(super) blocks: BTreeMap<LogicalAddress, Vec<u8>>,
}

impl OneDevice {
    /// Plans the change. The device of the dump's superblock stays.
    ///
    /// # Errors
    /// Trees that are not in the dump or not good, or have no room for the change.
    pub(super) fn plan<R: Read + Seek>(
        source: &mut Source<R>,
        chunk_tree: &TreeImage,
        old: &Chunks,
    ) -> Result<Self> {
        let geometry = source.superblock().geometry();
        let mut superblock = source.superblock().raw;
        let kept = superblock.dev_item;
        if !old.devices.iter().any(|item| item.devid == kept.devid && item.uuid == kept.uuid) {
            return fault(format_args!("its chunk tree does not have device {}", kept.devid));
        }
        let (chunks, total_bytes) = on_one_device(&old.chunks, kept.devid, kept.uuid)?;
        let bytes_used = chunks.iter().map(|(_, chunk)| chunk.length).sum();
        let item = DeviceItem { total_bytes, bytes_used, ..kept };
        let mut blocks = BTreeMap::new();
        blocks.extend(refill(chunk_tree, &new_chunk_items(chunk_tree, &chunks, &item), &geometry)?);
        let dev_tree = dev_tree(source)?;
        blocks.extend(refill(&dev_tree, &new_dev_items(&dev_tree, &chunks, &item), &geometry)?);
        superblock.dev_item = item;
        superblock.total_bytes = total_bytes;
        superblock.num_devices = 1;
        // Superblock copies are elsewhere in the address space now, and the caches know the old
        // places.
        superblock.cache_generation = 0;
        set_system_chunks(&mut superblock, &chunks)?;
        Ok(Self { superblock, chunks, blocks })
    }

    /// Changes a block of the dump.
    pub(super) fn change(&self, address: LogicalAddress, bytes: &mut [u8], geometry: &Geometry) {
        if let Some(block) = self.blocks.get(&address) {
            bytes.copy_from_slice(block);
            return;
        }
        let Ok((header, _)) = NodeHeader::parse_prefix(bytes) else { return };
        let owners = [objectid::EXTENT_TREE, objectid::BLOCK_GROUP_TREE];
        if header.level != 0 || header.address != address || !owners.contains(&header.owner) {
            return;
        }
        let Ok(node) = Node::check(bytes, &NodeExpectation::at(address), geometry) else { return };
        let mut changed = Vec::new();
        for slot in 0..node.len() {
            let key = node.key(slot);
            if key.item_type != ItemType::BLOCK_GROUP_ITEM {
                continue;
            }
            let Ok(mut item) = BlockGroupItem::parse(node.item(slot)) else { continue };
            item.flags &= BlockGroupFlags::TYPE_MASK;
            let start = NodeHeader::SIZE + node.item_header(slot).offset as usize;
            changed.push((start, item.to_bytes()));
        }
        if changed.is_empty() {
            return;
        }
        for (start, item) in changed {
            bytes[start..start + item.len()].copy_from_slice(&item);
        }
        let sum = geometry.checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
        bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
    }
}

/// Reads the device tree, whose root is in a backup root, or else in the root tree.
fn dev_tree<R: Read + Seek>(source: &mut Source<R>) -> Result<TreeImage> {
    let raw = source.superblock().raw;
    let current = raw.super_roots.iter().find(|backup| {
        backup.tree_root == raw.root
            && backup.tree_root_generation == raw.generation
            && backup.dev_root.0 != 0
    });
    if let Some(backup) = current
        && let Ok(tree) = TreeImage::read(source, objectid::DEV_TREE, backup.dev_root, backup.dev_root_level)
    {
        return Ok(tree);
    }
    let roots = TreeImage::read(source, objectid::ROOT_TREE, raw.root, raw.root_level)?;
    let root = roots.items().find_map(|(key, data)| {
        let wanted = key.objectid == objectid::DEV_TREE.0 && key.item_type == ItemType::ROOT_ITEM;
        wanted.then(|| RootItem::parse(data).ok()).flatten()
    });
    let Some(root) = root else { return fault("its root tree has no device tree") };
    TreeImage::read(source, objectid::DEV_TREE, root.address, root.level)
}

fn new_chunk_items(
    tree: &TreeImage,
    chunks: &[(LogicalAddress, ChunkItem)],
    device: &DeviceItem,
) -> Vec<(Key, Vec<u8>)> {
    let mut chunks = chunks.iter();
    let new = |(key, data): (Key, &[u8])| match key.item_type {
        ItemType::DEV_ITEM => (key.offset == device.devid.0).then(|| (key, device.to_bytes().to_vec())),
        // The chunks are those of the items, in their order.
        ItemType::CHUNK_ITEM => chunks.next().map(|(_, chunk)| (key, chunk.to_bytes())),
        _ => Some((key, data.to_vec())),
    };
    tree.items().filter_map(new).collect()
}

fn new_dev_items(
    tree: &TreeImage,
    chunks: &[(LogicalAddress, ChunkItem)],
    device: &DeviceItem,
) -> Vec<(Key, Vec<u8>)> {
    let chunk_tree_uuid = Node::of_checked(&tree.levels[0][0].bytes).header().chunk_tree_uuid;
    let is_kept = |key: &Key| match key.item_type {
        ItemType::DEV_EXTENT => false,
        ItemType::PERSISTENT_ITEM if key.objectid == objectid::DEV_STATS => key.offset == device.devid.0,
        _ => true,
    };
    let others = tree.items().filter(|(key, _)| is_kept(key)).map(|(key, data)| (key, data.to_vec()));
    let mut items: Vec<_> = others.collect();
    for (chunk_offset, chunk) in chunks {
        let extent = DeviceExtent {
            chunk_tree: objectid::CHUNK_TREE,
            chunk_objectid: objectid::FIRST_CHUNK_TREE,
            chunk_offset: *chunk_offset,
            length: chunk.length,
            chunk_tree_uuid,
        };
        let key = Key::new(device.devid.0, ItemType::DEV_EXTENT, chunk.stripes[0].offset.0);
        items.push((key, extent.to_bytes().to_vec()));
    }
    items.sort_by_key(|(key, _)| *key);
    items
}

/// Writes the system chunks into the superblock's array.
fn set_system_chunks(superblock: &mut RawSuperblock, chunks: &[(LogicalAddress, ChunkItem)]) -> Result<()> {
    let mut array = Vec::new();
    for (start, chunk) in chunks.iter().filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::SYSTEM)) {
        let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0);
        array.extend_from_slice(&key.to_bytes());
        array.extend_from_slice(&chunk.to_bytes());
    }
    if array.len() > SYSTEM_CHUNK_ARRAY_SIZE {
        return fault("its system chunks do not fit into a superblock");
    }
    superblock.sys_chunk_array_size = array.len() as u32;
    superblock.sys_chunk_array = [0; SYSTEM_CHUNK_ARRAY_SIZE];
    superblock.sys_chunk_array[..array.len()].copy_from_slice(&array);
    Ok(())
}

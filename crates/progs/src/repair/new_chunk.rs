//! Room for tree blocks where no chunk has any: a new metadata chunk.
//!
//! Owns [`add_metadata_chunk`], which inserts the item of a new chunk into the chunk tree. The next
//! check finds that its device extents and its block group are missing, and mends them as those of
//! any other chunk.
//!
//! **Invariant**: a new chunk overlaps no chunk, and no device extent that can be read: the file
//! system may have lost the chunk of an extent.
//!
//! Kernel counterpart: `btrfs_chunk_alloc` (`fs/btrfs/block-group.c`).

use super::super::check::inventory::Inventory;
use super::editor::{Editor, RoundContext, refuse};
use papilio_engine::errors::{Error, Result};
use papilio_engine::space::chunk_allocation::{ChunkLimits, DeviceSpace, next_chunk_start, plan_chunk};
use papilio_engine::volume::Volume;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::device::DeviceExtent;
use papilio_format::{ItemType, Key, PhysicalAddress, objectid};
use std::sync::Arc;

/// Largest length of a new chunk in bytes: a repair writes trees anew, but few at a time.
const LENGTH_MAX: u64 = 64 << 20;

/// Adds a chunk with the profile of the last metadata chunk, and its item to the chunk tree. The
/// caller looks at the devices again to use it. Returns the change.
///
/// # Errors
/// A chunk tree that cannot be read completely; no metadata chunk to follow; [`Error::NoSpace`]
/// without space outside the chunks; no room in the system chunks.
pub(super) fn add_metadata_chunk(
    volume: &Arc<Volume>,
    context: &RoundContext,
    inventory: &Inventory,
) -> Result<String> {
    if !inventory.whole.contains(&objectid::CHUNK_TREE) {
        return refuse("the chunk tree cannot be read completely");
    }
    let map = volume.chunk_map();
    let metadata = map.iter().filter(|chunk| chunk.flags().contains(BlockGroupFlags::METADATA));
    let Some(flags) = metadata.last().map(|chunk| chunk.flags()) else {
        return refuse("no metadata chunk is there whose profile a new one could have");
    };
    let Some(start) = next_chunk_start(&map) else {
        return Err(Error::NoSpace { what: "a chunk" });
    };
    let editor = Editor::new(volume, context);
    let geometry = volume.geometry();
    let limits = ChunkLimits { length_max: LENGTH_MAX, ..ChunkLimits::new(geometry.node_size) };
    let plan = plan_chunk(&device_spaces(volume, &editor, inventory), flags, &limits)?;
    let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0);
    let item = plan.chunk_item(geometry.sector_size);
    editor.put(objectid::CHUNK_TREE, key, item.to_bytes())?;
    let length = plan.length;
    Ok(format!("tree CHUNK_TREE: add a metadata chunk of {length} bytes at {start}, for new tree blocks"))
}

/// Returns the used ranges of the devices that are present: stripes of chunks, and device extents.
fn device_spaces(volume: &Volume, editor: &Editor<'_>, inventory: &Inventory) -> Vec<DeviceSpace> {
    let mut spaces: Vec<DeviceSpace> = volume
        .devices()
        .iter()
        .filter(|slot| slot.in_chunk_tree && !slot.is_missing())
        .map(|slot| {
            let size = slot.device.as_ref().map_or(0, |device| device.size());
            let total_bytes = slot.item.total_bytes.min(size);
            DeviceSpace { devid: slot.item.devid, uuid: slot.item.uuid, total_bytes, used: Vec::new() }
        })
        .collect();
    let mut used: Vec<(u64, PhysicalAddress, u64)> = Vec::new();
    for (_, chunk) in &inventory.chunks {
        // A chunk of no known size takes all that follows it.
        let stripe_bytes = chunk.stripe_bytes().unwrap_or(u64::MAX);
        used.extend(chunk.stripes.iter().map(|stripe| (stripe.devid.0, stripe.offset, stripe_bytes)));
    }
    // Without a device tree the chunks say all that is known.
    let extents = editor.items(objectid::DEV_TREE, &Key::MIN, &Key::MAX).unwrap_or_default();
    for (key, data) in extents.iter().filter(|(key, _)| key.item_type == ItemType::DEV_EXTENT) {
        if let Ok(extent) = DeviceExtent::parse(data) {
            used.push((key.objectid, PhysicalAddress(key.offset), extent.length));
        }
    }
    used.sort_unstable_by_key(|(devid, offset, _)| (*devid, *offset));
    for (devid, offset, length) in used {
        if let Some(space) = spaces.iter_mut().find(|space| space.devid.0 == devid) {
            space.used.push((offset, length));
        }
    }
    spaces
}

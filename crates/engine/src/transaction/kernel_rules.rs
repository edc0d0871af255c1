//! The kernel's rules of a mount: a file system that breaks one is never opened for writing.
//!
//! Owns [`check_mountable`] and [`check_device_extents`]. A file system that breaks a rule can be
//! opened for reading, where the trees that a reader needs are good.
//!
//! **Invariant**: no rule is stricter than the kernel's. A file system that the kernel mounts for
//! writing passes.
//!
//! Locks: none.
//!
//! Kernel counterparts: `open_ctree`, `btrfs_check_features`, `load_global_roots`
//! (`fs/btrfs/disk-io.c`); `read_one_dev`, `btrfs_read_chunk_tree`, `btrfs_verify_dev_extents`
//! (`fs/btrfs/volumes.c`); `read_one_block_group` (`fs/btrfs/block-group.c`).

use super::live_trees::LiveTrees;
use super::writable::refuse;
use crate::btree::Tree;
use crate::errors::Result;
use crate::volume::{Chunk, Volume};
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::device::DeviceExtent;
use papilio_format::{ItemType, Key, TreeId, objectid};
use std::collections::BTreeMap;

/// Refuses a file system whose superblock, devices or global trees the kernel does not accept.
///
/// # Errors
/// [`Error::ReadOnlyFileSystem`](crate::Error::ReadOnlyFileSystem) with the rule that is broken.
pub(super) fn check_mountable(volume: &Volume, live: &LiveTrees) -> Result<()> {
    check_sizes(volume)?;
    check_roots(volume, live)?;
    check_gaps(volume, live)
}

fn check_sizes(volume: &Volume) -> Result<()> {
    let superblock = volume.superblock();
    let raw = &superblock.raw;
    if raw.incompat_flags.contains(IncompatFeatures::MIXED_GROUPS) && raw.node_size != raw.sector_size {
        return refuse("mixed block groups need tree blocks of one sector");
    }
    let mut total = 0u64;
    for slot in volume.devices().iter().filter(|slot| slot.in_chunk_tree) {
        let Some(device) = slot.device.as_deref() else { continue };
        if device.size() < slot.item.total_bytes {
            return refuse(&format!(
                "{} has {} bytes, its device item says {}",
                device.name(),
                device.size(),
                slot.item.total_bytes
            ));
        }
        // Seeds do not count: nothing is written to them.
        if slot.item.fsid == superblock.metadata_uuid() {
            total = total.saturating_add(slot.item.total_bytes);
        }
    }
    if raw.total_bytes < total {
        return refuse(&format!(
            "the superblock says {} bytes in total, its devices have {total}; \
             `btrfs rescue fix-device-size` mends this",
            raw.total_bytes
        ));
    }
    Ok(())
}

/// Reads the root block of every tree that a mount needs.
fn check_roots(volume: &Volume, live: &LiveTrees) -> Result<()> {
    let features = volume.geometry().compat_ro;
    let mut needed = vec![
        (objectid::EXTENT_TREE, "the extent tree"),
        (objectid::DEV_TREE, "the device tree"),
        (objectid::CSUM_TREE, "the checksum tree"),
        (objectid::DATA_RELOC_TREE, "the data relocation tree"),
        (objectid::FS_TREE, "the top-level subvolume"),
    ];
    if features.contains(CompatRoFeatures::FREE_SPACE_TREE) {
        needed.push((objectid::FREE_SPACE_TREE, "the free-space tree"));
    }
    if features.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
        needed.push((objectid::BLOCK_GROUP_TREE, "the block-group tree"));
    }
    for (id, what) in needed {
        check_root(live, id, what, true)?;
    }
    // The kernel creates a UUID tree that is missing.
    check_root(live, objectid::UUID_TREE, "the UUID tree", false)
}

fn check_root(live: &LiveTrees, id: TreeId, what: &str, required: bool) -> Result<()> {
    match live.find(id) {
        Ok(None) if required => refuse(&format!("{what} is missing")),
        Ok(None) => Ok(()),
        Ok(Some(open)) => match open.tree().root_block() {
            Ok(_) => Ok(()),
            Err(error) => refuse(&format!("{what} cannot be read: {error}")),
        },
        Err(error) => refuse(&format!("{what} cannot be read: {error}")),
    }
}

/// Refuses block groups that lie between the chunks. Those of the chunks are compared when free
/// space is loaded.
fn check_gaps(volume: &Volume, live: &LiveTrees) -> Result<()> {
    let separate = volume.geometry().compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE);
    let id = if separate { objectid::BLOCK_GROUP_TREE } else { objectid::EXTENT_TREE };
    let tree = live.get(id)?.tree();
    let chunks = volume.chunk_map();
    let mut gap = 0;
    for chunk in chunks.iter() {
        check_gap(&tree, gap, chunk.start().0)?;
        gap = chunk.end().0;
    }
    check_gap(&tree, gap, u64::MAX)
}

fn check_gap(tree: &Tree, start: u64, end: u64) -> Result<()> {
    if start >= end {
        return Ok(());
    }
    let keys = Key::new(start, ItemType(0), 0)..=Key::new(end - 1, ItemType(u8::MAX), u64::MAX);
    for item in tree.range(keys) {
        let key = item?.key;
        if key.item_type == ItemType::BLOCK_GROUP_ITEM {
            return refuse(&format!("the block group at {} has no chunk", key.objectid));
        }
    }
    Ok(())
}

/// Compares device extents, in the order of the device tree, with the stripes of the chunks.
///
/// # Errors
/// [`Error::ReadOnlyFileSystem`](crate::Error::ReadOnlyFileSystem) with the first that differs.
pub(super) fn check_device_extents(volume: &Volume, extents: &[(Key, DeviceExtent)]) -> Result<()> {
    let chunks = volume.chunk_map();
    let devices = volume.devices();
    let mut found: BTreeMap<u64, usize> = BTreeMap::new();
    let mut before = (0, 0);
    for (key, extent) in extents {
        let (devid, start, at) = (key.objectid, key.offset, extent.chunk_offset);
        let what = format!("the device extent at {start} of device {devid}");
        let end = start.saturating_add(extent.length);
        if before.0 == devid && start < before.1 {
            return refuse(&format!("{what} overlaps the one before it"));
        }
        before = (devid, end);
        let Some(chunk) = chunks.find(at).filter(|chunk| chunk.start() == at) else {
            return refuse(&format!("{what} belongs to a chunk at {at} that does not exist"));
        };
        let length = stripe_bytes(chunk);
        if extent.length != length {
            return refuse(&format!("{what} has {} bytes, its chunk's stripes {length}", extent.length));
        }
        if !chunk.stripes().iter().any(|stripe| stripe.devid.0 == devid && stripe.offset.0 == start) {
            return refuse(&format!("{what} is no stripe of its chunk"));
        }
        let Some(slot) = devices.iter().find(|slot| slot.devid().0 == devid) else {
            return refuse(&format!("{what} is on a device without an item"));
        };
        if end > slot.item.total_bytes {
            return refuse(&format!("{what} ends at {end}, past the device's {}", slot.item.total_bytes));
        }
        *found.entry(at.0).or_default() += 1;
    }
    for chunk in chunks.iter() {
        let (have, need) = (found.get(&chunk.start().0).copied().unwrap_or(0), chunk.stripes().len());
        if have != need {
            let start = chunk.start();
            return refuse(&format!("the chunk at {start} has {have} device extents for {need} stripes"));
        }
    }
    Ok(())
}

/// The bytes that each stripe of a chunk has on its device.
fn stripe_bytes(chunk: &Chunk) -> u64 {
    chunk.length() / chunk.profile().data_stripes(chunk.stripes().len()) as u64
}

//! The error counters of the devices in the device tree.
//!
//! Owns [`load_counters`], [`read_counters`] and [`changed_items`], which a commit writes. Each
//! device has an item of counters; an older kernel may have written fewer, a newer one more.
//!
//! **Locks**: none of its own.
//!
//! Kernel counterparts: `btrfs_init_dev_stats`, `btrfs_run_dev_stats` (`fs/btrfs/volumes.c`).

use crate::btree::Tree;
use crate::errors::{Error, Result};
use crate::volume::Volume;
use crate::volume::counters::DeviceCounts;
use papilio_format::items::device::{DeviceStat, DeviceStats};
use papilio_format::{DeviceId, ItemType, Key, objectid};

fn key(devid: DeviceId) -> Key {
    Key::new(objectid::DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0)
}

/// Reads the counters of a device from the device tree; zeros if it has none.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub fn read_counters(tree: &Tree, devid: DeviceId) -> Result<DeviceCounts> {
    let key = key(devid);
    let Some(item) = tree.get(&key)? else { return Ok(DeviceCounts::default()) };
    let stats = DeviceStats::parse(item.data()).map_err(|reason| Error::Item {
        tree: objectid::DEV_TREE,
        key,
        reason,
    })?;
    Ok(DeviceStat::ALL.map(|stat| stats.get(stat)))
}

/// Loads the counters of all devices.
///
/// # Errors
/// As [`read_counters`].
pub(super) fn load_counters(volume: &Volume, tree: &Tree) -> Result<()> {
    let devices = volume.devices();
    devices.iter().filter(|slot| slot.in_chunk_tree).try_for_each(|slot| {
        let counts = read_counters(tree, slot.devid())?;
        devices.counters().load(slot.devid(), counts.into_iter());
        Ok(())
    })
}

/// Returns the items of the counters that changed since the last call, for the device tree.
///
/// # Errors
/// A tree block that cannot be read.
pub(super) fn changed_items(volume: &Volume, tree: &Tree) -> Result<Vec<(Key, Vec<u8>)>> {
    let devices = volume.devices();
    let known = |devid| devices.iter().any(|slot| slot.in_chunk_tree && slot.devid() == devid);
    let changed = devices.counters().take_changed();
    let item = |(devid, counts): (DeviceId, DeviceCounts)| {
        let key = key(devid);
        let mut bytes = tree.get(&key)?.map_or_else(Vec::new, |item| item.data().to_vec());
        // Counters of a newer kernel after ours stay.
        let ours = DeviceStats::encode(&counts);
        bytes.resize(bytes.len().max(ours.len()), 0);
        bytes[..ours.len()].copy_from_slice(&ours);
        Ok((key, bytes))
    };
    changed.into_iter().filter(|(devid, _)| known(*devid)).map(item).collect()
}

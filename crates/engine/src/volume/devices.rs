//! The device table: the device of each stripe, and the missing devices.
//!
//! Owns [`DeviceTable`], an immutable snapshot like the chunk map. Devices are known first from
//! their own superblocks, then from the device items of the chunk tree.
//!
//! **Invariants**
//! - Slots are in ascending order of devid. A slot without a device is a missing device.
//! - A stripe matches a device only if devid and device UUID are both equal.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `struct btrfs_fs_devices` and `btrfs_find_device` (`fs/btrfs/volumes.c`).

use super::counters::ErrorCounters;
use papilio_device::{Busy, Device, Load};
use papilio_format::DeviceId;
use papilio_format::items::chunk::Stripe;
use papilio_format::items::device::{DeviceItem, DeviceStat};
use std::sync::Arc;

/// One device of the file system.
#[derive(Clone, Debug)]
pub struct DeviceSlot {
    /// The device item: the superblock's copy until the chunk tree's is known.
    pub item: DeviceItem,
    /// The device; `None` if it is missing.
    pub device: Option<Arc<dyn Device>>,
    /// Whether its superblock is older than the newest, so that it missed writes. Until it is
    /// healed it is written, but read only as the last resort, and keeps its old superblock.
    pub stale: bool,
    /// Whether the chunk tree has an item for it.
    pub in_chunk_tree: bool,
    /// The requests under way at it.
    pub(crate) load: Load,
}

impl DeviceSlot {
    /// Returns the devid.
    pub fn devid(&self) -> DeviceId {
        self.item.devid
    }

    /// Returns whether the device is missing.
    pub fn is_missing(&self) -> bool {
        self.device.is_none()
    }

    /// Returns the path or description of the device; `None` if it is missing.
    pub fn name(&self) -> Option<&str> {
        self.device.as_deref().map(Device::name)
    }
}

/// An immutable snapshot of the known devices.
#[derive(Debug, Default)]
pub struct DeviceTable {
    slots: Vec<DeviceSlot>,
    /// Shared by all snapshots.
    counters: Arc<ErrorCounters>,
}

impl DeviceTable {
    pub(super) fn new(mut slots: Vec<DeviceSlot>) -> Self {
        slots.sort_by_key(DeviceSlot::devid);
        Self { slots, counters: Arc::default() }
    }

    /// Iterates over all devices in ascending order of devid.
    pub fn iter(&self) -> std::slice::Iter<'_, DeviceSlot> {
        self.slots.iter()
    }

    /// Returns the slot and its number for a stripe's device, present or missing.
    #[inline]
    pub(crate) fn find(&self, stripe: &Stripe) -> Option<(usize, &DeviceSlot)> {
        let first = self.slots.partition_point(|slot| slot.item.devid < stripe.devid);
        self.slots
            .iter()
            .enumerate()
            .skip(first)
            .take_while(|(_, slot)| slot.item.devid == stripe.devid)
            .find(|(_, slot)| slot.item.uuid == stripe.device_uuid)
    }

    /// Returns the device of a stripe and its slot number; `None` if it is missing.
    #[inline]
    pub(crate) fn present(&self, stripe: &Stripe) -> Option<(usize, &dyn Device)> {
        let (number, slot) = self.find(stripe)?;
        Some((number, slot.device.as_deref()?))
    }

    /// Returns the device of slot `number`.
    #[inline]
    pub(super) fn device(&self, number: usize) -> Option<&dyn Device> {
        self.slots.get(number)?.device.as_deref()
    }

    /// Returns this table with the device of slot `number` out of date, or up to date.
    pub(super) fn with_stale(&self, number: usize, stale: bool) -> Self {
        let mut slots = self.slots.clone();
        slots[number].stale = stale;
        Self { slots, counters: Arc::clone(&self.counters) }
    }

    /// Returns this table with another device, or none, in the place of `devid`.
    pub(super) fn with_device(&self, devid: DeviceId, device: Option<&Arc<dyn Device>>, stale: bool) -> Self {
        let mut slots = self.slots.clone();
        for slot in slots.iter_mut().filter(|slot| slot.in_chunk_tree && slot.item.devid == devid) {
            slot.device = device.cloned();
            slot.stale = stale;
        }
        Self { slots, counters: Arc::clone(&self.counters) }
    }

    /// Returns whether requests wait for the devices, so that it pays to have several in flight.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        self.slots.iter().all(|slot| slot.device.as_ref().is_none_or(|device| device.waits()))
    }

    /// Counts a request of the device of slot `number`, which exists.
    #[inline]
    pub(super) fn begin(&self, number: usize) -> Busy {
        self.slots[number].load.begin()
    }

    /// Returns the error counters.
    pub fn counters(&self) -> &Arc<ErrorCounters> {
        &self.counters
    }

    /// Counts an error of the device of slot `number`.
    pub(super) fn count(&self, number: usize, stat: DeviceStat) {
        if let Some(slot) = self.slots.get(number) {
            self.counters.add(slot.devid(), stat, 1);
        }
    }

    /// Returns the device of slot `number`, to be kept.
    #[inline]
    pub(super) fn shared(&self, number: usize) -> Option<&Arc<dyn Device>> {
        self.slots.get(number)?.device.as_ref()
    }

    /// Returns this table with one more device.
    pub(super) fn with_slot(&self, slot: DeviceSlot) -> Self {
        let slots = self.slots.iter().cloned().chain([slot]).collect();
        Self { counters: Arc::clone(&self.counters), ..Self::new(slots) }
    }

    /// Returns this table without a device.
    pub(super) fn without(&self, devid: DeviceId) -> Self {
        let slots = self.slots.iter().filter(|slot| slot.devid() != devid).cloned().collect();
        Self { counters: Arc::clone(&self.counters), ..Self::new(slots) }
    }

    /// Returns this table updated with items of the chunk tree. An item replaces that of the slot
    /// with the same devid and UUID; otherwise it adds a missing device.
    pub(super) fn with_items(&self, items: impl IntoIterator<Item = DeviceItem>) -> Self {
        let mut slots = self.slots.clone();
        for item in items {
            let same = |slot: &&mut DeviceSlot| {
                slot.item.devid == item.devid && slot.item.uuid == item.uuid && slot.item.fsid == item.fsid
            };
            match slots.iter_mut().find(same) {
                Some(slot) => {
                    slot.item = item;
                    slot.in_chunk_tree = true;
                }
                None => {
                    let (load, in_chunk_tree) = (Load::default(), true);
                    slots.push(DeviceSlot { item, device: None, stale: false, in_chunk_tree, load });
                }
            }
        }
        Self { counters: Arc::clone(&self.counters), ..Self::new(slots) }
    }
}

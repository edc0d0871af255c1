//! The device table: which device a stripe is on, and which devices are missing.
//!
//! Owns [`DeviceTable`], an immutable snapshot like the chunk map's. Devices are known first from
//! their own superblocks, then from the chunk tree's device items.
//!
//! Invariants: slots ascend by devid; a slot without a device is a missing one; a stripe finds its
//! device only where devid and device UUID both match.
//!
//! Takes no lock. Kernel counterpart: `struct btrfs_fs_devices` and `btrfs_find_device`
//! (`fs/btrfs/volumes.c`).

use papilio_device::Device;
use papilio_format::DeviceId;
use papilio_format::items::chunk::Stripe;
use papilio_format::items::device::DeviceItem;
use std::sync::Arc;

/// One device of the file system.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSlot {
    /// Its item: the superblock's own until the chunk tree's is known.
    pub(crate) item: DeviceItem,
    /// The device, unless it is missing.
    pub(crate) device: Option<Arc<dyn Device>>,
    /// Its superblock is older than the newest, so that it missed writes.
    pub(crate) stale: bool,
    /// The chunk tree has an item for it.
    pub(crate) in_chunk_tree: bool,
}

impl DeviceSlot {
    /// Its number.
    pub(crate) fn devid(&self) -> DeviceId {
        self.item.devid
    }

    /// Whether it is not there.
    pub(crate) fn is_missing(&self) -> bool {
        self.device.is_none()
    }

    /// The path or description of the device, unless it is missing.
    pub(crate) fn name(&self) -> Option<&str> {
        self.device.as_deref().map(Device::name)
    }
}

/// An immutable snapshot of the devices that are known.
#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    slots: Vec<DeviceSlot>,
}

impl DeviceTable {
    pub(super) fn new(mut slots: Vec<DeviceSlot>) -> Self {
        slots.sort_by_key(DeviceSlot::devid);
        Self { slots }
    }

    /// All devices, ascending by devid.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, DeviceSlot> {
        self.slots.iter()
    }

    /// The slot number and slot of a stripe's device, whether it is there or not.
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

    /// The slot number and device of a stripe, unless it is missing.
    #[inline]
    pub(crate) fn present(&self, stripe: &Stripe) -> Option<(usize, &dyn Device)> {
        let (number, slot) = self.find(stripe)?;
        Some((number, slot.device.as_deref()?))
    }

    /// The device of slot `number`.
    #[inline]
    pub(super) fn device(&self, number: usize) -> Option<&dyn Device> {
        self.slots.get(number)?.device.as_deref()
    }

    /// The table with the chunk tree's items put into it: a slot takes the place of the item's
    /// devid and UUID, or a missing one is added.
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
                None => slots.push(DeviceSlot { item, device: None, stale: false, in_chunk_tree: true }),
            }
        }
        Self::new(slots)
    }
}

//! Compares chunks with device extents, and devices with their extents.
//!
//! Owns [`Devices`]: the chunks and devices of the chunk tree, and the extents of the device tree.
//!
//! **Rules**
//! - Each stripe of a chunk has a device extent of its own.
//! - The used bytes of a device are the sum of its device extents.
//!
//! Kernel counterpart: `btrfs_verify_dev_extents` (`fs/btrfs/volumes.c`).

use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::{DeviceExtent, DeviceItem};
use papilio_format::{DeviceId, ItemType, Key, LogicalAddress, PhysicalAddress, Uuid, objectid};

/// One device extent.
#[derive(Clone, Copy, Debug)]
struct Placed {
    devid: u64,
    start: u64,
    length: u64,
    /// Logical address of its chunk.
    chunk: u64,
    /// Whether a stripe of the chunk is here.
    claimed: bool,
}

impl Placed {
    fn end(&self) -> u64 {
        // Cannot overflow: the tree checker refuses such an item.
        self.start.saturating_add(self.length)
    }

    fn key(&self) -> Key {
        Key::new(self.devid, ItemType::DEV_EXTENT, self.start)
    }

    fn place(&self) -> Place {
        let key = self.key();
        Place { offset: Some(PhysicalAddress(self.start)), ..Place::item(objectid::DEV_TREE, key) }
    }
}

/// The content of the chunk tree and the device tree.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// Sorted by logical address.
    pub(super) chunks: Vec<(LogicalAddress, ChunkItem)>,
    pub(super) items: Vec<DeviceItem>,
    extents: Vec<Placed>,
    pub(super) chunk_tree_uuid: Option<Uuid>,
}

impl Devices {
    /// Reads a leaf of the chunk tree.
    pub(super) fn read_chunk_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        self.chunk_tree_uuid = Some(view.header().chunk_tree_uuid);
        for slot in 0..view.len() {
            let (key, data) = (view.key(slot), view.item(slot));
            match key.item_type {
                ItemType::DEV_ITEM => self.items.extend(DeviceItem::parse(data).ok()),
                ItemType::CHUNK_ITEM => {
                    let chunk = ChunkItem::parse(data).ok();
                    self.chunks.extend(chunk.map(|chunk| (LogicalAddress(key.offset), chunk)));
                }
                _ => {}
            }
        }
    }

    /// Reads a leaf of the device tree.
    pub(super) fn read_device_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::DEV_EXTENT {
                continue;
            }
            if let Ok(extent) = DeviceExtent::parse(view.item(slot)) {
                self.extents.push(Placed {
                    devid: key.objectid,
                    start: key.offset,
                    length: extent.length,
                    chunk: extent.chunk_offset.0,
                    claimed: false,
                });
            }
        }
    }

    /// Sorts chunks and devices after the chunk tree was read.
    pub(super) fn sort(&mut self) {
        self.chunks.sort_by_key(|(start, _)| *start);
        self.items.sort_by_key(|item| item.devid);
    }

    fn item(&self, devid: DeviceId) -> Option<&DeviceItem> {
        let index = self.items.binary_search_by_key(&devid, |item| item.devid).ok()?;
        Some(&self.items[index])
    }

    /// Compares chunks, device extents and devices. `chunk_tree` and `device_tree` are whether
    /// these trees were read completely.
    pub(super) fn compare(&mut self, chunk_tree: bool, device_tree: bool, findings: &mut Findings) {
        self.extents.sort_by_key(|extent| (extent.devid, extent.start));
        if chunk_tree {
            self.check_devices_of_chunks(findings);
        }
        self.claim_extents(device_tree, findings);
        for extent in self.extents.iter().filter(|extent| !extent.claimed && chunk_tree) {
            let (length, chunk) = (extent.length, extent.chunk);
            let message = format_args!("{length} bytes of chunk {chunk}, which has no stripe there");
            findings.add(FindingKind::DeviceExtentExtra, extent.place(), message);
            findings.mend(Remedy::remove(objectid::DEV_TREE, extent.key()));
        }
        self.check_overlaps(findings);
        self.check_bounds(chunk_tree, findings);
        if device_tree {
            self.check_bytes_used(findings);
        }
    }

    fn check_devices_of_chunks(&self, findings: &mut Findings) {
        for (start, chunk) in &self.chunks {
            for stripe in &chunk.stripes {
                if self.item(stripe.devid).is_none_or(|item| item.uuid != stripe.device_uuid) {
                    let (devid, uuid) = (stripe.devid, stripe.device_uuid);
                    findings.add(
                        FindingKind::DeviceItemMissing,
                        Place { address: Some(*start), ..Place::tree(objectid::CHUNK_TREE) },
                        format_args!("a stripe on device {devid} ({uuid}), which has no item"),
                    );
                }
            }
        }
    }

    /// Finds the device extent of each stripe.
    fn claim_extents(&mut self, complete: bool, findings: &mut Findings) {
        for (logical, chunk) in &self.chunks {
            // Fails only without a profile, which the walker has validated.
            let Ok(length) = chunk.stripe_bytes() else { continue };
            for stripe in &chunk.stripes {
                let order = (stripe.devid.0, stripe.offset.0);
                let found = self.extents.binary_search_by_key(&order, |extent| (extent.devid, extent.start));
                match found.ok().map(|index| &mut self.extents[index]) {
                    Some(extent) if extent.chunk == logical.0 && extent.length == length => {
                        extent.claimed = true;
                    }
                    _ if complete => {
                        let (devid, offset) = (stripe.devid, stripe.offset);
                        let place = Place { address: Some(*logical), ..Place::tree(objectid::DEV_TREE) };
                        findings.add(
                            FindingKind::DeviceExtentMissing,
                            Place { offset: Some(offset), ..place },
                            format_args!("no device extent for the chunk's {length} bytes on device {devid}"),
                        );
                        if let Some(uuid) = self.chunk_tree_uuid {
                            let extent = DeviceExtent {
                                chunk_tree: objectid::CHUNK_TREE,
                                chunk_objectid: objectid::FIRST_CHUNK_TREE,
                                chunk_offset: *logical,
                                length,
                                chunk_tree_uuid: uuid,
                            };
                            let key = Key::new(devid.0, ItemType::DEV_EXTENT, offset.0);
                            findings.mend(Remedy::put(objectid::DEV_TREE, key, extent.to_bytes()));
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn check_overlaps(&self, findings: &mut Findings) {
        for pair in self.extents.windows(2) {
            if pair[0].devid == pair[1].devid && pair[1].start < pair[0].end() {
                let end = pair[0].end();
                let message = format_args!("the device extent before it reaches to {end}");
                findings.add(FindingKind::DeviceExtentOverlap, pair[1].place(), message);
            }
        }
    }

    fn check_bounds(&self, chunk_tree: bool, findings: &mut Findings) {
        for extent in &self.extents {
            match self.item(DeviceId(extent.devid)) {
                Some(item) if extent.end() > item.total_bytes => {
                    let (end, size) = (extent.end(), item.total_bytes);
                    let message = format_args!("it ends at {end}, the device has {size} bytes");
                    findings.add(FindingKind::DeviceExtentBounds, extent.place(), message);
                }
                None if chunk_tree => {
                    let message = format_args!("an extent of device {}, which has no item", extent.devid);
                    findings.add(FindingKind::DeviceItemMissing, extent.place(), message);
                }
                _ => {}
            }
        }
    }

    fn check_bytes_used(&self, findings: &mut Findings) {
        for item in &self.items {
            let first = self.extents.partition_point(|extent| extent.devid < item.devid.0);
            let own = self.extents[first..].iter().take_while(|extent| extent.devid == item.devid.0);
            let total = own.fold(0u64, |sum, extent| sum.saturating_add(extent.length));
            if total != item.bytes_used {
                let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, item.devid.0);
                let used = item.bytes_used;
                let message =
                    format_args!("the device item says {used} bytes are used, its extents have {total}");
                findings.add(FindingKind::DeviceBytesUsed, Place::item(objectid::CHUNK_TREE, key), message);
                let item = DeviceItem { bytes_used: total, ..*item };
                findings.mend(Remedy::put(objectid::CHUNK_TREE, key, item.to_bytes()));
            }
        }
    }
}

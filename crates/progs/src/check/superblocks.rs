//! Compares the superblock copies of all devices with each other, with the chunk tree and with the
//! device items.
//!
//! Kernel counterparts: `btrfs_read_disk_super`, `write_dev_supers` (`fs/btrfs/disk-io.c`).

use super::devices::Devices;
use super::remedy::{Remedy, SuperblockField};
use super::report::{FindingKind, Findings, Place};
use papilio_device::Device;
use papilio_engine::volume::{DeviceSlot, Volume};
use papilio_format::features::SuperblockFlags;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, ItemType, Key, PhysicalAddress, Superblock, objectid};

/// Reads and compares all copies on all present devices.
pub(super) fn check_copies(volume: &Volume, findings: &mut Findings) {
    let main = volume.superblock();
    let devices = volume.devices();
    let members_are_known = devices.iter().any(|slot| slot.in_chunk_tree);
    for slot in devices.iter() {
        let Some(device) = slot.device.as_deref() else {
            let item = &slot.item;
            findings.note(
                "device-missing",
                format!(
                    "device {} ({}) is missing: its superblock copies were not checked",
                    item.devid, item.uuid
                ),
            );
            continue;
        };
        if slot.item.fsid != main.metadata_uuid() {
            findings.note(
                "seed-device",
                format!("{}: a seed device: its superblock was not checked", device.name()),
            );
            continue;
        }
        if slot.devid() == DeviceId(0) {
            findings.note(
                "replace-target",
                format!("{}: the target of a replacement: its superblock was not checked", device.name()),
            );
            continue;
        }
        if members_are_known && !slot.in_chunk_tree {
            findings.note(
                "removed-device",
                format!(
                    "{}: device {} was removed from the file system: its superblock was not checked",
                    device.name(),
                    slot.devid()
                ),
            );
            continue;
        }
        check_device(device, slot, main, findings);
    }
    let raw = &main.raw;
    let backed_up = raw.super_roots.iter().any(|backup| backup.tree_root == raw.root);
    if !backed_up && raw.super_roots.iter().any(|backup| backup.tree_root.0 != 0) {
        findings.note("backup-roots", "none of the superblock's backup roots is the current root tree");
    }
}

/// Returns the kind for a bad copy: the kernel mounts by the first one, and writes all of them.
fn kind_of_copy(mirror: usize) -> FindingKind {
    if mirror == 0 { FindingKind::SuperblockFirst } else { FindingKind::SuperblockCopy }
}

fn check_device(device: &dyn Device, slot: &DeviceSlot, main: &Superblock, findings: &mut Findings) {
    for mirror in 0..SUPERBLOCK_MIRRORS {
        let offset = superblock_offset(mirror);
        let end = offset.0 + SUPERBLOCK_SIZE as u64;
        // As the kernel: a copy that reaches the end of the device is not written.
        if end >= slot.item.total_bytes.min(device.size()) {
            continue;
        }
        let place = Place::device(device.name(), Some(offset));
        match read(device, offset) {
            Ok(copy) if copy.raw.generation != main.raw.generation => {
                let (found, newest) = (copy.raw.generation, main.raw.generation);
                let message = format_args!("copy {mirror} has generation {found}, the newest is {newest}");
                // A power cut between the superblocks of a commit leaves this.
                let last = found.0 + 1 == newest.0;
                let kind = if last { FindingKind::SuperblockCopy } else { kind_of_copy(mirror) };
                findings.add(kind, place, message);
                findings.mend(Remedy::Superblock(SuperblockField::Copies));
            }
            Ok(copy) => check_copy(&copy, slot, main, mirror, place, findings),
            Err(reason) => {
                findings.add(kind_of_copy(mirror), place, format_args!("copy {mirror}: {reason}"));
                findings.mend(Remedy::Superblock(SuperblockField::Copies));
            }
        }
    }
}

fn read(device: &dyn Device, offset: PhysicalAddress) -> Result<Superblock, String> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, offset).map_err(|error| error.to_string())?;
    Superblock::parse(&bytes, offset).map_err(|reason| reason.to_string())
}

/// Compares a copy of the current generation. Copies differ in address and checksum, and those of
/// different devices in the device item.
fn check_copy(
    copy: &Superblock,
    slot: &DeviceSlot,
    main: &Superblock,
    mirror: usize,
    place: Place,
    findings: &mut Findings,
) {
    let mut raw = copy.raw;
    // An fsync writes the first copy only.
    (raw.log_root, raw.log_root_level) = (main.raw.log_root, main.raw.log_root_level);
    (raw.csum, raw.bytenr, raw.dev_item) = (main.raw.csum, main.raw.bytenr, main.raw.dev_item);
    if raw != main.raw {
        let message = format_args!("copy {mirror} differs from the superblock in use");
        findings.add(FindingKind::SuperblockCopyDiffers, place.clone(), message);
        // A repair that was interrupted between the copies leaves this: it keeps the generation.
        findings.mend(Remedy::Superblock(SuperblockField::Copies));
    }
    let (own, item) = (&copy.raw.dev_item, &slot.item);
    let facts = |item: &papilio_format::items::device::DeviceItem| {
        (item.devid, item.uuid, item.total_bytes, item.bytes_used)
    };
    if slot.in_chunk_tree && facts(own) != facts(item) {
        let message = format_args!(
            "copy {mirror} describes device {} with {} of {} bytes used, its item says device {} with {} of {}",
            own.devid, own.bytes_used, own.total_bytes, item.devid, item.bytes_used, item.total_bytes
        );
        findings.add(FindingKind::DeviceItemDiffers, place, message);
        findings.mend(Remedy::Superblock(SuperblockField::Copies));
    }
}

/// Compares the system chunks, sizes and counts in the superblock with the chunk tree.
pub(super) fn compare_chunk_tree(main: &Superblock, devices: &Devices, findings: &mut Findings) {
    for (start, chunk) in main.system_chunks().unwrap_or_default() {
        let place = Place { address: Some(start), ..Place::default() };
        match devices.chunks.binary_search_by_key(&start, |(start, _)| *start) {
            Err(_) => {
                let message = format_args!("a system chunk that is missing from the chunk tree");
                findings.add(FindingKind::SuperblockChunks, place, message);
            }
            Ok(index) if devices.chunks[index].1 != chunk => {
                let message = format_args!("a system chunk that differs from the chunk tree's");
                findings.add(FindingKind::SuperblockChunks, place, message);
            }
            Ok(_) => {}
        }
    }
    let raw = &main.raw;
    let total = devices.items.iter().fold(0u64, |sum, item| sum.saturating_add(item.total_bytes));
    if total != raw.total_bytes {
        let message =
            format_args!("the superblock says {} bytes in total, all devices have {total}", raw.total_bytes);
        findings.add(FindingKind::SuperblockDevices, Place::default(), message);
        if total.is_multiple_of(u64::from(raw.sector_size)) {
            findings.mend(Remedy::Superblock(SuperblockField::TotalBytes(total)));
        }
    }
    check_alignment(main, devices, findings);
    let count = devices.items.len() as u64;
    if count != raw.num_devices {
        let message = format_args!("the superblock counts {} devices, there are {count}", raw.num_devices);
        findings.add(FindingKind::SuperblockDeviceCount, Place::default(), message);
        findings.mend(Remedy::Superblock(SuperblockField::Devices(count)));
    }
}

/// Finds sizes that are no multiples of the sector size. Old versions of `mkfs` left such sizes.
fn check_alignment(main: &Superblock, devices: &Devices, findings: &mut Findings) {
    let sector = u64::from(main.raw.sector_size);
    if !main.raw.total_bytes.is_multiple_of(sector) {
        let message = format_args!("the superblock's size of {} bytes is unaligned", main.raw.total_bytes);
        findings.add(FindingKind::DeviceSizeUnaligned, Place::default(), message);
    }
    for item in devices.items.iter().filter(|item| !item.total_bytes.is_multiple_of(sector)) {
        let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, item.devid.0);
        let message = format_args!("the device's size of {} bytes is unaligned", item.total_bytes);
        findings.add(FindingKind::DeviceSizeUnaligned, Place::item(objectid::CHUNK_TREE, key), message);
        let total_bytes = item.total_bytes - item.total_bytes % sector;
        let item = DeviceItem { total_bytes, ..*item };
        findings.mend(Remedy::put(objectid::CHUNK_TREE, key, item.to_bytes()));
    }
}

/// Finds devices that are smaller than their items say. Where no chunk is behind the end, the item
/// can say so.
pub(super) fn check_cut_devices(volume: &Volume, devices: &Devices, findings: &mut Findings) {
    let sector = u64::from(volume.superblock().raw.sector_size);
    let table = volume.devices();
    for item in &devices.items {
        let own = |slot: &&DeviceSlot| (slot.item.devid, slot.item.uuid) == (item.devid, item.uuid);
        let Some(device) = table.iter().find(own).and_then(|slot| slot.device.as_ref()) else { continue };
        let (have, need) = (device.size(), item.total_bytes);
        if have >= need {
            continue;
        }
        let used = volume.chunk_map().end_on(item.devid, item.uuid);
        let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, item.devid.0);
        let what = match used <= have {
            true => "no chunk is behind its end".to_owned(),
            false => format!("chunks reach to {used}"),
        };
        let message = format_args!("device {} has {have} of {need} bytes; {what}", item.devid);
        findings.add(FindingKind::DeviceCut, Place::item(objectid::CHUNK_TREE, key), message);
        let total_bytes = have - have % sector;
        if used <= total_bytes {
            let item = DeviceItem { total_bytes, ..*item };
            findings.mend(Remedy::put(objectid::CHUNK_TREE, key, item.to_bytes()));
        }
    }
}

/// Finds conversions of the whole file system that were interrupted.
pub(super) fn check_conversions(main: &Superblock, findings: &mut Findings) {
    let conversions = [
        (SuperblockFlags::CHANGING_FSID, "the UUID"),
        (SuperblockFlags::CHANGING_FSID_V2, "the metadata UUID"),
        (SuperblockFlags::CHANGING_BG_TREE, "where block groups are"),
        (SuperblockFlags::CHANGING_DATA_CSUM, "data checksums"),
        (SuperblockFlags::CHANGING_META_CSUM, "metadata checksums"),
    ];
    for (_, what) in conversions.into_iter().filter(|(flag, _)| main.raw.flags.contains(*flag)) {
        let message = format_args!("a change of {what} was interrupted");
        findings.add(FindingKind::ConversionUnfinished, Place::default(), message);
    }
}

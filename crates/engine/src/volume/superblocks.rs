//! Superblocks: reading and writing them, and assembling the devices of a file system.
//!
//! Owns [`read_superblock`], [`compare_copies`], [`assemble`] and [`SuperblockWriter`].
//!
//! **Invariants**
//! - The newest superblock is authoritative for the file system.
//! - A copy other than the first is read only if the caller selected it, because an old copy may
//!   name roots that no longer exist.
//! - Nothing is written that a reader would reject.
//!
//! **Locks**: none.
//!
//! Kernel counterparts: `btrfs_read_disk_super`, `device_list_add` and `open_fs_devices`
//! (`fs/btrfs/volumes.c`); `write_dev_supers` (`fs/btrfs/disk-io.c`).

use super::devices::{DeviceSlot, DeviceTable};
use super::seeds::SeedDevice;
use crate::errors::{Error, Result};
use crate::options::OpenOptions;
use crate::options::rescue::FoundTrees;
use papilio_device::{Device, Load, describe_content};
use papilio_format::features::SuperblockFlags;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{
    EncodedSuperblock, RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset,
};
use papilio_format::{Corrupt, DeviceId, PhysicalAddress, Superblock, SuperblockError, Uuid};
use std::sync::Arc;

/// Advice where nothing on a device is known.
const SEARCH: &str = "`papilio rescue find-filesystems` searches all of it for one";

/// Reads and checks copy `mirror` of a device's superblock.
///
/// # Errors
/// Fails on a copy that does not exist or lies past the device's end, an I/O error, or a bad
/// superblock. If this copy is bad and others are good, the error names them.
pub fn read_superblock(device: &dyn Device, mirror: usize) -> Result<Superblock> {
    read_with(device, mirror, Superblock::parse)
}

/// The check of a superblock's bytes at an offset.
type Parse = fn(&[u8], PhysicalAddress) -> Result<Superblock, SuperblockError>;

fn read_with(device: &dyn Device, mirror: usize, parse: Parse) -> Result<Superblock> {
    if mirror >= SUPERBLOCK_MIRRORS {
        return Err(Error::Invalid(format!(
            "no superblock copy {mirror}: copies are numbered 0 to {}",
            SUPERBLOCK_MIRRORS - 1
        )));
    }
    read_copy(device, mirror, parse).map_err(|mut error| {
        if let Error::Superblock { good_copies, reason, found, .. } = &mut error {
            good_copies.extend(
                (0..SUPERBLOCK_MIRRORS)
                    .filter(|&other| other != mirror && read_copy(device, other, parse).is_ok()),
            );
            if matches!(**reason, SuperblockError::Corrupt(Corrupt::Magic { .. })) {
                *found = describe_content(device);
                if found.is_none() && good_copies.is_empty() {
                    *found = Some(SEARCH.to_owned());
                }
            }
        }
        error
    })
}

fn read_copy(device: &dyn Device, mirror: usize, parse: Parse) -> Result<Superblock> {
    let offset = superblock_offset(mirror);
    let bad = |reason| Error::Superblock {
        device: device.name().to_owned(),
        offset,
        reason: Box::new(reason),
        good_copies: Vec::new(),
        found: None,
    };
    let end = offset.0 + SUPERBLOCK_SIZE as u64;
    if device.size() < end {
        return Err(bad(SuperblockError::Corrupt(Corrupt::TooShort {
            what: "device",
            need: usize::try_from(end).unwrap_or(usize::MAX),
            have: usize::try_from(device.size()).unwrap_or(usize::MAX),
        })));
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    read_device(device, &mut bytes, offset)?;
    parse(&bytes, offset).map_err(bad)
}

/// Reads from a device; an error names device and offset.
pub(super) fn read_device(device: &dyn Device, buffer: &mut [u8], offset: PhysicalAddress) -> Result<()> {
    let length = buffer.len();
    device.read_at(buffer, offset).map_err(|source| read_error(device, offset, length, source))
}

/// Returns the error for a failed read.
pub(super) fn read_error(
    device: &dyn Device,
    offset: PhysicalAddress,
    length: usize,
    source: std::io::Error,
) -> Error {
    Error::Device { device: device.name().to_owned(), operation: "read", offset, length, source }
}

/// The good superblock copies of a file system, compared.
#[derive(Debug, Default)]
pub struct Copies {
    /// The newest one, and with equally new ones one that names a log: device, copy and content.
    pub(crate) newest: Option<(String, usize, RawSuperblock)>,
    /// Whether the first copy of any device is bad.
    pub(crate) first_is_bad: bool,
}

/// Reads all superblock copies on the devices of the file system `fsid`.
pub fn compare_copies(devices: &DeviceTable, fsid: Uuid) -> Copies {
    let mut copies = Copies::default();
    let rank = |raw: &RawSuperblock| (raw.generation, raw.log_root.0 != 0);
    for slot in devices.iter() {
        let Some(device) = slot.device.as_deref() else { continue };
        for copy in 0..SUPERBLOCK_MIRRORS {
            // A copy past the file system's part of the device is one of an earlier file system.
            if superblock_offset(copy).0 + SUPERBLOCK_SIZE as u64 > slot.item.total_bytes {
                continue;
            }
            let Ok(found) = read_copy(device, copy, Superblock::parse) else {
                copies.first_is_bad |= copy == 0;
                continue;
            };
            let raw = found.raw;
            let is_own = raw.fsid == fsid && raw.dev_item.uuid == slot.item.uuid;
            if is_own && copies.newest.as_ref().is_none_or(|(.., known)| rank(&raw) > rank(known)) {
                copies.newest = Some((device.name().to_owned(), copy, raw));
            }
        }
    }
    copies
}

/// The devices of one file system, and its authoritative superblock.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) superblock: Superblock,
    pub(super) devices: DeviceTable,
}

/// Reads the superblock of each device and checks that all belong to the same file system, each
/// device once. Seed devices of the file system may be among them.
pub(super) fn assemble(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Assembled> {
    match &options.rescue.found {
        Some(found) => assemble_found(devices, options, found),
        None => assemble_by_superblocks(devices, options),
    }
}

/// Assembles the devices of a file system that was found by other means than its superblocks, or by
/// a superblock that was changed in memory.
fn assemble_found(
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
    found: &FoundTrees,
) -> Result<Assembled> {
    let Some(members) = &found.members else {
        let assembled = assemble_by_superblocks(devices, options)?;
        return Ok(Assembled { superblock: found.superblock.clone(), ..assembled });
    };
    let slot = |(device, item): (Arc<dyn Device>, &DeviceItem)| DeviceSlot {
        item: *item,
        device: Some(device),
        stale: false,
        in_chunk_tree: false,
        load: Load::default(),
    };
    let slots = devices.into_iter().zip(members).map(slot).collect();
    Ok(Assembled { superblock: found.superblock.clone(), devices: DeviceTable::new(slots) })
}

fn assemble_by_superblocks(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Assembled> {
    let mirror = options.superblock_mirror.unwrap_or(0);
    let parse = if options.unfinished { Superblock::parse_unfinished } else { Superblock::parse };
    let mut found = Vec::with_capacity(devices.len());
    for device in devices {
        let superblock = read_with(&*device, mirror, parse)?;
        found.push((device, superblock));
    }
    let mut newest = newest(&found)
        .ok_or_else(|| Error::Invalid("no devices were given to open a file system".to_owned()))?
        .clone();
    // A change that was interrupted on any device is that of the file system.
    for (_, superblock) in &found {
        newest.raw.flags |= superblock.raw.flags.unfinished();
    }

    let mut slots: Vec<DeviceSlot> = Vec::with_capacity(found.len());
    let mut generations = Vec::with_capacity(found.len());
    for (device, superblock) in found {
        check_membership(&*device, &superblock, &newest)?;
        let item = superblock.raw.dev_item;
        if let Some(earlier) =
            slots.iter().position(|slot| slot.item.devid == item.devid && slot.item.fsid == item.fsid)
        {
            let other = &slots[earlier];
            let generation = superblock.raw.generation;
            if generation == generations[earlier] {
                let other = other.name().unwrap_or_default();
                return Err(mismatch(&*device, format!("{other} has the same devid {}", item.devid)));
            }
            // A power cut before the superblocks of a device that was replaced were erased.
            let is_older = generation < generations[earlier];
            let older = if is_older { device.name() } else { other.name().unwrap_or_default() };
            tracing::warn!(device = older, devid = item.devid.0, "another device has replaced it");
            if is_older {
                continue;
            }
            slots.remove(earlier);
            generations.remove(earlier);
        }
        let own = superblock.raw.fsid == newest.raw.fsid;
        // One generation less is a power cut between the superblocks of a commit: its blocks are on
        // all devices. A device that missed writes differs by more ([`super::lost_devices`]).
        // The target of a replacement, with devid 0, keeps its first superblock.
        let next = superblock.raw.generation.0.saturating_add(1);
        let stale = own && item.devid.0 != 0 && next < newest.raw.generation.0;
        if stale {
            tracing::warn!(
                device = device.name(),
                devid = item.devid.0,
                generation = superblock.raw.generation.0,
                newest = newest.raw.generation.0,
                "the device is stale: it missed the latest writes"
            );
        }
        generations.push(superblock.raw.generation);
        let is_seed = !own || options.rescue.sprouting;
        let device = if is_seed { SeedDevice::protect(device) } else { device };
        let (load, in_chunk_tree) = (Load::default(), false);
        slots.push(DeviceSlot { item, device: Some(device), stale, in_chunk_tree, load });
    }
    Ok(Assembled { superblock: newest, devices: DeviceTable::new(slots) })
}

/// Returns the authoritative superblock: the newest that is not a seed's. A file system built on a
/// seed names the seed, not the other way round.
fn newest(found: &[(Arc<dyn Device>, Superblock)]) -> Option<&Superblock> {
    let seeding = |superblock: &Superblock| superblock.raw.flags.contains(SuperblockFlags::SEEDING);
    let superblocks = || found.iter().map(|(_, superblock)| superblock);
    let main = superblocks().find(|superblock| !seeding(superblock)).or_else(|| superblocks().next())?;
    // Of equally new ones the first, so that the caller's order decides.
    superblocks()
        .filter(|superblock| superblock.raw.fsid == main.raw.fsid)
        .reduce(|best, other| if other.raw.generation > best.raw.generation { other } else { best })
}

fn check_membership(device: &dyn Device, superblock: &Superblock, newest: &Superblock) -> Result<()> {
    let (own, all) = (superblock.raw.fsid, newest.raw.fsid);
    if own != all && !superblock.raw.flags.contains(SuperblockFlags::SEEDING) {
        return Err(mismatch(device, format!("belongs to file system {own}, the others to {all}")));
    }
    if own == all && superblock.metadata_uuid() != newest.metadata_uuid() {
        return Err(mismatch(device, "its metadata UUID differs from the other devices'".to_owned()));
    }
    Ok(())
}

fn mismatch(device: &dyn Device, reason: String) -> Error {
    Error::DeviceMismatch { device: device.name().to_owned(), reason }
}

/// Checks that a device is as large as the file system assumes. A truncated device can only be
/// opened degraded; data past its end is then read from other copies.
pub(super) fn check_size(device: &dyn Device, need: u64, degraded: bool) -> Result<()> {
    let have = device.size();
    if have >= need {
        return Ok(());
    }
    if !degraded {
        return Err(Error::Truncated { device: device.name().to_owned(), need, have });
    }
    tracing::warn!(device = device.name(), need, have, "the device is truncated");
    Ok(())
}

/// Writes the superblock copies of one device.
pub(super) struct SuperblockWriter<'d> {
    device: &'d dyn Device,
    superblock: Superblock,
    /// The first copy, encoded and checked.
    first: EncodedSuperblock,
}

impl<'d> SuperblockWriter<'d> {
    /// Prepares `raw` as the superblock of the device with device item `item`.
    ///
    /// # Errors
    /// Fails on fields that [`Superblock::parse`] would reject.
    pub(super) fn new(device: &'d dyn Device, raw: &RawSuperblock, item: DeviceItem) -> Result<Self> {
        let bytes = RawSuperblock { dev_item: item, ..*raw }.to_bytes();
        let place = superblock_offset(0);
        let checked = Superblock::parse_unverified(&bytes)
            .and_then(|superblock| superblock.to_encoded(place).map(|first| (superblock, first)));
        match checked {
            Ok((superblock, first)) => Ok(Self { device, superblock, first }),
            Err(reason) => Err(Error::Superblock {
                device: device.name().to_owned(),
                offset: place,
                reason: Box::new(reason),
                good_copies: Vec::new(),
                found: None,
            }),
        }
    }

    /// Returns the devid.
    pub(super) fn devid(&self) -> DeviceId {
        self.superblock.raw.dev_item.devid
    }

    /// Returns the devid and the encoded first copy.
    pub(super) fn into_first(self) -> (DeviceId, EncodedSuperblock) {
        (self.superblock.raw.dev_item.devid, self.first)
    }

    /// Writes the first copy durably.
    ///
    /// # Errors
    /// [`Error::SuperblockWrite`].
    pub(super) fn write_first(&self) -> Result<()> {
        let written = self.device.write_fua(self.first.as_bytes(), superblock_offset(0));
        written.map_err(|source| self.error(0, source))
    }

    /// Writes copy `copy` if it fits in the file system's part of the device. The copy is durable
    /// after a flush.
    ///
    /// # Errors
    /// [`Error::SuperblockWrite`].
    pub(super) fn write_copy(&self, copy: usize) -> Result<()> {
        let place = superblock_offset(copy);
        // Like the kernel, skip a copy that would end exactly at the end of the device.
        if place.0 + SUPERBLOCK_SIZE as u64 >= self.superblock.raw.dev_item.total_bytes {
            return Ok(());
        }
        let written = self.device.write_at(&self.superblock.to_bytes(place), place);
        written.map_err(|source| self.error(copy, source))
    }

    fn error(&self, copy: usize, source: std::io::Error) -> Error {
        Error::SuperblockWrite { device: self.device.name().to_owned(), copy, source }
    }
}

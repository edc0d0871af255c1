//! Superblocks: reading them, and bringing the devices of one file system together.
//!
//! Owns [`read_superblock`], [`assemble`] and [`SuperblockWriter`]. Invariants: the newest superblock speaks for the file
//! system; another copy than the first is read only where the caller chose it, because an old copy
//! may name roots that are gone; nothing is written that would not be accepted when read.
//!
//! Takes no lock. Kernel counterparts: `btrfs_read_disk_super`, `device_list_add` and
//! `open_fs_devices` (`fs/btrfs/volumes.c`); `write_dev_supers` (`fs/btrfs/disk-io.c`).

use super::devices::{DeviceSlot, DeviceTable};
use crate::options::OpenOptions;
use crate::{Error, Result};
use papilio_device::Device;
use papilio_format::features::SuperblockFlags;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{
    EncodedSuperblock, RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset,
};
use papilio_format::{Corrupt, DeviceId, PhysicalAddress, Superblock, SuperblockError};
use std::sync::Arc;

/// Reads and checks copy `mirror` of a device's superblock.
///
/// # Errors
/// A copy that doesn't exist or lies past the device's end, an I/O error, or a bad superblock; where
/// the first copy is bad and others are good, the error names them.
pub(crate) fn read_superblock(device: &dyn Device, mirror: usize) -> Result<Superblock> {
    if mirror >= SUPERBLOCK_MIRRORS {
        return Err(Error::Invalid(format!(
            "superblock copy {mirror}: there are only copies 0 to {}",
            SUPERBLOCK_MIRRORS - 1
        )));
    }
    read_copy(device, mirror).map_err(|mut error| {
        if let Error::Superblock { good_copies, .. } = &mut error {
            good_copies.extend(
                (0..SUPERBLOCK_MIRRORS).filter(|&other| other != mirror && read_copy(device, other).is_ok()),
            );
        }
        error
    })
}

fn read_copy(device: &dyn Device, mirror: usize) -> Result<Superblock> {
    let offset = superblock_offset(mirror);
    let bad = |reason| Error::Superblock {
        device: device.name().to_owned(),
        offset,
        reason: Box::new(reason),
        good_copies: Vec::new(),
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
    Superblock::parse(&bytes, offset).map_err(bad)
}

/// Reads, and says in the error which device and where.
pub(super) fn read_device(device: &dyn Device, buffer: &mut [u8], offset: PhysicalAddress) -> Result<()> {
    let length = buffer.len();
    device.read_at(buffer, offset).map_err(|source| read_error(device, offset, length, source))
}

/// The error of a read that failed.
pub(super) fn read_error(
    device: &dyn Device,
    offset: PhysicalAddress,
    length: usize,
    source: std::io::Error,
) -> Error {
    Error::Device { device: device.name().to_owned(), operation: "read", offset, length, source }
}

/// The devices of one file system, and the superblock that speaks for it.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) superblock: Superblock,
    pub(super) devices: DeviceTable,
}

/// Reads the superblock of each device and checks that all belong together: the same file system,
/// each device once. Seed devices of a file system may be among them.
pub(super) fn assemble(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Assembled> {
    let mirror = options.superblock_mirror.unwrap_or(0);
    let mut found = Vec::with_capacity(devices.len());
    for device in devices {
        let superblock = read_superblock(&*device, mirror)?;
        check_size(&*device, superblock.raw.dev_item.total_bytes, options.degraded)?;
        found.push((device, superblock));
    }
    let newest = newest(&found)
        .ok_or_else(|| Error::Invalid("no device to open a file system on".to_owned()))?
        .clone();

    let mut slots: Vec<DeviceSlot> = Vec::with_capacity(found.len());
    for (device, superblock) in found {
        check_membership(&*device, &superblock, &newest)?;
        let item = superblock.raw.dev_item;
        if let Some(twin) =
            slots.iter().find(|slot| slot.item.devid == item.devid && slot.item.fsid == item.fsid)
        {
            let other = twin.name().unwrap_or_default();
            return Err(mismatch(&*device, format!("{other} is device {} as well", item.devid)));
        }
        let own = superblock.raw.fsid == newest.raw.fsid;
        let stale = own && superblock.raw.generation < newest.raw.generation;
        if stale {
            tracing::warn!(
                device = device.name(),
                devid = item.devid.0,
                generation = superblock.raw.generation.0,
                newest = newest.raw.generation.0,
                "device is stale: it missed the latest writes"
            );
        }
        slots.push(DeviceSlot { item, device: Some(device), stale, in_chunk_tree: false });
    }
    Ok(Assembled { superblock: newest, devices: DeviceTable::new(slots) })
}

/// The superblock that speaks for all: the newest of those that are no seeds, as what is built on a
/// seed names it, and not the other way round.
fn newest(found: &[(Arc<dyn Device>, Superblock)]) -> Option<&Superblock> {
    let seeding = |superblock: &Superblock| superblock.raw.flags.contains(SuperblockFlags::SEEDING);
    let superblocks = || found.iter().map(|(_, superblock)| superblock);
    let main = superblocks().find(|superblock| !seeding(superblock)).or_else(|| superblocks().next())?;
    // The first of equals, so that the order given decides.
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

/// A device must have the bytes that the file system gave it. A truncated one can be opened only as
/// a degraded one, and what lies past its end is read from elsewhere.
pub(super) fn check_size(device: &dyn Device, need: u64, degraded: bool) -> Result<()> {
    let have = device.size();
    if have >= need {
        return Ok(());
    }
    if !degraded {
        return Err(Error::Truncated { device: device.name().to_owned(), need, have });
    }
    tracing::warn!(device = device.name(), need, have, "device is truncated");
    Ok(())
}

/// Writes one device's copies of a superblock.
pub(super) struct SuperblockWriter<'d> {
    device: &'d dyn Device,
    superblock: Superblock,
    /// The first copy, as it was checked.
    first: EncodedSuperblock,
}

impl<'d> SuperblockWriter<'d> {
    /// `raw` as the superblock of the device of `item`.
    ///
    /// # Errors
    /// Fields that [`Superblock::parse`] would not accept.
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
            }),
        }
    }

    /// The first copy, and whose it is.
    pub(super) fn into_first(self) -> (DeviceId, EncodedSuperblock) {
        (self.superblock.raw.dev_item.devid, self.first)
    }

    /// Writes the first copy, and returns when it is durable.
    ///
    /// # Errors
    /// [`Error::SuperblockWrite`].
    pub(super) fn write_first(&self) -> Result<()> {
        let written = self.device.write_fua(self.first.as_bytes(), superblock_offset(0));
        written.map_err(|source| self.error(0, source))
    }

    /// Writes copy `copy` where the file system's part of the device has room for it. Durable after a
    /// flush.
    ///
    /// # Errors
    /// [`Error::SuperblockWrite`].
    pub(super) fn write_copy(&self, copy: usize) -> Result<()> {
        let place = superblock_offset(copy);
        // As the kernel: one that would end where the device ends is not written either.
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

//! The switch from the source to Btrfs.
//!
//! Owns [`switch`] and [`finish_interrupted`].
//!
//! **Order**
//! 1. Everything is flushed. Superblock copies are written where the source has free space.
//! 2. The superblock at 64 KiB is written: that is the switch.
//! 3. The other copies are written, and the first 64 KiB wiped.
//!
//! A power cut before the switch leaves the source, one after it Btrfs. A device that writes only a
//! part of these 4 KiB leaves neither, but a copy of step 1 tells what the rest is to be:
//! [`finish_interrupted`] writes it again. Without a free place for a copy, the switch relies on
//! the device, as each commit of Btrfs does.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::ext::superblock::{ExtSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use crate::image::find_image;
use crate::layout::{is_free, reserved_ranges};
use crate::source::read;
use crate::withheld::WithheldDevice;
use crate::xfs::superblock::XfsSuperblock;
use papilio_device::Device;
use papilio_engine::options::OpenOptions;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{PhysicalAddress, Superblock};
use papilio_fs::FileSystem;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes at the start of the device that are wiped at the end.
const WIPED: u64 = 64 << 10;
/// The unit that a device writes in any case.
const UNIT: usize = 512;

/// Superblock copies by their places.
type Copies = BTreeMap<u64, Box<[u8]>>;

/// Returns the error of a device.
fn failed(
    device: &dyn Device,
    operation: &'static str,
    offset: u64,
) -> impl Fn(std::io::Error) -> ConvertError + use<> {
    let device = device.name().to_owned();
    move |source| ConvertError::Device { device: device.clone(), operation, offset, source }
}

/// Makes the device Btrfs. `used` are the blocks of the source.
///
/// # Errors
/// The device's.
pub(crate) fn switch(
    device: &dyn Device,
    withheld: &WithheldDevice,
    used: &BlockSet,
    block_size: u64,
) -> Result<()> {
    let kept = withheld.kept();
    let primary = superblock_offset(0);
    let superblock = kept.get(&primary.0).filter(|bytes| Superblock::parse(bytes, primary).is_ok());
    let superblock =
        superblock.ok_or_else(|| ConvertError::Invalid("there is no new superblock".to_owned()))?;
    for (place, bytes) in kept.iter().filter(|(place, _)| **place != primary.0) {
        if is_free(used, block_size, *place) {
            device.write_at(bytes, PhysicalAddress(*place)).map_err(failed(device, "write", *place))?;
        }
    }
    device.flush().map_err(failed(device, "flush", 0))?;
    device.write_fua(superblock, primary).map_err(failed(device, "write", primary.0))?;
    device.flush().map_err(failed(device, "flush", 0))?;
    finish(device, &kept)
}

/// Writes the other superblock copies, and wipes the superblock of the source.
fn finish(device: &dyn Device, kept: &Copies) -> Result<()> {
    for (place, bytes) in kept.iter().filter(|(place, _)| **place != superblock_offset(0).0) {
        device.write_at(bytes, PhysicalAddress(*place)).map_err(failed(device, "write", *place))?;
    }
    device.write_at(&vec![0; WIPED as usize], PhysicalAddress(0)).map_err(failed(device, "write", 0))?;
    device.flush().map_err(failed(device, "flush", 0))
}

/// Completes a conversion whose last step a power cut interrupted: the file system is Btrfs, and
/// the superblock of the source is still there. A superblock of which only a part was written is
/// written again. Returns whether there was something to complete.
///
/// # Errors
/// The device's.
pub fn finish_interrupted(device: &Arc<dyn Device>) -> Result<bool> {
    let primary = superblock_offset(0);
    let mut head = vec![0; WIPED as usize];
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    if device.size() < primary.0 + SUPERBLOCK_SIZE as u64 {
        return Ok(false);
    }
    read(&**device, &mut head, 0)?;
    let start = SUPERBLOCK_OFFSET as usize;
    let is_ext = ExtSuperblock::parse(&head[start..start + SUPERBLOCK_BYTES]).is_ok();
    if !is_ext && XfsSuperblock::parse(&head).is_err() {
        return Ok(false);
    }
    read(&**device, &mut bytes, primary.0)?;
    let (superblock, is_torn) = match Superblock::parse(&bytes, primary) {
        Ok(superblock) => (superblock, false),
        Err(_) => match torn_superblock(&**device, &bytes)? {
            Some(superblock) => (superblock, true),
            None => return Ok(false),
        },
    };
    // The superblock counts in memory only, until the image proves it.
    let total = device.size();
    let reserved = reserved_ranges(total);
    let nothing = Arc::new(BlockSet::new(total.div_ceil(SUPERBLOCK_SIZE as u64)));
    let seen = WithheldDevice::new(Arc::clone(device), nothing, SUPERBLOCK_SIZE as u64, reserved);
    let whole = superblock.to_bytes(primary);
    seen.write_at(&whole, primary).map_err(failed(&**device, "write", primary.0))?;
    if !has_image_of(seen, &head)? {
        return Ok(false);
    }
    if is_torn {
        device.write_fua(&whole, primary).map_err(failed(&**device, "write", primary.0))?;
        device.flush().map_err(failed(&**device, "flush", 0))?;
    }
    let total = superblock.raw.dev_item.total_bytes;
    let copies = (1..SUPERBLOCK_MIRRORS).map(superblock_offset);
    let copies = copies.filter(|place| place.0 + SUPERBLOCK_SIZE as u64 <= total);
    let kept = copies.map(|place| (place.0, superblock.to_bytes(place).into())).collect();
    finish(&**device, &kept)?;
    Ok(true)
}

/// Whether a device is Btrfs, with an image of a source that begins with these bytes.
fn has_image_of(device: WithheldDevice, head: &[u8]) -> Result<bool> {
    let options = OpenOptions::new().ignore_signatures(true);
    let Ok(fs) = FileSystem::from_devices(vec![Arc::new(device)], &options) else { return Ok(false) };
    let Ok(Some((_, image))) = find_image(&fs) else { return Ok(false) };
    let mut saved = vec![0; head.len()];
    let is_read = image.metadata().size() >= WIPED && image.open()?.read_exact_at(&mut saved, 0).is_ok();
    Ok(is_read && saved == head)
}

/// Returns the superblock of which `found` has a part, if a copy says so.
fn torn_superblock(device: &dyn Device, found: &[u8]) -> Result<Option<Superblock>> {
    for place in (1..SUPERBLOCK_MIRRORS).map(superblock_offset) {
        if place.0 + SUPERBLOCK_SIZE as u64 > device.size() {
            break;
        }
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        read(device, &mut bytes, place.0)?;
        let Ok(superblock) = Superblock::parse(&bytes, place) else { continue };
        let whole = superblock.to_bytes(superblock_offset(0));
        // Units of zeros say nothing.
        let is_part = |(new, old): (&[u8], &[u8])| new == old && new.iter().any(|byte| *byte != 0);
        if whole.chunks_exact(UNIT).zip(found.chunks_exact(UNIT)).any(is_part) {
            return Ok(Some(superblock));
        }
    }
    Ok(None)
}

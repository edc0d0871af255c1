//! The switch from the source to Btrfs.
//!
//! Owns [`switch`] and [`complete`].
//!
//! **Order**
//! 1. The record of the switch is written, and everything flushed.
//! 2. The superblock at 64 KiB is written: that is the switch.
//! 3. The other superblocks are written, and the first 64 KiB wiped. The record is erased.
//!
//! A power cut before the switch leaves the source, one after it Btrfs. If the device writes a part
//! of these 4 KiB only, the next run finds the record: [`crate::interrupted`].

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::io::{flush, write, write_durably};
use crate::record::{HEAD_BYTES, SwitchRecord, Way, erase_records, point_to};
use crate::record_place::record_place;
use crate::source::read;
use crate::withheld::WithheldDevice;
use papilio_device::Device;
use papilio_engine::options::OpenOptions;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{PhysicalAddress, Superblock, Uuid};
use papilio_fs::FileSystem;
use std::ops::Range;
use std::sync::Arc;

/// Makes the device Btrfs. `used` are the blocks of the source with this UUID.
///
/// # Errors
/// The device's.
pub(crate) fn switch(
    device: &dyn Device,
    withheld: &Arc<WithheldDevice>,
    used: &BlockSet,
    block_size: u64,
    uuid: Uuid,
) -> Result<()> {
    let invalid = |text: &str| ConvertError::Invalid(format!("{}: {text}", device.name()));
    let primary = superblock_offset(0);
    let kept = withheld.kept();
    let made = kept.get(&primary.0).filter(|bytes| Superblock::parse(bytes, primary).is_ok());
    let made = made.ok_or_else(|| invalid("there is no new superblock"))?;
    let place = place_beside(withheld, used, block_size)?;
    let place = place.ok_or_else(|| invalid("the new file system has no free block for the switch"))?;
    let superblock = point_to(made, place);
    let superblock = superblock.ok_or_else(|| invalid("the new superblock has too many system chunks"))?;
    let (mut head, mut block) = (vec![0; HEAD_BYTES as usize], vec![0; SUPERBLOCK_SIZE]);
    read(device, &mut head, 0)?;
    read(device, &mut block, primary.0)?;
    let contents = vec![block, superblock.clone()];
    SwitchRecord::new(Way::Conversion, uuid, &head, contents).write(device, place)?;
    flush(device)?;
    write_durably(device, &superblock, primary.0)?;
    complete(device, &superblock)
}

/// Finds a place for the record that is free in the source and in the new file system.
fn place_beside(withheld: &Arc<WithheldDevice>, used: &BlockSet, block_size: u64) -> Result<Option<u64>> {
    let options = OpenOptions::new().ignore_signatures(true);
    let fs = FileSystem::from_devices(vec![Arc::clone(withheld) as Arc<dyn Device>], &options)?;
    record_place(&fs, |range: &Range<u64>| {
        !used.intersects(&(range.start / block_size..range.end.div_ceil(block_size)))
    })
}

/// Writes the other superblocks of a device that has `superblock` at 64 KiB, wipes the superblock
/// of the source, and erases the record.
///
/// # Errors
/// The device's.
pub(crate) fn complete(device: &dyn Device, superblock: &[u8]) -> Result<()> {
    let primary = superblock_offset(0);
    let parsed = Superblock::parse(superblock, primary)
        .map_err(|error| ConvertError::Invalid(format!("{}: {error}", device.name())))?;
    let total = parsed.raw.dev_item.total_bytes.min(device.size());
    let places = (1..SUPERBLOCK_MIRRORS).map(superblock_offset);
    for PhysicalAddress(place) in places.filter(|place| place.0 + SUPERBLOCK_SIZE as u64 <= total) {
        write(device, &parsed.to_bytes(PhysicalAddress(place)), place)?;
    }
    // Until the source is gone, a later run would begin here again.
    flush(device)?;
    write(device, &vec![0; HEAD_BYTES as usize], 0)?;
    erase_records(device, superblock)?;
    flush(device)
}

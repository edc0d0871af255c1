//! Conversions and ways back that a power cut interrupted at the switch or after it.
//!
//! Owns [`find_interrupted`], [`finish_interrupted`] and [`undo_interrupted`].
//!
//! | the block at 64 KiB | the first 64 KiB | state |
//! |---|---|---|
//! | a superblock of Btrfs with an image of the source | the source's, or a part of it | [`Interruption::Conversion`] |
//! | torn, and its record is of a conversion | the source's | [`Interruption::TornConversion`] |
//! | torn, and its record is of a way back | the source's | [`Interruption::TornRollback`] |
//! | anything else | | none |
//!
//! **Invariant:** nothing is written unless the image or the record proves the state. With the
//! record, the block at 64 KiB takes on one of the contents between which it was torn: that write
//! may be torn again, and is found again.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::ext::superblock::SUPERBLOCK_OFFSET;
use crate::image::find_image;
use crate::image_extents::ImageExtents;
use crate::interruption::{Finished, Interruption};
use crate::io::{flush, write_durably};
use crate::layout::reserved_ranges;
use crate::record::{HEAD_BYTES, SECTOR, TornSwitch, Way, find_torn};
use crate::source::read;
use crate::switch::complete;
use crate::withheld::WithheldDevice;
use crate::xfs::superblock::XfsSuperblock;
use papilio_device::Device;
use papilio_engine::options::OpenOptions;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{Superblock, Uuid};
use papilio_fs::FileSystem;
use std::sync::Arc;

/// An interruption, with all that is needed to deal with it.
enum State {
    /// The superblock at 64 KiB.
    Whole(Vec<u8>),
    Torn(TornSwitch),
}

/// Finds out whether a conversion or a way back was interrupted on a device. Nothing is written.
///
/// # Errors
/// The device's.
pub fn find_interrupted(device: &Arc<dyn Device>) -> Result<Option<Interruption>> {
    Ok(inspect(device)?.map(|state| interruption_of(&state)))
}

fn interruption_of(state: &State) -> Interruption {
    match state {
        State::Whole(_) => Interruption::Conversion,
        State::Torn(torn) => interruption(torn),
    }
}

fn interruption(torn: &TornSwitch) -> Interruption {
    let used_since = !torn.is_unchanged;
    match torn.record.way {
        Way::Conversion => Interruption::TornConversion { used_since },
        Way::Rollback => Interruption::TornRollback { used_since },
    }
}

/// Completes a conversion or a way back that a power cut interrupted. A conversion is undone if
/// the new file system is not whole. Returns the file system that the device has now; `None` if
/// there was nothing to complete.
///
/// # Errors
/// The device's; [`ConvertError::Interrupted`] if the old file system was used since.
pub fn finish_interrupted(device: &Arc<dyn Device>) -> Result<Option<Finished>> {
    let superblock = match inspect(device)? {
        None => return Ok(None),
        Some(State::Whole(superblock)) => superblock,
        Some(State::Torn(torn)) if !torn.is_unchanged => {
            let state = interruption(&torn);
            return Err(ConvertError::Interrupted { device: device.name().to_owned(), state });
        }
        Some(State::Torn(torn)) => {
            let content = &torn.record.contents[torn.step];
            let is_source = content.as_slice() == torn.record.source_block();
            if is_source || !has_image(device, content)? {
                return bring_source_back(&**device, &torn).map(Some);
            }
            write_durably(&**device, content, superblock_offset(0).0)?;
            content.clone()
        }
    };
    complete(&**device, &superblock)?;
    Ok(Some(Finished::Btrfs))
}

/// Brings the old file system back if the last write of a conversion or of a way back is torn.
/// Returns the file system that the device has now; `None` if that is not the state.
///
/// # Errors
/// The device's.
pub fn undo_interrupted(device: &Arc<dyn Device>) -> Result<Option<Finished>> {
    match inspect(device)? {
        Some(State::Torn(torn)) => bring_source_back(&**device, &torn).map(Some),
        _ => Ok(None),
    }
}

/// Refuses a device whose block at 64 KiB is torn: neither file system is whole.
///
/// # Errors
/// [`ConvertError::Interrupted`]; the device's.
pub(crate) fn refuse_torn(device: &Arc<dyn Device>) -> Result<()> {
    match find_interrupted(device)? {
        None | Some(Interruption::Conversion) => Ok(()),
        Some(state) => Err(ConvertError::Interrupted { device: device.name().to_owned(), state }),
    }
}

/// Writes the block of the source, and erases the record.
fn bring_source_back(device: &dyn Device, torn: &TornSwitch) -> Result<Finished> {
    let primary = superblock_offset(0).0;
    if torn.record.way == Way::Rollback {
        // The next write must find pointers to the record in all sectors.
        write_durably(device, &torn.record.contents[1], primary)?;
    }
    write_durably(device, torn.record.source_block(), primary)?;
    torn.erase(device)?;
    flush(device)?;
    Ok(Finished::Source)
}

/// Returns the UUID of the source whose superblock is in the first 64 KiB.
fn source_uuid(head: &[u8]) -> Option<Uuid> {
    let ext = &head[SUPERBLOCK_OFFSET as usize..];
    if XfsSuperblock::has_magic(head) {
        Uuid::from_slice(&head[32..48]).ok()
    } else if ext[0x38..0x3a] == [0x53, 0xef] {
        Uuid::from_slice(&ext[0x68..0x78]).ok()
    } else {
        None
    }
}

fn inspect(device: &Arc<dyn Device>) -> Result<Option<State>> {
    let primary = superblock_offset(0);
    if device.size() < primary.0 + SUPERBLOCK_SIZE as u64 {
        return Ok(None);
    }
    let (mut head, mut block) = (vec![0; HEAD_BYTES as usize], vec![0; SUPERBLOCK_SIZE]);
    read(&**device, &mut head, 0)?;
    let Some(uuid) = source_uuid(&head) else { return Ok(None) };
    read(&**device, &mut block, primary.0)?;
    if Superblock::parse(&block, primary).is_ok() {
        return Ok(has_image(device, &block)?.then_some(State::Whole(block)));
    }
    Ok(find_torn(&**device, &head, uuid, &block)?.map(State::Torn))
}

/// Whether a device with this superblock is Btrfs, and has the image of a source whose first 64
/// KiB are still on the device, or partly wiped.
fn has_image(device: &Arc<dyn Device>, superblock: &[u8]) -> Result<bool> {
    // The superblock counts in memory only, until the image proves it.
    let total = device.size();
    let nothing = Arc::new(BlockSet::new(total.div_ceil(SUPERBLOCK_SIZE as u64)));
    let (unit, reserved) = (SUPERBLOCK_SIZE as u64, reserved_ranges(total));
    let seen = WithheldDevice::new(Arc::clone(device), nothing, unit, reserved);
    seen.keep(superblock_offset(0).0, superblock);
    let options = OpenOptions::new().ignore_signatures(true);
    let Ok(fs) = FileSystem::from_devices(vec![Arc::new(seen)], &options) else { return Ok(false) };
    let Ok(Some((_, image))) = find_image(&fs) else { return Ok(false) };
    let size = image.metadata().size();
    if size < HEAD_BYTES || size > total {
        return Ok(false);
    }
    let Ok(extents) = ImageExtents::read(&fs, image.tree(), image.number(), size) else { return Ok(false) };
    let (mut saved, mut head) = (vec![0; HEAD_BYTES as usize], vec![0; HEAD_BYTES as usize]);
    if image.open()?.read_exact_at(&mut saved, 0).is_err() {
        return Ok(false);
    }
    read(&**device, &mut head, 0)?;
    // The image has no free blocks of the source. A wiped part has zeros.
    let is_same = |at: usize| {
        let sector = at..at + SECTOR;
        let is_free = extents.first_gap(&(at as u64..(at + SECTOR) as u64)).is_some();
        is_free || head[sector.clone()] == saved[sector.clone()] || head[sector].iter().all(|byte| *byte == 0)
    };
    Ok((0..head.len()).step_by(SECTOR).all(is_same))
}

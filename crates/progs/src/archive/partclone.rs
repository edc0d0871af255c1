//! Writes the device in an image of partclone.
//!
//! Owns [`restore_partclone`].
//!
//! **Invariant**: old superblocks are destroyed first, and those of the image are written last,
//! after all its blocks were read. A restore that was cut short leaves no file system.

use super::restore::{destroy_superblocks, flush, write};
use papilio_device::Device;
use papilio_device::partclone::{PartcloneError, PartcloneReader};
use papilio_engine::errors::{Error, Result};
use papilio_format::PhysicalAddress;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use std::io::Read;

/// Writes the blocks of an image to a device, and returns their bytes. Calls `progress` with the
/// bytes that were read of the image, decompressed.
///
/// # Errors
/// An image that was cut or damaged; a device that is too small, or fails.
pub fn restore_partclone<R: Read>(
    reader: &mut PartcloneReader<R>,
    device: &dyn Device,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let need = reader.layout().device_size();
    if device.size() < need {
        let (name, have) = (device.name().to_owned(), device.size());
        return Err(Error::Truncated { device: name, need, have });
    }
    destroy_superblocks(device)?;
    let block_size = reader.layout().block_size() as usize;
    let (mut written, mut held) = (0, Vec::new());
    while let Some((places, bytes)) = reader.next_blocks().map_err(partclone_error)? {
        for (place, block) in places.iter().zip(bytes.chunks_exact(block_size)) {
            // The last block may reach past the end.
            let length = (need - place).min(block.len() as u64) as usize;
            write_around(device, *place, &block[..length], &mut held)?;
            written += length as u64;
        }
        progress(reader.position());
    }
    flush(device)?;
    for (place, bytes) in held.iter().rev() {
        write(device, bytes, PhysicalAddress(*place))?;
    }
    flush(device)?;
    Ok(written)
}

/// Writes a block, except for its superblocks, which are held.
fn write_around(device: &dyn Device, start: u64, block: &[u8], held: &mut Vec<(u64, Vec<u8>)>) -> Result<()> {
    let end = start + block.len() as u64;
    let mut at = start;
    for place in (0..SUPERBLOCK_MIRRORS).map(|mirror| superblock_offset(mirror).0) {
        let after = place + SUPERBLOCK_SIZE as u64;
        let (from, to) = (place.max(at), after.min(end));
        if from >= to {
            continue;
        }
        write(device, &block[(at - start) as usize..(from - start) as usize], PhysicalAddress(at))?;
        held.push((from, block[(from - start) as usize..(to - start) as usize].to_vec()));
        at = to;
    }
    write(device, &block[(at - start) as usize..], PhysicalAddress(at))
}

fn partclone_error(error: PartcloneError) -> Error {
    Error::Invalid(error.to_string())
}

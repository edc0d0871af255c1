//! Recognises what a device contains by the signatures at its start and end.
//!
//! Owns [`signatures`] and the table of them. Creating a file system refuses to overwrite each of
//! them. Opening one refuses to write beside those that are [good](Signature::is_good).
//!
//! **Invariant**: a signature is good only if the rest of its header agrees: versions, places,
//! sizes and checksums, as far as the format has them. The data of a file can look like a
//! signature, and so can one that was left by an earlier use.
//!
//! The places are those where libblkid looks. Sources: the kernel's headers of md and bcache
//! (`include/uapi/linux/raid/md_p.h`, `bcache.h`) and of swap (`include/linux/swap.h`); documents
//! of the formats of LVM2 and LUKS; `uberblock.h` of OpenZFS; `drbd_int.h` of DRBD.

mod checks;
mod table;
mod types;

pub use types::{Signature, SignatureUse};

use crate::device::Device;
use papilio_format::PhysicalAddress;
use std::io;

/// Bytes at the start of a device that contain all magic numbers there.
const FRONT: usize = (64 << 10) + 4096;

/// Returns all signatures on a device, those at the start first.
///
/// # Errors
/// The device cannot be read.
pub fn signatures(device: &dyn Device) -> io::Result<Vec<Signature>> {
    let length = usize::try_from(device.size()).map_or(FRONT, |size| size.min(FRONT));
    let mut front = vec![0; length];
    device.read_at(&mut front, PhysicalAddress(0))?;
    let mut found = table::at_start(device, &front)?;
    found.extend(table::at_end(device)?);
    Ok(found)
}

/// Returns a text about what a device without a Btrfs superblock contains, if that is known.
pub fn describe_content(device: &dyn Device) -> Option<String> {
    let found = signatures(device).ok()?;
    let best = found.iter().find(|signature| signature.is_good).or_else(|| found.first())?;
    Some(match best.advice {
        "" => format!("it is {}", best.name),
        advice => format!("it is {}: {advice}", best.name),
    })
}

#[cfg(test)]
mod tests;

//! Recognises what a device contains by the signatures at its start and end.
//!
//! Owns [`signatures`], [`Signature`] and the table of them. Creating a file system refuses to
//! overwrite each of them. Opening one refuses to write beside those that are
//! [good](Signature::is_good) and belong to a format that [uses the device](SignatureUse::Member).
//!
//! **Invariant**: a signature is good only if the rest of its header agrees: versions, places,
//! sizes and checksums, as far as the format has them. The data of a file can look like a
//! signature, and so can one that was left by an earlier use.
//!
//! The places are those where libblkid looks. Sources: the kernel's `include/uapi/linux/raid/md_p.h`,
//! `include/uapi/linux/bcache.h` and `include/linux/swap.h`; LVM2's and cryptsetup's documents of
//! their formats; OpenZFS' `uberblock.h`; DRBD's `drbd_int.h`.

mod checks;
mod table;

use crate::device::Device;
use papilio_format::PhysicalAddress;
use std::io;

/// What the owner of a signature does with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignatureUse {
    /// It is a Btrfs file system.
    Btrfs,
    /// It is another file system.
    FileSystem,
    /// It is a part of something else: an array, a volume group, an encrypted volume, swap.
    Member,
    /// It has partitions.
    Partitions,
}

/// A signature on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The format, with its article.
    pub name: &'static str,
    /// What to do about it, in the imperative; empty if nothing is known.
    pub advice: &'static str,
    /// What the device is used for.
    pub usage: SignatureUse,
    /// The offset of the header in bytes.
    pub offset: u64,
    /// Whether the rest of the header agrees.
    pub is_good: bool,
    /// Whether the header is at the end of the device.
    pub is_at_end: bool,
}

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

//! Devices with a Btrfs file system that belong to something else: a member of an array, a volume
//! of LVM, an encrypted volume, a disk with partitions.
//!
//! Owns [`check_signatures`]. A mirror of md with its superblock at the end shows the same file
//! system on each of its members. A change of one of them makes them differ.
//!
//! **Invariant**: a signature in a range that the file system uses does not count. That is its own
//! data, or was left by an earlier use of the device. Btrfs leaves the first MiB to others.

use crate::errors::{Error, Result};
use papilio_device::{Access, Device, Signature, SignatureUse, signatures};
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{PhysicalAddress, Superblock};

/// The place of the magic number in a superblock.
const MAGIC: usize = 64;

/// Refuses to write to a device that belongs to something else, unless `ignore` is set, and logs
/// that of a device which is only read.
///
/// # Errors
/// [`Error::OtherSignature`]. A device that cannot be read is left to the caller.
pub fn check_signatures(device: &dyn Device, ignore: bool) -> Result<()> {
    let Some(Signature { name, advice, offset, .. }) = other_owner(device) else { return Ok(()) };
    let device_name = device.name();
    if device.access() == Access::ReadOnly || ignore {
        tracing::warn!("{device_name}: has the signature of {name} at {offset}, beside that of Btrfs");
        return Ok(());
    }
    let offset = PhysicalAddress(offset);
    Err(Error::OtherSignature { device: device_name.to_owned(), found: name, offset, advice })
}

/// Returns the signature of the device's other owner.
fn other_owner(device: &dyn Device) -> Option<Signature> {
    let place = superblock_offset(0);
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, place).ok()?;
    // The content of another device is named when its superblock is read.
    if bytes[MAGIC..].first_chunk() != Some(b"_BHRfS_M") {
        return None;
    }
    // Of a damaged superblock the size is not known: everything at the end counts.
    let own = Superblock::parse(&bytes, place).map_or(0, |superblock| superblock.raw.dev_item.total_bytes);
    signatures(device).ok()?.into_iter().find(|signature| {
        signature.is_good
            && signature.usage != SignatureUse::Btrfs
            && (!signature.is_at_end || signature.offset >= own)
    })
}

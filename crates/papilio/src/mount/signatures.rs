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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileSystem, MkfsOptions, OpenOptions, mkfs_device};
    use papilio_device::MemoryDevice;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    /// DRBD's superblock in the last 4 KiB of a device of this size.
    fn put_drbd(device: &MemoryDevice, size: u64) {
        let mut bytes = [0; 4096];
        bytes[..8].copy_from_slice(&1000_u64.to_be_bytes());
        bytes[60..64].copy_from_slice(&0x8374_026b_u32.to_be_bytes());
        device.write_at(&bytes, PhysicalAddress(size - 4096)).unwrap();
    }

    fn made(file_system: u64, device: u64) -> Arc<MemoryDevice> {
        let made = Arc::new(MemoryDevice::new(device));
        mkfs_device(&*made, &MkfsOptions::new().size(file_system)).unwrap();
        made
    }

    fn open(device: &Arc<MemoryDevice>, ignore: bool) -> Result<()> {
        check_signatures(&**device, ignore)?;
        let options = OpenOptions::new().write(true).ignore_signatures(ignore);
        FileSystem::from_devices(vec![Arc::clone(device) as Arc<dyn Device>], &options)?.close()
    }

    #[test]
    fn signatures_after_the_file_system_count() {
        let device = made(128 * MIB, 129 * MIB);
        open(&device, false).unwrap();
        put_drbd(&device, 129 * MIB);
        let refused = open(&device, false).unwrap_err();
        assert!(matches!(refused, Error::OtherSignature { found: "a DRBD device", .. }), "{refused}");
        assert_eq!(refused.errno(), 16);
        open(&device, true).unwrap();
        // Creating a file system removes it.
        mkfs_device(&*device, &MkfsOptions::new().size(128 * MIB).force(true)).unwrap();
        open(&device, false).unwrap();
    }

    #[test]
    fn signatures_inside_the_file_system_do_not_count() {
        let device = made(128 * MIB, 128 * MIB);
        put_drbd(&device, 128 * MIB);
        open(&device, false).unwrap();
        assert_eq!(signatures(&*device).unwrap().len(), 2);
    }

    #[test]
    fn signatures_in_the_first_megabyte_count_if_they_are_good() {
        let device = made(128 * MIB, 128 * MIB);
        device.write_at(b"LUKS\xba\xbe\0\x07", PhysicalAddress(0)).unwrap();
        open(&device, false).unwrap();
        device.write_at(b"LUKS\xba\xbe\0\x02", PhysicalAddress(0)).unwrap();
        let refused = open(&device, false).unwrap_err().to_string();
        assert!(
            refused.contains("an encrypted volume (LUKS) at 0") && refused.contains("cryptsetup"),
            "{refused}"
        );
    }
}

//! Recognises the content of a device before it is overwritten.
//!
//! Owns [`find_signature`]: the signatures of the most common file systems, volumes and partition
//! tables, at the offsets where libblkid looks for them. It guards against mistakes; unknown
//! content is overwritten.

use crate::errors::{Error, Result};
use papilio_device::Device;
use papilio_format::PhysicalAddress;

/// A signature: the format, its offset in bytes, and its bytes.
struct Signature(&'static str, u64, &'static [u8]);

const SIGNATURES: &[Signature] = &[
    Signature("a Btrfs file system", 0x1_0040, b"_BHRfS_M"),
    // Zoned Btrfs has its superblock at the start.
    Signature("a zoned Btrfs file system", 0x40, b"_BHRfS_M"),
    Signature("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    Signature("an XFS file system", 0, b"XFSB"),
    Signature("a bcachefs file system", 0x1018, BCACHEFS),
    Signature("a bcache device or bcachefs file system", 0x1018, BCACHE),
    Signature("an F2FS file system", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    Signature("a ReiserFS file system", 0x1_0034, b"ReIsEr"),
    Signature("a JFS file system", 0x8000, b"JFS1"),
    Signature("a NILFS2 file system", 0x406, &[0x34, 0x34]),
    Signature("an NTFS file system", 3, b"NTFS    "),
    Signature("an exFAT file system", 3, b"EXFAT   "),
    Signature("a FAT file system", 54, b"FAT1"),
    Signature("a FAT file system", 82, b"FAT32   "),
    Signature("an APFS container", 0x20, b"NXSB"),
    Signature("an HFS+ file system", 0x400, b"H+"),
    Signature("an HFS+ file system", 0x400, b"HX"),
    Signature("a SquashFS file system", 0, b"hsqs"),
    Signature("an EROFS file system", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    Signature("an ISO 9660 file system", 0x8001, b"CD001"),
    Signature("a UDF file system", 0x8001, b"BEA01"),
    // At the end of the first page, whose size depends on the machine.
    Signature("a swap area", 0xff6, b"SWAPSPACE2"),
    Signature("a swap area", 0xfff6, b"SWAPSPACE2"),
    Signature("a suspended system", 0xff6, b"S1SUSPEND"),
    Signature("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    Signature("an LVM physical volume", 0x200, b"LABELONE"),
    Signature("an LVM physical volume", 0, b"LABELONE"),
    Signature("a member of a RAID array (md)", 0x1000, &MD),
    Signature("a member of a RAID array (md)", 0, &MD),
    Signature("a partition table (GPT)", 0x200, b"EFI PART"),
    Signature("a partition table (GPT)", 0x1000, b"EFI PART"),
];

/// UUIDs at the start of the superblocks of bcachefs and bcache.
const BCACHEFS: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];
const BCACHE: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
const MD: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// Bytes at the start of a device that contain all signatures.
const SCANNED: usize = (64 << 10) + 4096;

/// Returns the format of the device's content, if it has a known signature.
///
/// # Errors
/// The device cannot be read.
pub fn find_signature(device: &dyn Device) -> Result<Option<&'static str>> {
    let length = usize::try_from(device.size()).map_or(SCANNED, |size| size.min(SCANNED));
    let mut front = vec![0; length];
    device.read_at(&mut front, PhysicalAddress(0)).map_err(|source| Error::Device {
        device: device.name().to_owned(),
        operation: "read",
        offset: PhysicalAddress(0),
        length,
        source,
    })?;
    let is_present = |signature: &&Signature| {
        let rest = front.get(signature.1 as usize..);
        rest.is_some_and(|bytes| bytes.starts_with(signature.2))
    };
    let found = SIGNATURES.iter().find(is_present).map(|signature| signature.0);
    Ok(found.or_else(|| has_partitions(&front).then_some("a partition table (MBR)")))
}

/// Whether the device has an MBR partition table. The signature of a boot sector is not enough: a
/// partition must be in use.
fn has_partitions(front: &[u8]) -> bool {
    let Some(sector) = front.first_chunk::<512>() else { return false };
    let is_used = |entry: &[u8]| entry[0] & 0x7f == 0 && entry[4] != 0 && entry[12..] != [0; 4];
    sector[510..] == [0x55, 0xaa] && sector[446..510].chunks_exact(16).any(is_used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::MemoryDevice;

    fn found(at: u64, bytes: &[u8]) -> Option<&'static str> {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(bytes, PhysicalAddress(at)).unwrap();
        find_signature(&device).unwrap()
    }

    #[test]
    fn each_signature_is_found_at_its_offset_only() {
        for signature in SIGNATURES {
            assert!(found(signature.1, signature.2).is_some(), "{}", signature.0);
            assert_eq!(found(signature.1 + 0x2_0000, signature.2), None, "{}", signature.0);
        }
        assert_eq!(found(0x1_0040, b"_BHRfS_M"), Some("a Btrfs file system"));
    }

    #[test]
    fn a_boot_sector_without_partitions_is_no_signature() {
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(found(0, &sector), None);
        sector[450] = 0x83;
        sector[458] = 1;
        assert_eq!(found(0, &sector), Some("a partition table (MBR)"));
    }

    #[test]
    fn small_devices_are_read_to_their_end() {
        assert_eq!(find_signature(&MemoryDevice::new(100)).unwrap(), None);
    }
}

//! What a device holds already.
//!
//! Owns [`find_signature`]: the marks of the file systems, volumes and partition tables that are
//! most often met, at the places where libblkid looks for them. It is there to stop a slip of the
//! hand; what it does not know is overwritten.

use crate::errors::{Error, Result};
use papilio_device::Device;
use papilio_format::PhysicalAddress;

/// A mark: what it tells of, where it lies, its bytes.
struct Mark(&'static str, u64, &'static [u8]);

const MARKS: &[Mark] = &[
    Mark("a Btrfs file system", 0x1_0040, b"_BHRfS_M"),
    // Zoned Btrfs has its superblock in front.
    Mark("a zoned Btrfs file system", 0x40, b"_BHRfS_M"),
    Mark("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    Mark("an XFS file system", 0, b"XFSB"),
    Mark("a bcachefs file system", 0x1018, BCACHEFS),
    Mark("a bcache device or bcachefs file system", 0x1018, BCACHE),
    Mark("an F2FS file system", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    Mark("a ReiserFS file system", 0x1_0034, b"ReIsEr"),
    Mark("a JFS file system", 0x8000, b"JFS1"),
    Mark("a NILFS2 file system", 0x406, &[0x34, 0x34]),
    Mark("an NTFS file system", 3, b"NTFS    "),
    Mark("an exFAT file system", 3, b"EXFAT   "),
    Mark("a FAT file system", 54, b"FAT1"),
    Mark("a FAT file system", 82, b"FAT32   "),
    Mark("an APFS container", 0x20, b"NXSB"),
    Mark("an HFS+ file system", 0x400, b"H+"),
    Mark("an HFS+ file system", 0x400, b"HX"),
    Mark("a SquashFS file system", 0, b"hsqs"),
    Mark("an EROFS file system", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    Mark("an ISO 9660 file system", 0x8001, b"CD001"),
    Mark("a UDF file system", 0x8001, b"BEA01"),
    // At the end of the first page, whose size the machine that made it chose.
    Mark("a swap area", 0xff6, b"SWAPSPACE2"),
    Mark("a swap area", 0xfff6, b"SWAPSPACE2"),
    Mark("a suspended system", 0xff6, b"S1SUSPEND"),
    Mark("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    Mark("an LVM physical volume", 0x200, b"LABELONE"),
    Mark("an LVM physical volume", 0, b"LABELONE"),
    Mark("a member of a RAID array (md)", 0x1000, &MD),
    Mark("a member of a RAID array (md)", 0, &MD),
    Mark("a partition table (GPT)", 0x200, b"EFI PART"),
    Mark("a partition table (GPT)", 0x1000, b"EFI PART"),
];

/// UUIDs that open the superblocks of both.
const BCACHEFS: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];
const BCACHE: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
const MD: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// Everything that is looked at lies in front of this.
const LOOKED_AT: usize = (64 << 10) + 4096;

/// Says what the device seems to hold, if anything.
///
/// # Errors
/// The device cannot be read.
pub(super) fn find_signature(device: &dyn Device) -> Result<Option<&'static str>> {
    let length = usize::try_from(device.size()).map_or(LOOKED_AT, |size| size.min(LOOKED_AT));
    let mut front = vec![0; length];
    device.read_at(&mut front, PhysicalAddress(0)).map_err(|source| Error::Device {
        device: device.name().to_owned(),
        operation: "read",
        offset: PhysicalAddress(0),
        length,
        source,
    })?;
    let is_there = |mark: &&Mark| {
        let behind = front.get(mark.1 as usize..);
        behind.is_some_and(|bytes| bytes.starts_with(mark.2))
    };
    let found = MARKS.iter().find(is_there).map(|mark| mark.0);
    Ok(found.or_else(|| has_partitions(&front).then_some("a partition table (MBR)")))
}

/// A boot sector's last two bytes alone say little; a partition in use beside them does.
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
    fn each_mark_is_found_in_its_place_only() {
        for mark in MARKS {
            assert!(found(mark.1, mark.2).is_some(), "{}", mark.0);
            assert_eq!(found(mark.1 + 0x2_0000, mark.2), None, "{}", mark.0);
        }
        assert_eq!(found(0x1_0040, b"_BHRfS_M"), Some("a Btrfs file system"));
    }

    #[test]
    fn partitions_are_told_from_boot_sectors() {
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

//! The signatures, their places and their checks.

use super::checks;
use super::types::{Signature, SignatureUse};
use crate::device::Device;
use crate::partition_table::PartitionTable;
use std::io;

use SignatureUse::{Btrfs, FileSystem, Member, Partitions};

/// A signature at a fixed offset.
struct Row {
    usage: SignatureUse,
    name: &'static str,
    advice: &'static str,
    offset: u64,
    magic: &'static [u8],
    /// Checks the rest of the header, of which the slice begins with the device's first byte.
    check: fn(&[u8]) -> bool,
}

const fn row(
    usage: SignatureUse,
    name: &'static str,
    advice: &'static str,
    offset: u64,
    magic: &'static [u8],
    check: fn(&[u8]) -> bool,
) -> Row {
    Row { usage, name, advice, offset, magic, check }
}

/// A magic number that is long enough to need no check.
fn sure(_: &[u8]) -> bool {
    true
}

/// A magic number too short to be believed.
fn weak(_: &[u8]) -> bool {
    false
}

const MOUNT: &str = "mount it with the host's kernel";
const ARRAY: &str = "assemble the array with mdadm(8), and open the device that it makes";
const VOLUMES: &str = "activate the volume group with vgchange(8), and open the logical volume";
const UNLOCK: &str = "unlock it with cryptsetup(8), and open the device that it makes";
const ZONED: &str = "only the kernel reads zoned file systems; mount it with the host's kernel";
const CACHE: &str = "register it with bcache, and open the device that it makes";
const POOL: &str = "import the pool with zpool(8)";
const MIRROR: &str = "open the device /dev/drbd that it makes";
const FIRMWARE: &str = "assemble the array with mdadm(8) or the firmware, and open the device that it makes";
const CHOOSE: &str = "name a partition as IMAGE@N; papilio inspect partitions lists them";

/// UUIDs at the start of the superblocks of bcachefs and bcache.
const BCACHEFS: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];
const BCACHE: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
const MD: &[u8] = &checks::MD_MAGIC;

const ARRAY_NAME: &str = "a member of a RAID array (md)";
const LVM_NAME: &str = "an LVM physical volume";
const LUKS_NAME: &str = "an encrypted volume (LUKS)";
const SWAP_NAME: &str = "a swap area";
const HFS_NAME: &str = "an HFS+ file system";
const EXT_NAME: &str = "an ext2, ext3 or ext4 file system";
const ZFS_NAME: &str = "a member of a ZFS pool";

const AT_START: &[Row] = &[
    row(Btrfs, "a Btrfs file system", "", 0x1_0040, b"_BHRfS_M", sure),
    // Zoned Btrfs has its superblock at the start, and no other one at 64 KiB.
    row(Btrfs, "a zoned Btrfs file system", ZONED, 0x40, b"_BHRfS_M", sure),
    row(FileSystem, EXT_NAME, MOUNT, 0x438, &[0x53, 0xef], checks::ext),
    row(FileSystem, "an XFS file system", MOUNT, 0, b"XFSB", checks::xfs),
    row(FileSystem, "a bcachefs file system", MOUNT, 0x1018, BCACHEFS, sure),
    row(Member, "a bcache device or bcachefs file system", CACHE, 0x1018, BCACHE, checks::bcache),
    row(FileSystem, "an F2FS file system", MOUNT, 0x400, &[0x10, 0x20, 0xf5, 0xf2], weak),
    row(FileSystem, "a ReiserFS file system", MOUNT, 0x1_0034, b"ReIsEr", weak),
    row(FileSystem, "a JFS file system", MOUNT, 0x8000, b"JFS1", weak),
    row(FileSystem, "a NILFS2 file system", MOUNT, 0x406, &[0x34, 0x34], weak),
    row(FileSystem, "an NTFS file system", MOUNT, 3, b"NTFS    ", checks::boot_sector),
    row(FileSystem, "an exFAT file system", MOUNT, 3, b"EXFAT   ", checks::boot_sector),
    row(FileSystem, "a FAT file system", MOUNT, 54, b"FAT1", weak),
    row(FileSystem, "a FAT file system", MOUNT, 82, b"FAT32   ", weak),
    row(FileSystem, "an APFS container", "", 0x20, b"NXSB", weak),
    row(FileSystem, HFS_NAME, MOUNT, 0x400, b"H+", weak),
    row(FileSystem, HFS_NAME, MOUNT, 0x400, b"HX", weak),
    row(FileSystem, "a SquashFS file system", MOUNT, 0, b"hsqs", weak),
    row(FileSystem, "an EROFS file system", MOUNT, 0x400, &[0xe2, 0xe1, 0xf5, 0xe0], weak),
    row(FileSystem, "an ISO 9660 file system", MOUNT, 0x8001, b"CD001", weak),
    row(FileSystem, "a UDF file system", MOUNT, 0x8001, b"BEA01", weak),
    // At the end of the first page, whose size depends on the machine.
    row(Member, SWAP_NAME, "", 0xff6, b"SWAPSPACE2", checks::swap),
    row(Member, SWAP_NAME, "", 0x1ff6, b"SWAPSPACE2", checks::swap),
    row(Member, SWAP_NAME, "", 0x3ff6, b"SWAPSPACE2", checks::swap),
    row(Member, SWAP_NAME, "", 0x7ff6, b"SWAPSPACE2", checks::swap),
    row(Member, SWAP_NAME, "", 0xfff6, b"SWAPSPACE2", checks::swap),
    row(Member, "a suspended system", "resume or shut down that system", 0xff6, b"S1SUSPEND", checks::swap),
    row(Member, LUKS_NAME, UNLOCK, 0, b"LUKS\xba\xbe", checks::luks),
    row(Member, LVM_NAME, VOLUMES, 0x200, b"LABELONE", checks::lvm::<0x200>),
    row(Member, LVM_NAME, VOLUMES, 0, b"LABELONE", checks::lvm::<0>),
    row(Member, LVM_NAME, VOLUMES, 0x400, b"LABELONE", checks::lvm::<0x400>),
    row(Member, LVM_NAME, VOLUMES, 0x600, b"LABELONE", checks::lvm::<0x600>),
    row(Member, ARRAY_NAME, ARRAY, 0x1000, MD, checks::md1_start::<0x1000>),
    row(Member, ARRAY_NAME, ARRAY, 0, MD, checks::md1_start::<0>),
    row(Partitions, "a partition table (GPT)", CHOOSE, 0x200, b"EFI PART", weak),
    row(Partitions, "a partition table (GPT)", CHOOSE, 0x1000, b"EFI PART", weak),
];

/// Bytes of a part of ZFS' labels.
const ZFS_LABEL: u64 = 256 << 10;
/// The place of the uberblocks in a label, and their bytes.
const UBERBLOCKS: u64 = 128 << 10;

/// Returns the signatures at the start of a device, whose first bytes are `front`.
pub(super) fn at_start(device: &dyn Device, front: &[u8]) -> io::Result<Vec<Signature>> {
    let is_present = |row: &&Row| {
        let rest = front.get(row.offset as usize..);
        rest.is_some_and(|bytes| bytes.starts_with(row.magic))
    };
    let mut found: Vec<Signature> = AT_START
        .iter()
        .filter(is_present)
        .map(|row| Signature {
            name: row.name,
            advice: row.advice,
            usage: row.usage,
            offset: row.offset,
            is_good: (row.check)(front),
            is_at_end: false,
        })
        .collect();
    if found.iter().any(|signature| signature.usage == Partitions) || has_partitions(front) {
        // A table is good if its checksums are, or its partitions are on the disk.
        let table = PartitionTable::read(device)?;
        let is_good = table.is_some_and(|table| !table.partitions.is_empty() && table.faults.is_empty());
        found.iter_mut().filter(|found| found.usage == Partitions).for_each(|found| found.is_good = is_good);
        if has_partitions(front) && !found.iter().any(|found| found.usage == Partitions) {
            found.push(Signature {
                name: "a partition table (MBR)",
                advice: CHOOSE,
                usage: Partitions,
                offset: 0,
                is_good,
                is_at_end: false,
            });
        }
    }
    if let Some(offset) = checks::uberblocks(device, UBERBLOCKS, UBERBLOCKS)? {
        found.push(member(ZFS_NAME, POOL, offset, false));
    }
    Ok(found)
}

/// Whether the device has an MBR partition table. The signature of a boot sector is not enough: a
/// partition must be in use.
fn has_partitions(front: &[u8]) -> bool {
    let Some(sector) = front.first_chunk::<512>() else { return false };
    let is_used = |entry: &[u8]| entry[0] & 0x7f == 0 && entry[4] != 0 && entry[12..] != [0; 4];
    sector[510..] == [0x55, 0xaa] && sector[446..510].chunks_exact(16).any(is_used)
}

fn member(name: &'static str, advice: &'static str, offset: u64, is_at_end: bool) -> Signature {
    Signature { name, advice, usage: Member, offset, is_good: true, is_at_end }
}

/// Returns the good signatures at the end of a device. Others are data of some file system.
pub(super) fn at_end(device: &dyn Device) -> io::Result<Vec<Signature>> {
    let size = device.size();
    let mut found = Vec::new();
    let mut add = |name, advice, offset| found.push(member(name, advice, offset, true));
    // Each format has one place, which follows from the size of the device.
    if let Some(offset) = checks::md1_end(size)
        && checks::md1(device, offset)?
    {
        add(ARRAY_NAME, ARRAY, offset);
    }
    if let Some(offset) = checks::md0_end(size)
        && checks::md0(device, offset)?
    {
        add(ARRAY_NAME, ARRAY, offset);
    }
    if let Some(offset) = (size & !0xfff).checked_sub(0x1000)
        && checks::drbd(device, offset)?
    {
        add("a DRBD device", MIRROR, offset);
    }
    if let Some(offset) = size.checked_sub(0x400)
        && checks::starts_with(device, offset, b"Intel Raid ISM Cfg Sig. ")?
    {
        add("a member of a firmware RAID array", FIRMWARE, offset);
    }
    for label in [2, 1] {
        if let Some(start) = (size & !(ZFS_LABEL - 1)).checked_sub(label * ZFS_LABEL)
            && start >= 2 * ZFS_LABEL
            && let Some(offset) = checks::uberblocks(device, start + UBERBLOCKS, UBERBLOCKS)?
        {
            add(ZFS_NAME, POOL, offset);
            break;
        }
    }
    Ok(found)
}

/// The magic numbers at the start, for tests.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (&'static str, u64, &'static [u8])> {
    AT_START.iter().map(|row| (row.name, row.offset, row.magic))
}

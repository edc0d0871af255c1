//! Headers as the tools of each format write them, made here by hand, and headers that only look
//! like them.

use super::*;
use crate::MemoryDevice;

const SIZE: u64 = 4 << 20;

fn device(parts: &[(u64, &[u8])]) -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    for (at, bytes) in parts {
        device.write_at(bytes, PhysicalAddress(*at)).unwrap();
    }
    device
}

/// Returns name and goodness of each signature.
fn found(parts: &[(u64, &[u8])]) -> Vec<(&'static str, bool)> {
    let found = signatures(&device(parts)).unwrap();
    found.iter().map(|signature| (signature.name, signature.is_good)).collect()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A superblock of md, version 1, for `sector`.
fn md1(sector: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    put(&mut bytes, 0, &[0xfc, 0x4e, 0x2b, 0xa9, 1]);
    bytes[16..64].fill(0x5a);
    put(&mut bytes, 144, &sector.to_le_bytes());
    // Three roles: one and a half words.
    put(&mut bytes, 220, &3_u32.to_le_bytes());
    put(&mut bytes, 256, &[0, 0, 1, 0, 0xfe, 0xff]);
    let words = bytes[..260].as_chunks::<4>().0;
    let sum = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum::<u64>() + 0xfffe;
    put(&mut bytes, 216, &((sum as u32).wrapping_add((sum >> 32) as u32)).to_le_bytes());
    bytes
}

/// A superblock of md, version 0.90, of an array with `kib` in each member.
fn md0(kib: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    put(&mut bytes, 0, &[0xfc, 0x4e, 0x2b, 0xa9]);
    put(&mut bytes, 8, &90_u32.to_le_bytes());
    put(&mut bytes, 32, &kib.to_le_bytes());
    bytes[20..24].fill(0xff);
    let sum: u64 = bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    put(&mut bytes, 152, &((sum as u32).wrapping_add((sum >> 32) as u32)).to_le_bytes());
    bytes
}

const MD_NAME: &str = "a member of a RAID array (md)";

#[test]
fn each_magic_number_is_found_at_its_offset_only() {
    for (name, offset, magic) in table::rows() {
        assert!(found(&[(offset, magic)]).iter().any(|(found, _)| *found == name), "{name}");
        assert_eq!(found(&[(offset + 0x2_0000, magic)]), [], "{name}");
    }
    assert_eq!(found(&[(0x1_0040, b"_BHRfS_M")]), [("a Btrfs file system", true)]);
    assert_eq!(found(&[(0x40, b"_BHRfS_M")]), [("a zoned Btrfs file system", true)]);
    assert!(signatures(&MemoryDevice::new(100)).unwrap().is_empty());
}

#[test]
fn md_superblocks_count_at_their_own_place_with_their_checksum() {
    let end = SIZE - 8192;
    for offset in [0, 4096, end] {
        let superblock = md1(offset / 512);
        assert_eq!(found(&[(offset, &superblock)]), [(MD_NAME, true)], "{offset}");
        let elsewhere = if offset == end { end - 4096 } else { offset + 8192 };
        assert_eq!(found(&[(elsewhere, &superblock)]), [], "{offset}");
        // One byte of the name, and the place of another device.
        let mut damaged = superblock.clone();
        damaged[40] ^= 1;
        assert!(found(&[(offset, &damaged)]).iter().all(|(_, is_good)| !is_good), "{offset}");
        assert!(found(&[(offset, &md1(offset / 512 + 8))]).iter().all(|(_, is_good)| !is_good));
    }
    let end = SIZE - 65536;
    let superblock = md0((end / 1024) as u32);
    assert_eq!(found(&[(end, &superblock)]), [(MD_NAME, true)]);
    assert_eq!(found(&[(end, &md0((end / 1024) as u32 + 1))]), []);
    let mut damaged = superblock.clone();
    damaged[100] ^= 1;
    assert_eq!(found(&[(end, &damaged)]), []);
    assert_eq!(found(&[(end - 65536, &superblock)]), []);
}

#[test]
fn headers_are_good_only_with_all_that_belongs_to_them() {
    let lvm = |sector: u64| {
        let mut label = vec![0; 512];
        put(&mut label, 0, b"LABELONE");
        put(&mut label, 8, &sector.to_le_bytes());
        put(&mut label, 20, &[32, 0, 0, 0]);
        put(&mut label, 24, b"LVM2 001");
        label
    };
    // The checksum of this label, by LVM's definition.
    let mut label = lvm(1);
    let crc = label[20..].iter().fold(0xf597_a6cf_u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
        crc
    });
    put(&mut label, 16, &crc.to_le_bytes());
    assert_eq!(found(&[(512, &label)]), [("an LVM physical volume", true)]);
    assert_eq!(found(&[(0, &label)]), [("an LVM physical volume", false)]);
    assert_eq!(found(&[(512, &lvm(1))]), [("an LVM physical volume", false)]);

    let luks = found(&[(0, b"LUKS\xba\xbe\0\x02")]);
    assert_eq!(luks, [("an encrypted volume (LUKS)", true)]);
    assert_eq!(found(&[(0, b"LUKS\xba\xbe\0\x07")]), [("an encrypted volume (LUKS)", false)]);
    let swap: &[(u64, &[u8])] = &[(1024, &[1, 0, 0, 0, 9]), (4086, b"SWAPSPACE2")];
    assert_eq!(found(swap), [("a swap area", true)]);
    assert_eq!(found(&swap[1..]), [("a swap area", false)]);
    assert_eq!(found(&[(0x438, &[0x53, 0xef])]), [("an ext2, ext3 or ext4 file system", false)]);

    let uberblock = 0x00ba_b10c_u64.to_le_bytes();
    let ring = |start: u64, count: u64| {
        let parts: Vec<(u64, &[u8])> = (0..count).map(|at| (start + at * 1024, &uberblock[..])).collect();
        found(&parts)
    };
    assert_eq!(ring(128 << 10, 4), [("a member of a ZFS pool", true)]);
    assert_eq!(ring(SIZE - (128 << 10), 4), [("a member of a ZFS pool", true)]);
    assert_eq!((ring(128 << 10, 3), ring(1 << 20, 4)), (vec![], vec![]));
    let mut drbd = [0; 64];
    put(&mut drbd, 0, &1000_u64.to_be_bytes());
    put(&mut drbd, 60, &0x8374_026b_u32.to_be_bytes());
    assert_eq!(found(&[(SIZE - 4096, &drbd)]), [("a DRBD device", true)]);
    assert_eq!(found(&[(SIZE - 4096, &[&[0xff; 8], &drbd[8..]].concat())]), []);
}

#[test]
fn a_boot_sector_without_partitions_is_no_signature() {
    let mut sector = [0; 512];
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(found(&[(0, &sector)]), []);
    sector[450] = 0x83;
    sector[454] = 1;
    sector[458] = 1;
    assert_eq!(found(&[(0, &sector)]), [("a partition table (MBR)", true)]);
}

#[test]
fn content_is_described_with_advice() {
    let text = describe_content(&device(&[(SIZE - 8192, &md1((SIZE - 8192) / 512))])).unwrap();
    assert!(text.starts_with("it is a member of a RAID array (md): assemble"), "{text}");
    assert_eq!(describe_content(&device(&[])), None);
}

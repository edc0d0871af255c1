//! The checks of headers, beyond their magic numbers.
//!
//! The functions for headers at the start take the first bytes of the device; the others read.

use crate::device::Device;
use papilio_format::PhysicalAddress;
use std::io;

pub(super) const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

const KIB: u64 = 1 << 10;

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

/// Returns bytes of a device, or zeros where it ends before.
fn read<const N: usize>(device: &dyn Device, offset: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if offset.checked_add(N as u64).is_some_and(|end| end <= device.size()) {
        device.read_at(&mut bytes, PhysicalAddress(offset))?;
    }
    Ok(bytes)
}

pub(super) fn starts_with(device: &dyn Device, offset: u64, magic: &[u8; 24]) -> io::Result<bool> {
    Ok(&read::<24>(device, offset)? == magic)
}

/// The superblock at 1 KiB: block size, revision, and blocks.
pub(super) fn ext(front: &[u8]) -> bool {
    let superblock = |at: usize| le32(front, 1024 + at);
    let (blocks, block_size, revision) = (superblock(4), superblock(24), superblock(76));
    let (inodes, per_group) = (superblock(0), superblock(32));
    blocks > 0 && inodes > 0 && block_size <= 6 && revision <= 1 && per_group > 0
}

/// Block size, sector size, and the size of an allocation group.
pub(super) fn xfs(front: &[u8]) -> bool {
    let (block_size, sector_size) = (be32(front, 4), array(front, 102).map_or(0, u16::from_be_bytes));
    block_size.is_power_of_two()
        && (512..=65536).contains(&block_size)
        && sector_size.is_power_of_two()
        && sector_size >= 512
        && be32(front, 84) > 0
}

pub(super) fn boot_sector(front: &[u8]) -> bool {
    array(front, 510) == Some([0x55, 0xaa])
}

/// The superblock at 4 KiB says where it is, in sectors.
pub(super) fn bcache(front: &[u8]) -> bool {
    le64(front, 4096 + 8) == 8
}

/// Version 1 of the header at 1 KiB, and the last page.
pub(super) fn swap(front: &[u8]) -> bool {
    le32(front, 1024) == 1 && le32(front, 1028) > 0
}

pub(super) fn luks(front: &[u8]) -> bool {
    matches!(array(front, 6).map(u16::from_be_bytes), Some(1 | 2))
}

/// The label's sector, type and checksum.
pub(super) fn lvm<const OFFSET: usize>(front: &[u8]) -> bool {
    const SECTOR: usize = 512;
    /// The start value of LVM's checksums.
    const START: u32 = 0xf597_a6cf;
    let Some(label) = front.get(OFFSET..OFFSET + SECTOR) else { return false };
    let is_here = le64(label, 8) == (OFFSET / SECTOR) as u64;
    is_here && &label[24..32] == b"LVM2 001" && le32(label, 16) == crc32_from(START, &label[20..])
}

/// CRC-32 without the inversions at start and end.
fn crc32_from(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// Returns the place of a superblock of md's version 1.0: 8 KiB before the end.
pub(super) fn md1_end(size: u64) -> Option<u64> {
    Some((size / 512).checked_sub(16)? & !7).map(|sector| sector * 512)
}

/// Returns the place of a superblock of md's version 0.90: the last 64 KiB that are aligned.
pub(super) fn md0_end(size: u64) -> Option<u64> {
    (size & !(64 * KIB - 1)).checked_sub(64 * KIB)
}

pub(super) fn md1_start<const OFFSET: usize>(front: &[u8]) -> bool {
    front.get(OFFSET..OFFSET + 4096).is_some_and(|bytes| is_md1(bytes, OFFSET as u64))
}

pub(super) fn md1(device: &dyn Device, offset: u64) -> io::Result<bool> {
    Ok(is_md1(&read::<4096>(device, offset)?, offset))
}

/// Version, place and checksum of a superblock of md's version 1.
fn is_md1(superblock: &[u8], offset: u64) -> bool {
    const CHECKSUM: usize = 216;
    const ROLES: usize = 256;
    let roles = le32(superblock, 220) as usize;
    let is_here = superblock.starts_with(&MD_MAGIC)
        && le32(superblock, 4) == 1
        && le64(superblock, 144).checked_mul(512) == Some(offset);
    if !is_here || roles > (4096 - ROLES) / 2 {
        return false;
    }
    // The last role may be half a word.
    let summed = &superblock[..ROLES + 2 * roles];
    let (words, rest) = summed.as_chunks::<4>();
    let words = words.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let rest = if rest.is_empty() { 0 } else { u64::from(le16(rest, 0)) };
    let sum = words.sum::<u64>() + rest - u64::from(le32(superblock, CHECKSUM));
    folded(sum) == le32(superblock, CHECKSUM)
}

fn folded(sum: u64) -> u32 {
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

/// Version, size and checksum of a superblock of md's version 0.90, in this byte order.
pub(super) fn md0(device: &dyn Device, offset: u64) -> io::Result<bool> {
    const CHECKSUM: usize = 38 * 4;
    let superblock = read::<4096>(device, offset)?;
    let size = u64::from(le32(&superblock, 8 * 4)) * KIB;
    let is_here = superblock.starts_with(&MD_MAGIC)
        && (le32(&superblock, 4), le32(&superblock, 8)) == (0, 90)
        && size <= offset;
    if !is_here {
        return Ok(false);
    }
    let words = superblock.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let sum = words.sum::<u64>() - u64::from(le32(&superblock, CHECKSUM));
    Ok(folded(sum) == le32(&superblock, CHECKSUM))
}

/// The magic numbers of DRBD 8.3 to 9, and the size of the replicated device in sectors.
pub(super) fn drbd(device: &dyn Device, offset: u64) -> io::Result<bool> {
    const MAGIC: u32 = 0x8374_0267;
    let superblock = read::<512>(device, offset)?;
    let sectors = array(&superblock, 0).map_or(0, u64::from_be_bytes);
    let magic = be32(&superblock, 60);
    Ok((MAGIC + 4..=MAGIC + 6).contains(&magic) && sectors > 0 && sectors <= offset / 512)
}

/// Returns the place of the first uberblock of a ZFS label if there are several, in one byte order.
pub(super) fn uberblocks(device: &dyn Device, offset: u64, length: u64) -> io::Result<Option<u64>> {
    const MAGIC: u64 = 0x00ba_b10c;
    /// As many as libblkid wants to see.
    const ENOUGH: usize = 4;
    const SLOT: usize = 1 << 10;
    if offset + length > device.size() {
        return Ok(None);
    }
    let mut ring = vec![0; length as usize];
    device.read_at(&mut ring, PhysicalAddress(offset))?;
    let is_uberblock = |slot: &[u8]| {
        let magic = le64(slot, 0);
        magic == MAGIC || magic.swap_bytes() == MAGIC
    };
    let mut slots = (0_u64..).zip(ring.chunks_exact(SLOT)).filter(|(_, slot)| is_uberblock(slot));
    let first = slots.next().map(|(at, _)| offset + at * SLOT as u64);
    Ok(first.filter(|_| slots.count() + 1 >= ENOUGH))
}

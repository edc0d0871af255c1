//! Finding file systems anywhere on a disk, by their superblocks.
//!
//! Owns [`find_filesystems`]. A superblock names its own place, so each one that is found says
//! where its file system begins. Nothing is written.
//!
//! The places of the copies are those of `btrfs_sb_offset` (`fs/btrfs/fs.h`) in the kernel.

use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, Generation, PhysicalAddress, Superblock, Uuid};
use std::ops::ControlFlow;

/// Partitions begin at sectors of this size.
const STEP: usize = 512;
/// Bytes of one read.
const CHUNK: usize = 4 << 20;
/// The place of the magic number, and of the superblock's own address, in a superblock.
const MAGIC: usize = 64;
const OWN_ADDRESS: usize = 48;
/// The most superblocks that are kept. A disk full of copies would fill the memory.
const MOST: usize = 100_000;

/// A copy of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundCopy {
    /// The copy's number.
    pub mirror: usize,
    /// Its place on the disk.
    pub place: PhysicalAddress,
    /// The generation.
    pub generation: Generation,
}

/// A file system on a disk, by the copies of its superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFileSystem {
    /// The first byte on the disk.
    pub start: PhysicalAddress,
    /// The UUID of the file system.
    pub fsid: Uuid,
    /// The label; empty if there is none.
    pub label: Vec<u8>,
    /// The number of this device in the file system.
    pub devid: DeviceId,
    /// The number of devices of the file system.
    pub devices: u64,
    /// Bytes that the file system uses of this device.
    pub size: u64,
    /// The copies, by number.
    pub copies: Vec<FoundCopy>,
    /// The copies that the file system should have, and that are not there or damaged.
    pub missing: Vec<usize>,
    /// The start of the file system that this one lies in: as a file, or in free space.
    pub inside: Option<PhysicalAddress>,
    /// Whether the file system ends past the end of the disk.
    pub is_cut_off: bool,
}

impl FoundFileSystem {
    /// Returns whether all copies that are there have the same generation.
    pub fn copies_agree(&self) -> bool {
        self.copies.windows(2).all(|pair| pair[0].generation == pair[1].generation)
    }

    fn end(&self) -> u64 {
        self.start.0.saturating_add(self.size)
    }
}

/// A range that cannot be read: its start, and its length in bytes.
pub type UnreadRange = (PhysicalAddress, u64);

/// Finds the file systems on a disk. `progress` gets the bytes that were read, and may stop the
/// search.
///
/// # Errors
/// The progress function stopped the search. A range that cannot be read is skipped, and returned.
pub fn find_filesystems(
    device: &dyn Device,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(Vec<FoundFileSystem>, Vec<UnreadRange>)> {
    let size = device.size();
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    let mut at = 0;
    let mut buffer = vec![0; CHUNK + SUPERBLOCK_SIZE];
    while at < size {
        if progress(at).is_break() {
            return Err(Error::Invalid("the search was stopped".to_owned()));
        }
        // Holes of an image have no superblock; one may begin before a hole ends.
        let Some(data) = device.next_data(PhysicalAddress(at)) else { break };
        let before = (data.0 & !(STEP as u64 - 1)).saturating_sub(SUPERBLOCK_SIZE as u64);
        at = at.max(before);
        let length = (size - at).min(buffer.len() as u64) as usize;
        match device.read_at(&mut buffer[..length], PhysicalAddress(at)) {
            Ok(()) => {
                let last = if length == buffer.len() { CHUNK } else { length };
                scan(&buffer[..length], last, at, &mut found);
            }
            Err(_) => {
                read_piecewise(device, &mut buffer[..length], at, &mut bad);
                scan(&buffer[..length], length.min(CHUNK), at, &mut found);
            }
        }
        at += CHUNK as u64;
    }
    Ok((grouped(found, size), bad))
}

/// Reads what can be read of a range; the rest is zeros.
fn read_piecewise(device: &dyn Device, buffer: &mut [u8], at: u64, bad: &mut Vec<(PhysicalAddress, u64)>) {
    for (number, piece) in (0..).zip(buffer.chunks_mut(SUPERBLOCK_SIZE)) {
        let place = PhysicalAddress(at + number * SUPERBLOCK_SIZE as u64);
        let length = piece.len() as u64;
        if device.read_at(piece, place).is_err() {
            piece.fill(0);
            if let Some((start, count)) = bad.last_mut()
                && start.0 + *count == place.0
            {
                *count += length;
            } else if bad.len() < MOST {
                bad.push((place, length));
            }
        }
    }
}

/// A superblock, the number of its copy, and its place.
type Found = (Superblock, usize, PhysicalAddress);

fn scan(buffer: &[u8], last: usize, at: u64, found: &mut Vec<Found>) {
    for offset in (0..last).step_by(STEP) {
        let Some(bytes) = buffer.get(offset..offset + SUPERBLOCK_SIZE) else { break };
        if bytes[MAGIC..].first_chunk() != Some(b"_BHRfS_M") || found.len() >= MOST {
            continue;
        }
        let own = bytes[OWN_ADDRESS..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let place = PhysicalAddress(at + offset as u64);
        let mirror = (0..SUPERBLOCK_MIRRORS).find(|mirror| superblock_offset(*mirror).0 == own);
        if let Some(mirror) = mirror.filter(|_| own <= place.0)
            && let Ok(superblock) = Superblock::parse(bytes, PhysicalAddress(own))
        {
            found.push((superblock, mirror, place));
        }
    }
}

fn grouped(found: Vec<Found>, disk: u64) -> Vec<FoundFileSystem> {
    let mut groups: Vec<FoundFileSystem> = Vec::new();
    for (superblock, mirror, place) in found {
        let raw = superblock.raw;
        let start = PhysicalAddress(place.0 - superblock_offset(mirror).0);
        let copy = FoundCopy { mirror, place, generation: raw.generation };
        let is_same = |group: &&mut FoundFileSystem| {
            (group.start, group.fsid, group.devid) == (start, raw.fsid, raw.dev_item.devid)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => {
                // The newest copy knows the size.
                if group.copies.iter().all(|known| known.generation < raw.generation) {
                    (group.size, group.devices) = (raw.dev_item.total_bytes, raw.num_devices);
                    group.label = superblock.label().to_vec();
                }
                group.copies.push(copy);
            }
            None => groups.push(FoundFileSystem {
                start,
                fsid: raw.fsid,
                label: superblock.label().to_vec(),
                devid: raw.dev_item.devid,
                devices: raw.num_devices,
                size: raw.dev_item.total_bytes,
                copies: vec![copy],
                missing: Vec::new(),
                inside: None,
                is_cut_off: false,
            }),
        }
    }
    groups.sort_by_key(|group| (group.start, std::cmp::Reverse(group.size)));
    for group in &mut groups {
        group.copies.sort_by_key(|copy| copy.mirror);
        group.is_cut_off = group.end() > disk;
        let is_there = |mirror: &usize| group.copies.iter().any(|copy| copy.mirror == *mirror);
        let fits = |mirror: &usize| superblock_offset(*mirror).0 + SUPERBLOCK_SIZE as u64 <= group.size;
        group.missing = (0..SUPERBLOCK_MIRRORS).filter(|mirror| fits(mirror) && !is_there(mirror)).collect();
    }
    // A file system whose first superblock is gone cannot be the outer one of another.
    let outer: Vec<(PhysicalAddress, u64)> = groups
        .iter()
        .filter(|group| !group.missing.contains(&0))
        .map(|group| (group.start, group.end()))
        .collect();
    for group in &mut groups {
        let place = group.copies[0].place;
        let around = outer.iter().filter(|(start, end)| {
            *start != group.start && *start < place && place.0 < *end && *start <= group.start
        });
        group.inside = around.map(|(start, _)| *start).max();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::{MemoryDevice, PartitionDevice};
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    fn made(disk: &Arc<MemoryDevice>, start: u64, size: u64) {
        let options = crate::mkfs::MkfsOptions::new().size(size).label("found");
        let part =
            PartitionDevice::new(disk.clone(), "part".to_owned(), PhysicalAddress(start), size).unwrap();
        crate::mkfs::mkfs_device(&(Arc::new(part) as Arc<dyn Device>), &options).unwrap();
    }

    #[test]
    fn file_systems_are_found_with_their_copies() {
        let disk = Arc::new(MemoryDevice::new(600 * MIB));
        // The start of a partition of old tables: sector 63.
        made(&disk, 63 * 512, 300 * MIB);
        made(&disk, 400 * MIB, 128 * MIB);
        let go_on = |_| ControlFlow::Continue(());
        let (found, bad) = find_filesystems(&*disk, go_on).unwrap();
        assert_eq!((found.len(), bad.len()), (2, 0));
        assert_eq!(found[0].start.0, 63 * 512);
        assert_eq!(found[1].start.0, 400 * MIB);
        for one in &found {
            assert_eq!((one.copies.len(), one.missing.len(), one.inside), (2, 0, None));
            assert!(one.copies_agree() && !one.is_cut_off);
            assert_eq!(one.label, b"found");
        }
        // The first superblock of the second is lost; an image lies inside the first.
        disk.write_at(&[0; 4096], PhysicalAddress(400 * MIB + (64 << 10))).unwrap();
        let mut image = vec![0; 4096];
        disk.read_at(&mut image, PhysicalAddress(63 * 512 + (64 << 10))).unwrap();
        disk.write_at(&image, PhysicalAddress(200 * MIB + (64 << 10))).unwrap();
        let (found, _) = find_filesystems(&*disk, go_on).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((found[1].start.0, found[1].inside), (200 * MIB, Some(PhysicalAddress(63 * 512))));
        assert_eq!((found[2].start.0, found[2].missing.as_slice()), (400 * MIB, &[0][..]));
        assert!(find_filesystems(&*disk, |_| ControlFlow::Break(())).is_err());
    }
}

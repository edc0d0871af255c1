//! An empty file system whose chunks lie where the caller says, on a device that keeps its content.
//!
//! Owns [`mkfs_in_place`] and [`PlacedChunk`], for conversions of other file systems. Nothing is
//! wiped or discarded: only tree blocks and superblock copies are written.
//!
//! Counterpart: btrfs-progs' `convert/`, which begins with such a file system.

use super::chunks::{Chunk, ChunkLayout};
use super::layout::MkfsLayout;
use super::options::{Choice, MkfsOptions};
use super::{Made, describe, write};
use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{RaidProfile, Stripe};
use papilio_format::{DeviceId, LogicalAddress, PhysicalAddress};

/// A chunk of a file system in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedChunk {
    /// Data, metadata or system; without a profile.
    pub kind: BlockGroupFlags,
    /// The logical address of its first byte.
    pub logical: u64,
    /// Bytes, of the chunk and of each copy.
    pub length: u64,
    /// The place of each copy on the device: one for SINGLE, two for DUP.
    pub copies: Vec<u64>,
}

impl PlacedChunk {
    fn profile(&self) -> RaidProfile {
        if self.copies.len() > 1 { RaidProfile::Dup } else { RaidProfile::Single }
    }

    fn chunk(&self, choice: &Choice) -> Chunk {
        let stripe = |place: &u64| Stripe {
            devid: DeviceId(1),
            offset: PhysicalAddress(*place),
            device_uuid: choice.uuids.devices[0],
        };
        Chunk {
            start: LogicalAddress(self.logical),
            length: self.length,
            flags: self.kind.union(self.profile().flags()),
            stripe_bytes: self.length,
            stripes: self.copies.iter().map(stripe).collect(),
            sector_size: choice.sector_size,
        }
    }
}

/// Makes an empty file system of `total_bytes` on a device, with exactly these chunks. There is one
/// system chunk, and the longest metadata chunk holds the tree blocks. The options' size, profiles
/// and handling of old content do not count.
///
/// # Errors
/// Invalid options; chunks that are missing, overlap or reach past the end; I/O errors.
pub fn mkfs_in_place(
    device: &dyn Device,
    total_bytes: u64,
    options: &MkfsOptions,
    chunks: &[PlacedChunk],
) -> Result<Made> {
    let profile = |kind: BlockGroupFlags| {
        let chunk = chunks.iter().find(|chunk| chunk.kind == kind);
        chunk.map_or(RaidProfile::Single, PlacedChunk::profile)
    };
    let options = options
        .clone()
        .metadata_profile(profile(BlockGroupFlags::METADATA))
        .data_profile(profile(BlockGroupFlags::DATA));
    let choice = options.resolve(1)?;
    check(chunks, total_bytes, &choice)?;
    let mut chunks: Vec<_> = chunks.iter().map(|chunk| chunk.chunk(&choice)).collect();
    chunks.sort_by_key(|chunk| chunk.start);
    let layout = MkfsLayout::with_chunks(ChunkLayout { chunks }, &[total_bytes], &choice);
    write::write_only(device, &layout)?;
    Ok(describe(&[device], &layout, &choice))
}

fn check(chunks: &[PlacedChunk], total_bytes: u64, choice: &Choice) -> Result<()> {
    let invalid = |text: &str| Err(Error::Invalid(format!("the chunks of a file system in place: {text}")));
    let sector = u64::from(choice.sector_size);
    let count = |kind| chunks.iter().filter(|chunk| chunk.kind == kind).count();
    if count(BlockGroupFlags::SYSTEM) != 1 || count(BlockGroupFlags::METADATA) == 0 {
        return invalid("there must be one of the system, and one of metadata");
    }
    let mut places = Vec::new();
    let mut logical = Vec::new();
    for chunk in chunks {
        let is_aligned = |value: u64| value.is_multiple_of(sector);
        if chunk.length == 0 || !is_aligned(chunk.length) || !is_aligned(chunk.logical) {
            return invalid("one has an unaligned length or address");
        }
        if !(1..=2).contains(&chunk.copies.len()) || !chunk.copies.iter().all(|place| is_aligned(*place)) {
            return invalid("one has a wrong place");
        }
        places.extend(chunk.copies.iter().map(|place| (*place, place.saturating_add(chunk.length))));
        logical.push((chunk.logical, chunk.logical.saturating_add(chunk.length)));
    }
    for ranges in [&mut places, &mut logical] {
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return invalid("two overlap");
        }
    }
    if places.iter().any(|(start, end)| *start < 1 << 20 || *end > total_bytes) {
        return invalid("one lies outside of the device, or in its first MiB");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::MemoryDevice;

    const MIB: u64 = 1 << 20;

    fn chunk(kind: BlockGroupFlags, logical: u64, length: u64, copies: &[u64]) -> PlacedChunk {
        PlacedChunk { kind, logical, length, copies: copies.to_vec() }
    }

    #[test]
    fn chunks_lie_where_they_were_placed() {
        let device = MemoryDevice::new(64 * MIB);
        let chunks = [
            chunk(BlockGroupFlags::DATA, MIB, 9 * MIB, &[MIB]),
            chunk(BlockGroupFlags::METADATA, 20 * MIB, 4 * MIB, &[20 * MIB, 30 * MIB]),
            chunk(BlockGroupFlags::SYSTEM, 40 * MIB, MIB, &[40 * MIB, 41 * MIB]),
        ];
        device.write_at(&[7; 4096], PhysicalAddress(2 * MIB)).unwrap();
        let made = mkfs_in_place(&device, 60 * MIB, &MkfsOptions::new(), &chunks).unwrap();
        assert_eq!(made.total_bytes, 60 * MIB);
        let mut kept = [0; 4096];
        device.read_at(&mut kept, PhysicalAddress(2 * MIB)).unwrap();
        assert!(kept.iter().all(|byte| *byte == 7));
        let mut copies = [[0; 4096]; 2];
        for (copy, place) in copies.iter_mut().zip([20, 30]) {
            device.read_at(copy, PhysicalAddress(place * MIB)).unwrap();
        }
        assert!(copies[0] == copies[1] && copies[0].iter().any(|byte| *byte != 0));
    }

    #[test]
    fn chunks_that_do_not_fit_are_refused() {
        let device = MemoryDevice::new(64 * MIB);
        let system = chunk(BlockGroupFlags::SYSTEM, 40 * MIB, MIB, &[40 * MIB]);
        for wrong in [
            chunk(BlockGroupFlags::METADATA, 40 * MIB, 4 * MIB, &[8 * MIB]),
            chunk(BlockGroupFlags::METADATA, 8 * MIB, 4 * MIB, &[38 * MIB]),
            chunk(BlockGroupFlags::METADATA, 8 * MIB, 4 * MIB, &[62 * MIB]),
            chunk(BlockGroupFlags::METADATA, 8 * MIB, 4 * MIB, &[0]),
            chunk(BlockGroupFlags::METADATA, 8 * MIB, 100, &[8 * MIB]),
            chunk(BlockGroupFlags::DATA, 8 * MIB, 4 * MIB, &[8 * MIB]),
        ] {
            let made =
                mkfs_in_place(&device, 64 * MIB, &MkfsOptions::new(), &[system.clone(), wrong.clone()]);
            assert!(matches!(made, Err(Error::Invalid(_))), "{wrong:?}");
        }
    }
}

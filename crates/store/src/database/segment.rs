//! Segments: objects that hold a run of blocks each, written once.
//!
//! It owns their bytes. A segment has its blocks in order, each followed by a checksum of 8 bytes.
//! The checksum covers the segment's number and the block's place in it, too. After the blocks come
//! the ranges of the device that they were written to (12 bytes each), and a tail of 24 bytes: the
//! numbers of ranges and blocks, a checksum of ranges and numbers, and a magic number.
//!
//! **Invariants**
//! - No two segments have the same number: it is a ULID, with 80 random bits.
//! - A block is believed only after its checksum agreed.

use super::layout::BLOCK;
use crc_fast::CrcAlgorithm;
use object_store::PutPayload;
use slatedb::bytes::{Bytes, BytesMut};
use std::ops::Range;
use ulid::Ulid;

/// Bytes of a checksum.
const CHECKSUM: u64 = 8;
/// Bytes of a block with its checksum.
pub(super) const STRIDE: u64 = BLOCK + CHECKSUM;
/// The most blocks of a segment: 16 MiB.
pub(super) const MOST_BLOCKS: u64 = 4096;
const TAIL: usize = 24;
const RANGE: usize = 12;
const MAGIC: &[u8; 8] = b"PAPSEG\0\x01";

/// A segment, as the map names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SegmentRef {
    /// Its number.
    pub(super) id: Ulid,
    /// Which device wrote it: 0 for one that is no clone, 1 for a clone of it, and so on.
    pub(super) origin: u16,
    /// Its blocks.
    pub(super) blocks: u16,
}

/// Returns the end of the object's name below the device's prefix.
pub(super) fn object_name(id: Ulid) -> String {
    format!("{id}.seg")
}

/// Returns the segment that an object's name means.
pub(super) fn id_in(name: &str) -> Option<Ulid> {
    Ulid::from_string(name.strip_suffix(".seg")?).ok()
}

fn sum(id: Ulid, index: u64, bytes: &[u8]) -> [u8; CHECKSUM as usize] {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&id.0.to_le_bytes());
    digest.update(&index.to_le_bytes());
    digest.update(bytes);
    digest.finalize().to_le_bytes()
}

/// Builds the object of a segment of consecutive pieces. A piece begins at a block of the device
/// and has whole blocks.
pub(super) fn encode(id: Ulid, pieces: &[(u64, Bytes)]) -> PutPayload {
    let blocks: usize = pieces.iter().map(|(_, bytes)| bytes.len() / BLOCK as usize).sum();
    let mut checksums = BytesMut::with_capacity(blocks * CHECKSUM as usize);
    let mut chunks = Vec::with_capacity(2 * blocks + 1);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (start, bytes) in pieces {
        let count = bytes.len() as u64 / BLOCK;
        match ranges.last_mut() {
            Some(last) if last.end == *start => last.end += count,
            _ => ranges.push(*start..start + count),
        }
        for at in (0..bytes.len()).step_by(BLOCK as usize) {
            let block = bytes.slice(at..at + BLOCK as usize);
            checksums.extend_from_slice(&sum(id, chunks.len() as u64, &block));
            chunks.push(block);
        }
    }
    let checksums = checksums.freeze();
    let footer = footer(id, &ranges, blocks as u32);
    let sums =
        (0..checksums.len()).step_by(CHECKSUM as usize).map(|at| checksums.slice(at..at + CHECKSUM as usize));
    chunks.into_iter().zip(sums).flat_map(|(block, sum)| [block, sum]).chain([Bytes::from(footer)]).collect()
}

fn footer(id: Ulid, ranges: &[Range<u64>], blocks: u32) -> Vec<u8> {
    let mut footer = Vec::with_capacity(ranges.len() * RANGE + TAIL);
    for range in ranges {
        footer.extend_from_slice(&range.start.to_le_bytes());
        footer.extend_from_slice(&((range.end - range.start) as u32).to_le_bytes());
    }
    footer.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
    footer.extend_from_slice(&blocks.to_le_bytes());
    let sum = sum(id, u64::MAX, &footer);
    footer.extend_from_slice(&sum);
    footer.extend_from_slice(MAGIC);
    footer
}

/// Returns the blocks of the device that a segment was written for, from the object's last bytes:
/// all after the blocks.
pub(super) fn ranges_in(id: Ulid, footer: &[u8]) -> Option<Vec<Range<u64>>> {
    let (ranges, tail) = footer.split_at_checked(footer.len().checked_sub(TAIL)?)?;
    let covered = &footer[..footer.len() - 16];
    if tail[16..] != MAGIC[..] || tail[8..16] != sum(id, u64::MAX, covered) || ranges.len() % RANGE != 0 {
        return None;
    }
    let mut total = 0;
    let found = ranges.chunks_exact(RANGE).map(|range| {
        let start = u64::from_le_bytes(range[..8].try_into().ok()?);
        let count = u64::from(u32::from_le_bytes(range[8..].try_into().ok()?));
        total += count;
        Some(start..start.checked_add(count)?)
    });
    let found: Option<Vec<_>> = found.collect();
    (u64::from(u32::from_le_bytes(tail[4..8].try_into().ok()?)) == total).then_some(found?)
}

/// Returns the block at `index` of a segment from its bytes with their checksum, if they agree.
pub(super) fn check(id: Ulid, index: u64, stored: &[u8]) -> Option<&[u8]> {
    let (bytes, checksum) = stored.split_at_checked(BLOCK as usize)?;
    (checksum == sum(id, index, bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_read_back_and_damage_is_seen() {
        let id = Ulid::from_parts(1, 2);
        let bytes = |byte: u8, blocks: usize| Bytes::from(vec![byte; blocks * BLOCK as usize]);
        let pieces = [(10, bytes(1, 2)), (12, bytes(2, 1)), (100, bytes(3, 3))];
        let object: Vec<u8> = encode(id, &pieces).iter().flat_map(|chunk| chunk.to_vec()).collect();
        let (blocks, footer) = object.split_at(6 * STRIDE as usize);
        for (index, byte) in [1, 1, 2, 3, 3, 3].into_iter().enumerate() {
            let stored = &blocks[index * STRIDE as usize..][..STRIDE as usize];
            assert!(check(id, index as u64, stored).unwrap() == vec![byte; BLOCK as usize]);
            assert!(check(id, index as u64 + 1, stored).is_none(), "another place");
            assert!(check(Ulid::from_parts(1, 3), index as u64, stored).is_none(), "another segment");
            assert!(check(id, index as u64, &stored[..100]).is_none());
        }
        assert_eq!(ranges_in(id, footer), Some(vec![10..13, 100..103]));
        for at in 0..footer.len() {
            let mut damaged = footer.to_vec();
            damaged[at] ^= 1;
            assert_eq!(ranges_in(id, &damaged), None, "{at}");
            assert_eq!(ranges_in(id, &footer[at + 1..]), None, "{at}");
        }
        assert_eq!(id_in(&object_name(id)), Some(id));
        assert_eq!(id_in("x.seg"), None);
    }
}

//! Where the chunks of several devices come to lie on one.
//!
//! Owns [`on_one_device`].
//!
//! **Invariants**
//! - Every chunk gets one stripe as long as itself; stripes do not overlap.
//! - No range of a chunk that had no superblock copy in it before gets one: data may be there.

use super::source::fault;
use papilio_engine::errors::Result;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, STRIPE_LENGTH, Stripe};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, superblock_offset};
use papilio_format::{DeviceId, LogicalAddress, PhysicalAddress, Uuid};
use std::collections::BTreeMap;

/// Bytes around a superblock copy where no data is (`btrfs_exclude_super_stripes`).
const RESERVED: u64 = STRIPE_LENGTH;

/// Returns the chunks with one stripe each, and the bytes that the device needs. A chunk stays
/// where its first stripe was, if that is free.
///
/// # Errors
/// Chunks that do not fit into the address space.
pub(super) fn on_one_device(
    chunks: &[(LogicalAddress, ChunkItem)],
    devid: DeviceId,
    device_uuid: Uuid,
) -> Result<(Vec<(LogicalAddress, ChunkItem)>, u64)> {
    let mut taken = BTreeMap::<u64, u64>::new();
    let mut places = vec![None; chunks.len()];
    for (place, (_, chunk)) in places.iter_mut().zip(chunks) {
        let start = chunk.stripes[0].offset.0;
        let Some(end) = start.checked_add(chunk.length) else { continue };
        let free = taken.range(..end).next_back().is_none_or(|(_, taken)| *taken <= start);
        let striped = chunk.stripe_bytes() != Ok(chunk.length);
        if free && !(striped && has_superblock(start, end)) {
            taken.insert(start, end);
            *place = Some(start);
        }
    }
    let mut end = taken.last_key_value().map_or(1 << 20, |(_, end)| *end).max(1 << 20);
    let mut placed = Vec::with_capacity(chunks.len());
    for (place, (logical, chunk)) in places.into_iter().zip(chunks) {
        let start = match place {
            Some(start) => start,
            None => {
                let Some((start, after)) = free_place(end, chunk.length) else {
                    return fault(format_args!("chunk {logical} does not fit on one device"));
                };
                end = after;
                start
            }
        };
        let stripe = Stripe { devid, offset: PhysicalAddress(start), device_uuid };
        let flags = chunk.flags & BlockGroupFlags::TYPE_MASK;
        let chunk = ChunkItem { flags, sub_stripes: 0, stripes: vec![stripe], ..chunk.clone() };
        placed.push((*logical, chunk));
    }
    Ok((placed, end))
}

/// Returns the first range from `end` on that has no superblock copy.
fn free_place(end: u64, length: u64) -> Option<(u64, u64)> {
    let mut start = end.checked_next_multiple_of(STRIPE_LENGTH)?;
    for mirror in 0..SUPERBLOCK_MIRRORS {
        if holds_copy(mirror, start, start.checked_add(length)?) {
            start = superblock_offset(mirror).0 + RESERVED;
        }
    }
    Some((start, start.checked_add(length)?))
}

fn has_superblock(start: u64, end: u64) -> bool {
    (0..SUPERBLOCK_MIRRORS).any(|mirror| holds_copy(mirror, start, end))
}

fn holds_copy(mirror: usize, start: u64, end: u64) -> bool {
    let place = superblock_offset(mirror).0;
    start < place + RESERVED && place < end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(length: u64, flags: BlockGroupFlags, offsets: &[u64]) -> ChunkItem {
        let stripe = |&offset: &u64| Stripe {
            devid: DeviceId(7),
            offset: PhysicalAddress(offset),
            device_uuid: Uuid::nil(),
        };
        ChunkItem {
            length,
            owner: 2,
            stripe_length: STRIPE_LENGTH,
            flags: flags | BlockGroupFlags::DATA,
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 0,
            stripes: offsets.iter().map(stripe).collect(),
        }
    }

    #[test]
    fn chunks_move_where_they_overlap_or_would_cover_a_superblock() {
        const MIB: u64 = 1 << 20;
        let chunks = [
            (1, chunk(8 * MIB, BlockGroupFlags::RAID1, &[MIB, 99 * MIB])),
            (2, chunk(8 * MIB, BlockGroupFlags::RAID1, &[4 * MIB, 99 * MIB])),
            // A superblock copy was there before: it stays.
            (3, chunk(60 * MIB, BlockGroupFlags::RAID1, &[9 * MIB, 99 * MIB])),
            // Its second half comes to lie on a copy.
            (4, chunk(16 * MIB, BlockGroupFlags::RAID0, &[200 * MIB, 99 * MIB])),
            (5, chunk(300 << 30, BlockGroupFlags::empty(), &[250 * MIB])),
        ];
        let chunks: Vec<_> =
            chunks.into_iter().map(|(gib, chunk)| (LogicalAddress(gib << 40), chunk)).collect();
        let (placed, end) = on_one_device(&chunks, DeviceId(1), Uuid::nil()).unwrap();
        let starts: Vec<_> = placed.iter().map(|(_, chunk)| chunk.stripes[0].offset.0).collect();
        assert_eq!(starts[0], MIB);
        assert_eq!(starts[2..], [9 * MIB, 200 * MIB, 250 * MIB]);
        assert_eq!(starts[1], 250 * MIB + (300 << 30));
        assert_eq!(end, starts[1] + 8 * MIB);
        assert!(placed.iter().all(|(_, chunk)| chunk.flags == BlockGroupFlags::DATA));
        assert_eq!(free_place(60 * MIB, 8 * MIB).unwrap().0, 64 * MIB + RESERVED);
        let far = [(LogicalAddress(0), chunk(1 << 63, BlockGroupFlags::RAID1, &[1 << 63, 0]))];
        assert!(on_one_device(&far, DeviceId(1), Uuid::nil()).is_ok());
        let twice = [far[0].clone(), far[0].clone()];
        assert!(on_one_device(&twice, DeviceId(1), Uuid::nil()).is_err());
    }
}

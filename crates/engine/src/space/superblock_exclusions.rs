//! Logical addresses that map to superblock copies.
//!
//! Owns [`superblock_exclusions`]. A chunk may cover a superblock copy on a device, whose location
//! must never be allocated. Neither the extent tree nor the free-space tree knows of it. The
//! free-space tree calls such ranges free; kernel and btrfs-progs exclude them whenever they load
//! it or the extent tree (`btrfs_add_new_free_space`, `exclude_super_stripes`).
//!
//! **Locks**: none.
//!
//! Kernel counterparts: `exclude_super_stripes`, `btrfs_rmap_block` (`fs/btrfs/block-group.c`).

use crate::volume::Chunk;
use papilio_format::LogicalAddress;
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, superblock_offset};
use std::ops::Range;

/// Returns the ranges of `chunk` that must not be allocated, in ascending order, disjoint and not
/// adjacent:
/// - the whole stripe elements that hold a superblock copy on any of the chunk's devices;
/// - with parity the whole row, because parity cannot cover bytes outside the chunk;
/// - logical addresses below 64 KiB.
pub fn superblock_exclusions(chunk: &Chunk) -> Vec<Range<LogicalAddress>> {
    let mut ranges = Vec::new();
    let first = superblock_offset(0).0;
    if chunk.start().0 < first {
        ranges.push(chunk.start()..LogicalAddress(first.min(chunk.end().0)));
    }
    for mirror in 0..SUPERBLOCK_MIRRORS {
        let place = superblock_offset(mirror).0;
        ranges.extend((0..chunk.stripes().len()).filter_map(|stripe| excluded_by(chunk, stripe, place)));
    }
    merge(ranges)
}

/// Returns the excluded range if physical byte `place` lies in stripe number `stripe`.
fn excluded_by(chunk: &Chunk, stripe: usize, place: u64) -> Option<Range<LogicalAddress>> {
    let profile = chunk.profile();
    let stripes = chunk.stripes().len();
    let columns = profile.data_stripes(stripes) as u64;
    let from_start = place.checked_sub(chunk.stripes()[stripe].offset.0)?;
    if from_start >= chunk.length() / columns {
        return None;
    }
    let (row, within) = (from_start / STRIPE_LENGTH, from_start % STRIPE_LENGTH);
    // The element's number in logical order, and the number of elements to exclude.
    let (element, count) = match profile {
        RaidProfile::Raid5 | RaidProfile::Raid6 => (row * columns, columns),
        RaidProfile::Raid0 => (row * columns + stripe as u64, 1),
        RaidProfile::Raid10 => (row * columns + (stripe / RaidProfile::Raid10.copies()) as u64, 1),
        RaidProfile::Single
        | RaidProfile::Dup
        | RaidProfile::Raid1
        | RaidProfile::Raid1c3
        | RaidProfile::Raid1c4 => (row, 1),
    };
    // A copy that does not start an element extends at most into the next one.
    let start = chunk.start().0 + element * STRIPE_LENGTH + within;
    let end = (start + count * STRIPE_LENGTH).min(chunk.end().0);
    (start < end).then_some(LogicalAddress(start)..LogicalAddress(end))
}

/// Sorts ranges and merges those that overlap or touch.
fn merge(mut ranges: Vec<Range<LogicalAddress>>) -> Vec<Range<LogicalAddress>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|later, earlier| {
        let touch = later.start <= earlier.end;
        if touch {
            earlier.end = earlier.end.max(later.end);
        }
        touch
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::block_group::BlockGroupFlags;
    use papilio_format::items::chunk::{ChunkItem, Stripe};
    use papilio_format::superblock::SUPERBLOCK_SIZE;
    use papilio_format::{DeviceId, PhysicalAddress, Uuid};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const START: u64 = 1 << 40;

    fn chunk(profile: RaidProfile, offsets: &[u64], stripe_bytes: u64) -> Chunk {
        let stripe = |(number, &offset): (usize, &u64)| Stripe {
            devid: DeviceId(number as u64 + 1),
            offset: PhysicalAddress(offset),
            device_uuid: Uuid::nil(),
        };
        let item = ChunkItem {
            length: stripe_bytes * profile.data_stripes(offsets.len()) as u64,
            owner: 2,
            stripe_length: STRIPE_LENGTH,
            flags: BlockGroupFlags::DATA | profile.flags(),
            io_align: STRIPE_LENGTH as u32,
            io_width: STRIPE_LENGTH as u32,
            sector_size: 4096,
            sub_stripes: 1,
            stripes: offsets.iter().enumerate().map(stripe).collect(),
        };
        Chunk::new(LogicalAddress(START), &item).unwrap()
    }

    /// Returns the excluded ranges, in elements from the chunk's start.
    fn elements(chunk: &Chunk) -> Vec<(u64, u64)> {
        superblock_exclusions(chunk)
            .into_iter()
            .map(|range| {
                assert!((range.start.0 - START).is_multiple_of(STRIPE_LENGTH));
                let number = |address: LogicalAddress| (address.0 - START) / STRIPE_LENGTH;
                (number(range.start), number(range.end))
            })
            .collect()
    }

    #[test]
    fn chunks_without_superblocks_exclude_nothing() {
        assert!(elements(&chunk(RaidProfile::Single, &[65 * MIB], 100 * MIB)).is_empty());
        // A chunk that ends where the copy starts, and one that starts after it.
        assert!(elements(&chunk(RaidProfile::Single, &[32 * MIB], 32 * MIB)).is_empty());
        assert!(elements(&chunk(RaidProfile::Single, &[64 * MIB + STRIPE_LENGTH], 32 * MIB)).is_empty());
    }

    #[test]
    fn each_profile_excludes_its_elements() {
        // The second copy, at 64 MiB, is in row 16 of a stripe that starts at 63 MiB.
        let at = 63 * MIB;
        let away = 100 * MIB;
        let length = 8 * MIB;
        assert_eq!(elements(&chunk(RaidProfile::Single, &[at], length)), [(16, 17)]);
        assert_eq!(elements(&chunk(RaidProfile::Dup, &[away, at], length)), [(16, 17)]);
        assert_eq!(elements(&chunk(RaidProfile::Raid1, &[at, at], length)), [(16, 17)]);
        assert_eq!(
            elements(&chunk(RaidProfile::Raid1c3, &[at, 62 * MIB, away], length)),
            [(16, 17), (32, 33)]
        );
        assert_eq!(elements(&chunk(RaidProfile::Raid0, &[away, at, away], length)), [(49, 50)]);
        assert_eq!(elements(&chunk(RaidProfile::Raid0, &[at, at, at], length)), [(48, 51)]);
        assert_eq!(elements(&chunk(RaidProfile::Raid10, &[away, away, away, at], length)), [(33, 34)]);
        assert_eq!(elements(&chunk(RaidProfile::Raid5, &[away, at, away], length)), [(32, 34)]);
        assert_eq!(elements(&chunk(RaidProfile::Raid6, &[at, at, away, away, at], length)), [(48, 51)]);
    }

    #[test]
    fn all_copies_and_the_start_of_the_address_space_are_excluded() {
        // From offset 0, as old mkfs versions made them.
        let item = |start: u64| {
            let mut item = ChunkItem {
                length: 128 * MIB,
                owner: 2,
                stripe_length: STRIPE_LENGTH,
                flags: BlockGroupFlags::SYSTEM,
                io_align: 4096,
                io_width: 4096,
                sector_size: 4096,
                sub_stripes: 0,
                stripes: Vec::new(),
            };
            item.stripes.push(Stripe {
                devid: DeviceId(1),
                offset: PhysicalAddress(0),
                device_uuid: Uuid::nil(),
            });
            Chunk::new(LogicalAddress(start), &item).unwrap()
        };
        let range = |from: u64, to: u64| LogicalAddress(from)..LogicalAddress(to);
        let sixty_four = 64 * MIB;
        let expected = [range(0, 2 * STRIPE_LENGTH), range(sixty_four, sixty_four + STRIPE_LENGTH)];
        assert_eq!(superblock_exclusions(&item(0)), expected);
        // A chunk that begins where the excluded start of the address space ends.
        let at = 64 << 10;
        let second = range(at + sixty_four, at + sixty_four + STRIPE_LENGTH);
        let found = superblock_exclusions(&item(at));
        assert!(found.iter().all(|range| !range.is_empty()));
        assert_eq!(found, [range(2 * at, 3 * at), second]);
        let large = chunk(RaidProfile::Single, &[MIB], 300 << 30);
        let copies = [(1008, 1009), ((256 << 30) / STRIPE_LENGTH - 16, (256 << 30) / STRIPE_LENGTH - 15)];
        assert_eq!(elements(&large), copies);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        /// Checks with the mapping that no byte outside the ranges has a copy, or parity, on a
        /// superblock.
        #[test]
        fn no_address_outside_maps_to_a_superblock(
            profile in prop::sample::select(RaidProfile::ALL.to_vec()),
            extra in 0usize..3,
            offsets in prop::collection::vec(0u64..80 * 256, 9),
            rows in 1u64..40,
            aligned in any::<bool>(),
        ) {
            let stripes = (1..12).filter(|&stripes| profile.accepts_stripes(stripes)).take(extra + 1).last();
            let stripes = stripes.unwrap();
            // Around the second copy.
            let unit = if aligned { STRIPE_LENGTH } else { 4096 };
            let offsets: Vec<_> = (0..stripes)
                .map(|stripe| 62 * MIB + offsets[stripe] % (4 * MIB / unit) * unit)
                .collect();
            let chunk = chunk(profile, &offsets, rows * STRIPE_LENGTH);
            let excluded = superblock_exclusions(&chunk);
            for pair in excluded.windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            let copy = superblock_offset(1).0..superblock_offset(1).0 + SUPERBLOCK_SIZE as u64;
            for sector in 0..chunk.length() / 4096 {
                let logical = LogicalAddress(START + sector * 4096);
                if excluded.iter().any(|range| range.contains(&logical)) {
                    continue;
                }
                let element = chunk.elements(logical, 4096).next().unwrap();
                let mut places: Vec<_> =
                    (0..profile.copies()).filter_map(|copy| chunk.direct(&element, copy)).collect();
                if profile.parity() > 0 {
                    places.extend((0..stripes).map(|column| chunk.column_place(&element, column)));
                }
                for (_, physical) in places {
                    prop_assert!(physical.0 + 4096 <= copy.start || physical.0 >= copy.end, "{logical}");
                }
            }
        }
    }
}

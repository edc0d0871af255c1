//! The layout of the new file system on the device of the old one.
//!
//! Owns [`Layout`]: data chunks whose logical addresses equal their places, around everything that
//! the source uses; metadata and system chunks in its free space; and the ranges that Btrfs keeps
//! for itself, whose content moves.
//!
//! **Invariants**
//! - Metadata and system chunks hold no block that the source uses.
//! - Every block that the source uses lies in a data chunk, or in a reserved range.
//! - No chunk reaches into the first MiB, and all begin and end at multiples of 64 KiB, except for
//!   the end of the last.
//!
//! The facts come from file systems that `btrfs-convert` made, as `btrfs inspect-internal
//! dump-tree` shows them.

use crate::block_set::BlockSet;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use std::ops::Range;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The unit of chunks, and the length that a superblock copy keeps free.
const UNIT: u64 = 64 << 10;
/// The longest data chunk.
const DATA_CHUNK_MAX: u64 = GIB;
/// The longest metadata chunk.
const METADATA_CHUNK_MAX: u64 = GIB;
/// The longest and the shortest hole that the search for free space begins and ends with.
const HOLE_FIRST: u64 = 32 * MIB;
const HOLE_LEAST: u64 = 256 << 10;
/// The longest data extent (`BTRFS_MAX_EXTENT_SIZE`).
pub(crate) const EXTENT_MAX: u64 = 128 * MIB;
/// The start of the first chunk of any device.
pub(crate) const DEVICE_RESERVED: u64 = MIB;

/// The needs of the new file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Metadata, one copy.
    pub(crate) metadata: u64,
    /// Data that gets a new place.
    pub(crate) data: u64,
    /// The chunk tree.
    pub(crate) system: u64,
    /// A tree block.
    pub(crate) node: u64,
}

/// A chunk of metadata: the start of each copy, and its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetadataChunk {
    pub(crate) copies: Vec<u64>,
    pub(crate) length: u64,
}

/// The layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Data chunks, by address; each maps to itself.
    pub(crate) data: Vec<Range<u64>>,
    pub(crate) metadata: Vec<MetadataChunk>,
    pub(crate) system: MetadataChunk,
}

/// Returns the ranges of a device that Btrfs keeps for itself, in order.
pub(crate) fn reserved_ranges(total: u64) -> Vec<Range<u64>> {
    let copies = (1..SUPERBLOCK_MIRRORS).map(|copy| superblock_offset(copy).0);
    let copies = copies.filter(|start| *start < total).map(|start| start..(start + UNIT).min(total));
    std::iter::once(0..DEVICE_RESERVED.min(total)).chain(copies).collect()
}

/// Whether the source has no block where a superblock copy lies. The first MiB is never free: there
/// the way back has something to restore in any case.
pub(crate) fn is_free(used: &BlockSet, block_size: u64, place: u64) -> bool {
    let end = place + SUPERBLOCK_SIZE as u64;
    place >= DEVICE_RESERVED && !used.intersects(&(place / block_size..end.div_ceil(block_size)))
}

/// Returns the free ranges of at least `least` bytes outside of reserved ranges, in whole units.
fn holes(used: &BlockSet, block_size: u64, total: u64, least: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut add = |free: Range<u64>| {
        let start = free.start.next_multiple_of(UNIT);
        let end = free.end / UNIT * UNIT;
        if end > start && end - start >= least {
            found.push(start..end);
        }
    };
    let reserved = reserved_ranges(total);
    let mut split = |free: Range<u64>| {
        let mut from = free.start;
        for range in reserved.iter().filter(|range| range.end > free.start && range.start < free.end) {
            if range.start > from {
                add(from..range.start);
            }
            from = from.max(range.end);
        }
        if from < free.end {
            add(from..free.end);
        }
    };
    let mut from = 0;
    for run in used.runs() {
        split(from..run.start * block_size);
        from = run.end * block_size;
    }
    split(from..total);
    found
}

/// Returns whether any block in a range of bytes is in use.
fn is_used(used: &BlockSet, block_size: u64, range: &Range<u64>) -> bool {
    used.intersects(&(range.start / block_size..range.end.div_ceil(block_size)))
}

impl Layout {
    /// Plans the layout with `copies` copies of metadata; `Err` has the bytes that would be needed
    /// and those that there are.
    pub(crate) fn new(
        used: &BlockSet,
        block_size: u64,
        total: u64,
        need: Need,
        copies: u64,
    ) -> Result<Self, (u64, u64)> {
        let metadata = need.metadata.next_multiple_of(UNIT) * copies;
        let system = need.system.next_multiple_of(UNIT) * copies;
        // The rest of the last chunks, and data that finds no gap, needs a little more.
        let data = need.data.next_multiple_of(UNIT);
        let wanted = metadata + system + data;
        let mut least = HOLE_FIRST;
        let found = loop {
            let found = holes(used, block_size, total, least);
            let bytes: u64 = found.iter().map(|hole| hole.end - hole.start).sum();
            if bytes >= wanted {
                break found;
            }
            if least == HOLE_LEAST {
                return Err((wanted, bytes));
            }
            least = (least / 2).max(HOLE_LEAST);
        };
        let data_chunks = Self::data_chunks(used, block_size, total, &found);
        let mut room = Room { holes: found };
        let system = room.take_one(need.system.next_multiple_of(UNIT), copies).ok_or((wanted, 0))?;
        let moved = match data {
            0 => None,
            bytes => Some(room.take_one(bytes, 1).ok_or((wanted, 0))?),
        };
        let mut metadata = Vec::new();
        let mut left = need.metadata.next_multiple_of(UNIT);
        while left > 0 {
            let chunk =
                room.take_some(left.min(METADATA_CHUNK_MAX), copies).ok_or((wanted, wanted - left))?;
            left -= chunk.length.min(left);
            metadata.push(chunk);
        }
        // The trees of the empty file system lie in one chunk. They have up to 270 bytes for each
        // chunk, in blocks of which some are not full.
        let trees = 16 * need.node + (data_chunks.len() + metadata.len()) as u64 * 270;
        if metadata.iter().all(|chunk| chunk.length < trees) {
            return Err((wanted, wanted - left));
        }
        let mut data = data_chunks;
        data.extend(moved.map(|chunk| chunk.copies[0]..chunk.copies[0] + chunk.length));
        data.sort_by_key(|range| range.start);
        Ok(Self { data, metadata, system })
    }

    /// Returns the ranges between holes, in pieces, without those that hold nothing.
    fn data_chunks(used: &BlockSet, block_size: u64, total: u64, holes: &[Range<u64>]) -> Vec<Range<u64>> {
        let reserved = reserved_ranges(total);
        let ends = holes.iter().map(|hole| hole.start).chain([total]);
        let starts = std::iter::once(DEVICE_RESERVED).chain(holes.iter().map(|hole| hole.end));
        let mut chunks = Vec::new();
        for (start, end) in starts.zip(ends) {
            let mut from = start;
            while from < end {
                let to = end.min((from / DATA_CHUNK_MAX + 1) * DATA_CHUNK_MAX);
                let mut own = from;
                // A chunk that only has a reserved range would hold nothing.
                let mut holds = false;
                for range in reserved.iter().filter(|range| range.end > from && range.start < to) {
                    holds |= own < range.start && is_used(used, block_size, &(own..range.start));
                    own = own.max(range.end);
                }
                holds |= own < to && is_used(used, block_size, &(own..to));
                if holds {
                    chunks.push(from..to);
                }
                from = to;
            }
        }
        chunks
    }

    /// Returns the bytes of metadata chunks, one copy.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.metadata.iter().map(|chunk| chunk.length).sum()
    }
}

/// The holes that are still free.
struct Room {
    holes: Vec<Range<u64>>,
}

impl Room {
    /// Takes a chunk of exactly `length` bytes, from the shortest hole that has it.
    fn take_one(&mut self, length: u64, copies: u64) -> Option<MetadataChunk> {
        let bytes = length * copies;
        let fits = self.holes.iter().enumerate().filter(|(_, hole)| hole.end - hole.start >= bytes);
        let (at, _) = fits.min_by_key(|(_, hole)| hole.end - hole.start)?;
        Some(self.take_at(at, length, copies))
    }

    /// Takes a chunk of at most `length` bytes, from the longest hole.
    fn take_some(&mut self, length: u64, copies: u64) -> Option<MetadataChunk> {
        let (at, hole) = self.holes.iter().enumerate().max_by_key(|(_, hole)| hole.end - hole.start)?;
        let most = (hole.end - hole.start) / copies / UNIT * UNIT;
        let length = length.min(most);
        (length > 0).then(|| self.take_at(at, length, copies))
    }

    fn take_at(&mut self, at: usize, length: u64, copies: u64) -> MetadataChunk {
        let hole = &mut self.holes[at];
        let start = hole.start;
        hole.start += length * copies;
        MetadataChunk { copies: (0..copies).map(|copy| start + copy * length).collect(), length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn set(total: u64, ranges: &[(u64, u64)]) -> BlockSet {
        let mut used = BlockSet::new(total / BLOCK);
        for (start, end) in ranges {
            used.insert(start / BLOCK..end.div_ceil(BLOCK));
        }
        used
    }

    /// Checks the invariants of a layout.
    fn check(layout: &Layout, used: &BlockSet, total: u64) {
        let mut all: Vec<Range<u64>> = layout.data.clone();
        for chunk in layout.metadata.iter().chain([&layout.system]) {
            for start in &chunk.copies {
                let range = *start..start + chunk.length;
                assert!(!is_used(used, BLOCK, &range), "{range:?}");
                all.push(range);
            }
        }
        all.sort_by_key(|range| range.start);
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "{all:?}");
        assert!(all[0].start >= DEVICE_RESERVED && all.last().unwrap().end <= total);
        for run in used.runs() {
            for block in run {
                let at = block * BLOCK;
                let held = layout.data.iter().chain(&reserved_ranges(total)).any(|range| range.contains(&at));
                assert!(held, "block {block}");
            }
        }
    }

    #[test]
    fn random_layouts_keep_the_invariants() {
        let mut made = 0;
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let total = random.u64(40..300) * MIB + random.u64(0..16) * BLOCK;
            let ranges: Vec<_> = (0..random.usize(1..60))
                .map(|_| {
                    let start = random.u64(0..total);
                    (start, (start + random.u64(1..4 * MIB)).min(total))
                })
                .collect();
            let used = set(total, &ranges);
            let need = Need {
                metadata: random.u64(1..40) * MIB,
                data: random.u64(0..2) * MIB,
                system: MIB,
                node: 16 << 10,
            };
            if let Ok(layout) = Layout::new(&used, BLOCK, total, need, random.u64(1..=2)) {
                check(&layout, &used, total);
                assert!(layout.metadata_bytes() >= need.metadata);
                made += 1;
            }
        }
        assert!(made > 100, "{made}");
    }

    #[test]
    fn a_full_device_has_no_layout() {
        let total = 64 * MIB;
        let used = set(total, &[(0, total - MIB)]);
        let need = Need { metadata: 8 * MIB, data: MIB, system: MIB, node: 16 << 10 };
        assert!(Layout::new(&used, BLOCK, total, need, 1).is_err());
    }
}

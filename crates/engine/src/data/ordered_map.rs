//! Ordered extents by file offset, with their checksums.
//!
//! Owns [`OrderedMap`], plain memory protected by the mutex of [`super::ordered_extents`].
//!
//! Invariants:
//! - Extents do not overlap.
//! - A new extent refers to all of its space, so that cutting it makes two independent ones.
//! - Memory for checksums is freed with the last extent that needs it.
//!
//! Locks: none.

use super::sector_checksums::SectorChecksums;
use crate::space::LogicalRange;
use arrayvec::ArrayVec;
use papilio_format::{Geometry, LogicalAddress};
use std::collections::BTreeMap;
use std::ops::Range;

/// The most parts that a write goes to; a write over more becomes an extent of its own.
pub(crate) const MAX_PARTS: usize = 16;
/// Bytes of memory of an extent, with its share of the map's node.
const EXTENT_BYTES: usize = 64;

/// A part of a file and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrderedPart {
    /// The range of the file.
    pub(crate) range: Range<u64>,
    /// The address of the first byte.
    pub(crate) disk: LogicalAddress,
    /// Whether it is in newly allocated space; else it is in a preallocated extent.
    pub(crate) new: bool,
}

/// The parts that one write goes to.
pub(crate) type OrderedParts = ArrayVec<OrderedPart, MAX_PARTS>;

/// The ordered extents of one file.
#[derive(Debug)]
pub(super) struct OrderedMap {
    extents: BTreeMap<u64, Ordered>,
    pub(super) checksums: SectorChecksums,
    /// Bytes of the file that the extents hold.
    bytes: u64,
}

/// An ordered extent; the map's key is its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered {
    pub(super) end: u64,
    pub(super) disk: LogicalAddress,
    pub(super) new: bool,
}

impl OrderedMap {
    /// Creates an empty map.
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self { extents: BTreeMap::new(), checksums: SectorChecksums::new(geometry), bytes: 0 }
    }

    /// Returns the number of extents.
    pub(super) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Returns the bytes of the file that the extents hold.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        self.extents.len() * EXTENT_BYTES + self.checksums.memory()
    }

    /// Returns the extent that contains byte `at`, with its start.
    pub(super) fn holder(&self, at: u64) -> Option<(u64, Ordered)> {
        let (&start, &found) = self.extents.range(..=at).next_back()?;
        (at < found.end).then_some((start, found))
    }

    /// Returns the start of the first extent at or after `at`.
    pub(super) fn next_start(&self, at: u64) -> Option<u64> {
        self.extents.range(at..).next().map(|(&start, _)| start)
    }

    /// Returns the extents in a range, cut to it.
    pub(super) fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = OrderedPart> {
        let range = range.clone();
        let first = self.holder(range.start).map_or(range.start, |(start, _)| start);
        self.extents.range(first..range.end).map(move |(&start, found)| {
            let from = start.max(range.start);
            let disk = LogicalAddress(found.disk.0 + (from - start));
            OrderedPart { range: from..found.end.min(range.end), disk, new: found.new }
        })
    }

    /// Returns the first extents in a range, at most `most` of them and `bytes` bytes; the last one
    /// may be cut.
    pub(super) fn first_parts(&self, range: &Range<u64>, most: usize, bytes: u64) -> Vec<OrderedPart> {
        let mut left = bytes;
        let mut parts = Vec::new();
        for mut part in self.parts(range).take(most) {
            part.range.end = part.range.end.min(part.range.start + left);
            left -= part.range.end - part.range.start;
            parts.push(part);
            if left == 0 {
                break;
            }
        }
        parts
    }

    /// Removes a range, and adds the space of its new extents to `freed`.
    pub(super) fn cut_out(&mut self, range: &Range<u64>, freed: &mut Vec<LogicalRange>) {
        let mut at = range.start;
        while let Some((start, found)) =
            self.holder(at).or_else(|| self.extents.range(at..).next().map(|(&start, &found)| (start, found)))
            && start < range.end
        {
            let (from, to) = (start.max(range.start), found.end.min(range.end));
            let address = |offset: u64| LogicalAddress(found.disk.0 + (offset - start));
            self.remove(start);
            if from > start {
                self.insert(start, Ordered { end: from, ..found });
            }
            if to < found.end {
                self.insert(to, Ordered { disk: address(to), ..found });
            }
            if found.new {
                freed.push(LogicalRange { start: address(from), length: to - from });
            }
            at = to;
        }
    }

    /// Removes `parts`, ascending, with the checksums that no extent needs any more.
    pub(super) fn take_out(&mut self, parts: &[OrderedPart]) {
        let mut freed = Vec::new();
        for part in parts {
            self.cut_out(&part.range, &mut freed);
            freed.clear();
        }
        self.forget_checksums(parts);
    }

    /// Frees the memory for checksums of `parts`, ascending, which were removed, unless other
    /// extents need it.
    pub(super) fn forget_checksums(&mut self, parts: &[OrderedPart]) {
        let mut looked_at = None;
        for part in parts {
            for chunk in self.checksums.chunks_of(&part.range) {
                let seen = looked_at.replace(chunk) == Some(chunk);
                let range = self.checksums.range_of(chunk);
                if !seen && self.parts(&range).next().is_none() {
                    self.checksums.forget(chunk);
                }
            }
        }
    }

    /// Inserts an extent where there is none.
    pub(super) fn insert(&mut self, start: u64, extent: Ordered) {
        self.bytes += extent.end - start;
        let before = self.extents.insert(start, extent);
        debug_assert!(before.is_none(), "extents do not overlap");
    }

    fn remove(&mut self, start: u64) -> Option<Ordered> {
        let removed = self.extents.remove(&start)?;
        self.bytes -= removed.end - start;
        Some(removed)
    }

    /// Inserts a written part of a preallocated extent, merged with its neighbours in the same one.
    pub(super) fn enter_preallocated(&mut self, part: &OrderedPart) {
        let Range { start, end } = part.range;
        if self.holder(start).is_some_and(|(_, found)| !found.new && found.end >= end) {
            return;
        }
        let mut joined = Ordered { end, disk: part.disk, new: false };
        let mut first = start;
        self.cut_out(&part.range, &mut Vec::new());
        if let Some((&before, &found)) = self.extents.range(..start).next_back()
            && !found.new
            && found.end == start
            && found.disk.0 + (start - before) == part.disk.0
        {
            (first, joined.disk) = (before, found.disk);
            self.remove(before);
        }
        if let Some(&behind) = self.extents.get(&end)
            && !behind.new
            && behind.disk.0 == part.disk.0 + (end - start)
        {
            self.remove(end);
            joined.end = behind.end;
        }
        self.insert(first, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::{ChecksumType, Generation, Uuid};

    const SECTOR: u64 = 4096;

    fn geometry() -> Geometry {
        Geometry {
            node_size: 16384,
            sector_size: SECTOR as u32,
            checksum_type: ChecksumType::Crc32c,
            incompat: Default::default(),
            compat_ro: Default::default(),
            metadata_uuid: Uuid::nil(),
            generation: Generation(1),
        }
    }

    fn filled(extents: u64) -> OrderedMap {
        let mut map = OrderedMap::new(&geometry());
        for number in 0..extents {
            // Every other sector, so that none is a neighbour of another.
            let range = number * 2 * SECTOR..(number * 2 + 1) * SECTOR;
            map.checksums.put(&range, &(number as u32).to_le_bytes());
            let disk = LogicalAddress((1 << 30) + number * SECTOR);
            map.insert(range.start, Ordered { end: range.end, disk, new: true });
        }
        map
    }

    #[test]
    fn extents_removed_in_steps_leave_nothing_behind() {
        let mut map = filled(3000);
        assert_eq!((map.len(), map.bytes()), (3000, 3000 * SECTOR));
        let (full, mut at, mut taken) = (map.memory(), 0, 0);
        loop {
            let parts = map.first_parts(&(at..u64::MAX), 100, 64 * SECTOR);
            let Some(last) = parts.last() else { break };
            assert_eq!(parts.len(), 64.min(3000 - taken));
            (at, taken) = (last.range.end, taken + parts.len());
            map.take_out(&parts);
            assert!(map.memory() < full);
        }
        assert_eq!((taken, map.len(), map.bytes(), map.memory()), (3000, 0, 0, 0));
    }

    #[test]
    fn checksums_stay_as_long_as_one_extent_needs_them() {
        let mut map = filled(100);
        let parts: Vec<_> =
            map.parts(&(0..200 * SECTOR)).filter(|part| part.range.start != 20 * SECTOR).collect();
        map.take_out(&parts);
        assert_eq!((map.len(), map.bytes()), (1, SECTOR));
        let mut checksums = Vec::new();
        map.checksums.for_each(&(20 * SECTOR..21 * SECTOR), |part| checksums.extend_from_slice(part));
        assert_eq!(checksums, 10u32.to_le_bytes());
    }

    #[test]
    fn cutting_keeps_count_of_bytes_and_freed_space() {
        let mut map = OrderedMap::new(&geometry());
        map.insert(0, Ordered { end: 16 * SECTOR, disk: LogicalAddress(1 << 30), new: true });
        let mut freed = Vec::new();
        map.cut_out(&(4 * SECTOR..6 * SECTOR), &mut freed);
        let start = LogicalAddress((1 << 30) + 4 * SECTOR);
        assert_eq!(freed, [LogicalRange { start, length: 2 * SECTOR }]);
        assert_eq!((map.len(), map.bytes()), (2, 14 * SECTOR));
        let parts = map.first_parts(&(SECTOR..u64::MAX), 9, 5 * SECTOR);
        let ranges: Vec<_> = parts.iter().map(|part| part.range.clone()).collect();
        assert_eq!(ranges, [SECTOR..4 * SECTOR, 6 * SECTOR..8 * SECTOR]);
        assert_eq!(parts[1].disk, LogicalAddress((1 << 30) + 6 * SECTOR));
    }
}

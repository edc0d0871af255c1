//! Runs of equal checksums between two extents.
//!
//! Owns [`SegmentBuilder`], which covers an extent with the longest runs that it finds, and
//! [`SumsCache`].

use super::plan::SharedRun;
use papilio_engine::jobs::data_extents::ListedExtent;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of checksums that are kept.
const KEPT_BYTES: usize = 16 << 20;

/// The checksums of the extents that were used last.
pub(super) struct SumsCache {
    sum_size: usize,
    kept: VecDeque<(ListedExtent, Rc<[u8]>)>,
    bytes: usize,
}

impl SumsCache {
    pub(super) fn new(sum_size: usize) -> Self {
        Self { sum_size, kept: VecDeque::new(), bytes: 0 }
    }

    /// Returns the checksums of an extent, which `read` appends if they are not known; `None` if it
    /// finds that some are missing.
    pub(super) fn of(
        &mut self,
        extent: &ListedExtent,
        read: impl FnOnce(Range<u64>, &mut Vec<u8>) -> bool,
    ) -> Option<Sums> {
        let sum_size = self.sum_size;
        if let Some(at) = self.kept.iter().position(|(known, _)| known == extent) {
            let known = self.kept.remove(at)?;
            let bytes = Rc::clone(&known.1);
            self.kept.push_back(known);
            return Some(Sums { bytes, size: sum_size });
        }
        let mut sums = Vec::new();
        if !read(extent.start.0..extent.start.0.saturating_add(extent.length), &mut sums) {
            return None;
        }
        let bytes: Rc<[u8]> = sums.into();
        self.bytes += bytes.len();
        self.kept.push_back((*extent, Rc::clone(&bytes)));
        while self.bytes > KEPT_BYTES && self.kept.len() > 2 {
            self.bytes -= self.kept.pop_front().map_or(0, |(_, old)| old.len());
        }
        Some(Sums { bytes, size: sum_size })
    }
}

/// The checksums of an extent.
#[derive(Clone)]
pub(super) struct Sums {
    bytes: Rc<[u8]>,
    size: usize,
}

impl Sums {
    fn get(&self, sector: usize) -> Option<&[u8]> {
        self.bytes.get(sector.checked_mul(self.size)?..(sector + 1).checked_mul(self.size)?)
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.size
    }
}

/// Segments of one extent, found from left to right.
pub(super) struct SegmentBuilder {
    extent: ListedExtent,
    sums: Sums,
    sector: u64,
    /// Sectors of the shortest run.
    shortest: u64,
    /// Sectors that are covered or passed over.
    reached: usize,
    segments: Vec<SharedRun>,
}

impl SegmentBuilder {
    pub(super) fn new(extent: ListedExtent, sums: Sums, sector: u64, shortest: u64) -> Self {
        Self { extent, sums, sector, shortest, reached: 0, segments: Vec::new() }
    }

    /// Returns whether an address of the extent is covered.
    pub(super) fn covers(&self, address: u64) -> bool {
        self.place(address) < self.reached
    }

    fn place(&self, address: u64) -> usize {
        (address.saturating_sub(self.extent.start.0) / self.sector) as usize
    }

    /// Adds the run around `address`, of which the sectors around `source` in `other` have the
    /// checksums. Addresses ascend.
    pub(super) fn add(&mut self, address: u64, other: &ListedExtent, theirs: &Sums, source: u64) {
        let here = self.place(address);
        let there = (source.saturating_sub(other.start.0) / self.sector) as usize;
        let equal = |own: usize, their: usize| {
            let found = self.sums.get(own);
            found.is_some() && found == theirs.get(their)
        };
        let most_before = (here - self.reached.min(here)).min(there);
        let before = (1..=most_before).take_while(|step| equal(here - step, there - step)).count();
        let most_after = (self.sums.len().saturating_sub(here)).min(theirs.len().saturating_sub(there));
        let after = (0..most_after).take_while(|step| equal(here + step, there + step)).count();
        let sectors = (before + after) as u64;
        if after == 0 || sectors < self.shortest {
            return;
        }
        self.reached = here + after;
        self.segments.push(SharedRun {
            offset: (here - before) as u64 * self.sector,
            length: sectors * self.sector,
            source: other.start.0,
            source_offset: (there - before) as u64 * self.sector,
        });
    }

    /// Returns the segments, ascending and disjoint.
    pub(super) fn finish(self) -> Vec<SharedRun> {
        self.segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::{Generation, LogicalAddress};

    const SECTOR: u64 = 4096;

    fn extent(start: u64, sums: &[u8]) -> (ListedExtent, Sums) {
        let length = sums.len() as u64 * SECTOR;
        let start = LogicalAddress(start * SECTOR);
        let extent = ListedExtent { start, length, references: 1, generation: Generation(1) };
        (extent, Sums { bytes: sums.into(), size: 1 })
    }

    fn in_sectors(segment: &SharedRun) -> [u64; 4] {
        let SharedRun { offset, length, source, source_offset } = *segment;
        [offset, length, source, source_offset].map(|bytes| bytes / SECTOR)
    }

    #[test]
    fn runs_grow_in_both_directions_and_do_not_overlap() {
        let (own, sums) = extent(100, b"abcdefghijkl");
        let (first, first_sums) = extent(200, b"xxbcdefx");
        let (second, second_sums) = extent(300, b"defghijklmn");
        let mut builder = SegmentBuilder::new(own, sums, SECTOR, 3);
        builder.add(103 * SECTOR, &first, &first_sums, 204 * SECTOR);
        assert!(builder.covers(105 * SECTOR) && !builder.covers(106 * SECTOR));
        builder.add(108 * SECTOR, &second, &second_sums, 305 * SECTOR);
        let found: Vec<_> = builder.finish().iter().map(in_sectors).collect();
        assert_eq!(found, [[1, 5, 200, 2], [6, 6, 300, 3]]);
    }

    #[test]
    fn short_runs_and_stale_places_give_nothing() {
        let (own, sums) = extent(100, b"abcdef");
        let (other, other_sums) = extent(200, b"xbcx");
        let mut builder = SegmentBuilder::new(own, sums, SECTOR, 3);
        builder.add(101 * SECTOR, &other, &other_sums, 201 * SECTOR);
        builder.add(102 * SECTOR, &other, &other_sums, 203 * SECTOR);
        builder.add(102 * SECTOR, &other, &other_sums, 999 * SECTOR);
        builder.add(999 * SECTOR, &other, &other_sums, 201 * SECTOR);
        assert_eq!(builder.finish(), []);
    }

    #[test]
    fn the_cache_forgets_the_oldest() {
        let mut cache = SumsCache::new(1);
        let big = vec![1; KEPT_BYTES / 2 + 1];
        for start in 0..4 {
            let (one, _) = extent(start * 1_000_000_000, &[1]);
            let read = |_, into: &mut Vec<u8>| {
                into.extend(&big);
                true
            };
            assert_eq!(cache.of(&one, read).unwrap().len(), big.len());
        }
        assert_eq!(cache.kept.len(), 2);
        let (one, _) = extent(9, &[1]);
        assert!(cache.of(&one, |_, _| false).is_none());
    }
}

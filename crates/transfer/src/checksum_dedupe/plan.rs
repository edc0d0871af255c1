//! The extents to share, and with which others, before anything changes.
//!
//! Owns [`SharingPlan`], [`PlannedExtent`] and [`SharedRun`]. Plans take 24 bytes of memory each;
//! the rest goes to a temporary file once it is large.

use papilio_engine::jobs::data_extents::ListedExtent;
use std::io::{self, Read, Seek, SeekFrom, Write};
use tempfile::SpooledTempFile;

/// Bytes of plans that stay in memory.
const SPOOLED: usize = 8 << 20;
/// Bytes of a stored plan before its segments, and of a segment.
const HEADER: usize = 24;
const SEGMENT: usize = 32;

/// A part of an extent whose checksums are those of a part of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedRun {
    /// Where it begins in the extent, in bytes.
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The address of the other extent, and where the part begins in it.
    pub(super) source: u64,
    pub(super) source_offset: u64,
}

/// An extent that can be freed, since others have its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedExtent {
    pub(super) start: u64,
    pub(super) length: u64,
    /// Ascending. Of a whole plan there is one: all of the extent.
    pub(super) segments: Vec<SharedRun>,
    /// All checksums are those of a whole other extent of the same length.
    pub(super) whole: bool,
}

impl PlannedExtent {
    /// Plans to replace an extent by another one of the same length.
    pub(super) fn whole(extent: &ListedExtent, source: &ListedExtent) -> Self {
        let length = extent.length;
        let segment = SharedRun { offset: 0, length, source: source.start.0, source_offset: 0 };
        Self { start: extent.start.0, length, segments: vec![segment], whole: true }
    }
}

/// All plans, in the order in which they are carried out: whole extents first, then by gain.
pub(super) struct SharingPlan {
    store: SpooledTempFile,
    end: u64,
    /// Whether it is no whole extent, the complement of its gain, and its place in the store.
    index: Vec<(bool, u64, u64)>,
    next: usize,
}

impl SharingPlan {
    pub(super) fn new() -> Self {
        Self { store: SpooledTempFile::new(SPOOLED), end: 0, index: Vec::new(), next: 0 }
    }

    /// Adds a plan.
    ///
    /// # Errors
    /// The temporary file cannot be made or written.
    pub(super) fn push(&mut self, extent: &PlannedExtent) -> io::Result<()> {
        let gain: u64 = extent.segments.iter().map(|segment| segment.length).sum();
        let mut bytes = Vec::with_capacity(HEADER + extent.segments.len() * SEGMENT);
        let count = (extent.segments.len() as u64) << 1 | u64::from(extent.whole);
        for number in [extent.start, extent.length, count] {
            bytes.extend(number.to_le_bytes());
        }
        for segment in &extent.segments {
            for number in [segment.offset, segment.length, segment.source, segment.source_offset] {
                bytes.extend(number.to_le_bytes());
            }
        }
        self.store.write_all(&bytes)?;
        self.index.push((!extent.whole, !gain, self.end));
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Puts the plans in order. None is added afterwards.
    pub(super) fn finish(&mut self) {
        self.index.sort_unstable();
    }

    /// Returns the next plan.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(super) fn next(&mut self) -> io::Result<Option<PlannedExtent>> {
        let Some((partial, _, place)) = self.index.get(self.next).copied() else { return Ok(None) };
        self.next += 1;
        self.store.seek(SeekFrom::Start(place))?;
        let mut bytes = [0; HEADER];
        self.store.read_exact(&mut bytes)?;
        let number = |bytes: &[u8], at: usize| {
            u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("8 bytes"))
        };
        let [start, length, count] = [0, 1, 2].map(|at| number(&bytes, at));
        let mut segments = vec![0; (count >> 1) as usize * SEGMENT];
        self.store.read_exact(&mut segments)?;
        let segment = |bytes: &[u8]| SharedRun {
            offset: number(bytes, 0),
            length: number(bytes, 1),
            source: number(bytes, 2),
            source_offset: number(bytes, 3),
        };
        let segments = segments.chunks_exact(SEGMENT).map(segment).collect();
        Ok(Some(PlannedExtent { start, length, segments, whole: !partial }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(start: u64, lengths: &[u64], whole: bool) -> PlannedExtent {
        let segment = |(at, length): (usize, &u64)| SharedRun {
            offset: at as u64 * 100,
            length: *length,
            source: 7,
            source_offset: 3,
        };
        let segments = lengths.iter().enumerate().map(segment).collect();
        PlannedExtent { start, length: 1000, segments, whole }
    }

    #[test]
    fn whole_extents_come_first_and_then_the_largest_gain() {
        let mut plan = SharingPlan::new();
        let given = [
            planned(1, &[10, 20], false),
            planned(2, &[4], true),
            planned(3, &[90], false),
            planned(4, &[5], true),
        ];
        for extent in &given {
            plan.push(extent).unwrap();
        }
        plan.finish();
        let mut order = Vec::new();
        while let Some(extent) = plan.next().unwrap() {
            assert_eq!(extent, given[extent.start as usize - 1]);
            order.push(extent.start);
        }
        assert_eq!(order, [4, 2, 3, 1]);
    }
}

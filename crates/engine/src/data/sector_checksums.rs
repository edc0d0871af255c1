//! Checksums of a file's sectors by file offset.
//!
//! Owns [`SectorChecksums`]: chunks of memory for the checksums of [`CHUNK`] sectors each. A chunk
//! is allocated when it is first needed. Replacing a checksum neither allocates nor moves others.
//! The owner knows which checksums are valid.
//!
//! Locks: none.

use papilio_format::Geometry;
use std::collections::BTreeMap;
use std::ops::Range;

/// Sectors whose checksums share a chunk.
const CHUNK: u64 = 256;

/// Checksums by sector.
#[derive(Debug)]
pub(super) struct SectorChecksums {
    sector_size: u64,
    /// Bytes of a checksum.
    size: usize,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

impl SectorChecksums {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            sector_size: geometry.sector_size.into(),
            size: geometry.checksum_type.size(),
            chunks: BTreeMap::new(),
        }
    }

    /// Returns the bytes of a sector and of a checksum.
    pub(super) fn sizes(&self) -> (u64, usize) {
        (self.sector_size, self.size)
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        self.chunks.len() * CHUNK as usize * self.size
    }

    /// Returns the numbers of the chunks that a range of the file overlaps.
    pub(super) fn chunks_of(&self, range: &Range<u64>) -> Range<u64> {
        let bytes = CHUNK * self.sector_size;
        range.start / bytes..range.end.div_ceil(bytes)
    }

    /// Returns the range of the file whose checksums are in a chunk.
    pub(super) fn range_of(&self, chunk: u64) -> Range<u64> {
        let bytes = CHUNK * self.sector_size;
        chunk * bytes..(chunk + 1).saturating_mul(bytes)
    }

    /// Frees a chunk.
    pub(super) fn forget(&mut self, chunk: u64) {
        self.chunks.remove(&chunk);
    }

    /// Stores the checksums of `range`, whole sectors of the file.
    pub(super) fn put(&mut self, range: &Range<u64>, checksums: &[u8]) {
        let bytes = CHUNK as usize * self.size;
        for (chunk, inside, outside) in parts(self.sector_size, self.size, range) {
            let chunk = self.chunks.entry(chunk).or_insert_with(|| vec![0; bytes].into_boxed_slice());
            chunk[inside].copy_from_slice(&checksums[outside]);
        }
    }

    /// Calls `run` with the checksums of `range`, one chunk's at a time.
    pub(super) fn for_each(&self, range: &Range<u64>, mut run: impl FnMut(&[u8])) {
        for (chunk, inside, _) in parts(self.sector_size, self.size, range) {
            run(&self.chunks[&chunk][inside]);
        }
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
    }
}

/// Returns the chunks that a range overlaps, each with the byte range in the chunk and in the
/// range's checksums.
fn parts(
    sector_size: u64,
    size: usize,
    range: &Range<u64>,
) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> + use<> {
    let (first, end) = (range.start / sector_size, range.end / sector_size);
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (chunk, start) = (at / CHUNK, at % CHUNK);
        let count = (CHUNK - start).min(end - at);
        let inside = start as usize * size..(start + count) as usize * size;
        let outside = (at - first) as usize * size..(at - first + count) as usize * size;
        at += count;
        Some((chunk, inside, outside))
    })
}

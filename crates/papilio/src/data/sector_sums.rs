//! Checksums of a file's sectors by their place in the file.
//!
//! Owns [`SectorSums`]: pieces of memory for [`CHUNK`] sectors each, made as they are first needed, so that a
//! sum which is replaced takes neither allocation nor a move of others. Which of them mean anything is for
//! the owner to know. Locks: none.

use papilio_format::Geometry;
use std::collections::BTreeMap;
use std::ops::Range;

/// Sectors whose sums lie together.
const CHUNK: u64 = 256;

/// Sums by sector.
#[derive(Debug)]
pub(super) struct SectorSums {
    sector_size: u64,
    /// Bytes of a sum.
    size: usize,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

impl SectorSums {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            sector_size: geometry.sector_size.into(),
            size: geometry.checksum_type.size(),
            chunks: BTreeMap::new(),
        }
    }

    /// Bytes of a sector, and of its sum.
    pub(super) fn sizes(&self) -> (u64, usize) {
        (self.sector_size, self.size)
    }

    /// Bytes of memory that they take.
    pub(super) fn memory(&self) -> usize {
        self.chunks.len() * CHUNK as usize * self.size
    }

    /// The numbers of the pieces that a range of the file touches.
    pub(super) fn chunks_of(&self, range: &Range<u64>) -> Range<u64> {
        let bytes = CHUNK * self.sector_size;
        range.start / bytes..range.end.div_ceil(bytes)
    }

    /// The bytes of the file whose sums lie in a piece.
    pub(super) fn range_of(&self, chunk: u64) -> Range<u64> {
        let bytes = CHUNK * self.sector_size;
        chunk * bytes..(chunk + 1).saturating_mul(bytes)
    }

    /// Forgets the sums of a piece.
    pub(super) fn forget(&mut self, chunk: u64) {
        self.chunks.remove(&chunk);
    }

    /// Keeps the sums of `range`, whole sectors of the file.
    pub(super) fn put(&mut self, range: &Range<u64>, sums: &[u8]) {
        let bytes = CHUNK as usize * self.size;
        for (chunk, inside, outside) in pieces(self.sector_size, self.size, range) {
            let chunk = self.chunks.entry(chunk).or_insert_with(|| vec![0; bytes].into_boxed_slice());
            chunk[inside].copy_from_slice(&sums[outside]);
        }
    }

    /// Hands out the sums of `range`, a part at a time.
    pub(super) fn for_each(&self, range: &Range<u64>, mut run: impl FnMut(&[u8])) {
        for (chunk, inside, _) in pieces(self.sector_size, self.size, range) {
            run(&self.chunks[&chunk][inside]);
        }
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
    }
}

/// The chunks that a range touches, with the bytes in each and those of the range's sums.
fn pieces(
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

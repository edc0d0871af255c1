//! The units of a scrub: some rows of one chunk each.
//!
//! Owns [`Units`], which gives each unit to one worker, in ascending order of address, and knows
//! which addresses are done.
//!
//! **Invariant**: the position is the start of the first unit that a worker has not finished.
//!
//! **Locks**: one for the state, a leaf.

use crate::volume::Chunk;
use papilio_format::LogicalAddress;
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_locks::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The most rows of a unit: a MiB of each stripe.
const ROWS: u64 = 16;
/// The most bytes of a unit, in all stripes, unless one row has more.
const UNIT_BYTES: u64 = 16 << 20;

/// Some rows of a chunk.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) chunk: Arc<Chunk>,
    pub(super) rows: Range<u64>,
}

impl Unit {
    /// Returns the unit of the one row that has `address`, which the chunk covers.
    pub(super) fn row_of(chunk: Arc<Chunk>, address: LogicalAddress) -> Self {
        let row = (address.0 - chunk.start().0) / (chunk.data_columns() as u64 * STRIPE_LENGTH);
        Self { chunk, rows: row..row + 1 }
    }

    /// Returns the logical addresses of the unit.
    pub(super) fn range(&self) -> Range<u64> {
        let row = self.chunk.data_columns() as u64 * STRIPE_LENGTH;
        let end = (self.rows.end * row).min(self.chunk.length());
        self.chunk.start().0 + self.rows.start * row..self.chunk.start().0 + end
    }

    /// Returns the bytes on all stripes.
    pub(super) fn bytes(&self) -> u64 {
        (self.rows.end - self.rows.start) * STRIPE_LENGTH * self.chunk.stripes().len() as u64
    }
}

#[derive(Debug)]
struct UnitsState {
    /// The chunk and the row of the next unit.
    next: (usize, u64),
    under_way: BTreeSet<u64>,
    bytes_done: u64,
}

/// All units of a scrub.
#[derive(Debug)]
pub(super) struct Units {
    chunks: Vec<Arc<Chunk>>,
    bytes_total: u64,
    state: Mutex<UnitsState>,
}

fn rows_of(chunk: &Chunk) -> u64 {
    chunk.length().div_ceil(chunk.data_columns() as u64 * STRIPE_LENGTH)
}

impl Units {
    /// Makes the units of chunks, which are in ascending order, from address `start` on.
    pub(super) fn new(chunks: Vec<Arc<Chunk>>, start: LogicalAddress) -> Self {
        let bytes = |chunk: &Chunk, rows: u64| rows * STRIPE_LENGTH * chunk.stripes().len() as u64;
        let bytes_total = chunks.iter().map(|chunk| bytes(chunk, rows_of(chunk))).sum();
        let first = chunks.partition_point(|chunk| chunk.end() <= start);
        let mut bytes_done = chunks[..first].iter().map(|chunk| bytes(chunk, rows_of(chunk))).sum();
        let mut row = 0;
        if let Some(chunk) = chunks.get(first)
            && let Some(inside) = start.checked_since(chunk.start())
        {
            row = inside / (chunk.data_columns() as u64 * STRIPE_LENGTH);
            bytes_done += bytes(chunk, row);
        }
        let state = UnitsState { next: (first, row), under_way: BTreeSet::new(), bytes_done };
        Self { chunks, bytes_total, state: Mutex::new(state) }
    }

    /// Returns the next unit, which the caller works on.
    pub(super) fn next(&self) -> Option<Unit> {
        let mut state = self.state.lock();
        let (number, row) = state.next;
        let chunk = self.chunks.get(number)?;
        let rows = (UNIT_BYTES / STRIPE_LENGTH / chunk.stripes().len() as u64).clamp(1, ROWS);
        let end = (row + rows).min(rows_of(chunk));
        state.next = if end == rows_of(chunk) { (number + 1, 0) } else { (number, end) };
        let unit = Unit { chunk: Arc::clone(chunk), rows: row..end };
        state.under_way.insert(unit.range().start);
        Some(unit)
    }

    /// Notes that a unit is done.
    pub(super) fn finish(&self, unit: &Unit) {
        let mut state = self.state.lock();
        state.under_way.remove(&unit.range().start);
        state.bytes_done += unit.bytes();
    }

    /// Returns the bytes that are done, all bytes, and the position.
    pub(super) fn progress(&self) -> (u64, u64, LogicalAddress) {
        let state = self.state.lock();
        let end = self.chunks.last().map_or(0, |chunk| chunk.end().0);
        let next = self.chunks.get(state.next.0).map_or(end, |chunk| {
            chunk.start().0 + state.next.1 * chunk.data_columns() as u64 * STRIPE_LENGTH
        });
        let position = state.under_way.first().copied().unwrap_or(next);
        (state.bytes_done, self.bytes_total, LogicalAddress(position))
    }
}

//! Event counters.
//!
//! Owns the counters, in several cells chosen by thread, so that threads on different cores do not
//! write the same cache line.

use crate::sync::{self, Padded};
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::Relaxed;

const CELLS: usize = 32;

/// The counters of a cache.
pub(crate) struct Counters {
    cells: Box<[Padded<Counts>; CELLS]>,
}

/// The counts of some of the threads.
#[derive(Default)]
pub(crate) struct Counts {
    pub hits: PlainU64,
    pub misses: PlainU64,
    pub insertions: PlainU64,
    pub refaults: PlainU64,
    pub activations: PlainU64,
    pub evictions: PlainU64,
    pub splits: PlainU64,
    pub folio_splits: PlainU64,
    pub shadow_nodes_pruned: PlainU64,
}

impl Counters {
    pub fn new() -> Self {
        Self { cells: Box::new(std::array::from_fn(|_| Padded::default())) }
    }

    /// Returns this thread's cell.
    #[inline]
    pub fn here(&self) -> &Counts {
        &self.cells[sync::thread_number() % CELLS]
    }

    pub fn sum(&self, of: impl Fn(&Counts) -> &PlainU64) -> u64 {
        self.cells.iter().map(|counts| of(counts).load(Relaxed)).sum()
    }
}

/// Event counts of a cache since its creation, and its current sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Lookups that found a folio.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Folios inserted.
    pub insertions: u64,
    /// Folios inserted where an evicted one had left a shadow.
    pub refaults: u64,
    /// Folios that moved to the active list because they came back early or were accessed twice.
    pub activations: u64,
    /// Folios evicted.
    pub evictions: u64,
    /// Large shadows split by insertions.
    pub splits: u64,
    /// Large folios split.
    pub folio_splits: u64,
    /// Nodes pruned because they held only shadows.
    pub shadow_nodes_pruned: u64,
    /// Bytes charged: folios, records, nodes.
    pub bytes: u64,
    /// Folios on the LRU lists.
    pub folios: u64,
    /// Bytes of folios on the active list.
    pub active_bytes: u64,
    /// Bytes of folios on the inactive list.
    pub inactive_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Bytes under writeback.
    pub writeback_bytes: u64,
    /// Nodes of the files' trees.
    pub nodes: u64,
    /// Bytes of memory mapped for folios.
    pub mapped_bytes: u64,
}

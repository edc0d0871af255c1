//! Counters.
//!
//! Owns what is counted. Hits are counted in one of several cells by thread, so that threads on different cores do not
//! write one cache line; all else happens seldom enough for one cell.

use crate::cache::Shared;
use crate::lru::List;
use crate::sync;
use std::cell::Cell;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::Relaxed;

const CELLS: usize = 32;

#[repr(align(128))]
struct Padded(PlainU64);

/// The counters of a cache.
pub(crate) struct Counters {
    hits: [Padded; CELLS],
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
        let zero = || PlainU64::new(0);
        Self {
            hits: std::array::from_fn(|_| Padded(zero())),
            misses: zero(),
            insertions: zero(),
            refaults: zero(),
            activations: zero(),
            evictions: zero(),
            splits: zero(),
            folio_splits: zero(),
            shadow_nodes_pruned: zero(),
        }
    }

    #[inline]
    pub fn hit(&self) {
        self.hits[cell()].0.fetch_add(1, Relaxed);
    }
}

/// The cell of this thread.
#[inline]
fn cell() -> usize {
    static NEXT: PlainU64 = PlainU64::new(0);
    thread_local! {
        static CELL: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    CELL.with(|cell| {
        if cell.get() == usize::MAX {
            cell.set(NEXT.fetch_add(1, Relaxed) as usize % CELLS);
        }
        cell.get()
    })
}

/// What has happened in a cache, and what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Look-ups that found a folio.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Folios inserted.
    pub insertions: u64,
    /// Folios inserted where an evicted one had left its shadow.
    pub refaults: u64,
    /// Folios that joined the active list, because they came back early or were hit twice.
    pub activations: u64,
    /// Folios evicted.
    pub evictions: u64,
    /// Large shadows split by insertions.
    pub splits: u64,
    /// Large folios split.
    pub folio_splits: u64,
    /// Nodes that held nothing but shadows and were pruned.
    pub shadow_nodes_pruned: u64,
    /// Bytes charged: folios, records, nodes.
    pub bytes: u64,
    /// Folios on the lists.
    pub folios: u64,
    /// Bytes of folios on the active list.
    pub active_bytes: u64,
    /// Bytes of folios on the inactive list.
    pub inactive_bytes: u64,
    /// Bytes dirty.
    pub dirty_bytes: u64,
    /// Bytes being written.
    pub writeback_bytes: u64,
    /// Nodes of the files' trees.
    pub nodes: u64,
    /// Bytes of memory mapped for folios.
    pub mapped_bytes: u64,
}

impl Shared {
    pub(crate) fn statistics(&self) -> Statistics {
        let counters = &self.counters;
        let (pages, folios) = {
            let lru = sync::lock(&self.lru);
            (lru.pages, lru.folios.iter().sum())
        };
        Statistics {
            hits: counters.hits.iter().map(|cell| cell.0.load(Relaxed)).sum(),
            misses: counters.misses.load(Relaxed),
            insertions: counters.insertions.load(Relaxed),
            refaults: counters.refaults.load(Relaxed),
            activations: counters.activations.load(Relaxed),
            evictions: counters.evictions.load(Relaxed),
            splits: counters.splits.load(Relaxed),
            folio_splits: counters.folio_splits.load(Relaxed),
            shadow_nodes_pruned: counters.shadow_nodes_pruned.load(Relaxed),
            bytes: self.bytes(),
            folios,
            active_bytes: pages[List::Active as usize] << crate::PAGE_SHIFT,
            inactive_bytes: pages[List::Inactive as usize] << crate::PAGE_SHIFT,
            dirty_bytes: self.dirty.load(Relaxed),
            writeback_bytes: self.writeback.load(Relaxed),
            nodes: self.pool.in_use() as u64,
            mapped_bytes: self.arena.mapped_bytes(),
        }
    }
}

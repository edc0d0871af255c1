//! The cache: the handle by which a program creates it, creates files' mappings in it, and observes
//! it.
//!
//! Owns [`PageCache`]. [`Shared`] holds its state.
//!
//! **Invariant**: `bytes()` is the sum of all charges: each folio plus 64 bytes for its record, and
//! each node of the files' trees. It never exceeds the limit.
//!
//! **Locks**, in order of acquisition:
//! - a folio's content lock;
//! - a mapping's tree;
//! - then one at a time: an LRU shard, the buddy allocator, the node pool, the table of mappings,
//!   the wait table.

use crate::lru::List;
use crate::mapping::Mapping;
use crate::options::CacheOptions;
use crate::reclaim;
use crate::shared::{RECORD_BYTES, Shared};
use crate::statistics::Statistics;
use crate::sync;
use crate::{MAX_ORDER, PAGE_SHIFT, PAGE_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A page cache, shared by any number of files. Clones are handles to the same cache.
#[derive(Clone)]
pub struct PageCache {
    shared: Arc<Shared>,
}

impl PageCache {
    /// Creates a cache of at most `limit` bytes, metadata included (at least 16 pages).
    ///
    /// # Panics
    /// See [`PageCache::with_options`].
    pub fn new(limit: u64) -> Self {
        Self::with_options(CacheOptions::new(limit))
    }

    /// Creates a cache with the given options.
    ///
    /// # Panics
    /// If the limit is above 8 TiB or `max_order` above 9.
    pub fn with_options(mut options: CacheOptions) -> Self {
        assert!(options.max_order <= MAX_ORDER, "max_order is at most {MAX_ORDER}");
        options.limit = options.limit.max(16 * (PAGE_SIZE as u64 + RECORD_BYTES));
        let pages = u32::try_from(options.limit / PAGE_SIZE as u64 + 1)
            .ok()
            .filter(|pages| *pages < u32::MAX / 2)
            .expect("the limit is at most 8 TiB");
        Self { shared: Arc::new(Shared::new(options, pages)) }
    }

    /// Creates an empty mapping for a file. `host` is the caller's identifier for the file;
    /// [`Mapping::host`] returns it.
    pub fn mapping(&self, host: u64) -> Mapping {
        Mapping::new(&self.shared, host)
    }

    /// Returns the bytes charged: folios, their records, and nodes.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// Returns the limit of the bytes charged.
    pub fn limit(&self) -> u64 {
        self.shared.options.limit
    }

    /// Returns the options of this cache.
    pub fn options(&self) -> &CacheOptions {
        &self.shared.options
    }

    /// Returns the number of bytes that are dirty or under writeback.
    pub fn dirty_bytes(&self) -> u64 {
        self.shared.dirty.load(Relaxed) + self.shared.writeback.load(Relaxed)
    }

    /// Returns whether background writeback should start.
    pub fn over_background(&self) -> bool {
        self.dirty_bytes() >= self.shared.options.dirty_background
    }

    /// Returns whether writers should wait for writeback.
    pub fn over_hard(&self) -> bool {
        self.dirty_bytes() >= self.shared.options.dirty_hard
    }

    /// Waits until writers may continue. Returns false if `timeout` passes first.
    pub fn wait_dirty_below_hard(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (mutex, condvar) = &self.shared.throttle;
        let mut guard = sync::lock(mutex);
        while self.over_hard() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = sync::wait_for(condvar, guard, left);
        }
        true
    }

    /// Evicts clean unused folios until at most `bytes` are charged or none is left. Returns the
    /// bytes still charged.
    pub fn shrink_to(&self, bytes: u64) -> u64 {
        reclaim::shrink_to(&self.shared, bytes);
        self.bytes()
    }

    /// Returns event counts and current sizes.
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        let counters = &shared.counters;
        let (pages, folios) = shared.lru.count();
        Statistics {
            hits: counters.sum(|counts| &counts.hits),
            misses: counters.sum(|counts| &counts.misses),
            insertions: counters.sum(|counts| &counts.insertions),
            refaults: counters.sum(|counts| &counts.refaults),
            activations: counters.sum(|counts| &counts.activations),
            evictions: counters.sum(|counts| &counts.evictions),
            splits: counters.sum(|counts| &counts.splits),
            folio_splits: counters.sum(|counts| &counts.folio_splits),
            shadow_nodes_pruned: counters.sum(|counts| &counts.shadow_nodes_pruned),
            bytes: self.bytes(),
            folios,
            active_bytes: pages[List::Active as usize] << PAGE_SHIFT,
            inactive_bytes: pages[List::Inactive as usize] << PAGE_SHIFT,
            dirty_bytes: shared.dirty.load(Relaxed),
            writeback_bytes: shared.writeback.load(Relaxed),
            nodes: shared.pool.in_use() as u64,
            mapped_bytes: shared.arena.mapped_bytes(),
        }
    }
}

impl Mapping {
    /// Returns the cache that this mapping belongs to.
    pub fn cache(&self) -> PageCache {
        PageCache { shared: Arc::clone(&self.inner.shared) }
    }
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache")
            .field("limit", &self.limit())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

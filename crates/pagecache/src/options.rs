//! The options of a cache.

use crate::MAX_ORDER;
use crate::xarray::CacheInsert;

/// Options of a new cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Limit in bytes, metadata included; at least 16 pages.
    pub limit: u64,
    /// How an insertion treats the shadows it overlaps.
    pub insert: CacheInsert,
    /// Whether evicted folios leave shadows, which identify the working set when pages come back.
    /// Without shadows, eviction only gives accessed folios a second chance.
    pub working_set: bool,
    /// Number of dirty bytes from which [`crate::PageCache::over_background`] returns true.
    pub dirty_background: u64,
    /// Number of dirty bytes from which [`crate::PageCache::over_hard`] returns true.
    pub dirty_hard: u64,
    /// Whether to advise huge pages.
    pub huge_pages: bool,
    /// The largest order of a folio, 0 to 9.
    pub max_order: u8,
}

impl CacheOptions {
    /// Defaults: background writeback starts at a tenth of the limit, writers stop at two fifths.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            insert: CacheInsert::default(),
            working_set: true,
            dirty_background: limit / 10,
            dirty_hard: limit / 5 * 2,
            huge_pages: true,
            max_order: MAX_ORDER,
        }
    }
}

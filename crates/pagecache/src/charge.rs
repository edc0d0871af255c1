//! Charging memory to the cache: folios and tree nodes, within the limit.
//!
//! Owns the limit. A folio is charged before it is allocated. If the charge does not fit, the
//! allocator evicts first, so the limit holds at all times.
//!
//! **Locks**: those of eviction, see [`crate::reclaim`].

use crate::PAGE_SIZE;
use crate::folio::Folio;
use crate::folio::lock::LOCKED;
use crate::folio::record::Record;
use crate::reclaim;
use crate::shared::{RECORD_BYTES, Shared};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The reason why an insertion into the cache failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// All evictable memory is dirty or under writeback: write back, or wait for writeback, and
    /// retry.
    #[error("the page cache is full: {dirty} bytes are dirty and {writeback} bytes are under writeback")]
    AllDirty {
        /// Dirty bytes.
        dirty: u64,
        /// Bytes under writeback.
        writeback: u64,
    },
    /// All memory is in use: release folios and retry.
    #[error("the page cache is full: all {bytes} bytes are in use")]
    AllInUse {
        /// Bytes charged.
        bytes: u64,
    },
    /// The kernel refused to map more memory.
    #[error("the kernel refused memory for the page cache")]
    NoMemory,
}

impl Shared {
    /// Allocates a folio of this order, or of a smaller one if no such block is free.
    ///
    /// The folio is locked exclusively and has two references: the caller's and the one that the
    /// tree will own. It has these flags and belongs to no mapping yet.
    ///
    /// # Errors
    /// The cache is full and nothing can be evicted, or the kernel refuses memory.
    pub fn allocate(self: &Arc<Self>, order: u8, flags: u32) -> Result<&Record, CacheError> {
        let mut order = order.min(self.options.max_order);
        // A folio is at most an eighth of the cache.
        while order > 0 && (PAGE_SIZE as u64) << order > self.options.limit / 8 {
            order -= 1;
        }
        let bytes = |order: u8| ((PAGE_SIZE as u64) << order) + RECORD_BYTES;
        if let Err(error) = self.charge(bytes(order)) {
            if order == 0 {
                return Err(error);
            }
            order = 0;
            self.charge(bytes(0))?;
        }
        let Some((id, got)) = self.arena.allocate(order) else {
            self.charged.fetch_sub(bytes(order), Relaxed);
            return Err(CacheError::NoMemory);
        };
        self.charged.fetch_sub(bytes(order) - bytes(got), Relaxed);
        let record = self.arena.record(id);
        record.lock.store(LOCKED, Relaxed);
        record.flags.store(u32::from(got) | flags, Relaxed);
        self.hold(record);
        record.refs.store(2, Release);
        Ok(record)
    }

    /// Charges bytes to the cache, evicting first if they do not fit.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<(), CacheError> {
        loop {
            let charged = self.charged.load(Relaxed);
            if charged + bytes <= self.options.limit {
                if self.charged.compare_exchange(charged, charged + bytes, Relaxed, Relaxed).is_ok() {
                    return Ok(());
                }
            } else {
                self.evict_for(bytes)?;
            }
        }
    }

    /// Evicts until `bytes` more can be charged.
    fn evict_for(self: &Arc<Self>, bytes: u64) -> Result<(), CacheError> {
        let target = self.options.limit.saturating_sub(bytes);
        if self.bytes() <= target || reclaim::shrink_to(self, target) {
            return Ok(());
        }
        let (dirty, writeback) = (self.dirty.load(Relaxed), self.writeback.load(Relaxed));
        Err(if dirty + writeback > 0 {
            CacheError::AllDirty { dirty, writeback }
        } else {
            CacheError::AllInUse { bytes: self.bytes() }
        })
    }

    /// Frees a folio from `allocate` that did not make it into a tree.
    pub fn release_new(self: &Arc<Self>, record: &Record) {
        record.unlock_exclusive(&self.waits);
        for _ in 0..2 {
            // SAFETY: these are the two references that `allocate` gave.
            drop(unsafe { Folio::from_counted(record, self) });
        }
    }
}

//! A cache of an open file's extents, so that a reader looks each up in the tree once.
//!
//! Owns [`ExtentCache`], and in it the file's [`ChecksumCache`]. An extent's shard follows from the
//! looked-up offset, so that readers all over a large file do not wait for one another. An extent
//! that was looked up at several offsets may be in several shards.
//!
//! Invariants:
//! - A cached extent is what the tree has. A thread that changes the file's extents clears the
//!   cache before other threads may read there: readers hold the data lock shared, or their range
//!   is locked as well.
//! - An extent that was looked up before a clear is not inserted after it ([`ExtentCache::epoch`]).
//! - Inline extents and holes are not cached.
//!
//! Lock: each shard's own, for one look-up or insertion; an insertion never waits. Kernel
//! counterpart: `struct extent_map_tree` (`fs/btrfs/extent_map.h`).

use crate::data::checksum_cache::{ChecksumBudget, ChecksumCache};
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind};
use papilio_format::FileOffset;
use papilio_locks::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Shards of a cache.
const SHARDS: usize = 16;
/// The shift for the bytes of the file that belong to one shard.
const PART: u32 = 20;
/// The most extents in a shard; a full shard is emptied.
const MAX_EXTENTS: usize = (1 << 16) / SHARDS;

#[derive(Clone, Copy, Debug)]
struct CachedExtent {
    end: u64,
    disk: DiskExtent,
    preallocated: bool,
}

/// One shard, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ExtentShard(RwLock<BTreeMap<u64, CachedExtent>>);

/// Extents by their first byte in the file.
#[derive(Debug)]
pub struct ExtentCache {
    /// Empty until the first insertion.
    shards: OnceLock<Box<[ExtentShard; SHARDS]>>,
    /// Whether any shard may hold an extent.
    used: AtomicBool,
    /// The number of clears so far.
    epoch: AtomicU64,
    checksums: ChecksumCache,
}

impl ExtentCache {
    /// Creates an empty cache, whose checksums count against `budget`.
    pub(crate) fn new(budget: &Arc<ChecksumBudget>) -> Self {
        Self {
            shards: OnceLock::new(),
            used: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            checksums: ChecksumCache::new(budget),
        }
    }

    /// Returns the epoch to pass to [`ExtentCache::insert`]. The caller reads it before it takes
    /// the root of the tree that it looks extents up in.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Returns the cache of the extents' checksums.
    pub(crate) fn checksums(&self) -> &ChecksumCache {
        &self.checksums
    }

    /// Returns the cached extent that contains byte `at`, cut to start there.
    pub(crate) fn get(&self, at: u64) -> Option<Extent> {
        let extents = shard(self.shards.get()?, at).read();
        let (&start, cached) = extents.range(..=at).next_back().filter(|(_, cached)| at < cached.end)?;
        let disk = cached.disk.advanced(at - start);
        let kind = if cached.preallocated { ExtentKind::Prealloc(disk) } else { ExtentKind::Regular(disk) };
        Some(Extent { start: FileOffset(at), end: FileOffset(cached.end), kind })
    }

    /// Inserts a whole extent that contains `at`. Does nothing for a kind that is not cached, while
    /// the shard is locked, or if the cache was cleared since `epoch`.
    pub(crate) fn insert(&self, extent: &Extent, at: u64, epoch: u64) {
        let (disk, preallocated) = match extent.kind {
            ExtentKind::Regular(disk) => (disk, false),
            ExtentKind::Prealloc(disk) => (disk, true),
            ExtentKind::Hole | ExtentKind::Inline(_) => return,
        };
        let shards = self.shards.get_or_init(Box::default);
        let Some(mut extents) = shard(shards, at).try_write() else { return };
        // In this order: a thread that clears at the same time either sees `used` and waits for the
        // shard, or has changed the epoch, which is read here.
        self.used.store(true, Ordering::SeqCst);
        if self.epoch() != epoch {
            return;
        }
        let full = if extents.len() >= MAX_EXTENTS { std::mem::take(&mut *extents) } else { BTreeMap::new() };
        extents.insert(extent.start.0, CachedExtent { end: extent.end.0, disk, preallocated });
        drop(extents);
        // Freed after the shard is unlocked.
        drop(full);
    }

    /// Clears the cache, because the file's extents change.
    pub(crate) fn clear(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.used.swap(false, Ordering::SeqCst) {
            for shard in self.shards.get().into_iter().flat_map(|shards| shards.iter()) {
                shard.0.write().clear();
            }
        }
        self.checksums.clear();
    }
}

fn shard(shards: &[ExtentShard; SHARDS], at: u64) -> &RwLock<BTreeMap<u64, CachedExtent>> {
    &shards[(at >> PART) as usize % SHARDS].0
}

impl Extent {
    /// Returns the part of the extent from `at` on; `at` is inside the extent.
    pub(crate) fn from(self, at: u64) -> Self {
        let skipped = at - self.start.0;
        let kind = match self.kind {
            ExtentKind::Regular(disk) => ExtentKind::Regular(disk.advanced(skipped)),
            ExtentKind::Prealloc(disk) => ExtentKind::Prealloc(disk.advanced(skipped)),
            other => other,
        };
        Self { start: FileOffset(at), end: self.end, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::file_extent::Compression;
    use papilio_format::{Generation, LogicalAddress};

    fn extent(start: u64, length: u64) -> Extent {
        let disk = DiskExtent {
            disk_address: LogicalAddress(start + (1 << 30)),
            disk_length: length,
            ram_bytes: length,
            offset: 0,
            compression: Compression::None,
            generation: Generation(1),
        };
        Extent { start: FileOffset(start), end: FileOffset(start + length), kind: ExtentKind::Regular(disk) }
    }

    #[test]
    fn an_extent_is_cached_in_each_looked_up_shard() {
        let cache = ExtentCache::new(&ChecksumBudget::new(0));
        let large = extent(0, 64 << 20);
        for at in [0, 5 << 20, (63 << 20) + 4096] {
            assert!(cache.get(at).is_none());
            cache.insert(&large, at, cache.epoch());
            let found = cache.get(at).unwrap();
            assert_eq!((found.start.0, found.end.0), (at, 64 << 20));
            let ExtentKind::Regular(disk) = found.kind else { panic!("{found:?}") };
            assert_eq!(disk.offset, at);
        }
        assert!(cache.get(7 << 20).is_none() && cache.get(64 << 20).is_none());
        cache.clear();
        assert!([0, 5 << 20, (63 << 20) + 4096].iter().all(|at| cache.get(*at).is_none()));
    }

    #[test]
    fn an_extent_looked_up_before_a_clear_is_not_cached() {
        let cache = ExtentCache::new(&ChecksumBudget::new(0));
        let epoch = cache.epoch();
        cache.insert(&extent(0, 4096), 0, epoch);
        cache.clear();
        cache.insert(&extent(0, 4096), 0, epoch);
        assert!(cache.get(0).is_none());
        cache.insert(&extent(0, 4096), 0, cache.epoch());
        assert!(cache.get(0).is_some());
    }

    #[test]
    fn a_full_shard_is_emptied() {
        let cache = ExtentCache::new(&ChecksumBudget::new(0));
        for number in 0..(SHARDS * MAX_EXTENTS * 3) as u64 {
            cache.insert(&extent(number * 4096, 4096), number * 4096, 0);
            assert!(cache.get(number * 4096).is_some());
        }
        let shards = cache.shards.get().unwrap();
        assert!(shards.iter().all(|shard| (1..=MAX_EXTENTS).contains(&shard.0.read().len())));
        cache.clear();
        assert!(shards.iter().all(|shard| shard.0.read().is_empty()));
    }
}

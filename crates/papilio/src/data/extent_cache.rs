//! Extents of an open file in memory, so that reading asks the tree once for each.
//!
//! Owns [`ExtentCache`], and in it the file's [`ChecksumCache`]. Extents lie in shards, by the part of the file that was
//! asked for, so that readers all over a file of many extents, who keep what they looked up, do not wait for one
//! another; one that is asked for in several parts is in the shard of each. Invariant: what it holds is what
//! the tree says of ranges that nobody changes; whoever changes the file's extents clears it before others may read
//! there: they hold its data lock shared, or the range that they read is locked besides. What was looked up before
//! it was cleared is not entered after that ([`ExtentCache::epoch`]). Inline extents and holes are not kept. Locks: a
//! shard's own, for one look-up or insertion; nobody waits to insert. Kernel counterpart: `struct extent_map_tree`
//! (`fs/btrfs/extent_map.h`).

use crate::data::checksum_cache::{ChecksumBudget, ChecksumCache};
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind};
use papilio_format::FileOffset;
use papilio_locks::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shards of a cache.
const SHARDS: usize = 16;
/// Bytes of the file that are in one shard: a shift.
const PART: u32 = 20;
/// Extents kept at most in a shard; beyond that all of it go.
const KEPT: usize = (1 << 16) / SHARDS;

#[derive(Clone, Copy, Debug)]
struct Kept {
    end: u64,
    disk: DiskExtent,
    preallocated: bool,
}

/// A shard, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<BTreeMap<u64, Kept>>);

/// Extents by the first byte of the file that they stand for.
#[derive(Debug)]
pub(crate) struct ExtentCache {
    shards: [Shard; SHARDS],
    /// Whether there may be any.
    used: AtomicBool,
    /// How often it was cleared.
    epoch: AtomicU64,
    sums: ChecksumCache,
}

impl ExtentCache {
    /// An empty cache, whose sums count against `budget`.
    pub(crate) fn new(budget: &Arc<ChecksumBudget>) -> Self {
        Self {
            shards: Default::default(),
            used: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            sums: ChecksumCache::new(budget),
        }
    }

    /// To be asked before the tree is taken that extents are looked up in.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// The sums of these extents.
    pub(crate) fn sums(&self) -> &ChecksumCache {
        &self.sums
    }

    fn shard(&self, at: u64) -> &RwLock<BTreeMap<u64, Kept>> {
        &self.shards[(at >> PART) as usize % SHARDS].0
    }

    /// The rest from `at` on of the extent that holds that byte.
    pub(crate) fn get(&self, at: u64) -> Option<Extent> {
        let extents = self.shard(at).read();
        let (&start, kept) = extents.range(..=at).next_back().filter(|(_, kept)| at < kept.end)?;
        let disk = kept.disk.advanced(at - start);
        let kind = if kept.preallocated { ExtentKind::Prealloc(disk) } else { ExtentKind::Regular(disk) };
        Some(Extent { start: FileOffset(at), end: FileOffset(kept.end), kind })
    }

    /// Keeps a whole extent in which `at` lies, if it is of a kind that is kept, and unless others are busy with
    /// its shard or the cache was cleared since `epoch`.
    pub(crate) fn insert(&self, extent: &Extent, at: u64, epoch: u64) {
        let (disk, preallocated) = match extent.kind {
            ExtentKind::Regular(disk) => (disk, false),
            ExtentKind::Prealloc(disk) => (disk, true),
            ExtentKind::Hole | ExtentKind::Inline(_) => return,
        };
        let Some(mut extents) = self.shard(at).try_write() else { return };
        // In this order: who clears either finds it used, and waits for the shard, or is seen here.
        self.used.store(true, Ordering::SeqCst);
        if self.epoch() != epoch {
            return;
        }
        let full = if extents.len() >= KEPT { std::mem::take(&mut *extents) } else { BTreeMap::new() };
        extents.insert(extent.start.0, Kept { end: extent.end.0, disk, preallocated });
        drop(extents);
        // Not while others wait.
        drop(full);
    }

    /// The file's extents change.
    pub(crate) fn clear(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.used.swap(false, Ordering::SeqCst) {
            for shard in &self.shards {
                shard.0.write().clear();
            }
        }
        self.sums.clear();
    }
}

impl Extent {
    /// The rest from `at` on, which lies inside.
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
    fn an_extent_is_found_in_each_part_that_asked_for_it() {
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
    fn what_was_looked_up_before_it_was_cleared_is_not_kept() {
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
    fn no_more_are_kept_than_may_be() {
        let cache = ExtentCache::new(&ChecksumBudget::new(0));
        for number in 0..(SHARDS * KEPT * 3) as u64 {
            cache.insert(&extent(number * 4096, 4096), number * 4096, 0);
            assert!(cache.get(number * 4096).is_some());
        }
        assert!(cache.shards.iter().all(|shard| (1..=KEPT).contains(&shard.0.read().len())));
        cache.clear();
        assert!(cache.shards.iter().all(|shard| shard.0.read().is_empty()));
    }
}

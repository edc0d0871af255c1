//! Extents of an open file in memory, so that reading asks the tree once for each.
//!
//! Owns [`ExtentCache`], and in it the file's [`SumCache`]. Invariant: what it holds is what the tree says; whoever changes the file's extents
//! holds its data lock exclusively and clears it, and who reads through it holds that lock shared. Inline
//! extents and holes are not kept. Lock: its own, for one look-up or insertion. Kernel counterpart:
//! `struct extent_map_tree` (`fs/btrfs/extent_map.h`).

use crate::data::extent_map::{DiskExtent, Extent, ExtentKind};
use crate::data::sum_cache::{SumBudget, SumCache};
use papilio_format::FileOffset;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Extents kept at most; beyond that all go.
const KEPT: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Kept {
    end: u64,
    disk: DiskExtent,
    preallocated: bool,
}

/// Extents by the first byte of the file that they stand for.
#[derive(Debug)]
pub(crate) struct ExtentCache {
    extents: RwLock<BTreeMap<u64, Kept>>,
    sums: SumCache,
}

impl ExtentCache {
    /// An empty cache, whose sums count against `budget`.
    pub(crate) fn new(budget: &Arc<SumBudget>) -> Self {
        Self { extents: RwLock::default(), sums: SumCache::new(budget) }
    }

    /// The sums of these extents.
    pub(crate) fn sums(&self) -> &SumCache {
        &self.sums
    }

    /// The rest from `at` on of the extent that holds that byte.
    pub(crate) fn get(&self, at: u64) -> Option<Extent> {
        let extents = self.extents.read();
        let (&start, kept) = extents.range(..=at).next_back().filter(|(_, kept)| at < kept.end)?;
        let disk = kept.disk.advanced(at - start);
        let kind = if kept.preallocated { ExtentKind::Prealloc(disk) } else { ExtentKind::Regular(disk) };
        Some(Extent { start: FileOffset(at), end: FileOffset(kept.end), kind })
    }

    /// Keeps a whole extent, if it is of a kind that is kept.
    pub(crate) fn insert(&self, extent: &Extent) {
        let (disk, preallocated) = match extent.kind {
            ExtentKind::Regular(disk) => (disk, false),
            ExtentKind::Prealloc(disk) => (disk, true),
            ExtentKind::Hole | ExtentKind::Inline(_) => return,
        };
        let mut extents = self.extents.write();
        if extents.len() >= KEPT {
            extents.clear();
        }
        extents.insert(extent.start.0, Kept { end: extent.end.0, disk, preallocated });
    }

    /// The file's extents change.
    pub(crate) fn clear(&self) {
        if !self.extents.read().is_empty() {
            self.extents.write().clear();
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

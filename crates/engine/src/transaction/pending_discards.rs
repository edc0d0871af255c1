//! Freed space that waits to be discarded: batches of ranges, one for each transaction that freed
//! some.
//!
//! Owns [`Discards`].
//!
//! **Invariants**
//! - A batch is ripe once no superblock leads to its space, not even by a backup root:
//!   [`BACKUPS`] - 1 further commits are on disk.
//! - Space that was used and freed again meanwhile is in the batch of its last transaction only.
//!   It is noted before it becomes free.
//!
//! **Locks:** `batches`, a leaf.
//!
//! Kernel counterpart: `btrfs_discard_queue_work` (`fs/btrfs/discard.c`), which does not spare
//! backup roots.

use super::chunks::FreedExtent;
use crate::space::RangeSet;
use papilio_format::{DeviceId, Generation};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// States that a superblock leads to: its own, which is a backup, too, and those before it.
const BACKUPS: u64 = 4;
/// The smallest run of free space worth a discard (`BTRFS_ASYNC_DISCARD_MIN_FILTER`).
pub(super) const LEAST: u64 = 32 << 10;

/// Freed space that waits.
#[derive(Debug, Default)]
pub(super) struct Discards {
    batches: Mutex<VecDeque<DiscardBatch>>,
    /// The last transaction whose superblocks are on disk; 0 before the first.
    durable: AtomicU64,
}

/// The space that one transaction freed.
#[derive(Debug)]
pub(super) struct DiscardBatch {
    generation: u64,
    /// Logical addresses.
    pub(super) logical: RangeSet,
    /// Bytes of devices that were in chunks.
    pub(super) physical: BTreeMap<DeviceId, RangeSet>,
    /// Whether the transaction had changes; others exist only to let backup roots go.
    has_changes: bool,
}

impl DiscardBatch {
    fn bytes(&self) -> u64 {
        let physical = self.physical.values().map(RangeSet::bytes).sum::<u64>();
        physical + if self.has_changes { self.logical.bytes() } else { 0 }
    }

    fn is_ripe(&self, durable: u64) -> bool {
        self.generation + BACKUPS - 1 <= durable
    }
}

impl Discards {
    /// Notes space that transaction `generation` freed and that is not free yet.
    pub(super) fn freed(
        &self,
        generation: Generation,
        has_changes: bool,
        logical: impl IntoIterator<Item = Range<u64>>,
    ) {
        let mut batches = self.batches.lock();
        for range in logical {
            for batch in &mut *batches {
                batch.logical.remove_overlap(&range);
            }
            if range.end - range.start >= LEAST {
                batch_of(&mut batches, generation, has_changes).logical.cover(&range);
            }
        }
    }

    /// As [`Self::freed`], for the space of removed chunks.
    pub(super) fn removed(&self, generation: Generation, has_changes: bool, extents: &[FreedExtent]) {
        let mut batches = self.batches.lock();
        for extent in extents {
            let range = extent.start.0..extent.start.0.saturating_add(extent.length);
            for batch in &mut *batches {
                if let Some(ranges) = batch.physical.get_mut(&extent.devid) {
                    ranges.remove_overlap(&range);
                }
            }
            let batch = batch_of(&mut batches, generation, has_changes);
            batch.physical.entry(extent.devid).or_default().cover(&range);
        }
    }

    /// Forgets the logical addresses of a removed chunk, which another one may get.
    pub(super) fn forget(&self, range: &Range<u64>) {
        for batch in &mut *self.batches.lock() {
            batch.logical.remove_overlap(range);
        }
    }

    /// Notes that the superblocks of a transaction are on disk.
    pub(super) fn committed(&self, generation: Generation) {
        self.durable.store(generation.0, Ordering::Release);
    }

    pub(super) fn take_ripe(&self) -> Option<DiscardBatch> {
        let (mut batches, durable) = (self.batches.lock(), self.durable.load(Ordering::Acquire));
        if !batches.front()?.is_ripe(durable) {
            return None;
        }
        batches.pop_front()
    }

    /// Returns the bytes that wait for commits.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let (batches, durable) = (self.batches.lock(), self.durable.load(Ordering::Acquire));
        batches.iter().filter(|batch| !batch.is_ripe(durable)).map(DiscardBatch::bytes).sum()
    }

    pub(super) fn clear(&self) {
        self.batches.lock().clear();
    }
}

/// Returns the batch of a transaction. Readers may let an older transaction's space go late.
fn batch_of(
    batches: &mut VecDeque<DiscardBatch>,
    generation: Generation,
    has_changes: bool,
) -> &mut DiscardBatch {
    let at = batches.partition_point(|batch| batch.generation < generation.0);
    if batches.get(at).is_none_or(|batch| batch.generation != generation.0) {
        let (logical, physical) = (RangeSet::default(), BTreeMap::new());
        batches.insert(at, DiscardBatch { generation: generation.0, logical, physical, has_changes });
    }
    let batch = &mut batches[at];
    batch.has_changes |= has_changes;
    batch
}

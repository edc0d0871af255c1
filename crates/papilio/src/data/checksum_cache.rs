//! Checksums of an open file's sectors in memory, so that reading asks the tree once for many.
//!
//! Owns [`ChecksumCache`] and [`ChecksumBudget`]. Sums are kept in *windows* of [`WINDOW`] bytes of them, by the address of
//! their sectors. Invariants: sums of what the file refers to stay as they are for as long as it does, so whoever
//! changes the file's extents clears the cache before others may read there, and who reads or fills it holds the data
//! lock shared and asks for sectors of the file only, which nobody changes. Sums of what it does not refer to any more
//! may come in with those, from a tree that is held and thereby keeps others from these sectors: they are gone when
//! the file refers to what is written there next. All caches of a file system together hold no
//! more windows than the budget, and what is taken up when that is spent takes the place of another window of the
//! same file. Lock: its own, for one look-up or insertion, not while a tree is walked.

use crate::data::checksum::DataSums;
use crate::errors::Result;
use papilio_format::{Geometry, LogicalAddress};
use papilio_locks::RwLock;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of sums of a window: those of 4 MiB of data with CRC-32C and sectors of 4 KiB.
pub(crate) const WINDOW: usize = 4096;
/// Slots that a shard begins with.
const FIRST_SLOTS: usize = 4;
/// Shards of a cache; a window is in the one that the lowest bits of its number say.
const SHARDS: u64 = 8;

/// How much memory the sums of all open files may take.
#[derive(Debug)]
pub(crate) struct ChecksumBudget {
    windows: usize,
    windows_left: AtomicUsize,
}

/// Sums of sectors that lie one behind the other.
#[derive(Debug)]
struct Window {
    /// Which of the address space's windows.
    number: u64,
    /// Bytes of `sums` that are sums.
    valid: Range<usize>,
    sums: Box<[u8; WINDOW]>,
}

/// Sums by address.
#[derive(Debug)]
pub(crate) struct ChecksumCache {
    budget: Arc<ChecksumBudget>,
    /// Absent as long as there was nothing to keep.
    shards: OnceLock<Box<[Shard; SHARDS as usize]>>,
}

/// In cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<Table>);

/// The windows that are kept.
#[derive(Debug, Default)]
struct Table {
    /// A power of two of them or none; a window is in the one that the next bits of its number say.
    slots: Vec<Option<Window>>,
    /// Slots that are taken.
    held: usize,
}

/// Where a sector's sum is kept.
#[derive(Clone, Copy)]
struct Place {
    window: u64,
    /// Bytes from the window's start.
    at: usize,
}

impl Place {
    fn of(logical: LogicalAddress, geometry: &Geometry) -> Self {
        // Sizes of sectors and of sums are powers of two.
        let sector = logical.0 >> geometry.sector_size.trailing_zeros();
        let byte = sector << geometry.checksum_type.size().trailing_zeros();
        Self { window: byte / WINDOW as u64, at: (byte % WINDOW as u64) as usize }
    }
}

impl ChecksumBudget {
    /// A budget of `bytes` of sums.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { windows: bytes / WINDOW, windows_left: AtomicUsize::new(bytes / WINDOW) })
    }

    /// Bytes that are taken.
    pub(crate) fn used(&self) -> usize {
        self.windows.saturating_sub(self.windows_left.load(Ordering::Relaxed)) * WINDOW
    }

    fn is_left(&self) -> bool {
        self.windows_left.load(Ordering::Relaxed) > 0
    }

    fn take(&self) -> bool {
        let left = &self.windows_left;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn give_back(&self, windows: usize) {
        self.windows_left.fetch_add(windows, Ordering::Relaxed);
    }
}

impl ChecksumCache {
    /// An empty cache.
    pub(crate) fn new(budget: &Arc<ChecksumBudget>) -> Self {
        Self { budget: Arc::clone(budget), shards: OnceLock::new() }
    }

    /// Copies the sums of the first sectors from `logical` on to `sums`, as far as they are known and there is
    /// room; says how many bytes of them.
    pub(crate) fn copy(&self, logical: LogicalAddress, geometry: &Geometry, sums: &mut [u8]) -> usize {
        let place = Place::of(logical, geometry);
        let Some(shards) = self.shards.get() else { return 0 };
        let table = shards[(place.window % SHARDS) as usize].0.read();
        let Some(window) = table.find(place.window) else { return 0 };
        if !window.valid.contains(&place.at) {
            return 0;
        }
        let length = (window.valid.end - place.at).min(sums.len());
        // One sum is a matter of a load and a store; `copy_from_slice` of any length is a call.
        match (&window.sums[place.at..][..length], &mut sums[..length]) {
            ([a, b, c, d], [e, f, g, h]) => (*e, *f, *g, *h) = (*a, *b, *c, *d),
            (from, to) => to.copy_from_slice(from),
        }
        length
    }

    /// Takes up the sums around `logical` from the tree; the caller holds the file's data lock shared.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub(crate) fn fill(
        &self,
        logical: LogicalAddress,
        geometry: &Geometry,
        tree: &mut DataSums<'_>,
    ) -> Result<()> {
        let place = Place::of(logical, geometry);
        let size = geometry.checksum_type.size();
        let start = LogicalAddress(logical.0 - (place.at / size) as u64 * u64::from(geometry.sector_size));
        let mut sums = [0; WINDOW];
        // The run of sums that the sector's own is in.
        let mut valid = 0..0;
        tree.for_each_run(start, WINDOW / size, |first, count, found| {
            match found {
                Some(found) => {
                    sums[first * size..][..found.len()].copy_from_slice(found);
                    valid.end = first * size + found.len();
                }
                None if first * size > place.at => return false,
                None => valid = (first + count) * size..(first + count) * size,
            }
            true
        })?;
        if valid.contains(&place.at) {
            self.insert(place.window, valid, &sums);
        }
        Ok(())
    }

    fn insert(&self, number: u64, valid: Range<usize>, sums: &[u8; WINDOW]) {
        let shards = self.shards.get_or_init(Box::default);
        let mut table = shards[(number % SHARDS) as usize].0.write();
        let Some(slot) = table.slot_for(number, self.budget.is_left()) else { return };
        match &mut table.slots[slot] {
            Some(kept) => {
                (kept.number, kept.valid) = (number, valid);
                kept.sums.copy_from_slice(sums);
            }
            empty => {
                if self.budget.take() {
                    *empty = Some(Window { number, valid, sums: Box::new(*sums) });
                    table.held += 1;
                }
            }
        }
    }

    /// The file's extents change.
    pub(crate) fn clear(&self) {
        for Shard(table) in self.shards.get().into_iter().flat_map(|shards| shards.iter()) {
            if table.read().held > 0 {
                let table = std::mem::take(&mut *table.write());
                self.budget.give_back(table.held);
            }
        }
    }
}

fn slot_of(number: u64, mask: usize) -> usize {
    (number / SHARDS) as usize & mask
}

impl Table {
    fn find(&self, number: u64) -> Option<&Window> {
        let slot = slot_of(number, self.slots.len().checked_sub(1)?);
        self.slots[slot].as_ref().filter(|window| window.number == number)
    }

    /// The slot that a window is to be put in, with what it displaces in it. There are more slots first where that
    /// would be another window, unless no further one `may_come`, or few are taken.
    fn slot_for(&mut self, number: u64, may_come: bool) -> Option<usize> {
        loop {
            if let Some(mask) = self.slots.len().checked_sub(1) {
                let slot = slot_of(number, mask);
                let displaced = self.slots[slot].as_ref().is_some_and(|kept| kept.number != number);
                if !displaced || !may_come || self.held * 4 < self.slots.len() {
                    return Some(slot);
                }
            } else if !may_come {
                return None;
            }
            self.grow();
        }
    }

    fn grow(&mut self) {
        let length = (self.slots.len() * 2).max(FIRST_SLOTS);
        let mut slots: Vec<Option<Window>> = Vec::new();
        slots.resize_with(length, || None);
        for window in self.slots.drain(..).flatten() {
            let slot = slot_of(window.number, length - 1);
            slots[slot] = Some(window);
        }
        self.slots = slots;
    }
}

impl Drop for ChecksumCache {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(windows: usize) -> ChecksumCache {
        ChecksumCache::new(&ChecksumBudget::new(windows * WINDOW))
    }

    fn geometry() -> Geometry {
        crate::btree::testing::TestForest::new(16384).volume.geometry()
    }

    fn address(window: u64, sector: u64) -> LogicalAddress {
        LogicalAddress((window * 1024 + sector) * 4096)
    }

    /// What is known of a window, as the first byte of each sum.
    fn known(cache: &ChecksumCache, window: u64) -> Option<u8> {
        let mut sums = [0; 8];
        let length = cache.copy(address(window, 5), &geometry(), &mut sums);
        (length > 0).then(|| sums[0])
    }

    #[test]
    fn sums_are_found_as_far_as_they_are_valid() {
        let cache = cache(8);
        let mut sums = [0; WINDOW];
        for (sector, sum) in sums.chunks_exact_mut(4).enumerate() {
            sum.copy_from_slice(&(sector as u32).to_le_bytes());
        }
        cache.insert(7, 40..80, &sums);
        let mut out = [0xff; 64];
        let geometry = geometry();
        assert_eq!(cache.copy(address(7, 9), &geometry, &mut out), 0);
        assert_eq!(cache.copy(address(7, 20), &geometry, &mut out), 0);
        assert_eq!(cache.copy(address(6, 12), &geometry, &mut out), 0);
        assert_eq!(cache.copy(address(7, 12), &geometry, &mut out), 32);
        assert_eq!(out[..4], 12u32.to_le_bytes());
        assert_eq!(out[28..32], 19u32.to_le_bytes());
        assert_eq!(cache.copy(address(7, 19), &geometry, &mut out[..4]), 4);
        assert_eq!(out[..4], 19u32.to_le_bytes());
        cache.clear();
        assert_eq!(cache.copy(address(7, 12), &geometry, &mut out), 0);
    }

    #[test]
    fn a_file_gets_a_slot_for_each_window_while_the_budget_lasts() {
        let cache = cache(100);
        for window in 1000..1100 {
            cache.insert(window, 0..WINDOW, &[window as u8; WINDOW]);
        }
        for window in 1000..1100 {
            assert_eq!(known(&cache, window), Some(window as u8), "{window}");
        }
        // The budget is spent: one displaces another, and none is added.
        for window in 2000..2200 {
            cache.insert(window, 0..WINDOW, &[window as u8; WINDOW]);
        }
        let shards = cache.shards.get().unwrap();
        let counts_what_it_holds = |table: &Table| table.slots.iter().flatten().count() == table.held;
        assert!(shards.iter().all(|shard| counts_what_it_holds(&shard.0.read())));
        assert_eq!(shards.iter().map(|shard| shard.0.read().held).sum::<usize>(), 100);
        assert!(!cache.budget.take());
        let slots: usize = shards.iter().map(|shard| shard.0.read().slots.len()).sum();
        assert!(slots <= 512, "{slots}");
    }

    #[test]
    fn windows_far_apart_do_not_make_it_large() {
        let cache = cache(100);
        for window in 0..50 {
            cache.insert(window << 30, 0..WINDOW, &[window as u8; WINDOW]);
            assert_eq!(known(&cache, window << 30), Some(window as u8));
        }
        assert!(cache.shards.get().unwrap()[0].0.read().slots.len() <= 8);
    }

    #[test]
    fn what_goes_is_given_back() {
        let budget = ChecksumBudget::new(3 * WINDOW);
        let [first, second] = [ChecksumCache::new(&budget), ChecksumCache::new(&budget)];
        for window in 0..3 {
            first.insert(window, 0..WINDOW, &[1; WINDOW]);
        }
        second.insert(0, 0..WINDOW, &[2; WINDOW]);
        assert_eq!(known(&second, 0), None, "nothing is left");
        drop(first);
        second.insert(0, 0..WINDOW, &[2; WINDOW]);
        assert_eq!(known(&second, 0), Some(2));
        second.clear();
        assert_eq!(budget.windows_left.load(Ordering::Relaxed), 3);
    }
}

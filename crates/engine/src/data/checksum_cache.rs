//! A cache of an open file's data checksums, filled from the tree in large runs.
//!
//! Owns [`ChecksumCache`] and [`ChecksumBudget`]. The cache holds *windows*: [`WINDOW`] bytes of
//! the checksums of consecutive sectors, by address.
//!
//! Invariants:
//! - A checksum stays the same for as long as the file refers to the sector. A thread that changes
//!   the file's extents clears the cache before other threads may read there.
//! - A reader holds the file's data lock shared, and looks up or fills in only sectors of the file,
//!   which do not change meanwhile.
//! - A window may also hold checksums of neighbouring sectors that the file does not refer to. The
//!   tree that they came from is pinned, which keeps other writers off these sectors. They are
//!   cleared before the file can refer to new data there.
//! - All caches of a file system together hold at most the budget's windows. Once the budget is
//!   spent, a new window replaces another one of the same file.
//!
//! Lock: each shard's own, for one look-up or insertion; never held during a walk of the tree.

use crate::data::checksum::DataChecksums;
use crate::errors::Result;
use papilio_format::{Geometry, LogicalAddress};
use papilio_locks::RwLock;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of checksums in a window: those of 4 MiB of data with CRC-32C and 4 KiB sectors.
pub(crate) const WINDOW: usize = 4096;
/// Initial slots of a shard.
const FIRST_SLOTS: usize = 4;
/// Shards of a cache. The lowest bits of a window's number select its shard.
const SHARDS: u64 = 8;

/// The memory that the cached checksums of all open files may take.
#[derive(Debug)]
pub(crate) struct ChecksumBudget {
    windows: usize,
    windows_left: AtomicUsize,
}

/// A range of the address space with the checksums of its sectors.
#[derive(Debug)]
struct Window {
    /// The number of the window in the address space.
    number: u64,
    /// The valid bytes of `checksums`.
    valid: Range<usize>,
    checksums: Box<[u8; WINDOW]>,
}

/// The cached checksums of one open file, by address.
#[derive(Debug)]
pub(crate) struct ChecksumCache {
    budget: Arc<ChecksumBudget>,
    /// Empty until the first insertion.
    shards: OnceLock<Box<[WindowShard; SHARDS as usize]>>,
}

/// One shard, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WindowShard(RwLock<WindowTable>);

/// The windows of a shard.
#[derive(Debug, Default)]
struct WindowTable {
    /// Direct-mapped slots, a power of two or none. The bits above the shard's select a window's
    /// slot.
    slots: Vec<Option<Window>>,
    /// The number of occupied slots.
    held: usize,
}

/// The position of a sector's checksum.
#[derive(Clone, Copy)]
struct Position {
    window: u64,
    /// Bytes from the window's start.
    at: usize,
}

impl Position {
    fn of(logical: LogicalAddress, geometry: &Geometry) -> Self {
        // The sizes of sectors and checksums are powers of two.
        let sector = logical.0 >> geometry.sector_size.trailing_zeros();
        let byte = sector << geometry.checksum_type.size().trailing_zeros();
        Self { window: byte / WINDOW as u64, at: (byte % WINDOW as u64) as usize }
    }
}

impl ChecksumBudget {
    /// Creates a budget of `bytes` bytes of checksums.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { windows: bytes / WINDOW, windows_left: AtomicUsize::new(bytes / WINDOW) })
    }

    /// Returns the bytes in use.
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

    fn release(&self, windows: usize) {
        self.windows_left.fetch_add(windows, Ordering::Relaxed);
    }
}

impl ChecksumCache {
    /// Creates an empty cache.
    pub(crate) fn new(budget: &Arc<ChecksumBudget>) -> Self {
        Self { budget: Arc::clone(budget), shards: OnceLock::new() }
    }

    /// Copies the cached checksums of the sectors from `logical` on into `checksums`, as many as
    /// are cached without a gap and fit. Returns the number of bytes copied.
    pub(crate) fn copy(&self, logical: LogicalAddress, geometry: &Geometry, checksums: &mut [u8]) -> usize {
        let position = Position::of(logical, geometry);
        let Some(shards) = self.shards.get() else { return 0 };
        let table = shards[(position.window % SHARDS) as usize].0.read();
        let Some(window) = table.find(position.window) else { return 0 };
        if !window.valid.contains(&position.at) {
            return 0;
        }
        let length = (window.valid.end - position.at).min(checksums.len());
        // A four-byte checksum is one load and one store; `copy_from_slice` of variable length is a
        // call.
        match (&window.checksums[position.at..][..length], &mut checksums[..length]) {
            ([a, b, c, d], [e, f, g, h]) => (*e, *f, *g, *h) = (*a, *b, *c, *d),
            (from, to) => to.copy_from_slice(from),
        }
        length
    }

    /// Fills the cache with the checksums around `logical` from the tree. The caller holds the
    /// file's data lock shared.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub(crate) fn fill(
        &self,
        logical: LogicalAddress,
        geometry: &Geometry,
        tree: &mut DataChecksums<'_>,
    ) -> Result<()> {
        let position = Position::of(logical, geometry);
        let size = geometry.checksum_type.size();
        let start = LogicalAddress(logical.0 - (position.at / size) as u64 * u64::from(geometry.sector_size));
        let mut checksums = [0; WINDOW];
        // The run of checksums that contains the sector's own.
        let mut valid = 0..0;
        tree.for_each_run(start, WINDOW / size, |first, count, found| {
            match found {
                Some(found) => {
                    checksums[first * size..][..found.len()].copy_from_slice(found);
                    valid.end = first * size + found.len();
                }
                None if first * size > position.at => return false,
                None => valid = (first + count) * size..(first + count) * size,
            }
            true
        })?;
        if valid.contains(&position.at) {
            self.insert(position.window, valid, &checksums);
        }
        Ok(())
    }

    fn insert(&self, number: u64, valid: Range<usize>, checksums: &[u8; WINDOW]) {
        let shards = self.shards.get_or_init(Box::default);
        let mut table = shards[(number % SHARDS) as usize].0.write();
        let Some(slot) = table.slot_for(number, self.budget.is_left()) else { return };
        match &mut table.slots[slot] {
            Some(kept) => {
                (kept.number, kept.valid) = (number, valid);
                kept.checksums.copy_from_slice(checksums);
            }
            empty => {
                if self.budget.take() {
                    *empty = Some(Window { number, valid, checksums: Box::new(*checksums) });
                    table.held += 1;
                }
            }
        }
    }

    /// Clears the cache, because the file's extents change.
    pub(crate) fn clear(&self) {
        for WindowShard(table) in self.shards.get().into_iter().flat_map(|shards| shards.iter()) {
            if table.read().held > 0 {
                let table = std::mem::take(&mut *table.write());
                self.budget.release(table.held);
            }
        }
    }
}

fn slot_of(number: u64, mask: usize) -> usize {
    (number / SHARDS) as usize & mask
}

impl WindowTable {
    fn find(&self, number: u64) -> Option<&Window> {
        let slot = slot_of(number, self.slots.len().checked_sub(1)?);
        self.slots[slot].as_ref().filter(|window| window.number == number)
    }

    /// Returns the slot for window `number`, which may hold another window. If it does, the table
    /// grows first, unless no further window `may_come` (the budget is spent) or fewer than a
    /// quarter of the slots are occupied.
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

    /// Returns the first byte of the checksum of sector 5 of a window, if it is cached.
    fn known(cache: &ChecksumCache, window: u64) -> Option<u8> {
        let mut checksums = [0; 8];
        let length = cache.copy(address(window, 5), &geometry(), &mut checksums);
        (length > 0).then(|| checksums[0])
    }

    #[test]
    fn only_valid_checksums_are_found() {
        let cache = cache(8);
        let mut checksums = [0; WINDOW];
        for (sector, sum) in checksums.chunks_exact_mut(4).enumerate() {
            sum.copy_from_slice(&(sector as u32).to_le_bytes());
        }
        cache.insert(7, 40..80, &checksums);
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
        // The budget is spent: new windows replace old ones, and none is added.
        for window in 2000..2200 {
            cache.insert(window, 0..WINDOW, &[window as u8; WINDOW]);
        }
        let shards = cache.shards.get().unwrap();
        let counts_what_it_holds = |table: &WindowTable| table.slots.iter().flatten().count() == table.held;
        assert!(shards.iter().all(|shard| counts_what_it_holds(&shard.0.read())));
        assert_eq!(shards.iter().map(|shard| shard.0.read().held).sum::<usize>(), 100);
        assert!(!cache.budget.take());
        let slots: usize = shards.iter().map(|shard| shard.0.read().slots.len()).sum();
        assert!(slots <= 512, "{slots}");
    }

    #[test]
    fn windows_far_apart_keep_the_table_small() {
        let cache = cache(100);
        for window in 0..50 {
            cache.insert(window << 30, 0..WINDOW, &[window as u8; WINDOW]);
            assert_eq!(known(&cache, window << 30), Some(window as u8));
        }
        assert!(cache.shards.get().unwrap()[0].0.read().slots.len() <= 8);
    }

    #[test]
    fn dropped_windows_return_to_the_budget() {
        let budget = ChecksumBudget::new(3 * WINDOW);
        let [first, second] = [ChecksumCache::new(&budget), ChecksumCache::new(&budget)];
        for window in 0..3 {
            first.insert(window, 0..WINDOW, &[1; WINDOW]);
        }
        second.insert(0, 0..WINDOW, &[2; WINDOW]);
        assert_eq!(known(&second, 0), None, "the budget is spent");
        drop(first);
        second.insert(0, 0..WINDOW, &[2; WINDOW]);
        assert_eq!(known(&second, 0), Some(2));
        second.clear();
        assert_eq!(budget.windows_left.load(Ordering::Relaxed), 3);
    }
}

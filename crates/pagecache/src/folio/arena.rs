//! Memory for folios: regions of anonymous memory with a buddy allocator.
//!
//! Owns the regions.
//! - They are mapped on demand, up to the cache's limit, with huge pages advised. They are unmapped
//!   when the cache is dropped.
//! - Records live as long as their region. A lookup without a lock may therefore touch the record
//!   of a folio that has just been freed.
//! - A free block of order k is aligned to 2^k pages within its region and linked into the list of
//!   its order. Two free buddies are merged.
//! - Magazines of single pages cache recently freed pages in front of the allocator, chosen by
//!   thread number. A thread that evicts a page and takes it again neither merges nor splits
//!   blocks.
//!
//! **Locks**, in order of acquisition:
//! - `mapping`: a thread that maps a region holds it, so that others can allocate meanwhile;
//! - the buddy allocator's;
//! - the magazines', all in ascending order to empty them; otherwise a magazine's lock is a leaf.
//!
//! Kernel counterpart: mm/page_alloc.c; a magazine is its `struct per_cpu_pages`.

use super::mapped::Mapped;
use super::record::{NONE, Record};
use crate::sync::{self, Mutex, Padded};
use crate::{MAX_ORDER, PAGE_SIZE};
use arrayvec::ArrayVec;
use papilio_locks::in_order;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Pages in a region: 32 MiB. Miri takes seconds to map as much.
const REGION_PAGES: u32 = if cfg!(miri) { 1024 } else { 8192 };
const ORDERS: usize = MAX_ORDER as usize + 1;
/// Number of magazines in a cache.
const MAGAZINES: usize = if cfg!(feature = "shuttle") { 2 } else { 8 };
/// Capacity of a magazine in pages: twice the eviction batch.
const MAGAZINE: usize = if cfg!(feature = "shuttle") { 2 } else { 64 };

type Magazine = ArrayVec<u32, MAGAZINE>;

/// All regions of a cache.
pub(crate) struct Arena {
    regions: Box<[OnceLock<Region>]>,
    pages: u32,
    huge_pages: bool,
    buddy: Padded<Mutex<Buddy>>,
    magazines: [Padded<Mutex<Magazine>>; MAGAZINES],
    /// Number of regions mapped; changed under `mapping`.
    mapped: AtomicUsize,
    mapping: Mutex<()>,
}

/// The first free block of each order.
struct Buddy {
    free: [u32; ORDERS],
}

struct Region {
    records: Box<[Record]>,
    memory: Mapped,
}

impl Arena {
    /// Creates an arena of at most `pages` pages, none mapped yet.
    pub fn new(pages: u32, huge_pages: bool) -> Self {
        Self {
            regions: (0..pages.div_ceil(REGION_PAGES)).map(|_| OnceLock::new()).collect(),
            pages,
            huge_pages,
            buddy: Padded(Mutex::new(Buddy { free: [NONE; ORDERS] })),
            magazines: std::array::from_fn(|_| Padded(Mutex::new(ArrayVec::new()))),
            mapped: AtomicUsize::new(0),
            mapping: Mutex::new(()),
        }
    }

    /// Returns the record of a page in a mapped region.
    #[inline]
    pub fn record(&self, id: u32) -> &Record {
        let region = self.regions[(id / REGION_PAGES) as usize].get();
        &region.expect("a page's number comes from a region that is mapped").records
            [(id % REGION_PAGES) as usize]
    }

    /// Starts loading a page's bytes from `offset` on; the hardware prefetcher loads the rest.
    #[inline]
    pub fn prefetch(&self, id: u32, offset: usize) {
        let Some(region) = self.regions[(id / REGION_PAGES) as usize].get() else { return };
        region.memory.prefetch((id % REGION_PAGES) as usize * PAGE_SIZE + offset);
    }

    /// Allocates a block of this order, or of the largest smaller order available. Returns `None`
    /// if no page is left or the kernel refuses memory.
    pub fn allocate(&self, order: u8) -> Option<(u32, u8)> {
        loop {
            // Read before searching: if another thread maps a region after the search, search
            // again.
            let seen = self.mapped.load(Acquire);
            if order == 0
                && let Some(id) = sync::lock(self.magazine()).pop()
            {
                return Some((id, 0));
            }
            if let Some(id) = self.take(&mut sync::lock(&self.buddy), order) {
                return Some((id, order));
            }
            if let Some(id) = self.take_from_all(order) {
                return Some((id, order));
            }
            if !self.map_region(seen) {
                break;
            }
        }
        (0..order).rev().find_map(|order| Some((self.take_from_all(order)?, order)))
    }

    /// Frees blocks, given by first page and order.
    pub fn free(&self, blocks: impl IntoIterator<Item = (u32, u8)>) {
        let mut blocks = blocks.into_iter();
        let mut next = blocks.next();
        {
            let mut magazine = sync::lock(self.magazine());
            while let Some((id, 0)) = next
                && magazine.try_push(id).is_ok()
            {
                next = blocks.next();
            }
        }
        if next.is_some() {
            let mut buddy = sync::lock(&self.buddy);
            for (id, order) in next.into_iter().chain(blocks) {
                self.put(&mut buddy, id, order);
            }
        }
    }

    /// Returns this thread's magazine.
    fn magazine(&self) -> &Mutex<Magazine> {
        &self.magazines[sync::thread_number() % MAGAZINES]
    }

    /// Empties all magazines and allocates a block. If it finds none, none was free at some moment.
    fn take_from_all(&self, order: u8) -> Option<u32> {
        let mut buddy = sync::lock(&self.buddy);
        // Hold all locks at once, so that no page moves from an unvisited magazine to a visited
        // one.
        let _order = in_order("magazines ascending, under the allocator's lock");
        let mut magazines: ArrayVec<_, MAGAZINES> =
            self.magazines.iter().map(|magazine| sync::lock(magazine)).collect();
        for id in magazines.iter_mut().flat_map(|magazine| magazine.drain(..)) {
            self.put(&mut buddy, id, 0);
        }
        self.take(&mut buddy, order)
    }

    fn take(&self, buddy: &mut Buddy, order: u8) -> Option<u32> {
        let found = (order..=MAX_ORDER).find(|order| buddy.free[usize::from(*order)] != NONE)?;
        let id = buddy.free[usize::from(found)];
        self.unlink(buddy, id, found);
        for half in (order..found).rev() {
            self.link(buddy, id + (1 << half), half);
        }
        Some(id)
    }

    /// Links a block into its list, merged with its buddy as long as that is free.
    fn put(&self, buddy: &mut Buddy, mut id: u32, mut order: u8) {
        while order < MAX_ORDER {
            let other = id ^ (1 << order);
            let region_end = (id / REGION_PAGES * REGION_PAGES).saturating_add(REGION_PAGES).min(self.pages);
            if other + (1 << order) > region_end
                || self.record(other).buddy.load(Relaxed) != u32::from(order) + 1
            {
                break;
            }
            self.unlink(buddy, other, order);
            id &= !(1 << order);
            order += 1;
        }
        self.link(buddy, id, order);
    }

    fn link(&self, buddy: &mut Buddy, id: u32, order: u8) {
        let head = &mut buddy.free[usize::from(order)];
        let record = self.record(id);
        record.next.store(*head, Relaxed);
        record.previous.store(NONE, Relaxed);
        record.buddy.store(u32::from(order) + 1, Relaxed);
        if *head != NONE {
            self.record(*head).previous.store(id, Relaxed);
        }
        *head = id;
    }

    fn unlink(&self, buddy: &mut Buddy, id: u32, order: u8) {
        let record = self.record(id);
        let (next, previous) = (record.next.load(Relaxed), record.previous.load(Relaxed));
        record.buddy.store(0, Relaxed);
        if next != NONE {
            self.record(next).previous.store(previous, Relaxed);
        }
        if previous == NONE {
            buddy.free[usize::from(order)] = next;
        } else {
            self.record(previous).next.store(next, Relaxed);
        }
    }

    /// Maps one more region unless another thread has mapped one since `seen` were. Returns false
    /// if all are mapped or the kernel refuses.
    fn map_region(&self, seen: usize) -> bool {
        let _mapping = sync::lock(&self.mapping);
        let mapped = self.mapped.load(Acquire);
        if mapped > seen {
            return true;
        }
        if mapped == self.regions.len() {
            return false;
        }
        let first = mapped as u32 * REGION_PAGES;
        let pages = (self.pages - first).min(REGION_PAGES);
        let Ok(memory) = Mapped::new(pages as usize * PAGE_SIZE, self.huge_pages) else { return false };
        let record = |page: u32| {
            // SAFETY: the page lies in the mapping.
            let data = unsafe { memory.base().add(page as usize * PAGE_SIZE) };
            Record::new(first + page, data)
        };
        let records = (0..pages).map(record).collect();
        let region = self.regions[mapped].set(Region { records, memory });
        assert!(region.is_ok(), "regions are mapped one after the other");
        // Link the largest blocks from the end backwards, so that the first pages are used first.
        let mut buddy = sync::lock(&self.buddy);
        let mut end = pages;
        while end > 0 {
            let order = (end.trailing_zeros() as u8).min(MAX_ORDER);
            end -= 1 << order;
            self.link(&mut buddy, first + end, order);
        }
        drop(buddy);
        self.mapped.store(mapped + 1, Release);
        true
    }

    /// Returns the number of bytes mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.regions.iter().map_while(OnceLock::get).map(|region| region.memory.bytes() as u64).sum()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_reusable() {
        let arena = Arena::new(REGION_PAGES + 777, false);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut taken: Vec<(u32, u8)> = Vec::new();
        let mut used = vec![false; (REGION_PAGES + 777) as usize];
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            if rng.u8(..5) < 3 {
                let Some((id, order)) = arena.allocate(rng.u8(..10)) else { continue };
                assert_eq!(id % (1 << order), 0);
                for page in id..id + (1 << order) {
                    assert!(
                        !std::mem::replace(&mut used[page as usize], true),
                        "page {page} is allocated twice"
                    );
                }
                taken.push((id, order));
            } else if !taken.is_empty() {
                let (id, order) = taken.swap_remove(rng.usize(..taken.len()));
                used[id as usize..(id + (1 << order)) as usize].fill(false);
                arena.free([(id, order)]);
            }
        }
        for (id, order) in taken {
            arena.free([(id, order)]);
        }
        let mut largest = 0;
        while let Some((_, MAX_ORDER)) = arena.allocate(MAX_ORDER) {
            largest += 1;
        }
        assert_eq!(largest, (REGION_PAGES + 777) >> MAX_ORDER, "all buddies were merged again");
    }

    #[test]
    fn allocation_drains_other_threads_magazines() {
        let arena = Arena::new(2 << MAX_ORDER, false);
        let pages: Vec<u32> = std::iter::from_fn(|| Some(arena.allocate(0)?.0)).collect();
        assert_eq!(pages.len(), 2 << MAX_ORDER);
        // Each thread keeps some freed pages in its magazine.
        std::thread::scope(|scope| {
            for part in pages.chunks(MAGAZINE / 2) {
                let arena = &arena;
                scope.spawn(move || arena.free(part.iter().map(|id| (*id, 0))));
            }
        });
        assert_eq!(arena.allocate(MAX_ORDER).map(|(_, order)| order), Some(MAX_ORDER));
        let rest: usize = std::iter::from_fn(|| arena.allocate(0)).count();
        assert_eq!(rest, 1 << MAX_ORDER, "every page is free exactly once");
    }

    #[test]
    fn every_page_is_allocated_before_exhaustion() {
        let arena = Arena::new(1000, true);
        let mut pages = 0;
        while let Some((id, order)) = arena.allocate(5) {
            pages += 1u32 << order;
            let data = arena.record(id).data;
            // SAFETY: the block is ours and nobody else refers to it.
            unsafe { data.as_ptr().write_bytes(7, PAGE_SIZE << order) };
        }
        assert_eq!(pages, 1000);
        assert_eq!(arena.mapped_bytes(), 1000 * PAGE_SIZE as u64);
    }
}

//! Memory for folios: regions of anonymous memory, with a buddy allocator in them.
//!
//! Owns the regions. They are mapped as they are needed, up to the cache's limit, huge pages advised, and unmapped when the
//! cache goes; their records are never given back before that, so that a look-up without a lock may touch a record whose
//! folio has just been freed. A free block of order k is aligned to 2^k pages within its region and heads a list of its
//! order; two halves that are both free are joined. In front of it are magazines of single pages, which threads share by
//! their numbers: what one evicts it takes again, and neither joins it to its neighbour nor cuts it off.
//!
//! Locks: the allocator's, under which all magazines' are taken, in their order, to empty them; a magazine's alone is a leaf.
//! Regions are mapped under a lock of their own, before these, so that allocation does not wait for the kernel.
//!
//! Kernel counterpart: mm/page_alloc.c; a magazine is its `struct per_cpu_pages`.

use super::record::{NONE, Record};
use crate::processor::prefetch_address;
use crate::sync::{self, Mutex, Padded};
use crate::{MAX_ORDER, PAGE_SIZE};
use arrayvec::ArrayVec;
use papilio_locks::in_order;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Pages of a region: 32 MiB.
const REGION_PAGES: u32 = 8192;
/// Bytes that are prefetched of a page; with a few lines, the processor sees where it goes.
const PREFETCHED: usize = 256;
/// Size and alignment of a huge page.
const HUGE_PAGE: usize = PAGE_SIZE << MAX_ORDER;
const ORDERS: usize = MAX_ORDER as usize + 1;
/// Magazines of a cache.
const MAGAZINES: usize = if cfg!(feature = "shuttle") { 2 } else { 8 };
/// Pages that a magazine holds: twice what is evicted at a time.
const MAGAZINE: usize = if cfg!(feature = "shuttle") { 2 } else { 64 };

type Magazine = ArrayVec<u32, MAGAZINE>;

/// All regions of a cache.
pub(crate) struct Arena {
    regions: Box<[OnceLock<Region>]>,
    pages: u32,
    huge_pages: bool,
    buddy: Padded<Mutex<Buddy>>,
    magazines: [Padded<Mutex<Magazine>>; MAGAZINES],
    /// Regions that are mapped; changed under `mapping`.
    mapped: AtomicUsize,
    mapping: Mutex<()>,
}

/// First free block of each order.
struct Buddy {
    free: [u32; ORDERS],
}

struct Region {
    records: Box<[Record]>,
    memory: Mapped,
}

/// Anonymous memory.
struct Mapped {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address of memory that belongs to the process, not to a thread.
unsafe impl Send for Mapped {}
// SAFETY: `&Mapped` gives nothing but the address.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `bytes`, a multiple of the page size; from a huge page on aligned to one. All bytes are 0.
    fn new(bytes: usize, huge_pages: bool) -> rustix::io::Result<Self> {
        let slack = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes + slack,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?
        .cast::<u8>();
        let skip = if slack == 0 { 0 } else { start.align_offset(HUGE_PAGE) };
        // SAFETY: both ends lie in the mapping just made, outside of the part that is kept, and nobody knows of them.
        unsafe {
            if skip > 0 {
                munmap(start.cast(), skip)?;
            }
            if slack > skip {
                munmap(start.add(skip + bytes).cast(), slack - skip)?;
            }
        }
        // SAFETY: `skip` is at most the slack, so this lies in the mapping.
        let base = unsafe { start.add(skip) };
        let advice = if huge_pages { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: advice on huge pages changes no contents. A kernel without them refuses it, and the memory serves as well.
        let _ = unsafe { madvise(base.cast(), bytes, advice) };
        Ok(Self { base: NonNull::new(base).expect("the kernel maps nothing at 0"), bytes })
    }

    /// Begins to load some cache lines from `offset` on.
    #[inline]
    fn prefetch(&self, offset: usize) {
        for line in (offset..self.bytes.min(offset + PREFETCHED)).step_by(64) {
            // SAFETY: the byte lies in the mapping.
            prefetch_address(unsafe { self.base.add(line) });
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and with the arena goes the last that could refer to it: every folio in use keeps the
        // cache alive.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Arena {
    /// An arena of at most `pages` pages, none mapped yet.
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

    /// The record of a page that is mapped.
    #[inline]
    pub fn record(&self, id: u32) -> &Record {
        let region = self.regions[(id / REGION_PAGES) as usize].get();
        &region.expect("a page's number comes from a region that is mapped").records
            [(id % REGION_PAGES) as usize]
    }

    /// Begins to load a page's bytes from `offset` on; whoever copies them finds the rest of them by itself.
    #[inline]
    pub fn prefetch(&self, id: u32, offset: usize) {
        let Some(region) = self.regions[(id / REGION_PAGES) as usize].get() else { return };
        region.memory.prefetch((id % REGION_PAGES) as usize * PAGE_SIZE + offset);
    }

    /// Takes a block of this order, or of the largest smaller one that is left. `None`: no page is left, or the kernel
    /// gives no memory.
    pub fn allocate(&self, order: u8) -> Option<(u32, u8)> {
        loop {
            // Counted before: if another maps one after this look at the lists, look again.
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

    /// Gives blocks back: first page and order of each.
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

    /// This thread's magazine.
    fn magazine(&self) -> &Mutex<Magazine> {
        &self.magazines[sync::thread_number() % MAGAZINES]
    }

    /// Takes a block after the magazines have been emptied: if there is none, there was none at some time.
    fn take_from_all(&self, order: u8) -> Option<u32> {
        let mut buddy = sync::lock(&self.buddy);
        // All at once, so that no page goes from one that has not been looked at to one that has.
        let _order = in_order("magazines, as they lie, and only under the allocator's lock");
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

    /// Puts a block on its list, joined with its other half as often as that is free.
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

    /// Maps one more region, unless another has since there were `seen`; false when all are mapped or the kernel refuses.
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
            let data = unsafe { memory.base.add(page as usize * PAGE_SIZE) };
            Record::new(first + page, data)
        };
        let records = (0..pages).map(record).collect();
        let region = self.regions[mapped].set(Region { records, memory });
        assert!(region.is_ok(), "regions are mapped one after the other");
        // Largest blocks first, from the end, so that the first pages are used first.
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

    /// Bytes mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.regions.iter().map_while(OnceLock::get).map(|region| region.memory.bytes as u64).sum()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_come_back() {
        let arena = Arena::new(REGION_PAGES + 777, false);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut taken: Vec<(u32, u8)> = Vec::new();
        let mut used = vec![false; (REGION_PAGES + 777) as usize];
        for _ in 0..20_000 {
            if rng.u8(..5) < 3 {
                let Some((id, order)) = arena.allocate(rng.u8(..10)) else { continue };
                assert_eq!(id % (1 << order), 0);
                for page in id..id + (1 << order) {
                    assert!(!std::mem::replace(&mut used[page as usize], true), "page {page} is taken twice");
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
        assert_eq!(largest, (REGION_PAGES + 777) >> MAX_ORDER, "all halves were joined again");
    }

    #[test]
    fn what_others_have_in_their_magazines_is_found() {
        let arena = Arena::new(2 << MAX_ORDER, false);
        let pages: Vec<u32> = std::iter::from_fn(|| Some(arena.allocate(0)?.0)).collect();
        assert_eq!(pages.len(), 2 << MAX_ORDER);
        // Each thread keeps some of what it gives back.
        std::thread::scope(|scope| {
            for part in pages.chunks(MAGAZINE / 2) {
                let arena = &arena;
                scope.spawn(move || arena.free(part.iter().map(|id| (*id, 0))));
            }
        });
        assert_eq!(arena.allocate(MAX_ORDER).map(|(_, order)| order), Some(MAX_ORDER));
        let rest: usize = std::iter::from_fn(|| arena.allocate(0)).count();
        assert_eq!(rest, 1 << MAX_ORDER, "every page is there once");
    }

    #[test]
    fn every_page_is_used_before_none_is_left() {
        let arena = Arena::new(1000, true);
        let mut pages = 0;
        while let Some((id, order)) = arena.allocate(5) {
            pages += 1u32 << order;
            let data = arena.record(id).data;
            // SAFETY: the block is ours and nobody else knows of it.
            unsafe { data.as_ptr().write_bytes(7, PAGE_SIZE << order) };
        }
        assert_eq!(pages, 1000);
        assert_eq!(arena.mapped_bytes(), 1000 * PAGE_SIZE as u64);
    }
}

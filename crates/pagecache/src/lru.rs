//! The LRU lists of folios, active and inactive, in shards.
//!
//! Owns the links in the records and the counts of pages. A new folio goes to the head of the
//! inactive list, or of the active one if it comes back soon after its eviction. Reclaim decides
//! about the folios at the tails. A hit touches no list.
//!
//! The shard of a folio follows from its address: stretches of [`STRETCH`] pages are assigned to
//! shards in turn. So each shard holds a proportional part of all pages, old and new. Reclaim
//! visits the shards in turn and evicts in about the order of a single list. A cache with few
//! stretches has one shard.
//!
//! **Locks**: shards' locks are leaves, and no thread holds two.
//!
//! Kernel counterpart: `struct lruvec`, one for each node and memory cgroup.

use crate::folio::arena::Arena;
use crate::folio::record::{NONE, Record, flag};
use crate::processor::prefetch;
use crate::sync::{self, Mutex, MutexGuard, Padded};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Consecutive pages that belong to one shard; at least the largest folio.
#[cfg(not(feature = "shuttle"))]
pub(crate) const STRETCH: u32 = 1 << crate::MAX_ORDER;
/// Smaller under shuttle, so that its tiny caches have several shards.
#[cfg(feature = "shuttle")]
pub(crate) const STRETCH: u32 = 8;
/// Smallest number of stretches per shard, so that shards have about the same size.
const STRETCHES: u32 = 2;
/// Largest number of shards.
const SHARDS: u32 = 8;

/// The lists of a cache.
pub(crate) struct Lrus {
    shards: Box<[Padded<Mutex<Lru>>]>,
    /// The shard at which the next evictor starts.
    turn: Padded<AtomicU32>,
}

impl Lrus {
    /// Creates the lists for a cache of at most `pages`.
    pub fn new(pages: u32) -> Self {
        let wanted = (pages / STRETCH / STRETCHES).clamp(1, SHARDS);
        let shards = 1 << wanted.ilog2();
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(Lru::new()))).collect(),
            turn: Padded::default(),
        }
    }

    /// Returns the number of shards, a power of two.
    pub fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Locks the shard of a folio.
    pub fn lock_of(&self, record: &Record) -> MutexGuard<'_, Lru> {
        self.lock(record.id / STRETCH)
    }

    /// Locks a shard; numbers wrap around.
    pub fn lock(&self, number: u32) -> MutexGuard<'_, Lru> {
        sync::lock(&self.shards[(number & (self.shards() - 1)) as usize])
    }

    /// Returns the shard at which the next evictor starts.
    pub fn next_turn(&self) -> u32 {
        self.turn.fetch_add(1, Relaxed)
    }

    /// Returns the pages on each list and the folios on both, summed over the shards one by one.
    pub fn count(&self) -> ([u64; 2], u64) {
        let (mut pages, mut folios) = ([0; 2], 0);
        for number in 0..self.shards() {
            let lru = self.lock(number);
            pages = [pages[0] + lru.pages[0], pages[1] + lru.pages[1]];
            folios += lru.folios();
        }
        (pages, folios)
    }
}

/// One of a shard's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Inactive = 0,
    Active = 1,
}

/// Both lists of a shard.
pub(crate) struct Lru {
    head: [u32; 2],
    tail: [u32; 2],
    /// Number of 4 KiB pages on each list.
    pub pages: [u64; 2],
    /// Number of refaulted pages for which the active list still has to shrink.
    pub pressure: u64,
    /// Number of folios on each list.
    folios: [u64; 2],
}

impl Lru {
    pub fn new() -> Self {
        Self { head: [NONE; 2], tail: [NONE; 2], pages: [0; 2], pressure: 0, folios: [0; 2] }
    }

    /// Returns the number of folios on both lists.
    pub fn folios(&self) -> u64 {
        self.folios.iter().sum()
    }

    /// Returns the oldest folio of a list.
    pub fn tail<'a>(&self, arena: &'a Arena, list: List) -> Option<&'a Record> {
        let id = self.tail[list as usize];
        (id != NONE).then(|| arena.record(id))
    }

    /// Starts loading the record of the folio that was added to a list after this one.
    pub fn prefetch_before(&self, arena: &Arena, record: &Record) {
        let id = record.previous.load(Relaxed);
        if id != NONE {
            prefetch(arena.record(id));
        }
    }

    /// Returns the list that a folio is on.
    pub fn list_of(&self, record: &Record) -> List {
        if record.has(flag::ACTIVE) { List::Active } else { List::Inactive }
    }

    /// Puts a folio at the head of a list. The caller has a reference.
    pub fn add(&mut self, arena: &Arena, record: &Record, list: List) {
        self.link(arena, record, list);
        record.set(flag::LRU);
    }

    /// Takes a folio off its list. The caller has a reference, or dropped the last.
    pub fn remove(&mut self, arena: &Arena, record: &Record) {
        self.unlink(arena, record);
        record.clear(flag::LRU);
    }

    /// Moves a folio to the head of a list. LRU stays set throughout: a thread that frees the folio
    /// concurrently tests the flag without the lock and must see it.
    pub fn rotate(&mut self, arena: &Arena, record: &Record, to: List) {
        self.unlink(arena, record);
        self.link(arena, record, to);
    }

    fn link(&mut self, arena: &Arena, record: &Record, list: List) {
        let which = list as usize;
        let head = self.head[which];
        record.previous.store(NONE, Relaxed);
        record.next.store(head, Relaxed);
        if head == NONE {
            self.tail[which] = record.id;
        } else {
            arena.record(head).previous.store(record.id, Relaxed);
        }
        self.head[which] = record.id;
        self.pages[which] += record.pages();
        self.folios[which] += 1;
        if record.has(flag::ACTIVE) != (list == List::Active) {
            match list {
                List::Active => record.set(flag::ACTIVE),
                List::Inactive => record.clear(flag::ACTIVE),
            };
        }
    }

    fn unlink(&mut self, arena: &Arena, record: &Record) {
        let which = self.list_of(record) as usize;
        let (next, previous) = (record.next.load(Relaxed), record.previous.load(Relaxed));
        match previous {
            NONE => self.head[which] = next,
            _ => arena.record(previous).next.store(next, Relaxed),
        }
        match next {
            NONE => self.tail[which] = previous,
            _ => arena.record(next).previous.store(previous, Relaxed),
        }
        self.pages[which] -= record.pages();
        self.folios[which] -= 1;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
    fn stretches_alternate_between_shards() {
        let pages = 16 * STRETCH;
        let arena = Arena::new(pages, false);
        let lrus = Lrus::new(pages);
        assert_eq!(lrus.shards(), 8);
        for _ in 0..pages {
            let (id, _) = arena.allocate(0).expect("the arena has enough pages");
            let record = arena.record(id);
            lrus.lock_of(record).add(&arena, record, List::Inactive);
        }
        assert_eq!(lrus.count(), ([u64::from(pages), 0], u64::from(pages)));
        for shard in 0..8 {
            assert_eq!(lrus.lock(shard).pages[0], u64::from(pages / 8));
            assert_eq!(lrus.lock(shard + 8).folios(), u64::from(pages / 8), "numbers wrap around");
        }
    }

    #[test]
    fn a_small_cache_has_one_shard() {
        assert_eq!(Lrus::new(16).shards(), 1);
        assert_eq!(Lrus::new(4 * STRETCH - 1).shards(), 1);
        assert_eq!(Lrus::new(4 * STRETCH).shards(), 2);
        assert_eq!(Lrus::new(u32::MAX / 2).shards(), 8);
    }
}

//! The lists of folios by age: active and inactive, in shards.
//!
//! Owns the links in the records and the counts of pages. A new folio goes to the head of the inactive list, one that
//! comes back soon after its eviction to the active one's; what to do at the tails is reclaim's. A hit touches no list.
//!
//! A folio is in the shard of its memory: stretches of [`STRETCH`] pages belong to the shards by turns, so that each shard
//! has its part of whatever is in the cache, old and new, and reclaim, which goes round them, takes the oldest about as one
//! list would. A cache of few stretches has one shard. Shards' locks are leaves; nobody holds two. Kernel
//! counterpart: `struct lruvec`, one for each node and memory cgroup.

use crate::folio::arena::Arena;
use crate::folio::record::{NONE, Record, flag};
use crate::processor::prefetch;
use crate::sync::{self, Mutex, MutexGuard, Padded};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that belong to a shard together; no smaller than the largest folio.
#[cfg(not(feature = "shuttle"))]
pub(crate) const STRETCH: u32 = 1 << crate::MAX_ORDER;
/// The same where caches are tiny, so that these have shards too.
#[cfg(feature = "shuttle")]
pub(crate) const STRETCH: u32 = 8;
/// Stretches that each shard has at least, so that shards are of about one size.
const STRETCHES: u32 = 2;
/// Shards at most.
const SHARDS: u32 = 8;

/// The lists of a cache.
pub(crate) struct Lrus {
    shards: Box<[Padded<Mutex<Lru>>]>,
    /// Where reclaim looks next.
    turn: Padded<AtomicU32>,
}

impl Lrus {
    /// Of a cache of at most `pages`.
    pub fn new(pages: u32) -> Self {
        let wanted = (pages / STRETCH / STRETCHES).clamp(1, SHARDS);
        let shards = 1 << wanted.ilog2();
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(Lru::new()))).collect(),
            turn: Padded::default(),
        }
    }

    /// How many shards there are: a power of two.
    pub fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The shard of a folio, locked.
    pub fn lock_of(&self, record: &Record) -> MutexGuard<'_, Lru> {
        self.lock(record.id / STRETCH)
    }

    /// A shard, locked; numbers go round.
    pub fn lock(&self, number: u32) -> MutexGuard<'_, Lru> {
        sync::lock(&self.shards[(number & (self.shards() - 1)) as usize])
    }

    /// The shard to begin with for who evicts next.
    pub fn next_turn(&self) -> u32 {
        self.turn.fetch_add(1, Relaxed)
    }

    /// Pages and folios on both lists of all shards, one shard after the other.
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

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Inactive = 0,
    Active = 1,
}

/// Both lists of a shard.
pub(crate) struct Lru {
    head: [u32; 2],
    tail: [u32; 2],
    /// 4 KiB pages on each.
    pub pages: [u64; 2],
    /// Pages that came back early and wait for room on the active list.
    pub pressure: u64,
    /// Folios on each.
    folios: [u64; 2],
}

impl Lru {
    pub fn new() -> Self {
        Self { head: [NONE; 2], tail: [NONE; 2], pages: [0; 2], pressure: 0, folios: [0; 2] }
    }

    /// Folios on both.
    pub fn folios(&self) -> u64 {
        self.folios.iter().sum()
    }

    /// The oldest folio of a list.
    pub fn tail<'a>(&self, arena: &'a Arena, list: List) -> Option<&'a Record> {
        let id = self.tail[list as usize];
        (id != NONE).then(|| arena.record(id))
    }

    /// Begins to load the folio that was added to a list after this one.
    pub fn prefetch_before(&self, arena: &Arena, record: &Record) {
        let id = record.previous.load(Relaxed);
        if id != NONE {
            prefetch(arena.record(id));
        }
    }

    /// The list that a folio is on.
    pub fn list_of(&self, record: &Record) -> List {
        if record.has(flag::ACTIVE) { List::Active } else { List::Inactive }
    }

    /// Puts a folio at the head of a list. The caller has a reference.
    pub fn add(&mut self, arena: &Arena, record: &Record, list: List) {
        self.link(arena, record, list);
        record.set(flag::LRU);
    }

    /// Takes a folio off its list. The caller has a reference, or has taken the last.
    pub fn remove(&mut self, arena: &Arena, record: &Record) {
        self.unlink(arena, record);
        record.clear(flag::LRU);
    }

    /// Moves a folio to the head of a list. It may be about to be freed: then whoever frees it looks, without the lock,
    /// whether it is on a list, and must see that it is.
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
    fn shards_have_stretches_by_turns() {
        let pages = 16 * STRETCH;
        let arena = Arena::new(pages, false);
        let lrus = Lrus::new(pages);
        assert_eq!(lrus.shards(), 8);
        for _ in 0..pages {
            let (id, _) = arena.allocate(0).expect("there are as many");
            let record = arena.record(id);
            lrus.lock_of(record).add(&arena, record, List::Inactive);
        }
        assert_eq!(lrus.count(), ([u64::from(pages), 0], u64::from(pages)));
        for shard in 0..8 {
            assert_eq!(lrus.lock(shard).pages[0], u64::from(pages / 8));
            assert_eq!(lrus.lock(shard + 8).folios(), u64::from(pages / 8), "numbers go round");
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

//! The lists of folios by age: active and inactive.
//!
//! Owns the links in the records and the counts of pages. A new folio goes to the head of the inactive list, one that
//! comes back soon after its eviction to the active one's; what to do at the tails is reclaim's. A hit touches no list. The
//! lists' lock is a leaf.

use crate::folio::arena::Arena;
use crate::folio::record::{NONE, Record, flag};
use std::sync::atomic::Ordering::Relaxed;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Inactive = 0,
    Active = 1,
}

/// Both lists.
pub(crate) struct Lru {
    head: [u32; 2],
    tail: [u32; 2],
    /// 4 KiB pages on each.
    pub pages: [u64; 2],
    /// Pages that came back early and wait for room on the active list.
    pub pressure: u64,
    /// Folios on each.
    pub folios: [u64; 2],
}

impl Lru {
    pub fn new() -> Self {
        Self { head: [NONE; 2], tail: [NONE; 2], pages: [0; 2], pressure: 0, folios: [0; 2] }
    }

    /// The oldest folio of a list.
    pub fn tail<'a>(&self, arena: &'a Arena, list: List) -> Option<&'a Record> {
        let id = self.tail[list as usize];
        (id != NONE).then(|| arena.record(id))
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

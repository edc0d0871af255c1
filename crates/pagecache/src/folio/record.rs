//! The 64-byte record kept for each page of the arena. The record of a folio's first page describes
//! the folio.
//!
//! Owns the flags and the reference count. Each field has its own rule for changes:
//!
//! | field | changed by |
//! |---|---|
//! | `refs` | anyone who holds a reference; from 0 by the allocator only; from 2 to 0 by eviction under the tree's lock |
//! | `mapping`, `index` | under the tree's lock of the mapping that the folio joins or leaves |
//! | `flags` | anyone, by atomic or/and; UPTODATE under the content lock; DIRTY and WRITEBACK under the tree's lock; LRU and ACTIVE under the LRU shard's lock |
//! | `blocks`, `runs` | under the tree's lock |
//! | `next`, `previous` | under the LRU shard's lock while on a list, under the buddy allocator's while free |
//! | `buddy` | under the buddy allocator's lock |
//! | `lock` | see `lock.rs` |

use crate::sync::{AtomicU32, AtomicU64};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32 as PlainU32, AtomicU64 as PlainU64, fence};

/// Flags of a folio; the lowest four bits are its order.
pub(crate) mod flag {
    /// The contents are the file's.
    pub const UPTODATE: u32 = 1 << 4;
    /// At least one block is dirty.
    pub const DIRTY: u32 = 1 << 5;
    /// At least one block is under writeback.
    pub const WRITEBACK: u32 = 1 << 6;
    /// Accessed once since the last examination.
    pub const REFERENCED: u32 = 1 << 7;
    /// Accessed at least twice since the last examination.
    pub const HOT: u32 = 1 << 8;
    /// Inserted again soon after its eviction.
    pub const WORKINGSET: u32 = 1 << 9;
    /// On the active list, if on a list at all.
    pub const ACTIVE: u32 = 1 << 10;
    /// On an LRU list.
    pub const LRU: u32 = 1 << 11;
    /// A thread waits for WRITEBACK to clear.
    pub const WRITEBACK_WAITERS: u32 = 1 << 12;
}

/// No record.
pub(crate) const NONE: u32 = u32::MAX;
/// Number of blocks whose dirty bits fit in one record. The records of a folio's further pages hold
/// the bits of further blocks.
pub(crate) const BLOCKS_PER_RECORD: u32 = u64::BITS;

/// The record of a page.
#[repr(align(64))]
pub(crate) struct Record {
    pub refs: AtomicU32,
    pub flags: AtomicU32,
    pub lock: AtomicU32,
    /// Number of writeback runs that hold blocks of the folio.
    pub runs: PlainU32,
    pub next: PlainU32,
    pub previous: PlainU32,
    /// Order + 1 while it heads a free block, else 0.
    pub buddy: PlainU32,
    /// Number of the page in the arena.
    pub id: u32,
    /// Number of the mapping, 0 if none.
    pub mapping: AtomicU64,
    pub index: AtomicU64,
    /// Dirty bits, one per block.
    pub blocks: PlainU64,
    pub data: NonNull<u8>,
}

#[cfg(not(feature = "shuttle"))]
const _: () = assert!(size_of::<Record>() == 64);

// SAFETY: `data` is an address that never changes. The memory there is accessed only under the
// content lock.
unsafe impl Send for Record {}
// SAFETY: as above, and all other changing fields are atomic.
unsafe impl Sync for Record {}

impl Record {
    /// Creates the record of a free page.
    pub fn new(id: u32, data: NonNull<u8>) -> Self {
        Self {
            refs: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            lock: AtomicU32::new(0),
            runs: PlainU32::new(0),
            next: PlainU32::new(NONE),
            previous: PlainU32::new(NONE),
            buddy: PlainU32::new(0),
            id,
            mapping: AtomicU64::new(0),
            index: AtomicU64::new(0),
            blocks: PlainU64::new(0),
            data,
        }
    }

    #[inline]
    pub fn order(&self) -> u8 {
        (self.flags.load(Acquire) & 15) as u8
    }

    /// Returns the number of 4 KiB pages of the folio.
    pub fn pages(&self) -> u64 {
        1 << self.order()
    }

    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        self.flags.load(Acquire) & flags != 0
    }

    /// Sets flags; returns the flags before.
    pub fn set(&self, flags: u32) -> u32 {
        self.flags.fetch_or(flags, AcqRel)
    }

    /// Clears flags; returns the flags before.
    pub fn clear(&self, flags: u32) -> u32 {
        self.flags.fetch_and(!flags, AcqRel)
    }

    /// Notes an access: the first sets REFERENCED, the second HOT, and further ones write nothing.
    #[inline]
    pub fn accessed(&self) {
        let flags = self.flags.load(Relaxed);
        if flags & flag::HOT == 0 {
            self.set(if flags & flag::REFERENCED == 0 { flag::REFERENCED } else { flag::HOT });
        }
    }

    /// Takes a reference unless there is none left: the folio is then free or about to be.
    #[inline]
    pub fn try_get(&self) -> bool {
        let mut refs = self.refs.load(Relaxed);
        while refs != 0 {
            match self.refs.compare_exchange_weak(refs, refs + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => refs = now,
            }
        }
        false
    }

    /// Drops a reference. Returns true if it was the last: the caller then frees the folio.
    #[inline]
    pub fn put(&self) -> bool {
        if self.refs.fetch_sub(1, Release) == 1 {
            fence(Acquire);
            return true;
        }
        false
    }

    /// Takes the count from `expected` to 0 in one step, so that nobody can acquire a reference.
    pub fn freeze(&self, expected: u32) -> bool {
        self.refs.compare_exchange(expected, 0, AcqRel, Relaxed).is_ok()
    }
}

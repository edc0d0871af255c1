//! The content lock of a folio, and the table in which threads wait for a folio.
//!
//! Owns 32 bits of a record: the number of readers, a bit for a writer, a bit for waiters.
//! - An uncontended lock or unlock is one atomic operation.
//! - Waiters sleep in a table shared by all folios, as in the kernel's `folio_wait_table`.
//! - A new thread does not overtake waiters while the lock is held, so readers do not starve a
//!   writer.
//! - A thread may release a lock that another thread acquired.
//!
//! **Locks**: the table's mutexes are leaves.

use super::record::{Record, flag};
use crate::sync::{self, Condvar, Mutex};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const WRITER: u32 = 1 << 31;
const SLEEPERS: u32 = 1 << 30;
const HELD: u32 = !SLEEPERS;

/// The lock word of a folio that is locked exclusively.
pub(crate) const LOCKED: u32 = WRITER;

#[cfg(not(feature = "shuttle"))]
const BUCKETS: usize = 64;
#[cfg(feature = "shuttle")]
const BUCKETS: usize = 2;

/// Wait queues, hashed by the folio's number.
pub(crate) struct WaitTable {
    buckets: [Bucket; BUCKETS],
}

#[repr(align(64))]
struct Bucket {
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl WaitTable {
    pub fn new() -> Self {
        Self { buckets: std::array::from_fn(|_| Bucket { mutex: Mutex::new(()), condvar: Condvar::new() }) }
    }

    fn bucket(&self, id: u32) -> &Bucket {
        &self.buckets[(id.wrapping_mul(0x9E37_79B9) >> 16) as usize % BUCKETS]
    }

    /// Sleeps until `done` returns true. Calls it before each sleep, with the bucket's mutex held.
    pub fn wait_until(&self, id: u32, mut done: impl FnMut() -> bool) {
        let bucket = self.bucket(id);
        let mut guard = sync::lock(&bucket.mutex);
        while !done() {
            guard = sync::wait(&bucket.condvar, guard);
        }
    }

    /// Wakes the waiters of this folio. Waiters of other folios in the bucket go back to sleep.
    pub fn wake(&self, id: u32) {
        let bucket = self.bucket(id);
        drop(sync::lock(&bucket.mutex));
        bucket.condvar.notify_all();
    }
}

impl Record {
    #[inline]
    pub fn try_lock_shared(&self) -> bool {
        let mut word = self.lock.load(Relaxed);
        while word & (WRITER | SLEEPERS) == 0 {
            match self.lock.compare_exchange_weak(word, word + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    #[inline]
    pub fn lock_shared(&self, waits: &WaitTable) {
        if !self.try_lock_shared() {
            // Waiters go first. But if the lock is free, nobody would wake this thread.
            self.lock_slow(waits, 1, |word| word & WRITER == 0 && (word & SLEEPERS == 0 || word & HELD == 0));
        }
    }

    #[inline]
    pub fn try_lock_exclusive(&self) -> bool {
        self.lock.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok()
    }

    #[inline]
    pub fn lock_exclusive(&self, waits: &WaitTable) {
        if !self.try_lock_exclusive() {
            self.lock_slow(waits, WRITER, |word| word & HELD == 0);
        }
    }

    #[inline]
    pub fn unlock_shared(&self, waits: &WaitTable) {
        let before = self.lock.fetch_sub(1, Release);
        if before == SLEEPERS | 1 {
            self.wake_lockers(waits);
        }
    }

    #[inline]
    pub fn unlock_exclusive(&self, waits: &WaitTable) {
        let before = self.lock.fetch_and(!WRITER, Release);
        if before & SLEEPERS != 0 {
            self.wake_lockers(waits);
        }
    }

    #[cold]
    fn lock_slow(&self, waits: &WaitTable, add: u32, free: impl Fn(u32) -> bool) {
        waits.wait_until(self.id, || {
            let mut word = self.lock.load(Relaxed);
            loop {
                let (want, taken) = if free(word) { (word + add, true) } else { (word | SLEEPERS, false) };
                match self.lock.compare_exchange_weak(word, want, Acquire, Relaxed) {
                    Ok(_) => return taken,
                    Err(now) => word = now,
                }
            }
        });
    }

    #[cold]
    fn wake_lockers(&self, waits: &WaitTable) {
        // Every waiter set the bit before it slept, and sets it again if it has to keep waiting.
        self.lock.fetch_and(!SLEEPERS, Relaxed);
        waits.wake(self.id);
    }

    /// Waits until WRITEBACK is clear.
    pub fn wait_writeback(&self, waits: &WaitTable) {
        if !self.has(flag::WRITEBACK) {
            return;
        }
        waits.wait_until(self.id, || {
            let flags = self.flags.load(Acquire);
            if flags & flag::WRITEBACK == 0 {
                return true;
            }
            // Either WRITEBACK is still set after this and the thread that clears it sees the
            // waiter, or this thread sees it clear.
            self.set(flag::WRITEBACK_WAITERS) & flag::WRITEBACK == 0
        });
    }

    /// Clears WRITEBACK and wakes its waiters.
    pub fn end_writeback(&self, waits: &WaitTable) {
        if self.clear(flag::WRITEBACK | flag::WRITEBACK_WAITERS) & flag::WRITEBACK_WAITERS != 0 {
            waits.wake(self.id);
        }
    }
}

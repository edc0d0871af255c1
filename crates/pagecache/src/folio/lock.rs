//! The content lock of a folio, and where threads sleep that wait for a folio.
//!
//! Owns 32 bits of a record: the number of readers, a bit for a writer, a bit for sleepers. Uncontended, locking is one
//! atomic operation. Sleepers sleep in a table shared by all folios, as in the kernel's `folio_wait_table`; a newcomer
//! does not overtake them while the lock is held, so that readers do not starve a writer. A lock may be released by another
//! thread than the one that took it. The table's mutexes are leaves: nothing is locked under them.

use super::record::Record;
use crate::sync::{self, Condvar, Mutex};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const WRITER: u32 = 1 << 31;
const SLEEPERS: u32 = 1 << 30;
const HELD: u32 = !SLEEPERS;

/// The word of a lock that is held exclusively.
pub(crate) const LOCKED: u32 = WRITER;

#[cfg(not(feature = "shuttle"))]
const BUCKETS: usize = 64;
#[cfg(feature = "shuttle")]
const BUCKETS: usize = 2;

/// Where threads sleep, by the folio's number.
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

    /// Sleeps until `done`, which is asked before each sleep, with the bucket's mutex held.
    pub fn wait_until(&self, id: u32, mut done: impl FnMut() -> bool) {
        let bucket = self.bucket(id);
        let mut guard = sync::lock(&bucket.mutex);
        while !done() {
            guard = sync::wait(&bucket.condvar, guard);
        }
    }

    /// Wakes those who wait for this folio (and others of its bucket, who go back to sleep).
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
            // Sleepers come first, but when nobody holds the lock nobody would wake us.
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
        // Whoever sleeps set the bit before; it sets it again if it has to go on sleeping.
        self.lock.fetch_and(!SLEEPERS, Relaxed);
        waits.wake(self.id);
    }
}

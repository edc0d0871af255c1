//! The lock between readers and changers of a file's data, in shards.
//!
//! Owns [`DataLock`].
//!
//! Invariants:
//! - A shared holder holds one shard. An exclusive holder holds all of them, locked in index order.
//! - A request in flight holds the lock shared without a thread ([`DataLock::enter`]).
//! - No thread takes the lock twice, shared or not. Its rank is that of one lock (see
//!   [`super::open_inode`]).
//!
//! A thread's number selects its shard, so that readers on several cores mostly use different cache
//! lines. An exclusive holder pays for that with a few more locks, little beside a flush or a
//! change of extents.
//!
//! Kernel counterparts: the inode's lock (`btrfs_inode_lock`, `fs/btrfs/inode.c`), which the
//! kernel's buffered readers do not take; `include/linux/percpu-rwsem.h`, a lock that counts
//! readers by processor.

use crate::data::in_flight::InFlight;
use arrayvec::ArrayVec;
use papilio_locks::{RwLock, RwLockReadGuard, RwLockWriteGuard, in_order, might_write};
use papilio_pagecache::thread_number;
use std::sync::OnceLock;

/// Shards of a lock.
const SHARDS: usize = 8;

/// One shard, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LockShard(RwLock<()>);

/// The lock on an open file's data.
#[derive(Debug, Default)]
pub(super) struct DataLock {
    /// Empty until it is first locked.
    shards: OnceLock<Box<[LockShard; SHARDS]>>,
    /// Requests that hold the lock shared without a thread.
    in_flight: InFlight,
}

/// The lock held shared.
#[derive(Debug)]
pub(super) struct SharedData<'a> {
    _shard: RwLockReadGuard<'a, ()>,
}

/// The lock held exclusively.
#[derive(Debug)]
pub(super) struct ExclusiveData<'a> {
    _shards: ArrayVec<RwLockWriteGuard<'a, ()>, SHARDS>,
}

impl DataLock {
    #[inline]
    fn shards(&self) -> &[LockShard; SHARDS] {
        self.shards.get_or_init(Box::default)
    }

    /// Locks it shared.
    #[inline]
    pub(super) fn read(&self) -> SharedData<'_> {
        SharedData { _shard: self.shards()[thread_number() % SHARDS].0.read() }
    }

    /// As [`DataLock::read`], but returns `None` instead of waiting.
    pub(super) fn try_read(&self) -> Option<SharedData<'_>> {
        Some(SharedData { _shard: self.shards()[thread_number() % SHARDS].0.try_read()? })
    }

    /// Lets a request hold the lock shared after its thread has released it.
    pub(super) fn enter(&self, _held: &SharedData<'_>) {
        self.in_flight.enter();
    }

    /// Ends what [`DataLock::enter`] began.
    pub(super) fn leave(&self) {
        self.in_flight.leave();
    }

    /// Locks it exclusively. Waits for requests in flight, too.
    pub(super) fn write(&self) -> ExclusiveData<'_> {
        let shards = self.shards();
        might_write(&shards[0].0);
        let _order = in_order("the shards of a data lock, by index");
        let exclusive = ExclusiveData { _shards: shards.iter().map(|shard| shard.0.write()).collect() };
        self.in_flight.drain();
        exclusive
    }

    /// As [`DataLock::write`], but returns `None` instead of waiting.
    pub(super) fn try_write(&self) -> Option<ExclusiveData<'_>> {
        let shards = self.shards().iter().map(|shard| shard.0.try_write()).collect::<Option<_>>()?;
        self.in_flight.is_empty().then_some(ExclusiveData { _shards: shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn exclusive_lock_excludes_everyone() {
        let lock = DataLock::default();
        // Two counters that are equal while no thread changes them.
        let counts = [AtomicU64::new(0), AtomicU64::new(0)];
        let both = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _alone = lock.write();
                        let [first, second] = both();
                        counts[0].store(first + 1, Ordering::Relaxed);
                        std::thread::yield_now();
                        counts[1].store(second + 1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _shared = lock.read();
                        let [first, second] = both();
                        assert_eq!(first, second);
                    }
                });
            }
        });
        assert_eq!(both(), [6_000; 2]);
    }

    #[test]
    fn try_write_fails_while_the_lock_is_held() {
        let lock = DataLock::default();
        std::thread::scope(|scope| {
            for _ in 0..SHARDS {
                scope.spawn(|| {
                    let shared = lock.read();
                    assert!(lock.try_write().is_none());
                    drop(shared);
                });
            }
        });
        let alone = lock.try_write().expect("no thread holds it");
        assert!(lock.try_write().is_none());
        drop(alone);
        assert!(lock.try_write().is_some(), "failed attempts released their shards");
    }
}

//! The lock that keeps who changes a file's data apart from who reads it, in shards.
//!
//! Owns [`DataLock`]. Invariant: who shares it holds one shard, who has it alone holds all of them, taken in their
//! order. Which shard a thread shares goes by its number, so that readers on several cores mostly count themselves in
//! different cache lines; who changes data pays with a few locks more, beside a flush or a change of extents. The rank is the
//! one lock's that it stands for (see [`super::open_inodes`]): no thread takes it twice, shared or not.
//!
//! Kernel counterpart: the inode's lock (`btrfs_inode_lock`, `fs/btrfs/inode.c`), which its buffered readers do not take; a lock
//! whose readers count by processor is `include/linux/percpu-rwsem.h`.

use arrayvec::ArrayVec;
use papilio_locks::{RwLock, RwLockReadGuard, RwLockWriteGuard, in_order, might_write};
use papilio_pagecache::thread_number;

/// Shards of a lock.
const SHARDS: usize = 8;

/// In cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<()>);

/// The lock on an open file's data.
#[derive(Debug, Default)]
pub(super) struct DataLock {
    shards: [Shard; SHARDS],
}

/// Held shared.
#[derive(Debug)]
pub(super) struct SharedData<'a> {
    _shard: RwLockReadGuard<'a, ()>,
}

/// Held alone.
#[derive(Debug)]
pub(super) struct ExclusiveData<'a> {
    _shards: ArrayVec<RwLockWriteGuard<'a, ()>, SHARDS>,
}

impl DataLock {
    /// Shares it: waits for who has it alone.
    #[inline]
    pub(super) fn read(&self) -> SharedData<'_> {
        SharedData { _shard: self.shards[thread_number() % SHARDS].0.read() }
    }

    /// Takes it alone: waits for all others.
    pub(super) fn write(&self) -> ExclusiveData<'_> {
        might_write(&self.shards[0].0);
        let _order = in_order("a lock's shards, as they lie");
        ExclusiveData { _shards: self.shards.iter().map(|shard| shard.0.write()).collect() }
    }

    /// As [`DataLock::write`], if nobody has it.
    pub(super) fn try_write(&self) -> Option<ExclusiveData<'_>> {
        let shards = self.shards.iter().map(|shard| shard.0.try_write()).collect::<Option<_>>()?;
        Some(ExclusiveData { _shards: shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn who_has_it_alone_is_alone() {
        let lock = DataLock::default();
        // Two counters that are equal whenever nobody is changing them.
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
    fn it_is_tried_only_where_nobody_has_it() {
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
        let alone = lock.try_write().expect("nobody has it");
        assert!(lock.try_write().is_none());
        drop(alone);
        assert!(lock.try_write().is_some(), "what was tried was let go of");
    }
}

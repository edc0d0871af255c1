//! Reads of tree blocks that are under way: one read for all threads that need a block.
//!
//! Owns [`BlockReads`], and [`without_waiting`], in whose scope a thread reads no block at all.
//!
//! **Invariants**
//! - At most one thread reads a block; others wait for it, then look into the cache again.
//! - A thread that waited once does not wait for the same block again: a cache too small to keep
//!   the block costs reads, not progress.
//!
//! **Locks**: `reading`, a leaf, held for one operation on the list. A thread that waits holds no
//! lock of this module; the reader needs none that a waiter may hold.
//!
//! Kernel counterparts: `EXTENT_BUFFER_READING` (`fs/btrfs/extent_io.c`), `path->nowait`
//! (`fs/btrfs/ctree.c`).

use papilio_format::LogicalAddress;
use papilio_locks::{Class, Condvar, Held, Mutex};
use std::cell::Cell;

thread_local! {
    /// Whether this thread must not wait for a device now.
    static NO_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, in which a tree block that is not cached is an error
/// ([`BlockFault::NotCached`](crate::BlockFault::NotCached)). `work` must not change anything.
pub(crate) fn without_waiting<R>(work: impl FnOnce() -> R) -> R {
    /// Restores the scope outside, also after a panic.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            NO_WAIT.set(self.0);
        }
    }
    let _restore = Restore(NO_WAIT.replace(true));
    work()
}

/// Returns whether this thread is in the scope of [`without_waiting`].
pub(super) fn must_not_wait() -> bool {
    NO_WAIT.get()
}

/// The blocks that are being read.
#[derive(Debug, Default)]
pub(super) struct BlockReads {
    /// Few at a time: one for each thread that reads.
    reading: Mutex<Vec<LogicalAddress>>,
    /// Notified when a read has ended.
    ended: Condvar,
}

/// The lock-order class of a block's reader, whom others wait for.
static READING: Class = Class::new("tree-block:reading");

/// The right to read a block, until it drops.
pub(super) struct Reading<'r> {
    reads: &'r BlockReads,
    _held: Held,
    address: LogicalAddress,
}

impl BlockReads {
    /// Returns the right to read the block, or `None` after another thread has read it.
    pub(super) fn begin(&self, address: LogicalAddress) -> Option<Reading<'_>> {
        READING.might_wait(self);
        let mut reading = self.reading.lock();
        if !reading.contains(&address) {
            reading.push(address);
            return Some(Reading { reads: self, _held: READING.tried(self), address });
        }
        while reading.contains(&address) {
            self.ended.wait(&mut reading);
        }
        None
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.reads.reading.lock().retain(|address| *address != self.address);
        self.reads.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn one_thread_at_a_time_reads_a_block() {
        const BLOCKS: usize = 50;
        let reads = BlockReads::default();
        let busy: [AtomicBool; BLOCKS] = [const { AtomicBool::new(false) }; BLOCKS];
        let read: [AtomicBool; BLOCKS] = [const { AtomicBool::new(false) }; BLOCKS];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..20 * BLOCKS {
                        let number = round % BLOCKS;
                        match reads.begin(LogicalAddress(number as u64)) {
                            Some(_reading) => {
                                assert!(!busy[number].swap(true, Ordering::SeqCst), "two threads read it");
                                std::thread::yield_now();
                                read[number].store(true, Ordering::SeqCst);
                                busy[number].store(false, Ordering::SeqCst);
                            }
                            None => assert!(read[number].load(Ordering::SeqCst), "no thread has read it"),
                        }
                    }
                });
            }
        });
        assert!(reads.reading.lock().is_empty());
    }

    #[test]
    fn scope_ends_with_a_panic_too() {
        let panicked = std::panic::catch_unwind(|| without_waiting(|| panic!("planted")));
        assert!(panicked.is_err() && !must_not_wait());
        without_waiting(|| {
            assert!(must_not_wait());
            without_waiting(|| assert!(must_not_wait()));
            assert!(must_not_wait());
        });
        assert!(!must_not_wait());
    }
}

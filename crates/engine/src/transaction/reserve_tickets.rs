//! The queue of threads that found no space.
//!
//! Owns [`ReserveTickets`]. A thread that found no space commits, which frees what was removed, and
//! tries again. Without order, others could take each time what the commit freed, and a change that
//! fits would fail. So one thread at a time commits and tries again, and a change that begins
//! meanwhile waits for it.
//!
//! Lock: the queue's, before `commit`. Its holder waits for no lock of a file and begins no other
//! change. Kernel counterpart: `struct reserve_ticket` (`fs/btrfs/space-info.h`).

use papilio_locks::{Mutex, MutexGuard, might_lock};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The queue of threads that found no space.
#[derive(Debug, Default)]
pub(super) struct ReserveTickets {
    /// Threads that hold the queue, or wait for it because they found no space.
    waiting: AtomicUsize,
    queue: Mutex<()>,
}

/// The first place in the queue.
pub(super) struct First<'a> {
    reserve_tickets: &'a ReserveTickets,
    _queue: MutexGuard<'a, ()>,
}

impl ReserveTickets {
    /// Waits for the threads that found no space before.
    pub(super) fn wait(&self) {
        might_lock(&self.queue);
        if self.waiting.load(Ordering::Acquire) > 0 {
            drop(self.queue.lock());
        }
    }

    /// Waits for the first place, for a thread that found no space.
    pub(super) fn queue(&self) -> First<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        First { reserve_tickets: self, _queue: self.queue.lock() }
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        self.reserve_tickets.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

//! Requests whose I/O is in flight while no thread waits for it.
//!
//! Owns [`InFlight`], a count of such requests that hold something: a file's data lock or the
//! mount's `sharing` lock, shared. The thread that submitted them may be busy with something else.
//! A thread that waits for them to end therefore collects their completions itself, through
//! [`Collect`].
//!
//! Invariants:
//! - A request enters while its thread holds the lock shared, and leaves in any thread.
//! - [`InFlight::drain`] is called by a holder of the lock, exclusively: no request enters.
//! - Collecting takes no lock that a thread may hold while it waits here: no data lock, no
//!   transaction handle, no range.
//!
//! Locks: `QUEUES` for one look at the list; `LEFT` to sleep. Neither is held while completions are
//! collected. Kernel counterparts: `inode_dio_begin`, `inode_dio_wait` (`include/linux/fs.h`).

use papilio_locks::{Condvar, Mutex};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// How long a thread sleeps before it collects again.
const STEP: Duration = Duration::from_millis(1);

/// A queue whose completions any thread may collect.
pub trait Collect: Debug + Send + Sync {
    /// Returns whether this thread was the last to use the queue. While it waits for something
    /// else, no other thread collects.
    fn is_own(&self) -> bool;

    /// Ends the requests whose I/O is complete, without waiting. Returns whether any ended.
    fn collect_some(&self) -> bool;
}

/// The queues that may have requests in flight.
static QUEUES: LazyLock<Mutex<Vec<Weak<dyn Collect>>>> = LazyLock::new(Mutex::default);
/// Threads that wait for requests to end.
static WAITERS: AtomicUsize = AtomicUsize::new(0);
/// All requests in flight.
static ALL: AtomicUsize = AtomicUsize::new(0);
static LEFT: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);
static HAS_LEFT: Condvar = Condvar::new();

/// Adds a queue, until it is dropped.
pub fn register(queue: Weak<dyn Collect>) {
    let mut queues = QUEUES.lock();
    queues.retain(|queue| queue.strong_count() > 0);
    queues.push(queue);
}

/// Returns whether any request is in flight.
#[inline]
pub(crate) fn any() -> bool {
    ALL.load(Ordering::SeqCst) > 0
}

/// Ends requests whose I/O is complete, or sleeps for a moment. A thread that waits for something
/// that requests in flight hold calls it until it has it. It collects from its own queues at once,
/// and from those of other threads if these do not do so themselves within [`STEP`].
pub(crate) fn collect_or_sleep() {
    let queues: Vec<Arc<dyn Collect>> = QUEUES.lock().iter().filter_map(Weak::upgrade).collect();
    if queues.iter().any(|queue| queue.is_own() && queue.collect_some()) {
        return;
    }
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let slept = HAS_LEFT.wait_for(&mut LEFT.lock(), STEP);
    WAITERS.fetch_sub(1, Ordering::SeqCst);
    if slept.timed_out() {
        for queue in queues.iter().filter(|queue| !queue.is_own()) {
            queue.collect_some();
        }
    }
}

/// The number of requests in flight that hold one thing.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicUsize);

impl InFlight {
    /// Counts a request. The caller holds the lock shared.
    #[inline]
    pub(crate) fn enter(&self) {
        ALL.fetch_add(1, Ordering::SeqCst);
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a request.
    #[inline]
    pub(crate) fn leave(&self) {
        ALL.fetch_sub(1, Ordering::SeqCst);
        if self.0.fetch_sub(1, Ordering::SeqCst) == 1 && WAITERS.load(Ordering::SeqCst) > 0 {
            drop(LEFT.lock());
            HAS_LEFT.notify_all();
        }
    }

    /// Returns whether no request is in flight.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Waits until no request is in flight. The caller holds the lock exclusively.
    #[inline]
    pub(crate) fn drain(&self) {
        while !self.is_empty() {
            collect_or_sleep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Queue {
        of: Arc<InFlight>,
        collected: AtomicUsize,
    }

    impl Collect for Queue {
        fn is_own(&self) -> bool {
            false
        }

        fn collect_some(&self) -> bool {
            self.collected.fetch_add(1, Ordering::Relaxed);
            if self.of.is_empty() {
                return false;
            }
            self.of.leave();
            true
        }
    }

    #[test]
    fn a_thread_that_drains_collects_the_completions() {
        let queue = Arc::new(Queue::default());
        let weak: Weak<dyn Collect> = Arc::<Queue>::downgrade(&queue);
        register(weak);
        for _ in 0..3 {
            queue.of.enter();
        }
        assert!(any());
        queue.of.drain();
        assert!(queue.of.is_empty());
        assert!(queue.collected.load(Ordering::Relaxed) >= 3);
    }

    #[test]
    fn a_thread_that_drains_wakes_when_the_last_one_leaves() {
        let gate = InFlight::default();
        gate.enter();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| gate.drain());
            while WAITERS.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert!(!waiter.is_finished());
            gate.leave();
        });
        assert!(gate.is_empty());
    }
}

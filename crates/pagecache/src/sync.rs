//! The locks and atomics of this crate: those of papilio-locks and std, or shuttle's for model
//! checking.
//!
//! Owns that choice, and [`Padded`]. Data that is accessed only under a lock uses std's atomics in
//! both builds, so that the model checker explores only relevant interleavings.

#[cfg(not(feature = "shuttle"))]
mod real {
    pub use papilio_locks::{Condvar, Mutex, MutexGuard};
    pub use std::sync::atomic::{AtomicU32, AtomicU64};

    /// Acquires a mutex.
    #[cfg_attr(feature = "lock-order", track_caller)]
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Waits for a notification.
    #[cfg_attr(feature = "lock-order", track_caller)]
    pub fn wait<'a, T>(condvar: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(&mut guard);
        guard
    }

    /// Waits for a notification, at most for `timeout`.
    #[cfg_attr(feature = "lock-order", track_caller)]
    pub fn wait_for<'a, T>(
        condvar: &Condvar,
        mut guard: MutexGuard<'a, T>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        condvar.wait_for(&mut guard, timeout);
        guard
    }

    /// Yields the processor during a short wait.
    pub fn relax() {
        std::thread::yield_now();
    }

    /// Returns the number of this thread, assigned from 0 on at its first call. Per-thread shards
    /// of shared data are chosen by it, so that threads on different processors do not write the
    /// same cache line.
    #[inline]
    pub fn thread_number() -> usize {
        use std::cell::Cell;
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        NUMBER.with(|number| {
            if number.get() == usize::MAX {
                number.set(NEXT.fetch_add(1, Relaxed));
            }
            number.get()
        })
    }
}

#[cfg(feature = "shuttle")]
mod real {
    pub use shuttle::sync::atomic::{AtomicU32, AtomicU64};
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};

    /// Acquires a mutex.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no thread panicked with the lock held")
    }

    /// Waits for a notification.
    pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("no thread panicked with the lock held")
    }

    /// Waits for a notification; shuttle has no time.
    pub fn wait_for<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        wait(condvar, guard)
    }

    /// Yields the processor during a short wait.
    pub fn relax() {
        shuttle::thread::yield_now();
    }

    /// Returns the number of this thread.
    pub fn thread_number() -> usize {
        shuttle::current::me().into()
    }
}

pub use real::*;

/// A value in cache lines of its own, so that writes to it do not slow down readers of adjacent
/// data.
#[derive(Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

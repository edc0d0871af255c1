//! parking_lot's locks, which report waits, acquisitions and releases to [`order`](crate::order).
//!
//! They have only the methods of parking_lot that the other crates use. A guard releases its lock
//! before it reports the release.

use crate::order::{self, Held, Origin};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A mutex.
pub struct Mutex<T> {
    inner: parking_lot::Mutex<T>,
    origin: Origin,
}

/// A held mutex; dropping it releases the mutex.
pub struct MutexGuard<'a, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    held: Held,
}

/// A readers-writer lock.
pub struct RwLock<T> {
    inner: parking_lot::RwLock<T>,
    origin: Origin,
}

/// A shared hold on an [`RwLock`]; dropping it releases the lock.
pub struct RwLockReadGuard<'a, T> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// An exclusive hold on an [`RwLock`]; dropping it releases the lock.
pub struct RwLockWriteGuard<'a, T> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

impl<T> Mutex<T> {
    /// Makes a mutex, whose class is the caller's location in the source.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self { inner: parking_lot::Mutex::new(value), origin: Origin::here::<T>() }
    }

    /// Waits for the mutex and acquires it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        order::check_wait(self.origin.class(), address(self));
        let inner = self.inner.lock();
        MutexGuard { inner, held: order::acquired(self.origin.class(), address(self)) }
    }

    /// Acquires the mutex if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: order::acquired(self.origin.class(), address(self)) })
    }

    /// Returns the protected value, which needs no locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Unwraps the protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> RwLock<T> {
    /// Makes a lock, whose class is the caller's location in the source.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self { inner: parking_lot::RwLock::new(value), origin: Origin::here::<T>() }
    }

    /// Waits for the lock and acquires it shared.
    ///
    /// Reads are ordered like writes: a reader that waits for a writer that waits for a reader is a
    /// deadlock too.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        order::check_wait(self.origin.class(), address(self));
        let inner = self.inner.read();
        RwLockReadGuard { inner, _held: order::acquired(self.origin.class(), address(self)) }
    }

    /// Waits for the lock and acquires it exclusively.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        order::check_wait(self.origin.class(), address(self));
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _held: order::acquired(self.origin.class(), address(self)) }
    }

    /// Acquires the lock shared if that needs no waiting.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: order::acquired(self.origin.class(), address(self)) })
    }

    /// Acquires the lock exclusively if that needs no waiting.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _held: order::acquired(self.origin.class(), address(self)) })
    }

    /// Returns the protected value, which needs no locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Unwraps the protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl Condvar {
    /// Makes a condition variable without waiters.
    pub const fn new() -> Self {
        Self { inner: parking_lot::Condvar::new() }
    }

    /// Releases the mutex, waits to be woken, and acquires the mutex again.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let without = guard.held.without();
        self.inner.wait(&mut guard.inner);
        drop(without);
    }

    /// Like [`wait`](Self::wait), for at most `timeout`.
    #[track_caller]
    pub fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> parking_lot::WaitTimeoutResult {
        let without = guard.held.without();
        let result = self.inner.wait_for(&mut guard.inner, timeout);
        drop(without);
        result
    }

    /// Wakes one waiter; returns whether there was one.
    pub fn notify_one(&self) -> bool {
        self.inner.notify_one()
    }

    /// Wakes all waiters; returns how many there were.
    pub fn notify_all(&self) -> usize {
        self.inner.notify_all()
    }
}

/// Checks the order as if the thread acquired `mutex` here.
#[track_caller]
pub fn might_lock<T>(mutex: &Mutex<T>) {
    order::check_wait(mutex.origin.class(), address(mutex));
}

/// Checks the order as if the thread acquired `lock` shared here.
#[track_caller]
pub fn might_read<T>(lock: &RwLock<T>) {
    order::check_wait(lock.origin.class(), address(lock));
}

/// Checks the order as if the thread acquired `lock` exclusively here.
#[track_caller]
pub fn might_write<T>(lock: &RwLock<T>) {
    order::check_wait(lock.origin.class(), address(lock));
}

macro_rules! lock {
    ($($lock:ident)*) => {$(
        impl<T: Default> Default for $lock<T> {
            #[track_caller]
            fn default() -> Self {
                Self::new(T::default())
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $lock<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(f)
            }
        }
    )*};
}

macro_rules! guard {
    ($($guard:ident)*) => {$(
        impl<T> Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.inner
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(f)
            }
        }
    )*};
}

lock!(Mutex RwLock);
guard!(MutexGuard RwLockReadGuard RwLockWriteGuard);

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

//! parking_lot's locks, each of which tells [`order`](crate::order) when it is waited for, taken and let go of.
//!
//! Only what the other crates use of parking_lot's interface is here. A guard lets go of the lock before it says so.

use crate::order::{self, Held, Origin};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A mutex.
pub struct Mutex<T> {
    inner: parking_lot::Mutex<T>,
    origin: Origin,
}

/// A mutex is held.
pub struct MutexGuard<'a, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    held: Held,
}

/// A lock for readers and writers.
pub struct RwLock<T> {
    inner: parking_lot::RwLock<T>,
    origin: Origin,
}

/// A lock is held by a reader.
pub struct RwLockReadGuard<'a, T> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// A lock is held by a writer.
pub struct RwLockWriteGuard<'a, T> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

/// Where threads wait with a mutex.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

impl<T> Mutex<T> {
    /// A mutex of the class of this place in the source.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self { inner: parking_lot::Mutex::new(value), origin: Origin::here::<T>() }
    }

    /// Takes it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        order::waits(self.origin.class(), address(self));
        let inner = self.inner.lock();
        MutexGuard { inner, held: order::took(self.origin.class(), address(self)) }
    }

    /// Takes it if nobody has it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: order::took(self.origin.class(), address(self)) })
    }

    /// What is in it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// What was in it.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> RwLock<T> {
    /// A lock of the class of this place in the source.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self { inner: parking_lot::RwLock::new(value), origin: Origin::here::<T>() }
    }

    /// Takes it, beside other readers. A reader who waits for a writer who waits for a reader is a deadlock too: reading
    /// is ordered as writing is.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        order::waits(self.origin.class(), address(self));
        let inner = self.inner.read();
        RwLockReadGuard { inner, _held: order::took(self.origin.class(), address(self)) }
    }

    /// Takes it alone.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        order::waits(self.origin.class(), address(self));
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _held: order::took(self.origin.class(), address(self)) }
    }

    /// Takes it beside other readers, if that can be at once.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: order::took(self.origin.class(), address(self)) })
    }

    /// Takes it alone, if that can be at once.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _held: order::took(self.origin.class(), address(self)) })
    }

    /// What is in it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// What was in it.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl Condvar {
    /// Nobody waits yet.
    pub const fn new() -> Self {
        Self { inner: parking_lot::Condvar::new() }
    }

    /// Waits, without the mutex.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let without = guard.held.without();
        self.inner.wait(&mut guard.inner);
        drop(without);
    }

    /// Waits, without the mutex, at most this long.
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

    /// Wakes one who waits.
    pub fn notify_one(&self) -> bool {
        self.inner.notify_one()
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) -> usize {
        self.inner.notify_all()
    }
}

/// This mutex may be taken here.
#[track_caller]
pub fn might_lock<T>(mutex: &Mutex<T>) {
    order::waits(mutex.origin.class(), address(mutex));
}

/// This lock may be taken here, shared.
#[track_caller]
pub fn might_read<T>(lock: &RwLock<T>) {
    order::waits(lock.origin.class(), address(lock));
}

/// This lock may be taken here, exclusively.
#[track_caller]
pub fn might_write<T>(lock: &RwLock<T>) {
    order::waits(lock.origin.class(), address(lock));
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

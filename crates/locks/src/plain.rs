//! Locks whose order nobody checks: parking_lot's own, and nothing for what is no lock.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Something that is waited for and is no lock; see the feature `lock-order`.
#[derive(Debug)]
pub struct Class;

/// Something of a [`Class`] is held until this is dropped.
#[derive(Debug)]
pub struct Held;

impl Held {
    /// It is held no more; for what is not dropped.
    #[inline(always)]
    pub fn let_go(&self) {}
}

/// Until this is dropped, several of one class may be taken.
#[derive(Debug)]
pub struct InOrder;

impl Class {
    /// A class of that name; a thread has at most one of it.
    pub const fn new(_name: &'static str) -> Self {
        Self
    }

    /// A class of that name, of which a thread may have several; `_why` that cannot deadlock.
    pub const fn several(_name: &'static str, _why: &'static str) -> Self {
        Self
    }

    /// The one at this address is waited for, and then held.
    #[inline(always)]
    pub fn hold<T: ?Sized>(&self, _instance: &T) -> Held {
        Held
    }

    /// The one at this address is held, and was not waited for.
    #[inline(always)]
    pub fn tried<T: ?Sized>(&self, _instance: &T) -> Held {
        Held
    }

    /// The one at this address may be waited for here.
    #[inline(always)]
    pub fn might_wait<T: ?Sized>(&self, _instance: &T) {}
}

/// This mutex may be taken here.
#[inline(always)]
pub fn might_lock<T>(_mutex: &Mutex<T>) {}

/// This lock may be taken here, shared.
#[inline(always)]
pub fn might_read<T>(_lock: &RwLock<T>) {}

/// This lock may be taken here, exclusively.
#[inline(always)]
pub fn might_write<T>(_lock: &RwLock<T>) {}

/// From here on this thread takes several of one class; `_why` that cannot deadlock.
#[inline(always)]
pub fn in_order(_why: &'static str) -> InOrder {
    InOrder
}

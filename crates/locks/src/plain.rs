//! Locks without order checks: parking_lot's own, and empty stand-ins for the rest of the
//! interface.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A class of things that threads hold and wait for, other than locks; see the feature
/// `lock-order`.
#[derive(Debug)]
pub struct Class;

/// A record that something of a [`Class`] is held, until it is dropped.
#[derive(Debug)]
pub struct Held;

impl Held {
    /// Records the release, for an owner that cannot drop the record.
    #[inline(always)]
    pub fn release(&self) {}
}

/// Permission for the thread to acquire several locks of one class, until it is dropped.
#[derive(Debug)]
pub struct InOrder;

impl Class {
    /// Makes a class called `_name`, a single word. A thread holds at most one of the class.
    pub const fn new(_name: &'static str) -> Self {
        Self
    }

    /// Makes a class called `_name`, of which a thread may hold several; `_why` says why that
    /// cannot deadlock.
    pub const fn several(_name: &'static str, _why: &'static str) -> Self {
        Self
    }

    /// Checks the order of waiting for `_instance`, and records that the thread holds it.
    #[inline(always)]
    pub fn hold<T: ?Sized>(&self, _instance: &T) -> Held {
        Held
    }

    /// Records that the thread holds `_instance`, which it acquired without waiting.
    #[inline(always)]
    pub fn tried<T: ?Sized>(&self, _instance: &T) -> Held {
        Held
    }

    /// Checks the order as if the thread waited for `_instance` here.
    #[inline(always)]
    pub fn might_wait<T: ?Sized>(&self, _instance: &T) {}
}

/// Checks the order as if the thread acquired `_mutex` here.
#[inline(always)]
pub fn might_lock<T>(_mutex: &Mutex<T>) {}

/// Checks the order as if the thread acquired `_lock` shared here.
#[inline(always)]
pub fn might_read<T>(_lock: &RwLock<T>) {}

/// Checks the order as if the thread acquired `_lock` exclusively here.
#[inline(always)]
pub fn might_write<T>(_lock: &RwLock<T>) {}

/// Lets the thread acquire several locks of one class; `_why` says why that cannot deadlock.
#[inline(always)]
pub fn in_order(_why: &'static str) -> InOrder {
    InOrder
}

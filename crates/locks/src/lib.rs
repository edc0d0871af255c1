//! The locks of all crates: parking_lot's or, with the feature `lock-order`, locks that check their
//! order of acquisition.
//!
//! Owns the choice. Without the feature, every name here is parking_lot's own or an empty inline
//! function.
//!
//! With the feature, every lock belongs to a class: the locks that one expression of the source
//! makes. Before a thread waits for a lock, it adds an edge from the class of each lock that it
//! holds to the class of that lock. The graph of these edges covers the whole process
//! ([`mod@order`]). A thread panics, even where it would not block this time, and names the locks
//! held and where they were acquired, if
//!
//! - its edge would close a cycle;
//! - it already holds that lock;
//! - it holds another lock of the same class and is not inside [`in_order`].
//!
//! A `try_` method adds no edge to the lock that it acquires, because it does not wait.
//!
//! Code that waits for something other than a lock declares a [`Class`] for it, and calls
//! [`Class::hold`] and [`Class::might_wait`]. A function that acquires a lock only sometimes calls
//! [`might_lock`], [`might_read`] or [`might_write`] every time.
//!
//! If `PAPILIO_LOCK_ORDER` names a file, each new edge is appended to it in a form that tsort(1)
//! reads: see ARCHITECTURE.md. Kernel counterpart: `kernel/locking/lockdep.c`.

#![forbid(unsafe_code)]

#[cfg(feature = "lock-order")]
mod checked;
#[cfg(feature = "lock-order")]
mod order;
#[cfg(not(feature = "lock-order"))]
mod plain;
#[cfg(all(test, feature = "lock-order"))]
mod tests;

#[cfg(feature = "lock-order")]
pub use checked::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, might_lock, might_read,
    might_write,
};
#[cfg(feature = "lock-order")]
pub use order::{Class, Held, InOrder, in_order};
#[cfg(not(feature = "lock-order"))]
pub use plain::*;

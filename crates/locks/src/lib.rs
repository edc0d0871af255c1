//! The locks of all crates: parking_lot's, or with the feature `lock-order` ones that check the order they are taken in.
//!
//! Owns the choice. Without the feature every name here is parking_lot's own or an empty inline function. With it each
//! lock belongs to a class: what was made at one place in the source. Taking one while others are held notes edges from
//! their classes to its class in a graph of the whole process, before it is waited for; the thread whose edge closes a
//! cycle panics and says who held what, taken where, even if this time nobody waits ([`mod@order`], as the kernel's
//! lockdep). So do the thread that takes a lock it has, and the one that takes two of a class outside of [`in_order`].
//! A try makes no edge to what it takes: it does not wait.
//!
//! What is waited for and is no lock has a [`Class`] of its own, with [`Class::hold`] and [`Class::might_wait`]; what a
//! function takes only at times, it says with [`might_lock`] and the like each time.
//!
//! With `PAPILIO_LOCK_ORDER` set to a file's path, each edge is added to it when it is first met, in words that tsort
//! understands: see ARCHITECTURE.md. Kernel counterpart: `kernel/locking/lockdep.c`.

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

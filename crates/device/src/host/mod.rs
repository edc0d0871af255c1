//! Calls of the host, for those that only some hosts have.
//!
//! [`calls`] is one of two files with the same functions: those of Linux, and those of other hosts,
//! where direct I/O, holes, clones, hints and io_uring are not used. [`WakeFd`] wakes an event loop.
//!
//! **Locks**: none.

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
pub(crate) mod calls;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
pub(crate) mod calls;
mod wake;

pub use wake::WakeFd;

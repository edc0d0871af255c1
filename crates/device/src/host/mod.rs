//! Calls of the host, for those that only some hosts have.
//!
//! [`calls`] is one of two files with the same functions: those of Linux, and those of other hosts,
//! which do without direct I/O, holes, clones and hints. [`WakeFd`] wakes an event loop.
//!
//! **Locks**: none.

#[cfg(not(target_os = "linux"))]
pub(crate) mod elsewhere;
#[cfg(target_os = "linux")]
pub(crate) mod linux;
mod wake;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere as calls;
#[cfg(target_os = "linux")]
pub(crate) use linux as calls;

pub use wake::WakeFd;

//! Images on object stores and web servers, for reading.
//!
//! Owns [`RemoteDevice`]. The parts:
//! - `object`: one object of a store; a URL and the environment say which. It reads ranges.
//! - `disk_cache`: blocks of objects in files, shared by processes.
//! - `blocks`: which blocks of the object are in memory, on their way, or failed.
//! - `fetch`: brings absent blocks, many at a time.
//! - `readahead`: sequential streams of reads.
//! - `runtime`: the threads of all requests.
//! - `device`: [`RemoteDevice`], the [`Device`](papilio_device::Device) of all these.
//!
//! **Invariants**
//! - All bytes of a device are of one state of the object. Each request names the ETag that the
//!   object had when it was opened, and each answer is checked for it.
//! - Nothing is ever written to a store.
//! - The memory and the files of cached blocks have bounds.

pub(crate) mod blocks;
mod device;
pub(crate) mod disk_cache;
mod fetch;
pub(crate) mod object;
pub(crate) mod readahead;
mod runtime;

pub use device::{RemoteDevice, RemoteStatistics};
pub(crate) use {disk_cache::directory_name, disk_cache::root_of, runtime::runtime};

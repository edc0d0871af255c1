//! Images on object stores and web servers, for reading.
//!
//! Owns [`RemoteOptions`] and [`open`]. The parts:
//! - `object`: one object of a store; a URL and the environment say which. It reads ranges.
//! - `disk_cache`: blocks of objects in files, shared by processes.
//! - `blocks`: which blocks of the object are in memory, on their way, or failed.
//! - `fetch`: brings absent blocks, many at a time.
//! - `readahead`: sequential streams of reads.
//! - `runtime`: the threads of all requests.
//! - `device`: [`RemoteDevice`], the [`Device`](crate::Device) of all these.
//!
//! **Invariants**
//! - All bytes of a device are of one state of the object. Each request names the ETag that the
//!   object had when it was opened, and each answer is checked for it.
//! - Nothing is ever written to a store.
//! - The memory and the files of cached blocks have bounds.

#[cfg(feature = "remote")]
mod blocks;
#[cfg(feature = "remote")]
mod device;
#[cfg(feature = "remote")]
mod disk_cache;
#[cfg(feature = "remote")]
mod fetch;
#[cfg(feature = "remote")]
pub(crate) mod object;
#[cfg(feature = "remote")]
mod readahead;
#[cfg(feature = "remote")]
mod runtime;

#[cfg(feature = "remote")]
pub use device::{RemoteDevice, RemoteStatistics};
#[cfg(feature = "store")]
pub(crate) use {disk_cache::directory_name, disk_cache::root_of, runtime::runtime};

use std::path::PathBuf;
use std::time::Duration;

/// Where blocks that were fetched are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RemoteCache {
    /// `papilio/remote` in the user's cache directory: `$XDG_CACHE_HOME`, else `$HOME/.cache`. In
    /// memory only if neither is set.
    #[default]
    User,
    /// This directory, which is made if it is missing.
    Directory(PathBuf),
    /// In memory only.
    Memory,
}

/// How images at URLs are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The place of the cache on disk.
    pub cache: RemoteCache,
    /// The most bytes of the cache on disk, for all images together. The default is 1 GiB.
    pub cache_bytes: u64,
    /// The most bytes of an image's blocks in memory. The default is 64 MiB.
    pub memory_bytes: u64,
    /// The longest time that one attempt of a request may take. The default is 30 s.
    pub timeout: Duration,
    /// How often a request that a store throttled, failed or did not answer is sent again. The
    /// default is 5. The waits between attempts grow from 0.1 s to 5 s and are random.
    pub retries: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            cache: RemoteCache::User,
            cache_bytes: 1 << 30,
            memory_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            retries: 5,
        }
    }
}

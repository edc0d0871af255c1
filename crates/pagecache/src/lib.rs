//! A page cache for file systems in user space. It keeps file contents in memory within a byte
//! limit and finds them without a lock.
//!
//! Any number of files share a [`PageCache`]. Each has a [`Mapping`] from page numbers to
//! [`Folio`]s of 4 KiB to 2 MiB. The cache does no I/O: its user fills new folios and writes dirty
//! ones back.
//!
//! ```
//! use papilio_pagecache::{Dirty, Lookup, PAGE_SIZE, PageCache};
//!
//! let cache = PageCache::new(64 << 20);
//! let file = cache.mapping(257);
//!
//! // A read fills missing pages first.
//! let mut out = [0; 11];
//! if file.read(4096, &mut out) < out.len() {
//!     if let Lookup::Vacant(mut fill) = file.get_or_insert(1, 0)? {
//!         fill.fill(b'.'); // from the disk
//!         fill.finish();
//!     }
//!     assert_eq!(file.read(4096, &mut out), 11);
//! }
//!
//! // A write to a cached page.
//! let folio = file.get(1).expect("it has just been read");
//! let mut contents = folio.write().expect("it is up to date");
//! contents[..5].copy_from_slice(b"hello");
//! file.mark_dirty(&contents, 0..5).expect("it is still in the file");
//! drop(contents);
//!
//! // Writeback takes runs of adjacent blocks.
//! while let Some(run) = file.start_writeback(0..u64::MAX, 1 << 20, Dirty::Any) {
//!     assert_eq!(run.range(), 4096..8192);
//!     for bytes in run.slices() {
//!         assert_eq!(&bytes[..7], b"hello.."); // to the disk
//!     }
//!     run.finish();
//! }
//! # Ok::<(), papilio_pagecache::CacheError>(())
//! ```
//!
//! # Rules
//!
//! - **Locks** are acquired in this order: the caller's own; folios' content locks ([`FolioRead`],
//!   [`FolioWrite`], [`FolioFill`], [`WritebackRun`]), several only in ascending order of pages;
//!   then the locks inside this crate.
//! - **One lock per folio and thread**: a thread never locks a folio twice, not even to read it,
//!   because a waiting writer goes first. It does not truncate, discard, invalidate or write back a
//!   folio that it holds locked.
//! - **Contents** have any number of readers or one writer. A copy of 4 KiB into a folio and one
//!   out of it exclude each other. The caller makes a read of several folios atomic with respect to
//!   writes, if it needs that.
//! - **A folio's position** in the file is fixed while a [`FolioWrite`] exists: truncation waits,
//!   and reclaim skips folios that are in use or dirty. A plain [`Folio`] keeps only the memory
//!   alive.
//! - **The limit** bounds [`PageCache::bytes`] at all times: folios with 64 bytes each for their
//!   records, and tree nodes.
//! - **Dirty** is tracked per 4 KiB block, up to date per folio.
//!
//! # Inside
//!
//! - [`xarray`]: the tree from page numbers to folios and shadows;
//! - `folio`: memory, references and content locks; `mapping`: lookup and insertion; `dirty`:
//!   writeback; `remove`: truncation; `split`: splitting large folios;
//! - `shared`: the state that all files share; `cache`: the handle to it; `options`;
//! - `charge`: the limit; `lru` and `reclaim`: eviction; `readahead`; `statistics`; `sync`: the
//!   locks and atomics; `processor`: prefetching and copies that bypass the processor's caches.
//!
//! With the feature `shuttle` the locks and atomics are shuttle's, for model checking only.

mod cache;
mod charge;
mod dirty;
mod folio;
mod lru;
mod mapping;
mod options;
mod processor;
mod readahead;
mod reclaim;
mod remove;
mod shared;
mod split;
mod statistics;
mod sync;
pub mod xarray;

pub use cache::PageCache;
pub use charge::CacheError;
pub use dirty::{Detached, Dirty, WritebackRun};
pub use folio::{Folio, FolioFill, FolioRead, FolioWrite};
pub use mapping::{Lookup, Mapping};
pub use options::CacheOptions;
pub use readahead::{Readahead, ReadaheadRequest};
pub use remove::{Invalidate, Invalidated};
pub use statistics::Statistics;
pub use sync::thread_number;
pub use xarray::{CacheInsert, MAX_ORDER};

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Size of a page, the smallest folio, in bytes.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

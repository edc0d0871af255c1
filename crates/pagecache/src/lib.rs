//! A page cache for file systems in user space: file contents in memory, found without a lock, kept within a byte limit.
//!
//! A [`PageCache`] is shared by any number of files; each has a [`Mapping`] from page numbers to [`Folio`]s of 4 KiB to
//! 2 MiB. The cache knows nothing of disks: whoever uses it fills new folios and writes dirty ones back.
//!
//! ```
//! use papilio_pagecache::{Dirty, Lookup, PAGE_SIZE, PageCache};
//!
//! let cache = PageCache::new(64 << 20);
//! let file = cache.mapping(257);
//!
//! // A read: what is not there is filled first.
//! let mut out = [0; 11];
//! if file.read(4096, &mut out) < out.len() {
//!     if let Lookup::Vacant(mut fill) = file.get_or_insert(1, 0)? {
//!         fill.fill(b'.'); // from the disk
//!         fill.finish();
//!     }
//!     assert_eq!(file.read(4096, &mut out), 11);
//! }
//!
//! // A write to what is there.
//! let folio = file.get(1).expect("it has just been read");
//! let mut contents = folio.write().expect("it is up to date");
//! contents[..5].copy_from_slice(b"hello");
//! file.mark_dirty(&contents, 0..5).expect("it is still in the file");
//! drop(contents);
//!
//! // Writeback, by neighbours.
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
//! - **Locks** come in this order: the caller's own; folios' content locks ([`FolioRead`], [`FolioWrite`], [`FolioFill`],
//!   [`WritebackRun`]), several in ascending order of pages only; then those inside this crate. A thread takes no second lock on a folio,
//!   not even to read it twice (a waiting writer goes first), and does not truncate, discard, invalidate or write back folios that it
//!   holds locked.
//! - **Contents** are read by any number or changed by one. A copy of 4 KiB into a folio and one out of it exclude each other; that
//!   a read of several folios sees all or nothing of a write is up to the caller.
//! - **A place** is kept while a [`FolioWrite`] lives: truncation waits, and reclaim takes neither what is in use nor what is
//!   dirty. Whoever merely holds a [`Folio`] keeps its memory only.
//! - **The limit** holds for [`PageCache::bytes`] at all times: folios with 64 bytes each for their records, and nodes.
//! - **Dirty** is kept for each 4 KiB block, up to date for each folio.
//!
//! # Inside
//!
//! - [`xarray`]: the tree from page numbers to folios and shadows;
//! - `folio`: memory, references, content locks; `mapping`: look-up and insertion; `dirty`: writeback; `remove`: truncation;
//!   `split`;
//! - `cache`: the limit; `lru` and `reclaim`: what is evicted; `readahead`; `statistics`; `sync`: the locks and atomics;
//!   `processor`: prefetching, copies past the processor's caches.
//!
//! With the feature `shuttle` the locks and atomics are shuttle's, for model checking only.

mod cache;
mod dirty;
mod folio;
mod lru;
mod mapping;
mod processor;
mod readahead;
mod reclaim;
mod remove;
mod split;
mod statistics;
mod sync;
pub mod xarray;

pub use cache::{CacheError, CacheOptions, PageCache};
pub use dirty::{Detached, Dirty, WritebackRun};
pub use folio::{Folio, FolioFill, FolioRead, FolioWrite};
pub use mapping::{Lookup, Mapping};
pub use readahead::{Readahead, ReadaheadRequest};
pub use remove::{Invalidate, Invalidated};
pub use statistics::Statistics;
pub use sync::thread_number;
pub use xarray::{CacheInsert, MAX_ORDER};

/// Bytes of a page as a shift.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes of a page, the smallest folio.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

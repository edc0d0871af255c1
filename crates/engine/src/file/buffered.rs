//! Reading and writing through the page cache.
//!
//! Owns the buffered paths of [`OpenFile::read_at`] and [`OpenFile::write_at`]. A read that the
//! cache can answer takes no locks except those of folios. A write reserves space and changes
//! folios; [`super::flush`] allocates, checksums and publishes later. Data that is overwritten many
//! times before that costs one extent.
//!
//! Invariants:
//! - Space is reserved for every dirty block, or the file has it already
//!   ([`super::write_promise`]).
//! - Bytes of a folio after the end of the file are zeros.
//! - For a folio that is not in the cache, the trees and ordered extents have the current data.
//!
//! Locks, in this order: the open inode's writer lock, `sharing` and the file's data lock (both
//! shared), folios, the transaction's locks. Kernel counterparts: `btrfs_buffered_write`
//! (`fs/btrfs/file.c`), `btrfs_delalloc_reserve_space` (`fs/btrfs/delalloc-space.c`),
//! `filemap_read` (`mm/filemap.c`).

use crate::data::write_rules::MAX_FILE_SIZE;
use crate::errors::{Error, Result};
use crate::file::open_file::{OpenFile, Stamp};
use crate::file::open_inode::check_mutable;
use crate::file::write_promise::WritePromise;
use papilio_pagecache::{CacheError, FolioFill, FolioWrite, Lookup, MAX_ORDER, Mapping, PAGE_SIZE};

/// The most bytes that are reserved and written at once.
const CHUNK: u64 = 4 << 20;
/// Bytes of a page.
const PAGE: u64 = PAGE_SIZE as u64;

/// How far a write came before the cache was full.
enum Filled {
    All,
    /// Up to this file offset, and why not further.
    To(u64, CacheError),
}

impl OpenFile {
    /// Reads through the page cache.
    pub(super) fn read_buffered(&self, mapping: &Mapping, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let size = self.size()?;
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        // The fast path never waits, and may stop at a page that is in the cache. `insert`, below,
        // decides whether a page is missing.
        let mut done = mapping.read_found(offset, &mut buffer[..wanted]);
        let pages = offset / PAGE..(offset + wanted as u64).div_ceil(PAGE);
        let mut looked = done == 0;
        let request = self.next_readahead(pages, done == 0, size.div_ceil(PAGE));
        // A request of one page is the missing page itself, which is read below.
        if let Some(request) = request.filter(|request| request.pages.end - request.pages.start > 1) {
            // No reader needs the pages of such a request yet.
            let aside = request.asynchronous && self.waits() && self.ask_ahead(&request);
            if !aside {
                self.fill_ahead(mapping, request.pages, request.order);
                looked = false;
            }
        }
        while done < wanted {
            let at = offset + done as u64;
            let rest = &mut buffer[done..wanted];
            if !std::mem::take(&mut looked) {
                let read = mapping.read(at, rest);
                done += read;
                if read > 0 {
                    continue;
                }
            }
            let end = (at + rest.len() as u64).min(at + CHUNK);
            if end.div_ceil(PAGE) - at / PAGE == 1 {
                done += self.read_page(mapping, at, rest)?;
            } else {
                self.fill(mapping, at / PAGE..end.div_ceil(PAGE), MAX_ORDER)?;
            }
        }
        Ok(done)
    }

    /// Reads a page that was not in the cache, inserts it, and copies its bytes from file offset
    /// `at` on to `out`.
    fn read_page(&self, mapping: &Mapping, at: u64, out: &mut [u8]) -> Result<usize> {
        let mut attempts = 0;
        loop {
            let shared = self.open.data.read();
            let error = match mapping.insert(at / PAGE, 0) {
                // Read into the caller's buffer first: it is likely in the core's cache, where
                // verification is fast. The new folio is not.
                Ok(Lookup::Vacant(mut fill)) if at == fill.offset() && out.len() >= fill.len() => {
                    let page = &mut out[..fill.len()];
                    self.read_whole(page, at)?;
                    fill.fill_from(page);
                    fill.finish();
                    return Ok(page.len());
                }
                Ok(Lookup::Vacant(mut fill)) => {
                    self.read_folio(&mut fill)?;
                    let copied = copy_from(&fill, at - fill.offset(), out);
                    fill.finish();
                    return Ok(copied);
                }
                Ok(Lookup::Present(folio)) => {
                    drop(shared);
                    match folio.read() {
                        Some(folio) => return Ok(copy_from(&folio, at - folio.folio().offset(), out)),
                        // Filling it failed, or it was truncated.
                        None => continue,
                    }
                }
                Err(error) => error,
            };
            drop(shared);
            self.make_cache_space(&error, attempts)?;
            attempts += 1;
        }
    }

    /// Writes through the page cache. Adds the bytes of the steps that came to their end to
    /// `stored`.
    pub(super) fn write_buffered(
        &self,
        mapping: &Mapping,
        data: &[u8],
        offset: u64,
        (stamp, promise): (Stamp, &mut WritePromise),
        stored: &mut usize,
    ) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or_else(|| self.too_large())?;
        if end > MAX_FILE_SIZE {
            return Err(self.too_large());
        }
        let _writer = self.open.writer.lock();
        let mut at = offset;
        while at < end {
            let stop = end.min((at / CHUNK + 1) * CHUNK);
            let part = &data[(at - offset) as usize..(stop - offset) as usize];
            self.write_chunk(mapping, part, at, stamp, promise)?;
            *stored += part.len();
            at = stop;
        }
        let cache = self.fs.page_cache.as_ref().expect("a mapping belongs to a cache");
        if cache.over_hard() {
            self.flush()?;
            if cache.over_hard() {
                // Files that cannot be written back fail their own writers.
                let _ = self.fs.flush_all();
            }
        } else if cache.over_background() {
            self.fs.background.write_back();
        }
        Ok(())
    }

    fn write_chunk(
        &self,
        mapping: &Mapping,
        data: &[u8],
        offset: u64,
        stamp: Stamp,
        promise: &mut WritePromise,
    ) -> Result<()> {
        let fs = &*self.fs;
        let end = offset + data.len() as u64;
        let mut at = offset;
        let mut attempts = 0;
        while at < end {
            let blocks = (at / PAGE * PAGE)..end.next_multiple_of(PAGE);
            let Some(reserved) = self.reserve_for(&blocks, promise, attempts)? else {
                // Dirty data may need less space than was reserved for it. A file that cannot be
                // written back fails its own writers.
                attempts += 1;
                let flushed = fs.flush_all();
                tracing::debug!("no space for dirty pages: wrote back first: {flushed:?}");
                continue;
            };
            let stop = end.min(reserved.until);
            let shared = self.open.data.read();
            self.check_writable()?;
            let item = self.open.item(self.live()?)?;
            check_mutable(&fs.write_options, self.open.place(), &item)?;
            let part = &data[(at - offset) as usize..(stop - offset) as usize];
            let mut dirtied = 0;
            let filled = self.write_folios(mapping, part, at, &mut dirtied);
            let reached = match &filled {
                Ok(Filled::To(reached, _)) => *reached,
                Ok(Filled::All) => stop,
                Err(_) => at,
            };
            let own = self.keep_reserved(reserved, dirtied, promise);
            if reached > at {
                fs.dirty_inodes.touch(&self.open, stamp.time(fs.transactions()?), reached);
                attempts = 0;
            }
            drop((shared, own));
            at = reached;
            if let Filled::To(_, error) = filled? {
                self.make_cache_space(&error, attempts)?;
                attempts += 1;
            }
        }
        Ok(())
    }

    /// Writes data to folios until the cache is full. Adds the bytes of the blocks that were clean
    /// before to `dirtied`.
    fn write_folios(&self, mapping: &Mapping, data: &[u8], offset: u64, dirtied: &mut u64) -> Result<Filled> {
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let mut folio = match mapping.get_or_insert(at / PAGE, order_within(at, end)) {
                Ok(Lookup::Present(folio)) => match folio.write() {
                    Some(folio) => folio,
                    None => continue,
                },
                Ok(Lookup::Vacant(fill)) => self.new_folio(fill, at, end)?,
                Err(error) => return Ok(Filled::To(at, error)),
            };
            let start = folio.folio().offset();
            let (from, to) = ((at - start) as usize, (end.min(start + folio.len() as u64) - start) as usize);
            folio[from..to].copy_from_slice(&data[(at - offset) as usize..][..to - from]);
            if let Ok(bytes) = mapping.mark_dirty(&folio, from..to) {
                *dirtied += bytes;
                at = start + to as u64;
            }
        }
        Ok(Filled::All)
    }

    /// Returns a folio that was not in the cache, ready for a write of `at` to `end`.
    fn new_folio(&self, mut fill: FolioFill, at: u64, end: u64) -> Result<FolioWrite> {
        let (start, stop) = (fill.offset(), fill.offset() + fill.len() as u64);
        if at > start || end < stop {
            self.read_folio(&mut fill)?;
        }
        Ok(fill.finish_write())
    }

    /// Frees space in the page cache, or waits for it.
    pub(super) fn make_cache_space(&self, error: &CacheError, attempts: u32) -> Result<()> {
        match error {
            CacheError::AllDirty { .. } => self.fs.flush_all(),
            // Other threads use the folios, and will finish.
            CacheError::AllInUse { .. } if attempts < 10_000 => {
                std::thread::sleep(std::time::Duration::from_micros(50));
                Ok(())
            }
            CacheError::NoMemory => {
                Err(Error::Invalid("the system has no memory for the page cache".to_owned()))
            }
            CacheError::AllInUse { bytes } => {
                Err(Error::Invalid(format!("the page cache is too small: {bytes} bytes are in use at once")))
            }
        }
    }
}

/// Copies a folio's bytes from `start` on to `out`, as many as fit, and returns their number.
fn copy_from(folio: &[u8], start: u64, out: &mut [u8]) -> usize {
    let bytes = &folio[start as usize..];
    let length = bytes.len().min(out.len());
    out[..length].copy_from_slice(&bytes[..length]);
    length
}

/// Returns the order of the largest folio that starts at `at` and ends at or before `end`; 0 where
/// none does.
fn order_within(at: u64, end: u64) -> u8 {
    if !at.is_multiple_of(PAGE) {
        return 0;
    }
    let pages = (end - at) / PAGE;
    let fits = pages.checked_ilog2().unwrap_or(0);
    let aligned = (at / PAGE).trailing_zeros();
    fits.min(aligned).min(MAX_ORDER.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_stay_inside_the_written_range() {
        for (at, end, order) in [
            (0, 4096, 0),
            (0, 4095, 0),
            (0, 8192, 1),
            (4096, 1 << 20, 0),
            (8192, 1 << 20, 1),
            (0, 4 << 20, MAX_ORDER),
            (2 << 20, 4 << 20, 9),
            (100, 1 << 20, 0),
        ] {
            assert_eq!(order_within(at, end), order, "{at} to {end}");
        }
    }
}

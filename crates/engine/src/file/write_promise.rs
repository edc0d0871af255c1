//! The space that a write takes, kept before the write comes.
//!
//! Owns [`WritePromise`], [`Reserved`], and the ways to come by space for dirty pages:
//! 1. space that was promised to the write before ([`OpenFile::promise_write`]);
//! 2. a reservation;
//! 3. no data space at all, where the file has it: preallocated extents that it alone refers to,
//!    and any such extent of a `NODATACOW` file. So a full file system cannot fail these writes.
//!
//! Locks: the transaction's, while space is reserved. `sharing` (shared) is held while pages
//! without reserved space become dirty: a snapshot that shares their extents writes them back
//! first. Kernel counterparts: `btrfs_check_data_free_space` (`fs/btrfs/delalloc-space.c`),
//! `btrfs_check_nocow_lock` (`fs/btrfs/file.c`).

use crate::data::own_extents::own_extents;
use crate::data::rewrite::stale_tail;
use crate::errors::{Error, Result};
use crate::file::change::FLUSHES;
use crate::file::open_file::OpenFile;
use crate::file::open_inode::OpenInode;
use crate::space::Reservation;
use papilio_locks::RwLockReadGuard;
use papilio_pagecache::PAGE_SIZE;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes of a page.
const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of data for each reserved byte of metadata.
pub(super) const DATA_PER_METADATA: u64 = 16;
/// Tree blocks reserved with the first dirty block of a file: those of one change that writes pages
/// back, so that it needs no other space.
const BLOCKS: u64 = 32;
/// Bytes of metadata reserved for each run of dirty pages besides: it takes an extent of its own,
/// whose items in the subvolume and in the extent tree lie in leaves that are half full.
pub(super) const RUN_METADATA: u64 = 512;
/// Bytes of dirty pages that are looked for at once.
const STEP: u64 = 8 << 20;

/// Space that is kept for writes of a file that will come. Dropping it releases the space.
#[derive(Debug, Default)]
pub struct WritePromise {
    space: Option<(Reservation, Reservation)>,
}

impl WritePromise {
    /// Returns the bytes of data that it is for.
    pub fn bytes(&self) -> u64 {
        self.space.as_ref().map_or(0, |(data, _)| data.bytes())
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Splits off the space of `bytes` bytes.
    pub fn split(&mut self, bytes: u64) -> Self {
        let Some((data, metadata)) = &mut self.space else { return Self::default() };
        let (whole, bytes) = (data.bytes().max(1), bytes.min(data.bytes()));
        let share = u128::from(metadata.bytes()) * u128::from(bytes) / u128::from(whole);
        Self { space: Some((data.split(bytes), metadata.split(share as u64))) }
    }

    /// Adds the space of another promise of the same file system.
    pub fn merge(&mut self, other: Self) {
        match (&mut self.space, other.space) {
            (Some((data, metadata)), Some((more, with))) => {
                data.merge(more);
                metadata.merge(with);
            }
            (space @ None, other) => *space = other,
            (Some(_), None) => {}
        }
    }

    /// Takes space for `data` bytes, if all of it is left.
    fn take(&mut self, data: u64, metadata: u64) -> Option<(Reservation, Reservation)> {
        let (kept, with) = self.space.as_mut().filter(|(kept, _)| kept.bytes() >= data)?;
        Some((kept.split(data), with.split(metadata)))
    }
}

/// The reservations for pages that become dirty.
pub(super) struct Reserved<'a> {
    /// The file offset up to which pages may become dirty, a multiple of the page size.
    pub(super) until: u64,
    bytes: u64,
    data: Option<Reservation>,
    metadata: Reservation,
    /// Bytes of `metadata` for a run of pages that begins here.
    run: u64,
    tail: Option<Reservation>,
    /// Keeps the file's space its own, where no data space is reserved.
    own: Option<RwLockReadGuard<'a, u64>>,
}

impl OpenInode {
    /// Returns the bytes of metadata to reserve for a range of pages, and how many of them are for
    /// a new run.
    fn metadata_for(&self, range: &Range<u64>, node_size: u64) -> (u64, u64) {
        let base = if self.is_dirty() { 0 } else { BLOCKS * node_size };
        let goes_on = self.last_dirtied.load(Ordering::Relaxed) == range.start;
        let run = if goes_on { 0 } else { RUN_METADATA };
        (base + run + (range.end - range.start) / DATA_PER_METADATA, run)
    }
}

impl OpenFile {
    /// Keeps space for a write of `length` bytes; without an `offset`, anywhere in the file. The
    /// result is empty where the file has the space already.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`QuotaError::Exceeded`](crate::QuotaError::Exceeded).
    pub fn promise_write(&self, offset: Option<u64>, length: u64) -> Result<WritePromise> {
        let transactions = self.fs.transactions()?;
        self.charge(offset.unwrap_or(1), length)?;
        let start = offset.unwrap_or(1) % PAGE;
        let bytes = start.saturating_add(length).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let metadata = BLOCKS * transactions.node_size() + RUN_METADATA + bytes / DATA_PER_METADATA;
        let mut attempts = 0;
        loop {
            let error = match transactions.reserve(bytes, metadata) {
                Ok(space) => return Ok(WritePromise { space: Some(space) }),
                Err(error @ Error::NoSpace { .. }) => error,
                Err(error) => return Err(error),
            };
            if let Some(offset) = offset
                && self.is_own(offset, length)?
            {
                return Ok(WritePromise::default());
            }
            if attempts == FLUSHES || self.fs.dirty_inodes.is_empty() {
                return Err(error);
            }
            attempts += 1;
            let _ = self.fs.flush_all();
        }
    }

    /// Returns whether a write of a range takes no new data space.
    pub(super) fn is_own(&self, offset: u64, length: u64) -> Result<bool> {
        let sector = self.fs.sector_size();
        let end = offset.saturating_add(length);
        let Some(end) = end.checked_next_multiple_of(sector) else { return Ok(false) };
        Ok(self.own_until(&(offset - offset % sector..end))? >= end)
    }

    /// Returns the file offset up to which a write from `range.start` on takes no new data space.
    fn own_until(&self, range: &Range<u64>) -> Result<u64> {
        let trees = self.fs.data_trees(self.open.place())?;
        let context = trees.context(&**self.fs.transactions()?);
        trees.prepare(|file| {
            let mut at = range.start;
            for part in own_extents(&context, file, range)? {
                if part.range.start > at {
                    break;
                }
                at = part.range.end;
            }
            Ok(at)
        })
    }

    /// Reserves space for the pages of `range`, or for the first of them. Returns `None` where the
    /// caller should write back first, and call again with more `attempts`.
    ///
    /// # Errors
    /// As [`OpenFile::promise_write`].
    pub(super) fn reserve_for(
        &self,
        range: &Range<u64>,
        promise: &mut WritePromise,
        attempts: u32,
    ) -> Result<Option<Reserved<'_>>> {
        let transactions = self.fs.transactions()?;
        let bytes = range.end - range.start;
        let (wanted, run) = self.open.metadata_for(range, transactions.node_size());
        let tail = match self.reserve_tail(range) {
            Err(Error::NoSpace { .. }) if attempts < FLUSHES => return Ok(None),
            tail => tail?,
        };
        let whole = |(data, metadata), tail| {
            Some(Reserved { until: range.end, bytes, data: Some(data), metadata, run, tail, own: None })
        };
        if let Some(space) = promise.take(bytes, wanted) {
            return Ok(whole(space, tail));
        }
        // It is for less than the write takes now.
        drop(std::mem::take(promise));
        let error = match transactions.reserve(bytes, wanted) {
            Ok(space) => return Ok(whole(space, tail)),
            Err(error @ Error::NoSpace { .. }) => error,
            Err(error) => return Err(error),
        };
        if let Some(reserved) = self.reserve_own(range, tail)? {
            return Ok(Some(reserved));
        }
        if attempts < FLUSHES { Ok(None) } else { Err(error) }
    }

    /// Reserves space for the sector with the end of the file on disk, if pages behind it make the
    /// file longer and the sector may have to be zeroed then (`btrfs_truncate_block`).
    fn reserve_tail(&self, range: &Range<u64>) -> Result<Option<Reservation>> {
        let sector = self.fs.sector_size();
        let size = self.open.item(self.live()?)?.size;
        if size.is_multiple_of(sector) || range.start < size.next_multiple_of(sector) || self.open.has_tail()
        {
            return Ok(None);
        }
        let error = match self.fs.transactions()?.reserve(sector, 0) {
            Ok((tail, _none)) => return Ok(Some(tail)),
            Err(error @ Error::NoSpace { .. }) => error,
            Err(error) => return Err(error),
        };
        let trees = self.fs.data_trees(self.open.place())?;
        let context = trees.context(&**self.fs.transactions()?);
        let needed = trees.prepare(|file| Ok(stale_tail(&context, file)?.is_some()))?;
        if needed && !self.is_own(size - size % sector, sector)? { Err(error) } else { Ok(None) }
    }

    /// Reserves metadata alone, as far as the file has the space of the first pages of `range`.
    fn reserve_own(&self, range: &Range<u64>, tail: Option<Reservation>) -> Result<Option<Reserved<'_>>> {
        let sector = self.fs.sector_size();
        let sharing = self.fs.sharing.read();
        let sectors = range.start - range.start % sector..range.end.next_multiple_of(sector);
        let until = self.own_until(&sectors)?.min(range.end);
        if until <= range.start {
            return Ok(None);
        }
        let transactions = self.fs.transactions()?;
        let bytes = until - range.start;
        let (wanted, run) = self.open.metadata_for(&(range.start..until), transactions.node_size());
        let (_none, metadata) = transactions.reserve(0, wanted)?;
        let mut at = range.start;
        while let Some(mapping) = self.open.mapping.as_ref().filter(|_| at < until) {
            let dirty = mapping.next_dirty(at..until, STEP).unwrap_or(until..until);
            // Before the pages are dirty, so that a writeback knows it.
            self.open.add_own(&(at..dirty.start));
            at = dirty.end;
        }
        Ok(Some(Reserved { until, bytes, data: None, metadata, run, tail, own: Some(sharing) }))
    }

    /// Keeps what was reserved for `dirtied` bytes of pages that were clean, and returns the rest
    /// to the promise: the write may go on. The caller drops the result once the table of dirty
    /// files has the file.
    pub(super) fn keep_reserved<'a>(
        &self,
        reserved: Reserved<'a>,
        dirtied: u64,
        promise: &mut WritePromise,
    ) -> Option<RwLockReadGuard<'a, u64>> {
        let Reserved { until, bytes, data, mut metadata, run, tail, own } = reserved;
        tail.into_iter().for_each(|tail| self.open.add_tail(tail));
        let unused = bytes.saturating_sub(dirtied);
        let unused_run = if dirtied == 0 { run } else { 0 };
        let unused_metadata = metadata.split(unused / DATA_PER_METADATA + unused_run);
        if dirtied > 0 {
            self.open.last_dirtied.store(until, Ordering::Relaxed);
        }
        let data = data.map(|mut data| {
            let unused_data = data.split(unused);
            promise.merge(WritePromise { space: Some((unused_data, unused_metadata)) });
            data
        });
        self.open.add_reservation(data, metadata);
        own
    }
}

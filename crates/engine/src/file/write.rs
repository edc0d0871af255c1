//! Writing an open file's data.
//!
//! Owns the choice of the way of a write, and [`ExtentsGuard`], the right to change a file's
//! extents.
//!
//! - With a page cache: [`super::buffered`].
//! - Whole sectors inside a file with checksums: [`super::ordered_write`], beside other writers.
//! - A `NODATACOW` file: [`super::in_place`], beside other writers.
//! - Everything else: in steps, each a change of its own, with the data lock held exclusively.
//!
//! Without a page cache, or with direct I/O, the data is on the device when the call returns. It is
//! durable after a sync. A change of extents writes dirty pages back first, and afterwards drops
//! the pages that it made stale.
//!
//! Locks, in this order: `sharing` (shared), the file's data lock, the transaction's locks.

use crate::data::file_edit::{FileEdit, Touch, WriteContext};
use crate::data::write::PreparedWrite;
use crate::errors::{Error, QuotaError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::data_lock::ExclusiveData;
use crate::file::data_trees::DataTrees;
use crate::file::in_place::IN_PLACE;
use crate::file::open_file::{OpenFile, Stamp};
use crate::file::open_inode::check_mutable;
use crate::file::write_promise::WritePromise;
use papilio_format::FileOffset;
use papilio_locks::RwLockReadGuard;
use papilio_pagecache::Invalidate;
use std::ops::Range;

/// Bytes that one change of a transaction writes at most.
const WRITE_STEP: usize = 8 << 20;

impl OpenFile {
    /// Writes all of `data` at byte `offset`; neither has to be aligned. Bytes between the old end
    /// and `offset` read as zeros.
    ///
    /// # Errors
    /// [`PathError::TooLarge`](crate::PathError::TooLarge),
    /// [`Error::NoSpace`],
    /// [`PathError::NotPermitted`](crate::PathError::NotPermitted) for an immutable file, or an
    /// error of reading or writing. `stored` says how many of the first bytes the file has then.
    pub(super) fn write_whole(
        &self,
        data: &[u8],
        offset: u64,
        stamp: Stamp,
        mut promise: WritePromise,
        stored: &mut usize,
    ) -> Result<()> {
        if promise.is_empty() {
            self.charge(offset, data.len() as u64)?;
        }
        if let Some(mapping) = self.cached() {
            return self.write_buffered(mapping, data, offset, (stamp, &mut promise), stored);
        }
        // The steps below allocate at once.
        drop(promise);
        let done = self.write_shared(data, offset, stamp)?;
        *stored += done;
        let data = &data[done..];
        if data.is_empty() && done > 0 {
            return Ok(());
        }
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let mut at = offset + done as u64;
        let range = at..at.saturating_add(data.len() as u64);
        // Steps end at multiples of their size, so that no sector is written twice.
        let mut rest = data;
        while !rest.is_empty() {
            let step = (WRITE_STEP - (at % WRITE_STEP as u64) as usize).min(rest.len());
            let (now, later) = rest.split_at(step);
            let items = EXTENT_ITEMS + (step >> 20) as u64;
            let range = open.changed_range(&self.fs, at, step as u64)?;
            let trees = self.begin_data_write(&exclusive)?;
            let context = trees.context(&**self.fs.transactions()?);
            let mut write = trees.prepare(|file| PreparedWrite::new(&context, file, FileOffset(at), now))?;
            self.publish_write(&range, items, |context, file| {
                if stamp == Stamp::Keep {
                    let sequence = file.item.sequence.wrapping_add(1);
                    file.touched = Some(Touch { mtime: None, ctime: None, sequence });
                }
                write.publish(context, file)
            })?;
            at = at.checked_add(step as u64).ok_or_else(|| self.too_large())?;
            *stored += step;
            rest = later;
        }
        if let Some(mapping) = &open.mapping {
            mapping.invalidate(range, Invalidate::All);
        }
        Ok(())
    }

    /// Announces the sectors of a range to quotas.
    pub(super) fn charge(&self, offset: u64, length: u64) -> Result<()> {
        if !self.fs.transactions()?.quotas().is_limited() {
            return Ok(());
        }
        let sector = self.fs.sector_size();
        let sectors = (offset % sector).saturating_add(length).div_ceil(sector);
        let charged = self.fs.charge(self.open.place().tree, sectors.saturating_mul(sector), EXTENT_ITEMS);
        match charged {
            // The limit counts this space already.
            Err(Error::Quota(QuotaError::Exceeded { .. })) if self.is_own(offset, length)? => Ok(()),
            charged => charged,
        }
    }

    /// Writes as many of the first bytes as can be written beside other writers of the file, and
    /// returns their number.
    fn write_shared(&self, data: &[u8], offset: u64, stamp: Stamp) -> Result<usize> {
        let (open, fs) = (&self.open, &*self.fs);
        let range = offset..offset.saturating_add(data.len() as u64);
        let live = fs.transactions()?.live().get(open.place().tree)?;
        let item = open.item(&live)?;
        let ordered = fs.is_ordered(&item);
        if !ordered && !item.flags.contains(IN_PLACE) || range.end > open.as_seen(item).size {
            return Ok(0);
        }
        let epoch = fs.sharing.read();
        if let Some(mapping) = &open.mapping
            && mapping.has_unwritten(range.clone())
        {
            let _exclusive = open.data.write();
            open.flush_locked(fs, *epoch)?;
        }
        let shared = open.data.read();
        self.check_writable()?;
        let done = if ordered {
            let item = open.item(&live)?;
            check_mutable(&fs.write_options, open.place(), &item)?;
            let done = fs.is_ordered(&item) && open.write_ordered(fs, &live, &item, data, offset, *epoch)?;
            if done { data.len() } else { 0 }
        } else {
            open.overwrite_pages(fs, data, offset, *epoch)?
        };
        if done > 0 {
            fs.dirty_inodes.touch(open, stamp.time(fs.transactions()?), 0);
        }
        if let Some(mapping) = &open.mapping
            && mapping.invalidate(range.clone(), Invalidate::All).kept > 0
        {
            // A folio extends beyond the range, and is dirty there.
            drop(shared);
            let _exclusive = open.data.write();
            open.flush_locked(fs, *epoch)?;
            mapping.invalidate(range, Invalidate::All);
        } else {
            drop(shared);
        }
        drop(epoch);
        if open.ordered.is_full() {
            open.publish_some_ordered(fs)?;
        }
        Ok(done)
    }

    /// Acquires the right to change the file's extents.
    pub(super) fn exclusive(&self) -> Result<ExtentsGuard<'_>> {
        self.open.prepare_exclusive(&self.fs)?;
        let sharing = self.fs.sharing.read();
        let epoch = *sharing;
        Ok(ExtentsGuard { epoch, _data: Some(self.open.data.write()), _sharing: Some(sharing) })
    }

    /// Prepares the first phase of a change: publishes what only memory and device have, and checks
    /// that the file may change.
    pub(super) fn begin_change(&self, exclusive: &ExtentsGuard<'_>) -> Result<DataTrees<'_>> {
        // Unlike a write, other changes are refused even to a handle that was opened before the
        // subvolume became read-only (`btrfs_setattr`, `btrfs_update_time`).
        self.fs.check_changeable(self.open.place().tree)?;
        self.begin_data_write(exclusive)
    }

    /// As [`OpenFile::begin_change`], for a change that leaves the content as it is. Read-only
    /// subvolumes take it (`btrfs_remap_file_range_prep`).
    pub(super) fn begin_same_content(&self, exclusive: &ExtentsGuard<'_>) -> Result<DataTrees<'_>> {
        let (open, fs, place) = (&self.open, &self.fs, self.open.place());
        open.flush_locked(fs, exclusive.epoch)?;
        open.forget_extents();
        fs.check_usable(place.tree)?;
        check_mutable(&fs.write_options, place, &open.item(self.live()?)?)?;
        fs.data_trees(place)
    }

    /// As [`OpenFile::begin_change`], for a write of data.
    fn begin_data_write(&self, exclusive: &ExtentsGuard<'_>) -> Result<DataTrees<'_>> {
        let (open, fs, place) = (&self.open, &self.fs, self.open.place());
        open.flush_locked(fs, exclusive.epoch)?;
        open.forget_extents();
        self.check_writable()?;
        check_mutable(&fs.write_options, place, &open.item(self.live()?)?)?;
        fs.data_trees(place)
    }

    /// Runs the second phase of a change, which touches the sectors in `range`.
    pub(super) fn publish_change<R>(
        &self,
        range: &Range<u64>,
        items: u64,
        publish: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.fs.check_changeable(self.open.place().tree)?;
        self.publish_write(range, items, publish)
    }

    /// As [`OpenFile::publish_change`], for a write of data.
    fn publish_write<R>(
        &self,
        range: &Range<u64>,
        items: u64,
        publish: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check_writable()?;
        self.publish_same_content(range, items, publish)
    }

    /// As [`OpenFile::publish_change`], after [`OpenFile::begin_same_content`].
    pub(super) fn publish_same_content<R>(
        &self,
        range: &Range<u64>,
        items: u64,
        mut publish: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        let (open, fs, place) = (&self.open, &self.fs, self.open.place());
        fs.change_data(place, items, |context, file| {
            check_mutable(&fs.write_options, place, &file.item)?;
            open.note_changed(&fs.changed_files, context.space.generation(), range);
            publish(context, file)
        })
    }
}

/// The right to change a file's extents, until it is dropped.
pub(super) struct ExtentsGuard<'a> {
    /// The sharing epoch; it does not end meanwhile.
    pub(super) epoch: u64,
    // In this order: the data lock is released first. `None` where the caller holds the locks.
    pub(super) _data: Option<ExclusiveData<'a>>,
    pub(super) _sharing: Option<RwLockReadGuard<'a, u64>>,
}

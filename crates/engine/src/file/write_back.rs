//! Writing dirty pages back.
//!
//! Owns the two ways in which a file's pages reach the device and the trees:
//! - *Shared*: run by run, beside readers and writers of the file. Only a thread that needs the
//!   sectors of the run waits. [`super::write_back_ordered`] has the way for pages that become
//!   ordered extents, many runs at a time.
//! - *Exclusively*: by a caller that holds the data lock so, for the pages that the first way has
//!   left.
//!
//! Invariants of the shared way:
//! - One thread at a time changes the file in its trees: the holder of its fsync lock.
//! - A run is locked as a range of the file before its pages are taken, and until the trees have
//!   it. Requests in flight never overlap it: they begin only where no page is dirty.
//! - The pages of a run end at or before the end of the file, unless no thread writes through the
//!   cache: then the size is that of all dirty bytes.
//! - In a `NODATACOW` file, writers in place lock no range. A run there changes extents only behind
//!   the end of the file on disk, where none of them writes.
//!
//! Locks, in this order: `sharing` (shared), the file's fsync lock, its data lock (shared), the
//! run's range, the run's folios, the transaction's locks. Kernel counterparts:
//! `extent_write_cache_pages` (`fs/btrfs/extent_io.c`), `btrfs_finish_one_ordered`
//! (`fs/btrfs/inode.c`).

use crate::data::write::PreparedWrite;
use crate::errors::{Error, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::fs_info::FsInfo;
use crate::file::in_place::IN_PLACE;
use crate::file::open_inode::{DirtyReservation, OpenInode, Touched};
use crate::file::ordered_flush::needs_all;
use crate::file::write_back_ordered::{Target, WRITE_STEP};
use crate::file::write_promise::{DATA_PER_METADATA, RUN_METADATA};
use crate::space::Reservation;
use crate::transaction::{ReservedData, Start};
use papilio_format::Geometry;
use papilio_pagecache::{Dirty, Mapping, PAGE_SIZE};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes of a page.
const PAGE: u64 = PAGE_SIZE as u64;
/// The most bytes of a compressed extent.
const COMPRESSED: u64 = 128 << 10;
/// File extents that a leaf of the smallest node size holds when it is half full.
const EXTENTS_OF_LEAF: u64 = 16;
/// The most bytes of a run where there is no space for a longer one.
const SHORT_RUN: u64 = 64 << 10;

/// The pages that were dirty before a shared writeback, and that it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PagesLeft {
    /// Those between two file offsets; none where they are equal.
    Between { from: u64, until: u64, failures: u64 },
    /// Any.
    Unknown,
}

/// How far one step of a shared writeback came.
enum WriteBackStep {
    /// The next one begins at this file offset.
    Next(u64),
    /// Nothing is left.
    Done,
    /// The next pages need the data lock held exclusively.
    Exclusive,
}

/// A run of pages that is written back.
struct PageRun<'a> {
    range: Range<u64>,
    pages: &'a [&'a [u8]],
    touched: Option<Touched>,
    epoch: u64,
}

impl PagesLeft {
    /// Returns the range, as long as no page was dirtied again by a writeback that failed.
    pub(super) fn range(self, open: &OpenInode) -> Option<Range<u64>> {
        match self {
            Self::Between { from, until, failures } => {
                (open.failed_writebacks.load(Ordering::Acquire) == failures).then_some(from..until)
            }
            Self::Unknown => None,
        }
    }
}

impl OpenInode {
    /// Writes back the pages that are dirty now, as far as that is possible beside readers and
    /// writers. The caller holds none of the file's locks, except that of its writer.
    pub(super) fn write_back_shared(&self, fs: &FsInfo) -> Result<PagesLeft> {
        let failures = self.failed_writebacks.load(Ordering::Acquire);
        let mut from = 0;
        let Some(mapping) = self.mapping.as_ref().filter(|mapping| mapping.dirty_bytes() > 0) else {
            return Ok(PagesLeft::Between { from, until: from, failures });
        };
        let mut until = u64::MAX;
        loop {
            let step = self.write_back_step(fs, mapping, from, &mut until);
            from = match step {
                Ok(WriteBackStep::Next(next)) => next,
                Ok(WriteBackStep::Done) => until,
                Ok(WriteBackStep::Exclusive) => break,
                Err(error) if needs_all(&error) => return Ok(PagesLeft::Unknown),
                Err(error) => return Err(error),
            };
            if from >= until {
                break;
            }
            if self.ordered.is_full() {
                self.publish_some_ordered(fs)?;
            }
        }
        Ok(PagesLeft::Between { from, until, failures })
    }

    /// Writes back the next run of pages from file offset `from` on. The first step finds out where
    /// to stop, so that a writer that appends cannot prolong the writeback.
    fn write_back_step(
        &self,
        fs: &FsInfo,
        mapping: &Mapping,
        from: u64,
        until: &mut u64,
    ) -> Result<WriteBackStep> {
        let place = self.place();
        // Here, because no thread waits for the run yet.
        fs.transactions()?.commit_if_full()?;
        let epoch = fs.sharing.read();
        let _one = self.fsync.lock();
        let live = fs.transactions()?.live().get(place.tree)?;
        let before = self.item(&live)?;
        *until = self.as_seen(before).size.next_multiple_of(PAGE).min(*until);
        let Some(found) = mapping.next_dirty(from..*until, WRITE_STEP) else {
            return Ok(WriteBackStep::Done);
        };
        let in_place = before.flags.contains(IN_PLACE);
        let grows = self.as_seen(before).size > before.size;
        if in_place {
            // Ends writes in place that began before the pages were dirty, or the file grew.
            drop(self.data.write());
        }
        let _shared = self.lock_announced();
        // From here on, the item in the tree keeps size and flags.
        let item = self.item(&live)?;
        if in_place != item.flags.contains(IN_PLACE) {
            return Ok(WriteBackStep::Exclusive);
        }
        if fs.is_ordered(&item) {
            let target = Target { fs, mapping, live: &live, item: &item, epoch: *epoch };
            if let Some(next) = self.write_back_ordered(&target, &found, *until)? {
                return Ok(WriteBackStep::Next(next));
            }
        }
        let changed = self.changed_range(fs, found.start, found.end - found.start)?;
        let (lock, _) = self.ordered.lock_to_write(changed);
        let Some((run, touched)) = self.take_run(mapping, &found, item.size) else {
            return Ok(if mapping.has_dirty(found.clone()) {
                WriteBackStep::Exclusive
            } else {
                WriteBackStep::Next(found.end)
            });
        };
        let range = run.range();
        let pages: Vec<&[u8]> = run.slices().collect();
        let written = {
            let run = PageRun { range: range.clone(), pages: &pages, touched, epoch: *epoch };
            self.write_in_place(fs, &run).and_then(|(at, left)| {
                let behind_the_end = at >= item.size - item.size % fs.sector_size();
                if left.is_empty() {
                    return Ok(true);
                }
                if in_place && !(grows && behind_the_end) {
                    return Ok(false);
                }
                let bytes = range.end - at;
                self.publish_pages(fs, &run, (at, left), bytes / DATA_PER_METADATA + RUN_METADATA)?;
                self.forget_extents();
                fs.release_ordered(lock.record_replaced(&(at..range.end)));
                Ok(true)
            })
        };
        drop(pages);
        match written {
            Ok(true) => {
                run.finish();
                Ok(WriteBackStep::Next(range.end))
            }
            Ok(false) => {
                self.dirty_again(run);
                Ok(WriteBackStep::Exclusive)
            }
            Err(error) => {
                self.dirty_again(run);
                Err(error)
            }
        }
    }

    /// Takes dirty pages of a locked range for writing, with the changes of the inode item that
    /// they belong to.
    fn take_run(
        &self,
        mapping: &Mapping,
        found: &Range<u64>,
        size_in_tree: u64,
    ) -> Option<(papilio_pagecache::WritebackRun, Option<Touched>)> {
        // A writer marks a page dirty before it notes the new size.
        let alone = self.writer.try_lock();
        let size = size_in_tree.max(self.touched().map_or(0, |touched| touched.size));
        let end = if alone.is_some() { found.end } else { found.end.min(size - size % PAGE) };
        let run = mapping.start_writeback(found.start..end, WRITE_STEP, Dirty::Any)?;
        Some((run, self.touched()))
    }

    /// Writes the dirty pages of `range` back, neighbours together. The caller holds the data lock
    /// exclusively, and has published the ordered extents, which are older.
    pub(super) fn write_back_pages(&self, fs: &FsInfo, range: Range<u64>, epoch: u64) -> Result<()> {
        let Some(mapping) = &self.mapping else { return Ok(()) };
        let mut most = WRITE_STEP;
        while let Some(run) = mapping.start_writeback(range.clone(), most, Dirty::Any) {
            let pages: Vec<&[u8]> = run.slices().collect();
            let written = {
                let run = PageRun { range: run.range(), pages: &pages, touched: self.touched(), epoch };
                let bytes = run.range.end - run.range.start;
                // The last pages use all that is reserved; others leave the rest its share.
                let share = bytes / DATA_PER_METADATA + RUN_METADATA;
                let metadata = if range.end == u64::MAX { u64::MAX } else { share };
                self.write_in_place(fs, &run).and_then(|left| match left.1.is_empty() {
                    true => Ok(()),
                    false => self.publish_pages(fs, &run, left, metadata),
                })
            };
            drop(pages);
            match written {
                Ok(()) => run.finish(),
                Err(Error::NoSpace { .. }) if most > SHORT_RUN => {
                    run.fail();
                    most = SHORT_RUN;
                }
                Err(error) => {
                    run.fail();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Overwrites pages of a run in place, from the front, as far as possible. Returns the others,
    /// with the file offset of the first one.
    fn write_in_place<'a>(&self, fs: &FsInfo, run: &PageRun<'a>) -> Result<(u64, &'a [&'a [u8]])> {
        let mut at = run.range.start;
        let mut left = run.pages;
        while let Some((page, rest)) = left.split_first() {
            if self.overwrite_pages(fs, page, at, run.epoch)? < page.len() {
                break;
            }
            at += page.len() as u64;
            left = rest;
        }
        Ok((at, left))
    }

    /// Writes the pages `left` of a run, from file offset `at` on, to new extents and publishes
    /// these. Uses up to `metadata` bytes of the metadata that is reserved for dirty pages.
    fn publish_pages(
        &self,
        fs: &FsInfo,
        run: &PageRun<'_>,
        (at, left): (u64, &[&[u8]]),
        metadata: u64,
    ) -> Result<()> {
        let range = at..run.range.end;
        let mut reservation = self.take_reservation(&range, metadata);
        let own = reservation.own.clone();
        let on_disk = self.item(&*fs.transactions()?.live().get(self.place().tree)?)?.size;
        let grows_past_the_end = at >= on_disk.next_multiple_of(fs.sector_size());
        let tail = grows_past_the_end.then(|| self.take_tail()).flatten();
        let tail_bytes = tail.as_ref().map_or(0, Reservation::bytes);
        match (&mut reservation.data, tail) {
            (Some(data), Some(tail)) => data.merge(tail),
            (data @ None, tail) => *data = tail,
            (Some(_), None) => {}
        }
        let published = self.publish_reserved(fs, run, (at, left), reservation);
        if published.is_err() {
            // The pages are dirty again.
            let bytes = range.end - range.start;
            let metadata = bytes / DATA_PER_METADATA + RUN_METADATA;
            let reserved = fs.transactions()?.reserve(bytes - own.bytes(), metadata);
            if let Ok((data, metadata)) = reserved {
                self.add_reservation(Some(data), metadata);
            }
            own.iter().for_each(|range| self.add_own(&range));
            if tail_bytes > 0
                && let Ok((tail, _none)) = fs.transactions()?.reserve(tail_bytes, 0)
            {
                self.add_tail(tail);
            }
        }
        published
    }

    fn publish_reserved(
        &self,
        fs: &FsInfo,
        run: &PageRun<'_>,
        (at, left): (u64, &[&[u8]]),
        reservation: DirtyReservation,
    ) -> Result<()> {
        let (place, touched) = (self.place(), run.touched);
        let bytes = run.range.end - at;
        let reserved = ReservedData::new(fs.transactions()?, reservation.data);
        let trees = fs.data_trees(place)?;
        let context = trees.context(&reserved);
        let mut write = trees.prepare(|file| {
            let size = file.item.size.max(touched.map_or(0, |touched| touched.size));
            PreparedWrite::of_pages(&context, file, at, left, size)
        })?;
        let changed = self.changed_range(fs, at, bytes)?;
        // All that the file has reserved serves the change. The unspent rest stays, but for
        // the share of these pages.
        let share = reservation.metadata.as_ref().map_or(0, Reservation::bytes);
        let (mut own, kept) = (reservation.metadata, self.take_metadata());
        let before = share + kept.as_ref().map_or(0, Reservation::bytes);
        match (&mut own, kept) {
            (Some(own), Some(kept)) => own.merge(kept),
            (own @ None, kept) => *own = kept,
            (Some(_), None) => {}
        }
        let own = RefCell::new(own);
        let items = EXTENT_ITEMS + items_beside(bytes, &fs.volume().geometry());
        let published = fs.change_data(place, Start::items(items).steal().reserved(&own), |context, file| {
            self.note_changed(&fs.changed_files, context.space.generation(), &changed);
            file.touched = touched.map(|touched| touched.touch);
            write.publish(context, file)
        });
        if let Some(mut rest) = own.into_inner() {
            self.add_reservation(None, rest.split(before - share));
        }
        published
    }
}

/// Returns how many items that lie apart take as much of a tree as the items of one run of `bytes`
/// bytes: its extents, and its checksums.
fn items_beside(bytes: u64, geometry: &Geometry) -> u64 {
    let checksums = bytes / u64::from(geometry.sector_size) * geometry.checksum_type.size() as u64;
    (bytes / COMPRESSED).div_ceil(EXTENTS_OF_LEAF) + checksums / u64::from(geometry.node_size)
}

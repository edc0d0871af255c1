//! Writing dirty pages back to ordered extents, many runs at once.
//!
//! Owns the batch of runs that one step of a shared writeback ([`super::write_back`]) writes to the
//! device together, so that a device that takes its time has many requests. It is for pages inside
//! the file as the tree has it, of files that [`super::ordered_write`] writes. Publishing the
//! ordered extents is left to [`super::ordered_flush`].
//!
//! Invariants:
//! - The range of a run is held by a ticket before its pages are taken, and until the ordered
//!   extents have it.
//! - Once the batch has a run, the thread waits for no range and no folio.
//!
//! Locks: as [`super::write_back`], with tickets in the place of locked ranges.

use crate::btree::LiveTree;
use crate::data::ordered_extents::RangeTicket;
use crate::data::write_data::{Placed, write_data};
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::file::ordered_write::PlacedWrite;
use crate::file::write_promise::{DATA_PER_METADATA, RUN_METADATA};
use papilio_format::LogicalAddress;
use papilio_format::items::inode::InodeItem;
use papilio_pagecache::{Dirty, Mapping, WritebackRun};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The most bytes that are written back at once.
pub(super) const WRITE_STEP: u64 = 8 << 20;
/// The most runs of a batch.
const MOST_RUNS: usize = 128;

/// The file that is written back, as the caller found it under its locks.
pub(super) struct Target<'a> {
    pub(super) fs: &'a FsInfo,
    pub(super) mapping: &'a Mapping,
    pub(super) live: &'a LiveTree,
    pub(super) item: &'a InodeItem,
    pub(super) epoch: u64,
}

/// A run of pages whose range is locked.
struct Taken<'a> {
    run: WritebackRun,
    ticket: RangeTicket,
    place: PlacedWrite<'a>,
}

impl OpenInode {
    /// Writes back the dirty pages `first` and runs after it, up to file offset `until`. Returns
    /// where the next step begins; `None` if `first` cannot be written this way.
    pub(super) fn write_back_ordered(
        &self,
        target: &Target<'_>,
        first: &Range<u64>,
        until: u64,
    ) -> Result<Option<u64>> {
        let (fs, sector) = (target.fs, target.fs.sector_size());
        let limit = (target.item.size - target.item.size % sector).min(until);
        fs.transactions()?.check_running()?;
        let mut batch: Vec<Taken<'_>> = Vec::new();
        let (mut next, mut bytes) = (first.start, 0);
        let mut found = Some(first.clone());
        while let Some(range) = found.filter(|range| is_whole(range, sector) && range.end <= limit) {
            let taken = match self.take(target, &range, batch.is_empty()) {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(error) => {
                    self.give_back(batch);
                    return Err(error);
                }
            };
            let written = taken.run.range();
            (next, bytes) = (written.end, bytes + (written.end - written.start));
            batch.push(taken);
            if batch.len() == MOST_RUNS || bytes >= WRITE_STEP {
                break;
            }
            found = target.mapping.next_dirty(next..limit, WRITE_STEP - bytes);
        }
        if batch.is_empty() {
            return Ok(None);
        }
        self.write_batch(fs, batch).map(|()| Some(next))
    }

    /// Takes a run of pages from `range`. Waits for its range and its folio only if it is the
    /// first. Returns `None` where it would have to wait, or where there is no place for it.
    fn take<'a>(&self, target: &Target<'a>, range: &Range<u64>, is_first: bool) -> Result<Option<Taken<'a>>> {
        let ticket = loop {
            match self.ordered.try_ticket_to_write(range) {
                Some((ticket, _)) => break ticket,
                None if is_first => drop(self.ordered.lock_to_write(range.clone())),
                None => return Ok(None),
            }
        };
        let run = match is_first {
            true => target.mapping.start_writeback(range.clone(), WRITE_STEP, Dirty::Any),
            false => target.mapping.try_start_writeback(range.clone(), WRITE_STEP, Dirty::Any),
        };
        let Some(run) = run else {
            drop(self.ordered.redeem(ticket));
            return Ok(None);
        };
        // It may be shorter than `range`: a writer has a folio, or pages are clean now.
        let range = run.range();
        let parts = self.ordered.parts(&range);
        let at = (&range, &parts[..], target.epoch);
        match self.place_ordered_write(target.fs, target.live, target.item, at) {
            Ok(PlacedWrite::Impossible) => {
                self.give_back([Taken { run, ticket, place: PlacedWrite::Impossible }]);
                Ok(None)
            }
            Ok(place) => Ok(Some(Taken { run, ticket, place })),
            Err(error) => {
                self.give_back([Taken { run, ticket, place: PlacedWrite::Impossible }]);
                Err(error)
            }
        }
    }

    /// Writes a batch to the device, all runs together, and records it as ordered extents.
    fn write_batch(&self, fs: &FsInfo, batch: Vec<Taken<'_>>) -> Result<()> {
        let geometry = fs.volume().geometry();
        let mut placed = Vec::new();
        for taken in &batch {
            taken.add_pieces(&mut placed);
        }
        let written = write_data(fs.volume(), &fs.write_rules(), true, &placed);
        drop(placed);
        let checksums = match written {
            Ok(checksums) => checksums,
            Err(error) => {
                self.give_back(batch);
                return Err(error);
            }
        };
        let mut checksums = &checksums[..];
        for Taken { run, ticket, place } in batch {
            let range = run.range();
            let bytes = range.end - range.start;
            let metadata = bytes / DATA_PER_METADATA + RUN_METADATA;
            let sectors = (bytes / u64::from(geometry.sector_size)) as usize;
            let (own, rest) = checksums.split_at(sectors * geometry.checksum_type.size());
            checksums = rest;
            let lock = self.ordered.redeem(ticket);
            match place {
                PlacedWrite::There(parts) => lock.record_overwrite(&parts, &range, own),
                PlacedWrite::New(space) => {
                    let replaced = lock.record_new(space.parts(), own);
                    space.disarm();
                    fs.release_ordered(replaced);
                }
                PlacedWrite::Impossible => unreachable!("such a run is not in a batch"),
            }
            run.finish();
            drop(lock);
            // The ordered extents have space and a reservation of their own.
            drop(self.take_reservation(&range, metadata));
        }
        Ok(())
    }

    fn give_back<'a>(&self, batch: impl IntoIterator<Item = Taken<'a>>) {
        for Taken { run, ticket, place } in batch {
            drop(place);
            drop(self.ordered.redeem(ticket));
            self.dirty_again(run);
        }
    }

    /// Ends a writeback whose pages were not written.
    pub(super) fn dirty_again(&self, run: WritebackRun) {
        run.fail();
        self.failed_writebacks.fetch_add(1, Ordering::AcqRel);
    }
}

impl Taken<'_> {
    /// Adds the pieces of the run: its pages, cut where the parts of its place end.
    fn add_pieces<'p>(&'p self, placed: &mut Vec<Placed<'p>>) {
        let parts = match &self.place {
            PlacedWrite::There(parts) => &parts[..],
            PlacedWrite::New(space) => space.parts(),
            PlacedWrite::Impossible => unreachable!("such a run is not in a batch"),
        };
        let mut parts = parts.iter();
        let mut part = parts.next();
        let mut at = self.run.range().start;
        for mut page in self.run.slices() {
            while !page.is_empty() {
                let current = part.expect("the parts cover the run");
                let length = (current.range.end - at).min(page.len() as u64);
                let (bytes, rest) = page.split_at(length as usize);
                let address = LogicalAddress(current.disk.0 + (at - current.range.start));
                placed.push(Placed { address, bytes });
                (page, at) = (rest, at + length);
                if at == current.range.end {
                    part = parts.next();
                }
            }
        }
    }
}

fn is_whole(range: &Range<u64>, sector: u64) -> bool {
    range.start.is_multiple_of(sector) && range.end.is_multiple_of(sector)
}

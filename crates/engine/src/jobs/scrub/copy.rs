//! Copying all that the chunks have on one device to another one, beside writers.
//!
//! Owns [`CopyOf`], which goes through the device's extents in ascending order of their places.
//! Each unit is verified, and mended in memory, as by a scrub: the target gets good bytes where any
//! copy is good.
//!
//! **Invariants**
//! - What is written while this lives goes to both devices. So only that is copied which the last
//!   commit's trees have.
//! - Rows with parity are copied whole. A later writer of a part of a row computes parity from the
//!   free sectors of the source, so the target must have the same bytes there.
//! - From its first read to its last write, nothing is written over a unit. Its extents are pinned,
//!   so that their space is not reused. In-place writers are kept out: by the locks of rows where
//!   the chunk has parity, else by [`DevReplace::hold`].
//! - An empty chunk may go while it is copied, and another one take its place. So the ranges are
//!   held, and the chunk looked up once more, before the target is written.
//!
//! **Locks**: `commit`, while the trees are taken; those of rows, or the held ranges. Units are
//! copied by several threads. Each holds the rows or ranges of its own unit only, and waits for
//! writers alone.
//!
//! Kernel counterpart: `scrub_stripe` with `is_dev_replace` (`fs/btrfs/scrub.c`).

use super::extents::UnitExtents;
use super::report::ScrubCounts;
use super::units::Unit;
use super::verify::{UnitScrub, wanted};
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::volume::{Chunk, DevReplace, HeldRanges};
use crate::workers::{each_at_once, threads};
use papilio_device::AlignedBuffer;
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::{DeviceId, LogicalAddress};
use papilio_locks::Mutex;
use std::sync::Arc;

/// The most rows of a unit.
const ROWS: u64 = 16;
/// Units for each thread, between two reports of the progress.
const UNITS: usize = 4;

/// The copy of a device.
pub(in crate::jobs) struct CopyOf<'a> {
    info: &'a FsInfo,
    devid: DeviceId,
    /// The chunks that are left, the next one last.
    chunks: Vec<Arc<Chunk>>,
    /// The next row of the next chunk.
    row: u64,
    bytes: (u64, u64),
    /// Buffers of units that are done.
    buffers: Mutex<Vec<Vec<AlignedBuffer>>>,
    /// Whether the device is read only where nothing else helps.
    avoided: bool,
    /// Sectors without any readable copy.
    pub(in crate::jobs) unknown: u64,
}

fn rows_of(chunk: &Chunk) -> u64 {
    chunk.length().div_ceil(chunk.data_columns() as u64 * STRIPE_LENGTH)
}

impl<'a> CopyOf<'a> {
    /// Prepares the copy of all chunks of a device. Their trees are committed.
    pub(in crate::jobs) fn new(info: &'a FsInfo, devid: DeviceId, avoided: bool) -> Self {
        let mut chunks = Vec::new();
        for chunk in info.volume().chunk_map().iter() {
            // Both copies of DUP are on the device: they are copied together.
            let places = chunk.stripes().iter().filter(|stripe| stripe.devid == devid);
            let places = places.map(|stripe| stripe.offset.0);
            if let Some(first) = places.min() {
                chunks.push((first, Arc::clone(chunk)));
            }
        }
        chunks.sort_unstable_by_key(|(first, _)| std::cmp::Reverse(*first));
        let chunks: Vec<_> = chunks.into_iter().map(|(_, chunk)| chunk).collect();
        let total = chunks.iter().map(|chunk| rows_of(chunk)).sum::<u64>() * STRIPE_LENGTH;
        let buffers = Mutex::default();
        Self { info, devid, chunks, row: 0, bytes: (0, total), buffers, avoided, unknown: 0 }
    }

    /// Returns the bytes that are done, and all bytes.
    pub(in crate::jobs) fn progress(&self) -> (u64, u64) {
        self.bytes
    }

    /// Copies the next units to the target of `dev_replace`. Returns whether there were any.
    ///
    /// # Errors
    /// The extents or checksums of a unit cannot be read; the target fails.
    pub(in crate::jobs) fn next(&mut self, dev_replace: &DevReplace) -> Result<bool> {
        let threads = threads(self.info.volume().waits());
        let count = if threads > 1 { threads * UNITS } else { 1 };
        let units: Vec<Unit> = std::iter::from_fn(|| self.next_unit()).take(count).collect();
        let copied = each_at_once(&units, threads, |unit| self.copy_unit(unit, dev_replace));
        for (unit, unknown) in units.iter().zip(copied) {
            self.unknown += unknown?;
            self.bytes.0 += (unit.rows.end - unit.rows.start) * STRIPE_LENGTH;
        }
        Ok(!units.is_empty())
    }

    fn next_unit(&mut self) -> Option<Unit> {
        let chunk = self.chunks.last()?;
        let end = (self.row + ROWS).min(rows_of(chunk));
        let unit = Unit { chunk: Arc::clone(chunk), rows: self.row..end };
        self.row = end;
        if end == rows_of(&unit.chunk) {
            self.chunks.pop();
            self.row = 0;
        }
        Some(unit)
    }

    /// Copies what the last commit has in a unit. Returns the number of sectors without a readable
    /// copy.
    fn copy_unit(&self, unit: &Unit, dev_replace: &DevReplace) -> Result<u64> {
        let mut extents = UnitExtents::read(self.info, unit.range())?;
        if let Some(error) = extents.left_out.take() {
            return Err(error);
        }
        if extents.extents.is_empty() && unit.chunk.profile().parity() == 0 {
            return Ok(0);
        }
        let unknown = self.copy(unit, &extents, dev_replace, self.avoided)?;
        if unknown > 0 && self.avoided && dev_replace.source().is_some() {
            return self.copy(unit, &extents, dev_replace, false);
        }
        Ok(unknown)
    }

    /// Keeps writers away from a unit. Returns `None` if its chunk is gone: a new one in its place
    /// is written to both devices.
    fn hold<'t>(&self, unit: &Unit, dev_replace: &'t DevReplace) -> Option<HeldRanges<'t>> {
        let rows = unit.rows.start * STRIPE_LENGTH..unit.rows.end * STRIPE_LENGTH;
        let stripes = unit.chunk.stripes().iter().filter(|stripe| stripe.devid == self.devid);
        let ranges = stripes.map(|stripe| stripe.offset.0 + rows.start..stripe.offset.0 + rows.end);
        let held = dev_replace.hold(ranges);
        let current = self.info.volume().chunk_map();
        let found = current.find(unit.chunk.start());
        found.is_some_and(|chunk| chunk.stripes() == unit.chunk.stripes()).then_some(held)
    }

    /// Copies a unit. Returns the number of sectors without a readable copy.
    fn copy(
        &self,
        unit: &Unit,
        extents: &UnitExtents,
        dev_replace: &DevReplace,
        avoided: bool,
    ) -> Result<u64> {
        // A writer of a row waits for held ranges with the row locked. So these rows are locked
        // first, and their ranges held only while the target is written.
        let parity = unit.chunk.profile().parity() > 0;
        let held = self.hold(unit, dev_replace);
        if held.is_none() {
            return Ok(0);
        }
        let held = held.filter(|_| !parity);
        let volume = self.info.volume();
        let devices = volume.devices();
        // The devices are not written here; the source's stripes are mended in memory.
        let verified: Vec<bool> = devices.iter().map(|slot| slot.devid() == self.devid).collect();
        let mut counts = vec![ScrubCounts::default(); verified.len()];
        let without = avoided.then_some(self.devid);
        let buffers = self.buffers.lock().pop().unwrap_or_default();
        let range = unit.range();
        let whole = parity.then_some((LogicalAddress(range.start), range.end - range.start));
        let parts = wanted(extents).filter(|_| whole.is_none()).chain(whole);
        let rows = volume.load_rows(&unit.chunk, unit.rows.clone(), parts, buffers, without);
        let mut scrub = UnitScrub::new(rows, extents, &mut counts, &verified).rebuilding(self.devid);
        scrub.run();
        let rows = scrub.rows;
        let held = held.or_else(|| self.hold(unit, dev_replace));
        let copied = match held {
            Some(_) => rows.copy_to(self.devid, &**dev_replace.target()),
            None => Ok(0),
        };
        self.buffers.lock().push(rows.into_buffers());
        copied
    }
}

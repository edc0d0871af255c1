//! Copying all that the chunks have on one device to another one.
//!
//! Owns [`CopyOf`], which goes through the device's extents in ascending order of their places.
//! Each unit is verified, and mended in memory, as by a scrub: the target gets good bytes where any
//! copy is good.
//!
//! **Invariant**: nothing is committed meanwhile, so that the copy is complete.
//!
//! **Locks**: `commit`, while the trees are taken; those of rows.
//!
//! Kernel counterpart: `scrub_stripe` with `is_dev_replace` (`fs/btrfs/scrub.c`).

use super::extents::UnitExtents;
use super::report::ScrubCounts;
use super::units::Unit;
use super::verify::{UnitScrub, wanted};
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::volume::Chunk;
use papilio_device::Device;
use papilio_format::DeviceId;
use papilio_format::items::chunk::STRIPE_LENGTH;
use std::sync::Arc;

/// The most rows that are copied at once.
const ROWS: u64 = 16;

/// The copy of a device.
pub(in crate::maintenance) struct CopyOf<'a> {
    info: &'a FsInfo,
    devid: DeviceId,
    /// The chunks that are left, the next one last.
    chunks: Vec<Arc<Chunk>>,
    /// The next row of the next chunk.
    row: u64,
    bytes: (u64, u64),
    buffers: Vec<Vec<u8>>,
    /// Whether the device is read only where nothing else helps.
    avoided: bool,
    /// Sectors without any readable copy.
    pub(in crate::maintenance) unknown: u64,
    /// Sectors that could not be written.
    pub(in crate::maintenance) failed: u64,
}

fn rows_of(chunk: &Chunk) -> u64 {
    chunk.length().div_ceil(chunk.data_columns() as u64 * STRIPE_LENGTH)
}

impl<'a> CopyOf<'a> {
    /// Prepares the copy of all chunks of a device that end after the place `cursor`.
    pub(in crate::maintenance) fn new(info: &'a FsInfo, devid: DeviceId, cursor: u64, avoided: bool) -> Self {
        let mut chunks = Vec::new();
        for chunk in info.volume().chunk_map().iter() {
            // Both copies of DUP are on the device: they are copied together.
            let places = chunk.stripes().iter().filter(|stripe| stripe.devid == devid);
            let places = places.map(|stripe| stripe.offset.0);
            if let (Some(first), Some(last)) = (places.clone().min(), places.max())
                && last + rows_of(chunk) * STRIPE_LENGTH > cursor
            {
                chunks.push((first, Arc::clone(chunk)));
            }
        }
        chunks.sort_unstable_by_key(|(first, _)| std::cmp::Reverse(*first));
        let chunks: Vec<_> = chunks.into_iter().map(|(_, chunk)| chunk).collect();
        let total = chunks.iter().map(|chunk| rows_of(chunk)).sum::<u64>() * STRIPE_LENGTH;
        Self {
            info,
            devid,
            chunks,
            row: 0,
            bytes: (0, total),
            buffers: Vec::new(),
            avoided,
            unknown: 0,
            failed: 0,
        }
    }

    /// Returns the bytes that are done, and all bytes.
    pub(in crate::maintenance) fn progress(&self) -> (u64, u64) {
        self.bytes
    }

    /// Copies the next unit. Returns whether there was one.
    ///
    /// # Errors
    /// The extents or checksums of the unit cannot be read.
    pub(in crate::maintenance) fn next(&mut self, target: &dyn Device) -> Result<bool> {
        let Some(chunk) = self.chunks.last() else { return Ok(false) };
        let end = (self.row + ROWS).min(rows_of(chunk));
        let unit = Unit { chunk: Arc::clone(chunk), rows: self.row..end };
        self.row = end;
        if end == rows_of(&unit.chunk) {
            self.chunks.pop();
            self.row = 0;
        }
        let mut extents = UnitExtents::read(self.info, unit.range())?;
        if let Some(error) = extents.left_out.take() {
            return Err(error);
        }
        if !extents.extents.is_empty() {
            let (mut unknown, mut failed) = self.copy(&unit, &extents, target, self.avoided);
            if unknown > 0 && self.avoided {
                (unknown, failed) = self.copy(&unit, &extents, target, false);
            }
            self.unknown += unknown;
            self.failed += failed;
        }
        self.bytes.0 += (unit.rows.end - unit.rows.start) * STRIPE_LENGTH;
        Ok(true)
    }

    fn copy(&mut self, unit: &Unit, extents: &UnitExtents, target: &dyn Device, avoided: bool) -> (u64, u64) {
        let volume = self.info.volume();
        let devices = volume.devices();
        // The devices are not written here; the source's stripes are mended in memory.
        let verified: Vec<bool> = devices.iter().map(|slot| slot.devid() == self.devid).collect();
        let mut counts = vec![ScrubCounts::default(); verified.len()];
        let without = avoided.then_some(self.devid);
        let buffers = std::mem::take(&mut self.buffers);
        let rows = volume.load_rows(&unit.chunk, unit.rows.clone(), wanted(extents), buffers, without);
        let mut scrub = UnitScrub::new(rows, extents, &mut counts, &verified).rebuilding(self.devid);
        scrub.run();
        let rows = scrub.rows;
        let copied = rows.copy_to(self.devid, target);
        self.buffers = rows.into_buffers();
        copied
    }
}

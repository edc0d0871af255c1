//! The bytes of all stripes of some rows of one chunk, in memory.
//!
//! Owns [`LoadedRows`]: a scrub reads the wanted sectors of every copy and parity at once, mends
//! them in memory, and writes the mended sectors back.
//!
//! **Invariants**
//! - A sector is read, and may be mended, only if it is wanted. With parity, the wanted sectors of
//!   a row are the same on all stripes, so that parity can be computed.
//! - Memory is one buffer for each stripe. The caller keeps the buffers from one load to the next.
//! - A mended sector is written to its own stripe only. Where the chunk has parity, its rows are
//!   locked from the first read to the last write, so that no writer computes parity from the bytes
//!   that are being replaced.
//!
//! **Locks**: those of rows, see [`super::row_locks`], for the life of the value.
//!
//! Kernel counterpart: `struct scrub_stripe` (`fs/btrfs/scrub.c`).

use super::at_once::at_once;
use super::chunk_map::Chunk;
use super::device_writes::device_error;
use super::devices::{DeviceSlot, DeviceTable};
use super::mapping::Element;
use super::parity::Syndrome;
use super::rebuild::{Row, rebuild};
use super::volume::Volume;
use crate::errors::{Error, Result};
use papilio_device::{AlignedBuffer, Device};
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::{DeviceId, LogicalAddress, PhysicalAddress};
use papilio_locks::RwLockWriteGuard;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Unwanted sectors between wanted ones that are read along rather than skipped.
const READ_THROUGH: usize = 8;

/// The sector is to be verified.
const WANTED: u8 = 1 << 0;
/// The sector could not be read.
const FAILED: u8 = 1 << 1;
/// The sector was read, and its bytes are wrong.
const BAD: u8 = 1 << 2;
/// The sector was mended in memory.
const MENDED: u8 = 1 << 3;

/// One stripe of the rows.
#[derive(Debug)]
struct LoadedStripe {
    /// The slot of the device; `None` if it is missing.
    slot: Option<usize>,
    stale: bool,
    /// The place of the first row.
    start: PhysicalAddress,
    bytes: AlignedBuffer,
    flags: Vec<u8>,
}

/// The place of some bytes in the loaded rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadedPlace {
    pub(crate) stripe: usize,
    /// The offset in the stripe's buffer.
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// A write of mended sectors that failed.
#[derive(Debug)]
pub(crate) struct FailedWrite {
    pub(crate) slot: usize,
    pub(crate) sectors: usize,
    pub(crate) source: io::Error,
}

/// Some rows of a chunk.
#[derive(Debug)]
pub(crate) struct LoadedRows<'v> {
    chunk: Arc<Chunk>,
    devices: Arc<DeviceTable>,
    rows: Range<u64>,
    sector: usize,
    stripes: Vec<LoadedStripe>,
    _held: Vec<RwLockWriteGuard<'v, ()>>,
}

impl Volume {
    /// Reads the `wanted` ranges of the rows, from every stripe. Each range lies in the rows and
    /// consists of whole sectors. `buffers` are those of an earlier load. The device `without`
    /// counts as missing.
    pub(crate) fn load_rows(
        &self,
        chunk: &Arc<Chunk>,
        rows: Range<u64>,
        wanted: impl Iterator<Item = (LogicalAddress, u64)>,
        mut buffers: Vec<AlignedBuffer>,
        without: Option<DeviceId>,
    ) -> LoadedRows<'_> {
        let devices = self.devices();
        let sector = self.geometry().sector_size as usize;
        let length = ((rows.end - rows.start) * STRIPE_LENGTH) as usize;
        let parity = chunk.profile().parity() > 0;
        let held = if parity { self.rows.hold(rows.clone().map(|row| (&**chunk, row))) } else { Vec::new() };
        let stripes = chunk.stripes().iter().map(|stripe| {
            let is_read = |slot: &DeviceSlot| !slot.is_missing() && without != Some(stripe.devid);
            let found = devices.find(stripe).filter(|(_, slot)| is_read(slot));
            let old = buffers.pop().filter(|old| old.len() == length);
            let bytes = old.unwrap_or_else(|| AlignedBuffer::for_direct_io(length));
            LoadedStripe {
                slot: found.map(|(number, _)| number),
                stale: found.is_some_and(|(_, slot)| slot.stale),
                start: PhysicalAddress(stripe.offset.0 + rows.start * STRIPE_LENGTH),
                bytes,
                flags: vec![0; length / sector],
            }
        });
        let stripes = stripes.collect();
        let chunk = Arc::clone(chunk);
        let mut loaded = LoadedRows { chunk, devices, rows, sector, stripes, _held: held };
        for (logical, length) in wanted {
            loaded.want(logical, length as usize);
        }
        loaded.read(self.waits());
        loaded
    }
}

impl LoadedRows<'_> {
    /// Returns the buffers for the next load, and unlocks the rows.
    pub(crate) fn into_buffers(self) -> Vec<AlignedBuffer> {
        self.stripes.into_iter().map(|stripe| stripe.bytes).collect()
    }

    fn want(&mut self, logical: LogicalAddress, length: usize) {
        let chunk = Arc::clone(&self.chunk);
        for element in chunk.elements(logical, length) {
            let places: Vec<_> = if chunk.profile().parity() == 0 {
                self.places(&element)
            } else {
                (0..chunk.stripes().len()).map(|column| self.column(&element, column)).collect()
            };
            for place in places {
                let sectors = self.sectors(&place);
                self.stripes[place.stripe].flags[sectors].fill(WANTED);
            }
        }
    }

    /// Reads the wanted sectors of all stripes.
    fn read(&mut self, waits: bool) {
        let (devices, sector) = (&self.devices, self.sector);
        at_once(self.stripes.iter_mut(), waits, |stripe: &mut LoadedStripe| {
            let Some(device) = stripe.slot.and_then(|slot| devices.device(slot)) else {
                stripe.flags.iter_mut().for_each(|flags| *flags |= FAILED);
                return;
            };
            for run in runs(&stripe.flags, WANTED, READ_THROUGH) {
                stripe.read_run(device, run, sector);
            }
        });
    }

    fn sectors(&self, place: &LoadedPlace) -> Range<usize> {
        place.offset / self.sector..(place.offset + place.length).div_ceil(self.sector)
    }

    fn at(&self, stripe: usize, physical: PhysicalAddress, length: usize) -> LoadedPlace {
        let offset = (physical.0 - self.stripes[stripe].start.0) as usize;
        LoadedPlace { stripe, offset, length }
    }

    /// Returns the places of all copies of an element that need no rebuild.
    pub(crate) fn places(&self, element: &Element) -> Vec<LoadedPlace> {
        let direct = (0..self.chunk.profile().copies()).map(|copy| {
            let (stripe, physical) = self.chunk.direct(element, copy).expect("these copies are direct");
            self.at(stripe, physical, element.length)
        });
        direct.collect()
    }

    /// Returns the place of a column of a row with parity, for the same bytes as the element.
    fn column(&self, element: &Element, column: usize) -> LoadedPlace {
        let (stripe, physical) = self.chunk.column_place(element, column);
        self.at(stripe, physical, element.length)
    }

    /// Returns the chunk.
    pub(crate) fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }

    /// Returns the slot of a place's device; `None` if it is missing.
    pub(crate) fn slot(&self, place: &LoadedPlace) -> Option<usize> {
        self.stripes[place.stripe].slot
    }

    /// Returns the devid of a place's device, present or missing.
    pub(crate) fn devid(&self, place: &LoadedPlace) -> DeviceId {
        self.chunk.stripes()[place.stripe].devid
    }

    /// Writes the wanted sectors of a device's stripes to `target`, at the same places. Returns how
    /// many sectors are not known.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn copy_to(&self, devid: DeviceId, target: &dyn Device) -> Result<u64> {
        let mut unknown = 0;
        let stripes = self.chunk.stripes().iter().zip(&self.stripes);
        for (_, stripe) in stripes.filter(|(item, _)| item.devid == devid) {
            let usable = |flags: &u8| if flags & (WANTED | FAILED) == WANTED { WANTED } else { 0 };
            let usable: Vec<u8> = stripe.flags.iter().map(usable).collect();
            let wanted = stripe.flags.iter().filter(|flags| **flags & WANTED != 0).count();
            for run in runs(&usable, WANTED, 0) {
                let physical = PhysicalAddress(stripe.start.0 + (run.start * self.sector) as u64);
                let bytes = &stripe.bytes[run.start * self.sector..run.end * self.sector];
                let written = target.write_at(bytes, physical);
                written.map_err(|source| device_error(target, "write", physical, bytes.len(), source))?;
            }
            unknown += (wanted - usable.iter().filter(|flags| **flags != 0).count()) as u64;
        }
        Ok(unknown)
    }

    /// Returns the devices of the rows.
    pub(crate) fn devices(&self) -> &Arc<DeviceTable> {
        &self.devices
    }

    /// Returns whether a place's device missed writes.
    pub(crate) fn is_stale(&self, place: &LoadedPlace) -> bool {
        self.stripes[place.stripe].stale
    }

    /// Returns the bytes of a place.
    pub(crate) fn bytes(&self, place: &LoadedPlace) -> &[u8] {
        &self.stripes[place.stripe].bytes[place.offset..][..place.length]
    }

    /// Returns a part of a place.
    pub(crate) fn part(&self, place: &LoadedPlace, start: usize, length: usize) -> LoadedPlace {
        debug_assert!(start + length <= place.length);
        LoadedPlace { offset: place.offset + start, length, ..*place }
    }

    /// Returns whether any sector of a place could not be read.
    pub(crate) fn has_failed(&self, place: &LoadedPlace) -> bool {
        self.has(place, FAILED)
    }

    fn has(&self, place: &LoadedPlace, flag: u8) -> bool {
        self.stripes[place.stripe].flags[self.sectors(place)].iter().any(|flags| flags & flag != 0)
    }

    /// Notes that the bytes of a place are wrong: rebuilds do not use them.
    pub(crate) fn set_bad(&mut self, place: &LoadedPlace) {
        let sectors = self.sectors(place);
        self.stripes[place.stripe].flags[sectors].iter_mut().for_each(|flags| *flags |= BAD);
    }

    /// Replaces the bytes of a place in memory.
    pub(crate) fn mend(&mut self, place: &LoadedPlace, bytes: &[u8]) {
        let sectors = self.sectors(place);
        let stripe = &mut self.stripes[place.stripe];
        stripe.bytes[place.offset..][..place.length].copy_from_slice(bytes);
        for flags in &mut stripe.flags[sectors] {
            *flags = *flags & !(FAILED | BAD) | MENDED;
        }
    }

    /// Fills `out` with the bytes of a data column by attempt `attempt` (1 and up) to rebuild it.
    /// Columns on devices that missed writes are used only if `with_stale`, and nothing else helps.
    ///
    /// # Errors
    /// Too many columns cannot be read, or are known to be wrong.
    pub(crate) fn rebuild(
        &self,
        element: &Element,
        attempt: usize,
        with_stale: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let row = Row {
            data: self.chunk.data_columns(),
            parity: self.chunk.profile().parity(),
            target: element.column,
        };
        let read = |with_stale: bool, out: &mut [u8]| {
            rebuild(row, attempt, out, |column, buffer| {
                let place = self.column(element, column);
                if self.has(&place, FAILED | BAD) || self.is_stale(&place) && !with_stale {
                    let stripe = &self.chunk.stripes()[place.stripe];
                    return Err(Error::DeviceMissing {
                        devid: stripe.devid,
                        uuid: stripe.device_uuid,
                        refused: false,
                    });
                }
                buffer.copy_from_slice(self.bytes(&place));
                Ok(())
            })
        };
        match read(false, out) {
            Err(_) if with_stale => read(true, out),
            result => result,
        }
    }

    /// Reads the data sectors of a device that the load left out and that no extent has, as
    /// `is_used` tells. Writers of their rows read the same bytes meanwhile, and parity counts on
    /// them. A rebuild may say otherwise where a row was never written.
    pub(crate) fn read_unused(&mut self, devid: DeviceId, is_used: impl Fn(LogicalAddress) -> bool) {
        let (sector, data) = (self.sector, self.chunk.data_columns());
        let mut left_out: Vec<Vec<u8>> = vec![Vec::new(); self.stripes.len()];
        for row in self.rows.clone() {
            for column in 0..data {
                let whole = Element { column, row, within: 0, length: STRIPE_LENGTH as usize };
                let place = self.column(&whole, column);
                if self.devid(&place) != devid {
                    continue;
                }
                let start = self.chunk.start().0 + (row * data as u64 + column as u64) * STRIPE_LENGTH;
                let sectors = self.sectors(&place);
                let marks = &mut left_out[place.stripe];
                marks.resize(self.stripes[place.stripe].flags.len(), 0);
                for (mark, address) in marks[sectors].iter_mut().zip((start..).step_by(sector)) {
                    *mark = u8::from(!is_used(LogicalAddress(address)));
                }
            }
        }
        let stripes = self.stripes.iter_mut().zip(self.chunk.stripes()).zip(left_out);
        for ((stripe, item), mut marks) in stripes.filter(|(_, marks)| !marks.is_empty()) {
            let found = self.devices.find(item).and_then(|(number, _)| self.devices.device(number));
            let Some(device) = found else { continue };
            for (mark, flags) in marks.iter_mut().zip(&stripe.flags) {
                *mark &= u8::from(*flags & (WANTED | FAILED) == WANTED | FAILED);
            }
            for run in runs(&marks, 1, 0) {
                stripe.flags[run.clone()].iter_mut().for_each(|flags| *flags &= !FAILED);
                stripe.read_run(device, run, sector);
            }
        }
    }

    /// Rebuilds the data sectors of a device that could not be read and that no extent has. The
    /// parity of their rows counts on their bytes, too.
    pub(crate) fn rebuild_unused(&mut self, devid: DeviceId) {
        let sector = self.sector;
        let mut bytes = vec![0; sector];
        for row in self.rows.clone() {
            for column in 0..self.chunk.data_columns() {
                for within in (0..STRIPE_LENGTH).step_by(sector) {
                    let element = Element { column, row, within, length: sector };
                    let place = self.column(&element, column);
                    if self.devid(&place) == devid
                        && self.has(&place, WANTED)
                        && self.has(&place, FAILED)
                        && self.rebuild(&element, 1, true, &mut bytes).is_ok()
                    {
                        self.mend(&place, &bytes);
                    }
                }
            }
        }
    }

    /// Calls `each` with the columns, data first, then P and Q, of every run of wanted sectors
    /// whose data is good. Only for chunks with parity.
    pub(crate) fn for_each_good_run(&mut self, mut each: impl FnMut(&mut Self, &[LoadedPlace])) {
        let (data, columns) = (self.chunk.data_columns(), self.chunk.stripes().len());
        let sector = self.sector;
        for row in self.rows.clone() {
            let places = |rows: &Self, within: usize, length: usize| -> Vec<LoadedPlace> {
                let element = Element { column: 0, row, within: within as u64, length };
                (0..columns).map(|column| rows.column(&element, column)).collect()
            };
            let whole = places(self, 0, STRIPE_LENGTH as usize);
            let mut usable = vec![WANTED; STRIPE_LENGTH as usize / sector];
            for place in &whole[..data] {
                let flags = &self.stripes[place.stripe].flags[self.sectors(place)];
                for (usable, flags) in usable.iter_mut().zip(flags) {
                    if flags & WANTED == 0 || flags & (FAILED | BAD) != 0 {
                        *usable = 0;
                    }
                }
            }
            for run in runs(&usable, WANTED, 0) {
                let places = places(self, run.start * sector, run.len() * sector);
                each(self, &places);
            }
        }
    }

    /// Computes P, and Q if `with_q`, of data columns.
    pub(crate) fn parity_of(&self, columns: &[LoadedPlace], with_q: bool) -> Vec<Vec<u8>> {
        let mut syndrome = Syndrome::new(columns[0].length, with_q);
        for place in columns.iter().rev() {
            syndrome.add_next_lower(Some(self.bytes(place)));
        }
        let (p, q) = syndrome.into_parity();
        if with_q { vec![p, q] } else { vec![p] }
    }

    /// Writes the mended sectors to their devices. They are durable after a flush.
    pub(crate) fn write_mended(&mut self) -> Vec<FailedWrite> {
        let (mut failed, sector) = (Vec::new(), self.sector);
        for stripe in &mut self.stripes {
            let Some(slot) = stripe.slot else { continue };
            let Some(device) = self.devices.device(slot) else { continue };
            for run in runs(&stripe.flags, MENDED, 0) {
                let physical = PhysicalAddress(stripe.start.0 + (run.start * sector) as u64);
                let bytes = &stripe.bytes[run.start * sector..run.end * sector];
                if let Err(source) = device.write_at(bytes, physical) {
                    failed.push(FailedWrite { slot, sectors: run.len(), source });
                }
                stripe.flags[run].iter_mut().for_each(|flags| *flags &= !MENDED);
            }
        }
        failed
    }
}

impl LoadedStripe {
    /// Reads a run of sectors; if that fails, each of them on its own.
    fn read_run(&mut self, device: &dyn Device, run: Range<usize>, sector: usize) {
        let physical = |index: usize| PhysicalAddress(self.start.0 + (index * sector) as u64);
        let bytes = &mut self.bytes[run.start * sector..run.end * sector];
        if device.read_at(bytes, physical(run.start)).is_ok() {
            return;
        }
        for (index, bytes) in run.clone().zip(bytes.chunks_mut(sector)) {
            if device.read_at(bytes, physical(index)).is_err() {
                bytes.fill(0);
                self.flags[index] |= FAILED;
            }
        }
    }
}

/// Returns the runs of sectors with `flag`, joined over gaps of up to `gap` sectors.
fn runs(flags: &[u8], flag: u8, gap: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, _) in flags.iter().enumerate().filter(|(_, flags)| **flags & flag != 0) {
        match runs.last_mut() {
            Some(last) if index - last.end <= gap => last.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests;

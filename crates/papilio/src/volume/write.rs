//! Writing a volume: every copy of a range, many ranges at once, flushes, discards, superblocks.
//!
//! Owns [`LogicalWrite`] and the writing half of [`Volume`]. Rows of chunks with parity are the work
//! of [`super::write_rows`].
//!
//! Invariants: a write that succeeded is on every device that is there; a device that is known to be
//! missing is passed over as long as the profile tolerates it, one that fails is an error. Nothing is
//! durable before [`Volume::flush`]. Nothing is written outside the device extents of a chunk: a
//! striped chunk whose length is not made of whole rows takes no writes.
//!
//! The order of a commit is its caller's: tree blocks, [`Volume::flush`], then
//! [`Volume::write_superblocks`]. A superblock that is written earlier may name blocks that a loss of
//! power takes away.
//!
//! Locks: those of rows, see [`super::row_locks`]. Kernel counterparts: `btrfs_submit_bbio`
//! (`fs/btrfs/bio.c`), `btrfs_discard_extent` (`fs/btrfs/extent-tree.c`), `write_all_supers` and
//! `barrier_all_devices` (`fs/btrfs/disk-io.c`).

use super::chunk_map::{Chunk, ChunkMap, chunk_error};
use super::devices::{DeviceSlot, DeviceTable};
use super::log_superblocks::LogSuperblocks;
use super::mapping::Element;
use super::superblocks::SuperblockWriter;
use super::volume::Volume;
use super::write_rows;
use crate::{Error, Result};
use papilio_device::{Device, WriteRequest};
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_MIRRORS};
use papilio_format::{Corrupt, LogicalAddress, PhysicalAddress};
use smallvec::SmallVec;
use std::io;

/// Pieces of a batch that take no allocation.
const USUAL_PIECES: usize = 32;

/// One range of a batch.
#[derive(Debug)]
pub(crate) struct LogicalWrite<'a> {
    /// Where it starts.
    pub(crate) logical: LogicalAddress,
    /// What to write.
    pub(crate) buffer: &'a [u8],
    /// The outcome. After an error any part of the range may hold the new bytes, on any copy.
    pub(crate) result: Result<()>,
}

impl<'a> LogicalWrite<'a> {
    /// A request that has not run yet.
    pub(crate) fn new(logical: LogicalAddress, buffer: &'a [u8]) -> Self {
        Self { logical, buffer, result: Ok(()) }
    }
}

/// A piece of a range: an element of a chunk, and the bytes for it.
pub(super) struct Piece<'m, 'b> {
    /// Which of the batch's ranges it belongs to.
    pub(super) request: usize,
    pub(super) chunk: &'m Chunk,
    pub(super) element: Element,
    pub(super) buffer: &'b [u8],
}

/// What fails where a write to a device fails.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    /// A range of the batch.
    Request(usize),
    /// A segment of a row: all ranges that have a piece in it.
    Segment(usize),
}

/// One write to one device.
pub(super) struct DeviceWrite<'b> {
    /// Slot of the device, which is present.
    pub(super) device: usize,
    pub(super) physical: PhysicalAddress,
    pub(super) buffer: &'b [u8],
    pub(super) owner: Owner,
}

/// The outcomes of a batch's ranges.
pub(super) struct Outcomes(SmallVec<[Result<()>; USUAL_PIECES]>);

impl Outcomes {
    /// Keeps the first error of a range.
    pub(super) fn fail(&mut self, request: usize, error: Error) {
        if self.0[request].is_ok() {
            self.0[request] = Err(error);
        }
    }
}

impl Volume {
    /// Writes `bytes` to all copies of the range from `logical`. Not durable before a
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// No chunk, more devices missing than the profile tolerates, or a device that fails; the other
    /// copies were written even so.
    pub(crate) fn write(&self, logical: LogicalAddress, bytes: &[u8]) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let chunk = chunks.require(logical, bytes.len() as u64)?;
        if chunk.profile().parity() == 0 && bytes.len() as u64 <= chunk.end().0 - logical.0 {
            let mut elements = chunk.elements(logical, bytes.len());
            if let (Some(element), None) = (elements.next(), elements.next()) {
                // The common case: a tree block or a small extent, in one piece.
                check_rows(chunk)?;
                return write_copies(&devices, chunk, &element, bytes);
            }
        }
        let mut request = [LogicalWrite::new(logical, bytes)];
        self.write_batch(&chunks, &devices, &mut request);
        let [request] = request;
        request.result
    }

    /// Carries out all writes as [`Volume::write`] does, each device's in one batch, and stores each
    /// outcome in its request. The ranges must not overlap: what the bytes were then is undefined.
    pub(crate) fn write_many(&self, requests: &mut [LogicalWrite<'_>]) {
        self.write_batch(&self.chunks.load(), &self.devices.load(), requests);
    }

    fn write_batch(&self, chunks: &ChunkMap, devices: &DeviceTable, requests: &mut [LogicalWrite<'_>]) {
        let mut outcomes = Outcomes(SmallVec::new());
        let mut plain: SmallVec<[DeviceWrite<'_>; USUAL_PIECES]> = SmallVec::new();
        let mut rows = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            let marks = (plain.len(), rows.len());
            let outcome = for_each_piece(chunks, number, request, |piece| {
                if piece.chunk.profile().parity() > 0 {
                    rows.push(piece);
                    return Ok(());
                }
                let owner = Owner::Request(piece.request);
                for_each_copy(devices, piece.chunk, &piece.element, |device, physical| {
                    plain.push(DeviceWrite { device, physical, buffer: piece.buffer, owner });
                })
            });
            if outcome.is_err() {
                // What cannot be written whole is not begun.
                plain.truncate(marks.0);
                rows.truncate(marks.1);
            }
            outcomes.0.push(outcome);
        }
        if rows.is_empty() {
            submit(devices, &mut plain, |owner, error| match owner {
                Owner::Request(request) => outcomes.fail(request, error),
                Owner::Segment(_) => unreachable!("there are no rows"),
            });
        } else {
            write_rows::write(devices, &self.rows, rows, plain.into_vec(), &mut outcomes);
        }
        for (request, outcome) in requests.iter_mut().zip(outcomes.0) {
            request.result = outcome;
        }
    }

    /// Returns when every write that had ended before the call is durable on every device that is
    /// there.
    ///
    /// # Errors
    /// The first device that fails; the others are flushed even so. Writes since the last good flush
    /// may be lost then, whatever a later one says.
    pub(crate) fn flush(&self) -> Result<()> {
        let devices = self.devices.load();
        first_error(self.own_devices(&devices).map(|(_, device)| {
            device.flush().map_err(|source| device_error(device, "flush", PhysicalAddress(0), 0, source))
        }))
    }

    /// Says that the content of a range is not needed any more; chunks with parity are left alone, as
    /// are devices that know no discard.
    ///
    /// # Errors
    /// No chunk, or the first device that fails.
    pub(crate) fn discard(&self, logical: LogicalAddress, length: u64) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let (mut at, mut left) = (logical, length);
        let mut ranges = Vec::new();
        while left > 0 {
            let chunk = chunks.require(at, left)?;
            let part = left.min(chunk.end().0 - at.0);
            if chunk.profile().parity() == 0 {
                check_rows(chunk)?;
                discard_ranges(&devices, chunk, at, part, &mut ranges);
            }
            at = LogicalAddress(at.0 + part);
            left -= part;
        }
        merge_ranges(&mut ranges);
        first_error(ranges.into_iter().map(|(number, physical, length)| {
            let device = devices.device(number).expect("only ranges of present devices are listed");
            match device.discard(physical, length) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
                result => result
                    .map_err(|source| device_error(device, "discard", physical, length as usize, source)),
            }
        }))
    }

    /// Writes the superblock to every device that is there and part of the file system, each with
    /// its own device item: the first copy on all devices, durably, then the other copies that fit,
    /// then a flush.
    ///
    /// **Everything that the superblock names must be durable before**: call [`Volume::flush`] after
    /// the tree blocks were written and before this. When the first copies are written the commit is
    /// done; an error of a later copy says that they are not all alike.
    ///
    /// # Errors
    /// Fields that no reader would accept (nothing is written then), no device to write to, or the
    /// first device and copy that failed; the other devices were written even so.
    pub(crate) fn write_superblocks(&self, superblock: &RawSuperblock) -> Result<()> {
        let devices = self.devices.load();
        let writers = self.superblock_writers(&devices, superblock)?;
        first_error(writers.iter().map(SuperblockWriter::write_first))?;
        first_error((1..SUPERBLOCK_MIRRORS).flat_map(|copy| {
            let writers = &writers;
            writers.iter().map(move |writer| writer.write_copy(copy))
        }))?;
        self.flush()
    }

    /// Writes the first copy of `committed`, the superblock of the last commit, with the log at `root`, durably, to
    /// every device. What it names must be durable before. `kept` is what the caller keeps from one log of this
    /// commit to the next, at first `None`.
    ///
    /// # Errors
    /// As [`Volume::write_superblocks`].
    pub(crate) fn write_log_superblock(
        &self,
        committed: &RawSuperblock,
        (root, level): (LogicalAddress, u8),
        kept: &mut Option<LogSuperblocks>,
    ) -> Result<()> {
        let devices = self.devices.load_full();
        let kept = match kept {
            Some(kept) if kept.are_of(&devices) => kept,
            kept => kept.insert(LogSuperblocks::new(&devices, self.superblock_writers(&devices, committed)?)),
        };
        kept.write(root, level)
    }

    fn superblock_writers<'d>(
        &self,
        devices: &'d DeviceTable,
        superblock: &RawSuperblock,
    ) -> Result<Vec<SuperblockWriter<'d>>> {
        let writers = self
            .own_devices(devices)
            .filter(|(slot, _)| slot.in_chunk_tree)
            .map(|(slot, device)| SuperblockWriter::new(device, superblock, slot.item))
            .collect::<Result<Vec<_>>>()?;
        if writers.is_empty() {
            return Err(Error::Invalid("no device of the file system to write a superblock to".to_owned()));
        }
        Ok(writers)
    }

    /// The devices that are there and no seeds.
    fn own_devices<'d>(
        &self,
        devices: &'d DeviceTable,
    ) -> impl Iterator<Item = (&'d DeviceSlot, &'d dyn Device)> + use<'d> {
        let uuid = self.superblock().metadata_uuid();
        devices
            .iter()
            .filter(move |slot| slot.item.fsid == uuid)
            .filter_map(|slot| Some((slot, slot.device.as_deref()?)))
    }
}

/// Runs through all, and returns the first error.
fn first_error(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    let mut first = Ok(());
    for result in results {
        first = first.and(result);
    }
    first
}

/// Refuses chunks whose last row would reach out of the device extents behind it. Neither the kernel
/// nor mkfs makes such, but an image may hold one.
fn check_rows(chunk: &Chunk) -> Result<()> {
    let columns = chunk.data_columns() as u64;
    if (columns == 1 && chunk.profile().parity() == 0)
        || chunk.length().is_multiple_of(columns * STRIPE_LENGTH)
    {
        return Ok(());
    }
    let reason =
        Corrupt::field("chunk", "length", chunk.length(), "not made of whole rows, cannot be written");
    Err(chunk_error(chunk.start(), reason))
}

/// Cuts a range into pieces, across chunks.
fn for_each_piece<'m, 'b>(
    chunks: &'m ChunkMap,
    request: usize,
    write: &LogicalWrite<'b>,
    mut each: impl FnMut(Piece<'m, 'b>) -> Result<()>,
) -> Result<()> {
    let (mut logical, mut rest) = (write.logical, write.buffer);
    while !rest.is_empty() {
        let chunk = chunks.require(logical, rest.len() as u64)?;
        check_rows(chunk)?;
        let length = (chunk.end().0 - logical.0).min(rest.len() as u64) as usize;
        for element in chunk.elements(logical, length) {
            let (buffer, after) = rest.split_at(element.length);
            rest = after;
            each(Piece { request, chunk, element, buffer })?;
        }
        logical = LogicalAddress(logical.0 + length as u64);
    }
    Ok(())
}

/// The places of an element's copies on devices that are there.
///
/// # Errors
/// More copies missing than the profile tolerates.
fn for_each_copy(
    devices: &DeviceTable,
    chunk: &Chunk,
    element: &Element,
    mut each: impl FnMut(usize, PhysicalAddress),
) -> Result<()> {
    let profile = chunk.profile();
    let places = (0..profile.copies()).map(|copy| chunk.direct(element, copy).expect("a copy is direct"));
    let present = |stripe: usize| devices.present(&chunk.stripes()[stripe]);
    let missing = places.clone().filter(|&(stripe, _)| present(stripe).is_none()).count();
    check_missing(chunk, missing)?;
    for (stripe, physical) in places {
        if let Some((number, _)) = present(stripe) {
            each(number, physical);
        }
    }
    Ok(())
}

/// Refuses what too few devices are left for.
pub(super) fn check_missing(chunk: &Chunk, missing: usize) -> Result<()> {
    let tolerated = chunk.profile().tolerated_failures();
    if missing > tolerated {
        return Err(Error::TooManyMissing { logical: chunk.start(), missing, tolerated });
    }
    Ok(())
}

/// Writes one element to all its copies.
fn write_copies(devices: &DeviceTable, chunk: &Chunk, element: &Element, bytes: &[u8]) -> Result<()> {
    let mut outcome = Ok(());
    for_each_copy(devices, chunk, element, |number, physical| {
        let device = devices.device(number).expect("only present devices are called");
        if let Err(source) = device.write_at(bytes, physical)
            && outcome.is_ok()
        {
            outcome = Err(device_error(device, "write", physical, bytes.len(), source));
        }
    })?;
    outcome
}

/// Hands each device its writes in one batch, in ascending order.
///
/// Pieces are not joined: those of one range that lie side by side on a device are one piece already,
/// and the buffers of different ranges are not side by side in memory.
pub(super) fn submit(
    devices: &DeviceTable,
    writes: &mut [DeviceWrite<'_>],
    mut failed: impl FnMut(Owner, Error),
) {
    writes.sort_unstable_by_key(|write| (write.device, write.physical));
    for group in writes.chunk_by(|a, b| a.device == b.device) {
        let device = devices.device(group[0].device).expect("only present devices are called");
        let mut batch: SmallVec<[_; USUAL_PIECES]> =
            group.iter().map(|write| WriteRequest::new(write.physical, write.buffer)).collect();
        device.write_many(&mut batch);
        for (write, request) in group.iter().zip(batch) {
            if let Err(source) = request.result {
                let error = device_error(device, "write", write.physical, write.buffer.len(), source);
                failed(write.owner, error);
            }
        }
    }
}

/// Adds the places of a range of one chunk: slot, start and bytes.
fn discard_ranges(
    devices: &DeviceTable,
    chunk: &Chunk,
    logical: LogicalAddress,
    length: u64,
    ranges: &mut Vec<(usize, PhysicalAddress, u64)>,
) {
    for element in chunk.elements(logical, length as usize) {
        for copy in 0..chunk.profile().copies() {
            let (stripe, physical) = chunk.direct(&element, copy).expect("a copy is direct");
            if let Some((number, _)) = devices.present(&chunk.stripes()[stripe]) {
                ranges.push((number, physical, element.length as u64));
            }
        }
    }
}

/// Sorts ranges and joins those that touch.
fn merge_ranges(ranges: &mut Vec<(usize, PhysicalAddress, u64)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|later, earlier| {
        let touch = later.0 == earlier.0 && earlier.1.0 + earlier.2 == later.1.0;
        if touch {
            earlier.2 += later.2;
        }
        touch
    });
}

/// The error of a device that failed.
fn device_error(
    device: &dyn Device,
    operation: &'static str,
    offset: PhysicalAddress,
    length: usize,
    source: io::Error,
) -> Error {
    Error::Device { device: device.name().to_owned(), operation, offset, length, source }
}

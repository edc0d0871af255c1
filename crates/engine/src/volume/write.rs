//! Writing a volume: all copies of a range, many ranges at once, flushes, discards, superblocks.
//!
//! Owns [`LogicalWrite`] and the writing half of [`Volume`]. [`super::write_rows`] writes rows of
//! chunks with parity.
//!
//! **Invariants**
//! - A successful write is on every present device that is not lost. Missing devices are skipped,
//!   and failing ones lost ([`super::lost_devices`]), as long as the profiles tolerate it.
//! - Nothing is durable before [`Volume::flush`].
//! - Nothing is written outside the device extents of a chunk: writes to a striped chunk whose
//!   length is not a multiple of whole rows are refused.
//! - The caller orders a commit: tree blocks, [`Volume::flush`], then
//!   [`Volume::write_superblocks`]. A superblock written earlier may name blocks that a power loss
//!   destroys.
//!
//! **Locks**: those of rows, see [`super::row_locks`].
//!
//! Kernel counterparts: `btrfs_submit_bbio` (`fs/btrfs/bio.c`), `btrfs_discard_extent`
//! (`fs/btrfs/extent-tree.c`), `write_all_supers` and `barrier_all_devices` (`fs/btrfs/disk-io.c`).

use super::at_once::at_once;
use super::chunk_map::{Chunk, ChunkMap, chunk_error};
use super::device_writes::{
    DeviceWrite, Outcomes, Owner, USUAL_PIECES, WritePiece, check_missing, device_error, submit,
};
use super::devices::{DeviceSlot, DeviceTable};
use super::log_superblocks::LogSuperblocks;
use super::lost_devices::LOSS_COMMITS;
use super::mapping::Element;
use super::superblocks::{SuperblockWriter, check_size};
use super::volume::Volume;
use super::write_rows;
use crate::errors::{Error, Result};
use papilio_device::Device;
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::items::device::DeviceItem;
use papilio_format::items::device::DeviceStat;
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_MIRRORS};
use papilio_format::{Corrupt, DeviceId, LogicalAddress, PhysicalAddress};
use smallvec::SmallVec;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// One range of a batch.
#[derive(Debug)]
pub struct LogicalWrite<'a> {
    /// First logical address.
    pub(crate) logical: LogicalAddress,
    /// The bytes to write.
    pub(crate) buffer: &'a [u8],
    /// The outcome. After an error any part of the range may hold the new bytes, on any copy.
    pub result: Result<()>,
}

impl<'a> LogicalWrite<'a> {
    /// Creates a request that has not run yet.
    pub fn new(logical: LogicalAddress, buffer: &'a [u8]) -> Self {
        Self { logical, buffer, result: Ok(()) }
    }
}

impl Volume {
    /// Writes `bytes` to all copies of the range from `logical`. Not durable before a
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// Fails if there is no chunk, more devices are missing than the profile tolerates, or a device
    /// fails. The other copies are written nevertheless.
    pub fn write(&self, logical: LogicalAddress, bytes: &[u8]) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let chunk = chunks.require(logical, bytes.len() as u64)?;
        // Copies on devices that wait go out together.
        let at_once = chunk.profile().copies() > 1 && devices.wait();
        if chunk.profile().parity() == 0 && !at_once && bytes.len() as u64 <= chunk.end().0 - logical.0 {
            let mut elements = chunk.elements(logical, bytes.len());
            if let (Some(element), None) = (elements.next(), elements.next()) {
                // The common case: a tree block or a small extent, in one piece.
                check_rows(chunk)?;
                return self.write_copies(&devices, chunk, &element, bytes);
            }
        }
        let mut request = [LogicalWrite::new(logical, bytes)];
        self.write_batch(&chunks, &devices, &mut request);
        let [request] = request;
        request.result
    }

    /// Executes all writes like [`Volume::write`], in one batch per device, and stores each outcome
    /// in its request. The ranges must not overlap; otherwise the resulting bytes are undefined.
    pub fn write_many(&self, requests: &mut [LogicalWrite<'_>]) {
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
                // Do not start a write that cannot be completed.
                plain.truncate(marks.0);
                rows.truncate(marks.1);
            }
            outcomes.0.push(outcome);
        }
        if rows.is_empty() {
            submit(devices, &mut plain, |device, owner, error| match owner {
                _ if self.lose_device(device) => {}
                Owner::Request(request) => outcomes.fail(request, error),
                Owner::Segment(_) => unreachable!("there are no rows"),
            });
        } else {
            let forgive = |device| self.lose_device(device);
            write_rows::write(devices, &self.rows, rows, plain.into_vec(), &mut outcomes, &forgive);
        }
        for (request, outcome) in requests.iter_mut().zip(outcomes.0) {
            request.result = outcome;
        }
    }

    /// Makes all copies of the range from `logical` share the blocks of a host file, from byte
    /// `from` on. Not durable before a [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a chunk with parity; as [`Volume::write`] and
    /// [`Device::clone_from_file`].
    pub(crate) fn clone_from_file(
        &self,
        logical: LogicalAddress,
        source: BorrowedFd<'_>,
        from: u64,
        length: u64,
    ) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let (mut at, mut from, end) = (logical, from, logical.0 + length);
        while at.0 < end {
            let chunk = chunks.require(at, end - at.0)?;
            if chunk.profile().parity() > 0 {
                let profile = chunk.profile();
                return Err(Error::Invalid(format!("{profile}: rows with parity cannot be cloned")));
            }
            check_rows(chunk)?;
            let part = (end - at.0).min(chunk.end().0 - at.0);
            for element in chunk.elements(at, part as usize) {
                let length = element.length as u64;
                let mut outcome = Ok(());
                for_each_copy(&devices, chunk, &element, |number, physical| {
                    let device = devices.device(number).expect("only present devices are passed");
                    let cloned = device.clone_from_file(source, from, length, physical);
                    if let (Err(error), Ok(())) = (cloned, &outcome) {
                        let length = element.length;
                        outcome = Err(device_error(device, "clone", physical, length, error));
                    }
                })?;
                outcome?;
                from += length;
            }
            at = LogicalAddress(at.0 + part);
        }
        Ok(())
    }

    /// Writes one element to all its copies.
    fn write_copies(
        &self,
        devices: &DeviceTable,
        chunk: &Chunk,
        element: &Element,
        bytes: &[u8],
    ) -> Result<()> {
        let mut outcome = Ok(());
        for_each_copy(devices, chunk, element, |number, physical| {
            let device = devices.device(number).expect("`for_each_copy` passes only present devices");
            let Err(source) = device.write_at(bytes, physical) else { return };
            devices.count(number, DeviceStat::WriteErrors);
            if !self.lose_device(number) && outcome.is_ok() {
                outcome = Err(device_error(device, "write", physical, bytes.len(), source));
            }
        })?;
        outcome
    }

    /// Flushes every present device. On return, all writes that completed before the call are
    /// durable.
    ///
    /// # Errors
    /// Returns the error of the first device that fails; the others are flushed nevertheless.
    /// Writes since the last successful flush may then be lost, even if a later flush succeeds.
    pub fn flush(&self) -> Result<()> {
        let table = self.devices.load();
        let devices: SmallVec<[(&DeviceSlot, &dyn Device); 4]> = self.own_devices(&table).collect();
        let waits = devices.iter().all(|(_, device)| device.waits());
        first_error(at_once(devices, waits, |(slot, device)| {
            let Err(source) = device.flush() else { return Ok(()) };
            table.counters().add(slot.devid(), DeviceStat::FlushErrors, 1);
            let error = device_error(device, "flush", PhysicalAddress(0), 0, source);
            self.forgive(&table, slot.devid(), error)
        }))
    }

    /// Discards a range whose contents are no longer needed. Skips chunks with parity and devices
    /// that do not support discards. Returns false if no device of the range does.
    ///
    /// # Errors
    /// Fails if there is no chunk, or returns the error of the first device that fails.
    pub fn discard(&self, logical: LogicalAddress, length: u64) -> Result<bool> {
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
        let mut is_supported = ranges.is_empty();
        first_error(ranges.into_iter().map(|(number, physical, length)| {
            let device = devices.device(number).expect("only ranges of present devices are listed");
            let result = device.discard(physical, length);
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Unsupported) {
                return Ok(());
            }
            is_supported = true;
            result.map_err(|source| device_error(device, "discard", physical, length as usize, source))
        }))?;
        Ok(is_supported)
    }

    /// Writes the superblock to every present device of the file system, each with its own device
    /// item. A device that missed writes keeps its old one until it is healed, so that the next
    /// opening notices, too.
    ///
    /// Writes the first copy on all devices durably, then the other copies that fit, then flushes.
    /// **Everything that the superblock names must be durable before**: call [`Volume::flush`]
    /// after writing tree blocks and before this. The commit is done once the first copies are
    /// written; an error of a later copy only means that the copies differ.
    ///
    /// # Errors
    /// Fails on fields that readers would reject (before writing anything), or if there is no
    /// device to write to. Otherwise returns the error of the first device and copy that fails; the
    /// other devices are written nevertheless.
    pub fn write_superblocks(&self, superblock: &RawSuperblock) -> Result<()> {
        let devices = self.devices.load();
        self.check_sizes(&devices)?;
        let writers = self.superblock_writers(&devices, superblock)?;
        let waits = self.waits();
        // The first commit without a missing device is the one that the device misses.
        let missing = devices.iter().any(|slot| slot.in_chunk_tree && slot.is_missing());
        if missing && !self.tells_missing.swap(true, Ordering::AcqRel) {
            self.lost.fetch_max(LOSS_COMMITS, Ordering::AcqRel);
        }
        // One less; a device that is lost from here on keeps its old superblock.
        let _ = self.lost.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        let counted = |writer: &SuperblockWriter<'_>, result: Result<()>| {
            let Err(error) = result else { return Ok(()) };
            devices.counters().add(writer.devid(), DeviceStat::WriteErrors, 1);
            self.forgive(&devices, writer.devid(), error)
        };
        first_error(at_once(writers.iter().collect::<Vec<_>>(), waits, |writer| {
            counted(writer, writer.write_first())
        }))?;
        first_error(at_once(writers.iter().collect::<Vec<_>>(), waits, |writer| {
            first_error((1..SUPERBLOCK_MIRRORS).map(|copy| counted(writer, writer.write_copy(copy))))
        }))?;
        self.flush()
    }

    /// Writes the first copy of `committed`, the superblock of the last commit, durably to every
    /// device, with the log tree at `root`. The log must already be durable. The caller keeps
    /// `kept`, initially `None`, for later logs of the same commit.
    ///
    /// # Errors
    /// See [`Volume::write_superblocks`]. Where [`Volume::needs_commit`] is true afterwards, a
    /// device was lost, and the log is not durable.
    pub(crate) fn write_log_superblock(
        &self,
        committed: &RawSuperblock,
        (root, level): (LogicalAddress, u8),
        kept: &mut Option<LogSuperblocks>,
    ) -> Result<()> {
        let devices = self.devices.load_full();
        self.check_sizes(&devices)?;
        let kept = match kept {
            Some(kept) if kept.are_of(&devices) => kept,
            kept => kept.insert(LogSuperblocks::new(&devices, self.superblock_writers(&devices, committed)?)),
        };
        let failed = kept.write(root, level)?;
        first_error(failed.into_iter().map(|(devid, error)| {
            devices.counters().add(devid, DeviceStat::WriteErrors, 1);
            self.forgive(&devices, devid, error)
        }))
    }

    /// Loses the device that failed with `error`. Returns the error if the others are not enough.
    fn forgive(&self, devices: &DeviceTable, devid: DeviceId, error: Error) -> Result<()> {
        let number = devices.iter().position(|slot| slot.devid() == devid);
        if number.is_some_and(|number| self.lose_device(number)) { Ok(()) } else { Err(error) }
    }

    /// Refuses to commit to an image that another program has cut: writes past its new end have
    /// filled holes where data was.
    ///
    /// # Errors
    /// [`Error::Truncated`], unless the file system is open degraded.
    fn check_sizes(&self, devices: &DeviceTable) -> Result<()> {
        if self.is_degraded() {
            return Ok(());
        }
        let mut own = self.own_devices(devices).filter(|(slot, _)| slot.in_chunk_tree);
        own.try_for_each(|(slot, device)| check_size(device, slot.item.total_bytes, false))
    }

    /// Makes a device recognisable as a part of the file system, before a commit names it: after a
    /// power cut between the superblocks of that commit, it must not be missing.
    ///
    /// # Errors
    /// [`Error::SuperblockWrite`].
    pub fn announce_device(
        &self,
        device: &dyn Device,
        committed: &RawSuperblock,
        item: DeviceItem,
    ) -> Result<()> {
        SuperblockWriter::new(device, committed, item)?.write_first()
    }

    fn superblock_writers<'d>(
        &self,
        devices: &'d DeviceTable,
        superblock: &RawSuperblock,
    ) -> Result<Vec<SuperblockWriter<'d>>> {
        let writers = self
            .own_devices(devices)
            .filter(|(slot, _)| slot.in_chunk_tree && !slot.stale)
            .map(|(slot, device)| SuperblockWriter::new(device, superblock, slot.item))
            .collect::<Result<Vec<_>>>()?;
        if writers.is_empty() {
            return Err(Error::Invalid(
                "writing superblocks: no device of the file system is present".to_owned(),
            ));
        }
        Ok(writers)
    }

    /// Returns the present devices that are not seeds.
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

/// Consumes all results and returns the first error.
fn first_error(results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut first = Ok(());
    for result in results {
        first = first.and(result);
    }
    first
}

/// Refuses chunks whose last row would extend beyond their device extents. Neither the kernel nor
/// mkfs creates such chunks, but an image may contain one.
pub(super) fn check_rows(chunk: &Chunk) -> Result<()> {
    let columns = chunk.data_columns() as u64;
    if (columns == 1 && chunk.profile().parity() == 0)
        || chunk.length().is_multiple_of(columns * STRIPE_LENGTH)
    {
        return Ok(());
    }
    let reason =
        Corrupt::field("chunk", "length", chunk.length(), "not a multiple of whole rows, cannot be written");
    Err(chunk_error(chunk.start(), reason))
}

/// Splits a range into pieces, across chunks.
fn for_each_piece<'m, 'b>(
    chunks: &'m ChunkMap,
    request: usize,
    write: &LogicalWrite<'b>,
    mut each: impl FnMut(WritePiece<'m, 'b>) -> Result<()>,
) -> Result<()> {
    let (mut logical, mut rest) = (write.logical, write.buffer);
    while !rest.is_empty() {
        let chunk = chunks.require(logical, rest.len() as u64)?;
        check_rows(chunk)?;
        let length = (chunk.end().0 - logical.0).min(rest.len() as u64) as usize;
        for element in chunk.elements(logical, length) {
            let (buffer, after) = rest.split_at(element.length);
            rest = after;
            each(WritePiece { request, chunk, element, buffer })?;
        }
        logical = LogicalAddress(logical.0 + length as u64);
    }
    Ok(())
}

/// Calls `each` with the location of every copy of an element on a present device.
///
/// # Errors
/// Fails if more copies are missing than the profile tolerates.
pub(super) fn for_each_copy(
    devices: &DeviceTable,
    chunk: &Chunk,
    element: &Element,
    mut each: impl FnMut(usize, PhysicalAddress),
) -> Result<()> {
    let profile = chunk.profile();
    let places = (0..profile.copies())
        .map(|copy| chunk.direct(element, copy).expect("chunks without parity have only direct copies"));
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

/// Adds the device ranges of a range of one chunk: slot, start and length in bytes.
fn discard_ranges(
    devices: &DeviceTable,
    chunk: &Chunk,
    logical: LogicalAddress,
    length: u64,
    ranges: &mut Vec<(usize, PhysicalAddress, u64)>,
) {
    for element in chunk.elements(logical, length as usize) {
        for copy in 0..chunk.profile().copies() {
            let (stripe, physical) =
                chunk.direct(&element, copy).expect("chunks without parity have only direct copies");
            if let Some((number, _)) = devices.present(&chunk.stripes()[stripe]) {
                ranges.push((number, physical, element.length as u64));
            }
        }
    }
}

/// Sorts ranges and merges adjacent ones.
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

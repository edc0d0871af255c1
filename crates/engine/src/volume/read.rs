//! Reading a volume: a given copy, any copy that works, or many ranges at once.
//!
//! Owns [`LogicalRead`] and the reading half of [`Volume`]. This layer knows no checksums: a caller
//! that finds bytes from [`Volume::read`] bad reads the copies one by one.
//!
//! **Locks**: a rebuild holds its row's lock shared; nothing else takes a lock.
//!
//! Kernel counterpart: `btrfs_submit_bbio` and `btrfs_repair_io_failure` (`fs/btrfs/bio.c`).

use super::at_once::at_once;
use super::chunk_map::{Chunk, ChunkMap};
use super::counters::BadCopies;
use super::devices::DeviceTable;
use super::mapping::Element;
use super::rebuild::{Row, rebuild};
use super::row_locks::RowLocks;
use super::superblocks::{read_device, read_error};
use super::volume::Volume;
use crate::errors::{Error, Result};
use papilio_device::{Busy, ReadRequest};
use papilio_format::items::chunk::Stripe;
use papilio_format::items::device::DeviceStat;
use papilio_format::{LogicalAddress, PhysicalAddress};
use smallvec::SmallVec;

/// Number of pieces of a batch that fit on the stack.
const USUAL_PIECES: usize = 32;

/// One range of a batch.
#[derive(Debug)]
pub(crate) struct LogicalRead<'a> {
    /// First logical address.
    pub(crate) logical: LogicalAddress,
    /// Filled completely if `result` is `Ok`; undefined otherwise.
    pub(crate) buffer: &'a mut [u8],
    /// The outcome.
    pub(crate) result: Result<()>,
}

impl<'a> LogicalRead<'a> {
    /// Creates a request that has not run yet.
    pub(crate) fn new(logical: LogicalAddress, buffer: &'a mut [u8]) -> Self {
        Self { logical, buffer, result: Ok(()) }
    }
}

/// A piece of a range: an element of a chunk, and the buffer to fill.
struct ReadPiece<'m, 'b> {
    /// Index of the request in the batch.
    request: usize,
    chunk: &'m Chunk,
    element: Element,
    buffer: &'b mut [u8],
}

/// A piece and the location to read it from directly.
struct Direct<'m, 'b> {
    piece: ReadPiece<'m, 'b>,
    device: usize,
    physical: PhysicalAddress,
    copy: usize,
}

/// The devices and row locks that reads use.
#[derive(Clone, Copy)]
struct Sources<'d> {
    devices: &'d DeviceTable,
    rows: &'d RowLocks,
    bad_copies: &'d BadCopies,
}

impl Volume {
    fn sources<'d>(&'d self, devices: &'d DeviceTable) -> Sources<'d> {
        Sources { devices, rows: &self.rows, bad_copies: &self.bad_copies }
    }

    /// Returns the number of ways to read the byte at `logical`: copies 0 up to it for
    /// [`Volume::read_copy`].
    ///
    /// # Errors
    /// Fails if no chunk covers it.
    pub fn copies(&self, logical: LogicalAddress) -> Result<usize> {
        Ok(self.chunks.load().require(logical, 1)?.copies())
    }

    /// Returns the copies of the byte at `logical` in the order to try them: those on devices that
    /// missed writes come last.
    ///
    /// # Errors
    /// Fails if no chunk covers it.
    pub fn copies_in_order(&self, logical: LogicalAddress) -> Result<SmallVec<[usize; 4]>> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let chunk = chunks.require(logical, 1)?;
        let element = chunk.elements(logical, 1).next().expect("a byte is an element");
        Ok(copies_in_order(&devices, chunk, &element))
    }

    /// Returns the device name and device offset of copy `copy` of the byte at `logical`. Returns
    /// `None` if there is no such copy, it needs a rebuild, or its device is missing.
    pub fn place_of(&self, logical: LogicalAddress, copy: usize) -> Option<(String, PhysicalAddress)> {
        let chunks = self.chunks.load();
        let chunk = chunks.find(logical).filter(|chunk| copy < chunk.copies())?;
        let element = chunk.elements(logical, 1).next()?;
        let (stripe, physical) = chunk.direct(&element, copy)?;
        let devices = self.devices.load();
        let (_, device) = devices.present(&chunk.stripes()[stripe])?;
        Some((device.name().to_owned(), physical))
    }

    /// Fills `buffer` from copy `copy` at `logical` and no other. 0 is the first copy. With RAID5
    /// and RAID6, copies from 1 on are rebuilt from the other stripes.
    ///
    /// # Errors
    /// Fails if there is no chunk or no such copy, a device is missing, or an I/O error occurs.
    pub fn read_copy(&self, logical: LogicalAddress, buffer: &mut [u8], copy: usize) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        for_each_piece(&chunks, logical, buffer, 0, |piece| {
            if copy >= piece.chunk.copies() {
                return Err(Error::Invalid(format!(
                    "logical address {logical}: no copy {copy}, its chunk has {}",
                    piece.chunk.copies()
                )));
            }
            read_piece(self.sources(&devices), piece.chunk, &piece.element, piece.buffer, copy)
        })
    }

    /// Fills `buffer` from any readable copies at `logical`.
    ///
    /// # Errors
    /// Fails if there is no chunk, or a piece has no readable copy.
    pub fn read(&self, logical: LogicalAddress, buffer: &mut [u8]) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let chunk = chunks.require(logical, buffer.len() as u64)?;
        if buffer.len() as u64 <= chunk.end().0 - logical.0 {
            let mut elements = chunk.elements(logical, buffer.len());
            if let (Some(element), None) = (elements.next(), elements.next()) {
                // The common case: a tree block or a small extent, in one piece with a good first
                // copy.
                let sources = self.sources(&devices);
                let Some((copy, number, physical)) = preferred(&devices, chunk, &element) else {
                    return read_any(sources, chunk, &element, buffer, None);
                };
                let device = devices.device(number).expect("a preferred copy's device is present");
                let _busy = devices.begin(number);
                let Err(error) = read_device(device, buffer, physical) else { return Ok(()) };
                devices.count(number, DeviceStat::ReadErrors);
                self.note_bad_copy(logical);
                return read_any(sources, chunk, &element, buffer, Some((copy, error)));
            }
        }
        let mut request = [LogicalRead::new(logical, buffer)];
        read_batch(&chunks, self.sources(&devices), &mut request);
        let [request] = request;
        request.result
    }

    /// Executes all reads from any readable copies, in one batch per device. Stores each outcome in
    /// its request.
    pub(crate) fn read_many(&self, requests: &mut [LogicalRead<'_>]) {
        read_batch(&self.chunks.load(), self.sources(&self.devices.load()), requests);
    }
}

/// Splits a range into pieces, across chunks.
fn for_each_piece<'m, 'b>(
    chunks: &'m ChunkMap,
    logical: LogicalAddress,
    buffer: &'b mut [u8],
    request: usize,
    mut each: impl FnMut(ReadPiece<'m, 'b>) -> Result<()>,
) -> Result<()> {
    let (mut logical, mut rest) = (logical, buffer);
    while !rest.is_empty() {
        let chunk = chunks.require(logical, rest.len() as u64)?;
        let length = (chunk.end().0 - logical.0).min(rest.len() as u64) as usize;
        for element in chunk.elements(logical, length) {
            let (buffer, after) = rest.split_at_mut(element.length);
            rest = after;
            each(ReadPiece { request, chunk, element, buffer })?;
        }
        logical = LogicalAddress(logical.0 + length as u64);
    }
    Ok(())
}

fn read_batch(chunks: &ChunkMap, sources: Sources<'_>, requests: &mut [LogicalRead<'_>]) {
    let mut direct: SmallVec<[Direct<'_, '_>; USUAL_PIECES]> = SmallVec::new();
    let mut results: SmallVec<[Result<()>; USUAL_PIECES]> = SmallVec::new();
    for (number, request) in requests.iter_mut().enumerate() {
        results.push(for_each_piece(
            chunks,
            request.logical,
            request.buffer,
            number,
            |piece| match preferred(sources.devices, piece.chunk, &piece.element) {
                Some((copy, device, physical)) => {
                    direct.push(Direct { piece, device, physical, copy });
                    Ok(())
                }
                None => read_any(sources, piece.chunk, &piece.element, piece.buffer, None),
            },
        ));
    }
    direct.sort_unstable_by_key(|direct| (direct.device, direct.physical));
    let groups = direct.chunk_by_mut(|a, b| a.device == b.device);
    let waits = sources.devices.wait();
    for (number, error) in at_once(groups, waits, |group| read_group(sources, group)).into_iter().flatten() {
        if results[number].is_ok() {
            results[number] = Err(error);
        }
    }
    drop(direct);
    for (request, result) in requests.iter_mut().zip(results) {
        request.result = result;
    }
}

/// Reads pieces of one device; retries failed ones from other copies. Returns the final failures.
fn read_group(sources: Sources<'_>, group: &mut [Direct<'_, '_>]) -> Vec<(usize, Error)> {
    let device = sources.devices.device(group[0].device).expect("only pieces on present devices are direct");
    let _busy: SmallVec<[Busy; USUAL_PIECES]> =
        group.iter().map(|direct| sources.devices.begin(direct.device)).collect();
    let mut batch: SmallVec<[ReadRequest<'_>; USUAL_PIECES]> =
        group.iter_mut().map(|direct| ReadRequest::new(direct.physical, &mut *direct.piece.buffer)).collect();
    device.read_many(&mut batch);
    let failed: Vec<(usize, std::io::Error)> = batch
        .into_iter()
        .enumerate()
        .filter_map(|(index, request)| request.result.err().map(|error| (index, error)))
        .collect();
    let mut errors = Vec::new();
    for (index, source) in failed {
        let Direct { piece, physical, copy, device: number } = &mut group[index];
        sources.devices.count(*number, DeviceStat::ReadErrors);
        sources.bad_copies.note(piece.chunk.address_of(&piece.element));
        let error = read_error(device, *physical, piece.buffer.len(), source);
        let result = read_any(sources, piece.chunk, &piece.element, piece.buffer, Some((*copy, error)));
        errors.extend(result.err().map(|error| (piece.request, error)));
    }
    errors
}

/// Bytes of a device that are read from one mirror before the next one's turn comes: a reader in
/// sequence uses all mirrors, and each in long runs.
const TURN: u64 = 256 << 10;

/// How many more requests than another mirror the one has whose turn it is, before the other one is
/// read. One or two more come and go.
const AHEAD: usize = 2;

/// Returns the copy to begin with: devices that wait share the reads. In memory nothing is won. The
/// mirrors take turns by address, and one with much more to do passes its turn on.
#[inline]
fn turn(devices: &DeviceTable, chunk: &Chunk, element: &Element) -> usize {
    let copies = chunk.profile().copies();
    if copies == 1 || !devices.wait() {
        return 0;
    }
    let place = |copy| chunk.direct(element, copy).map(|(stripe, at)| (&chunk.stripes()[stripe], at));
    let devid = |copy| place(copy).map(|(stripe, _)| stripe.devid);
    // The copies of DUP are far from each other on one device.
    if devid(0) == devid(1) {
        return 0;
    }
    let turn = place(0).map_or(0, |(_, physical)| (physical.get() / TURN % copies as u64) as usize);
    let load = |copy| {
        let slot = devices.find(place(copy)?.0)?.1;
        (!slot.is_missing() && !slot.stale).then(|| slot.load.get())
    };
    let idle = (0..copies).filter_map(|copy| Some((load(copy)?, copy))).min();
    match (load(turn), idle) {
        (Some(own), Some((least, copy))) if least + AHEAD < own => copy,
        _ => turn,
    }
}

/// Returns the copy to read first: preferably one whose device is present and not stale, else one
/// whose device is present. Mirrors take turns. `None` if a rebuild comes first.
pub(super) fn preferred(
    devices: &DeviceTable,
    chunk: &Chunk,
    element: &Element,
) -> Option<(usize, usize, PhysicalAddress)> {
    let mut stale = None;
    let (copies, first) = (chunk.profile().copies(), turn(devices, chunk, element));
    for copy in (0..copies).map(|number| (first + number) % copies) {
        let (stripe, physical) = chunk.direct(element, copy)?;
        let Some((number, slot)) = devices.find(&chunk.stripes()[stripe]) else { continue };
        if slot.is_missing() {
            continue;
        }
        if !slot.stale {
            return Some((copy, number, physical));
        }
        if chunk.profile().parity() == 0 {
            stale.get_or_insert((copy, number, physical));
        }
    }
    stale
}

/// Reads a piece from any readable copy except the one that has already failed.
fn read_any(
    sources: Sources<'_>,
    chunk: &Chunk,
    element: &Element,
    buffer: &mut [u8],
    failed: Option<(usize, Error)>,
) -> Result<()> {
    let (failed_copy, mut first_error) = failed.unzip();
    // The first rebuild uses every readable column, so further rebuilds cannot do better.
    let ways = chunk.copies().min(chunk.profile().copies() + chunk.profile().parity().min(1));
    let order = copies_in_order(sources.devices, chunk, element);
    for copy in order.into_iter().filter(|&copy| copy < ways && Some(copy) != failed_copy) {
        match read_piece(sources, chunk, element, buffer, copy) {
            Ok(()) => {
                if let Some(error) = &first_error {
                    tracing::warn!(%error, copy, "a copy could not be read, used another one");
                }
                return Ok(());
            }
            Err(error) => first_error = Some(more_telling(first_error, error)),
        }
    }
    Err(first_error.expect("a chunk has at least one copy"))
}

/// Returns the more informative of two errors: the first that is not just a missing device.
pub(super) fn more_telling(first: Option<Error>, second: Error) -> Error {
    match first {
        None | Some(Error::DeviceMissing { .. }) => second,
        Some(first) => first,
    }
}

/// Reads a piece from copy `copy`.
fn read_piece(
    sources: Sources<'_>,
    chunk: &Chunk,
    element: &Element,
    buffer: &mut [u8],
    copy: usize,
) -> Result<()> {
    if let Some((stripe, physical)) = chunk.direct(element, copy) {
        return read_stripe(sources.devices, &chunk.stripes()[stripe], physical, buffer);
    }
    let _shared = sources.rows.share(chunk, element.row);
    let row = Row { data: chunk.data_columns(), parity: chunk.profile().parity(), target: element.column };
    let attempt = |with_stale: bool, buffer: &mut [u8]| {
        rebuild(row, copy, buffer, |column, buffer| {
            let (stripe, physical) = chunk.column_place(element, column);
            let stripe = &chunk.stripes()[stripe];
            match sources.devices.find(stripe) {
                Some((_, slot)) if slot.stale && !with_stale => Err(Error::DeviceMissing {
                    devid: stripe.devid,
                    uuid: stripe.device_uuid,
                    refused: false,
                }),
                _ => read_stripe(sources.devices, stripe, physical, buffer),
            }
        })
    };
    match attempt(false, buffer) {
        Err(_) if is_any_stale(sources.devices, chunk) => attempt(true, buffer),
        result => result,
    }
}

fn is_any_stale(devices: &DeviceTable, chunk: &Chunk) -> bool {
    chunk.stripes().iter().any(|stripe| devices.find(stripe).is_some_and(|(_, slot)| slot.stale))
}

/// Returns the copies in the order to try them: those on devices that missed writes come last,
/// after all ways to rebuild.
fn copies_in_order(devices: &DeviceTable, chunk: &Chunk, element: &Element) -> SmallVec<[usize; 4]> {
    let is_stale = |copy: usize| {
        let stripe = chunk.direct(element, copy).map(|(stripe, _)| &chunk.stripes()[stripe]);
        stripe.and_then(|stripe| devices.find(stripe)).is_some_and(|(_, slot)| slot.stale)
    };
    let mut order: SmallVec<[usize; 4]> = (0..chunk.copies()).collect();
    if is_any_stale(devices, chunk) {
        order.sort_by_key(|&copy| is_stale(copy));
    }
    order
}

pub(super) fn read_stripe(
    devices: &DeviceTable,
    stripe: &Stripe,
    physical: PhysicalAddress,
    buffer: &mut [u8],
) -> Result<()> {
    let (number, device) = devices.present(stripe).ok_or(Error::DeviceMissing {
        devid: stripe.devid,
        uuid: stripe.device_uuid,
        refused: false,
    })?;
    let _busy = devices.begin(number);
    read_device(device, buffer, physical).inspect_err(|_| devices.count(number, DeviceStat::ReadErrors))
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestVolume;
    use super::super::volume::Volume;
    use super::*;
    use papilio_device::{DelayDevice, Device};
    use papilio_format::DeviceId;
    use papilio_format::items::chunk::RaidProfile;
    use std::sync::Arc;
    use std::time::Duration;

    /// A volume on devices that wait.
    fn waiting(test: &TestVolume) -> Volume {
        let delayed = test.devices.iter().map(|device| {
            Arc::new(DelayDevice::new(device.clone(), Duration::ZERO).unwrap()) as Arc<dyn Device>
        });
        test.open_on(delayed, 0, false).unwrap()
    }

    fn element_at(volume: &Volume, logical: LogicalAddress) -> (Arc<Chunk>, Element) {
        let chunk = Arc::clone(volume.chunk_map().find(logical).unwrap());
        let element = chunk.elements(logical, 4096).next().unwrap();
        (chunk, element)
    }

    fn turn_at(volume: &Volume, logical: LogicalAddress) -> usize {
        let (chunk, element) = element_at(volume, logical);
        turn(&volume.devices(), &chunk, &element)
    }

    #[test]
    fn mirrors_take_turns_by_address() {
        for (profile, copies) in [(RaidProfile::Raid1, 2), (RaidProfile::Raid1c3, 3)] {
            let test = TestVolume::blank(profile, copies);
            let volume = waiting(&test);
            let (start, length) = test.range();
            let mut seen = vec![0; copies];
            for at in (0..length).step_by(64 << 10) {
                let logical = LogicalAddress(start.0 + at as u64);
                let (chunk, element) = element_at(&volume, logical);
                let (_, physical) = chunk.direct(&element, 0).unwrap();
                let turn = turn_at(&volume, logical);
                assert_eq!(turn as u64, physical.0 / TURN % copies as u64, "{profile}");
                seen[turn] += 1;
            }
            assert!(seen.iter().all(|turns| *turns > 0), "{seen:?}");
            // In memory, and on one device, nothing is won.
            let memory = test.open(0, false).unwrap();
            assert!(
                (0..length)
                    .step_by(64 << 10)
                    .all(|at| turn_at(&memory, LogicalAddress(start.0 + at as u64)) == 0)
            );
        }
        let dup = TestVolume::blank(RaidProfile::Dup, 2);
        let (start, length) = dup.range();
        let volume = waiting(&dup);
        assert!(
            (0..length)
                .step_by(64 << 10)
                .all(|at| turn_at(&volume, LogicalAddress(start.0 + at as u64)) == 0)
        );
    }

    #[test]
    fn a_busy_mirror_passes_its_turn_on() {
        let test = TestVolume::blank(RaidProfile::Raid1, 2);
        let volume = waiting(&test);
        let (start, length) = test.range();
        let devices = volume.devices();
        for at in (0..length).step_by(256 << 10) {
            let logical = LogicalAddress(start.0 + at as u64);
            let own = turn_at(&volume, logical);
            let (chunk, element) = element_at(&volume, logical);
            let slot_of = |copy: usize| {
                let (stripe, _) = chunk.direct(&element, copy).unwrap();
                devices.find(&chunk.stripes()[stripe]).unwrap().0
            };
            let mut busy: Vec<_> = (0..AHEAD).map(|_| devices.begin(slot_of(own))).collect();
            assert_eq!(turn_at(&volume, logical), own, "{AHEAD} more come and go");
            busy.push(devices.begin(slot_of(own)));
            assert_eq!(turn_at(&volume, logical), 1 - own);
            busy.push(devices.begin(slot_of(1 - own)));
            assert_eq!(turn_at(&volume, logical), own);
            drop(busy);
        }
    }

    #[test]
    fn a_mirror_that_missed_writes_gets_no_turn_of_another() {
        let test = TestVolume::blank(RaidProfile::Raid1, 2);
        let volume = waiting(&test);
        let logical = test.range().0;
        let own = turn_at(&volume, logical);
        let (chunk, element) = element_at(&volume, logical);
        let (stripe, _) = chunk.direct(&element, 1 - own).unwrap();
        let devid = chunk.stripes()[stripe].devid;
        let device = Arc::clone(volume.devices().shared(devid.0 as usize - 1).unwrap());
        volume.set_device(devid, Some(&device), true);
        let devices = volume.devices();
        let own_slot = 1 - (devid.0 as usize - 1);
        assert_eq!(devices.iter().nth(own_slot).unwrap().devid(), DeviceId(own_slot as u64 + 1));
        let _busy: Vec<_> = (0..2 * AHEAD).map(|_| devices.begin(own_slot)).collect();
        assert_eq!(turn_at(&volume, logical), own);
    }
}

//! Reading a volume: a given copy, any copy that works, and many ranges at once.
//!
//! Owns [`LogicalRead`] and the reading half of [`Volume`]. Nothing here knows a checksum: who reads
//! through [`Volume::read`] and finds the bytes bad asks for the copies one by one.
//!
//! Locks: only a rebuild takes one, its row's, shared. Kernel counterpart: `btrfs_submit_bbio` and `btrfs_repair_io_failure`
//! (`fs/btrfs/bio.c`).

use super::chunk_map::{Chunk, ChunkMap};
use super::devices::DeviceTable;
use super::mapping::Element;
use super::rebuild::{Row, rebuild};
use super::row_locks::RowLocks;
use super::superblocks::{read_device, read_error};
use super::volume::Volume;
use crate::{Error, Result};
use papilio_device::ReadRequest;
use papilio_format::items::chunk::Stripe;
use papilio_format::{LogicalAddress, PhysicalAddress};
use smallvec::SmallVec;

/// Pieces of a batch that take no allocation.
const USUAL_PIECES: usize = 32;

/// One range of a batch.
#[derive(Debug)]
pub(crate) struct LogicalRead<'a> {
    /// Where it starts.
    pub(crate) logical: LogicalAddress,
    /// Filled whole when `result` is `Ok`; of undefined content otherwise.
    pub(crate) buffer: &'a mut [u8],
    /// The outcome.
    pub(crate) result: Result<()>,
}

impl<'a> LogicalRead<'a> {
    /// A request that has not run yet.
    pub(crate) fn new(logical: LogicalAddress, buffer: &'a mut [u8]) -> Self {
        Self { logical, buffer, result: Ok(()) }
    }
}

/// A piece of a range: an element of a chunk, and the buffer that it goes to.
struct Piece<'m, 'b> {
    /// Which of the batch's ranges it belongs to.
    request: usize,
    chunk: &'m Chunk,
    element: Element,
    buffer: &'b mut [u8],
}

/// A piece and the place where it is read directly.
struct Direct<'m, 'b> {
    piece: Piece<'m, 'b>,
    device: usize,
    physical: PhysicalAddress,
    copy: usize,
}

/// Where pieces are read from.
#[derive(Clone, Copy)]
struct Sources<'d> {
    devices: &'d DeviceTable,
    rows: &'d RowLocks,
}

impl Volume {
    fn sources<'d>(&'d self, devices: &'d DeviceTable) -> Sources<'d> {
        Sources { devices, rows: &self.rows }
    }

    /// Ways to read the byte at `logical`; those of [`Volume::read_copy`] are 0 up to this.
    ///
    /// # Errors
    /// No chunk covers it.
    pub(crate) fn copies(&self, logical: LogicalAddress) -> Result<usize> {
        Ok(self.chunks.load().require(logical, 1)?.copies())
    }

    /// Where copy `copy` of the byte at `logical` lies: the device's name and the place on it. `None`
    /// where there is no such copy, it only comes from a rebuild, or its device is missing.
    pub(crate) fn place_of(&self, logical: LogicalAddress, copy: usize) -> Option<(String, PhysicalAddress)> {
        let chunks = self.chunks.load();
        let chunk = chunks.find(logical).filter(|chunk| copy < chunk.copies())?;
        let element = chunk.elements(logical, 1).next()?;
        let (stripe, physical) = chunk.direct(&element, copy)?;
        let devices = self.devices.load();
        let (_, device) = devices.present(&chunk.stripes()[stripe])?;
        Some((device.name().to_owned(), physical))
    }

    /// Fills `buffer` from `logical` by way `copy` and no other: 0 is the first copy; with RAID5 and
    /// RAID6, 1 and up are rebuilt from the other stripes.
    ///
    /// # Errors
    /// No chunk, no such copy, a missing device, or an I/O error.
    pub(crate) fn read_copy(&self, logical: LogicalAddress, buffer: &mut [u8], copy: usize) -> Result<()> {
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

    /// Fills `buffer` from `logical` by any way that works.
    ///
    /// # Errors
    /// No chunk, or no copy of some piece that can be read.
    pub(crate) fn read(&self, logical: LogicalAddress, buffer: &mut [u8]) -> Result<()> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let chunk = chunks.require(logical, buffer.len() as u64)?;
        if buffer.len() as u64 <= chunk.end().0 - logical.0 {
            let mut elements = chunk.elements(logical, buffer.len());
            if let (Some(element), None) = (elements.next(), elements.next()) {
                // The common case: a tree block or a small extent, in one piece, and its first copy is good.
                let sources = self.sources(&devices);
                let Some((copy, number, physical)) = preferred(&devices, chunk, &element) else {
                    return read_any(sources, chunk, &element, buffer, None);
                };
                let device = devices.device(number).expect("a preferred copy's device is present");
                let Err(error) = read_device(device, buffer, physical) else { return Ok(()) };
                return read_any(sources, chunk, &element, buffer, Some((copy, error)));
            }
        }
        let mut request = [LogicalRead::new(logical, buffer)];
        read_batch(&chunks, self.sources(&devices), &mut request);
        let [request] = request;
        request.result
    }

    /// Carries out all reads by any way that works, each device's in one batch, and stores each
    /// outcome in its request.
    pub(crate) fn read_many(&self, requests: &mut [LogicalRead<'_>]) {
        read_batch(&self.chunks.load(), self.sources(&self.devices.load()), requests);
    }
}

/// Cuts a range into pieces, across chunks.
fn for_each_piece<'m, 'b>(
    chunks: &'m ChunkMap,
    logical: LogicalAddress,
    buffer: &'b mut [u8],
    request: usize,
    mut each: impl FnMut(Piece<'m, 'b>) -> Result<()>,
) -> Result<()> {
    let (mut logical, mut rest) = (logical, buffer);
    while !rest.is_empty() {
        let chunk = chunks.require(logical, rest.len() as u64)?;
        let length = (chunk.end().0 - logical.0).min(rest.len() as u64) as usize;
        for element in chunk.elements(logical, length) {
            let (buffer, after) = rest.split_at_mut(element.length);
            rest = after;
            each(Piece { request, chunk, element, buffer })?;
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
    for group in direct.chunk_by_mut(|a, b| a.device == b.device) {
        for (number, error) in read_group(sources, group) {
            if results[number].is_ok() {
                results[number] = Err(error);
            }
        }
    }
    drop(direct);
    for (request, result) in requests.iter_mut().zip(results) {
        request.result = result;
    }
}

/// Reads pieces of one device, and those that fail from elsewhere. Returns what failed for good.
fn read_group(sources: Sources<'_>, group: &mut [Direct<'_, '_>]) -> Vec<(usize, Error)> {
    let device = sources.devices.device(group[0].device).expect("only pieces on present devices are direct");
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
        let Direct { piece, physical, copy, .. } = &mut group[index];
        let error = read_error(device, *physical, piece.buffer.len(), source);
        let result = read_any(sources, piece.chunk, &piece.element, piece.buffer, Some((*copy, error)));
        errors.extend(result.err().map(|error| (piece.request, error)));
    }
    errors
}

/// The copy to read first: one whose device is there and missed no write; else one whose device is
/// there.
fn preferred(
    devices: &DeviceTable,
    chunk: &Chunk,
    element: &Element,
) -> Option<(usize, usize, PhysicalAddress)> {
    let mut stale = None;
    for copy in 0..chunk.profile().copies() {
        let (stripe, physical) = chunk.direct(element, copy)?;
        let Some((number, slot)) = devices.find(&chunk.stripes()[stripe]) else { continue };
        if slot.is_missing() {
            continue;
        }
        if !slot.stale {
            return Some((copy, number, physical));
        }
        stale.get_or_insert((copy, number, physical));
    }
    stale
}

/// Reads a piece by any way that works, except the one that failed already.
fn read_any(
    sources: Sources<'_>,
    chunk: &Chunk,
    element: &Element,
    buffer: &mut [u8],
    failed: Option<(usize, Error)>,
) -> Result<()> {
    let (failed_copy, mut first_error) = failed.unzip();
    // The first rebuild takes whatever can be read, so that further ones have nothing to add.
    let ways = chunk.copies().min(chunk.profile().copies() + chunk.profile().parity().min(1));
    let first = preferred(sources.devices, chunk, element).map(|(copy, ..)| copy);
    let others = (0..ways).filter(|&copy| Some(copy) != first);
    for copy in first.into_iter().chain(others).filter(|&copy| Some(copy) != failed_copy) {
        match read_piece(sources, chunk, element, buffer, copy) {
            Ok(()) => {
                if let Some(error) = &first_error {
                    tracing::warn!(%error, copy, "read from another copy");
                }
                return Ok(());
            }
            Err(error) => first_error = Some(worse(first_error, error)),
        }
    }
    Err(first_error.expect("a chunk has at least one copy"))
}

/// Of two failures the one to tell: the first that is more than a missing device.
pub(super) fn worse(first: Option<Error>, second: Error) -> Error {
    match first {
        None | Some(Error::DeviceMissing { .. }) => second,
        Some(first) => first,
    }
}

/// Reads a piece by way `copy`.
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
    rebuild(row, copy, buffer, |column, buffer| {
        let (stripe, physical) = chunk.column_place(element, column);
        read_stripe(sources.devices, &chunk.stripes()[stripe], physical, buffer)
    })
}

pub(super) fn read_stripe(
    devices: &DeviceTable,
    stripe: &Stripe,
    physical: PhysicalAddress,
    buffer: &mut [u8],
) -> Result<()> {
    let (_, device) = devices
        .present(stripe)
        .ok_or(Error::DeviceMissing { devid: stripe.devid, uuid: stripe.device_uuid })?;
    read_device(device, buffer, physical)
}

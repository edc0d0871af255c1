//! The batch of device writes that plain writes and writes of parity rows share.
//!
//! Owns [`DeviceWrite`], its submission to the devices, and [`Outcomes`], which collects the
//! results of a batch's requests.
//!
//! **Locks**: none; for chunks with parity the caller holds the row locks.
//!
//! Kernel counterpart: `btrfs_submit_bbio` (`fs/btrfs/bio.c`).

use super::at_once::at_once;
use super::chunk_map::Chunk;
use super::devices::DeviceTable;
use super::mapping::Element;
use crate::errors::{Error, Result};
use papilio_device::{Device, WriteRequest};
use papilio_format::PhysicalAddress;
use papilio_format::items::device::DeviceStat;
use smallvec::SmallVec;
use std::io;

/// Number of pieces of a batch that fit on the stack.
pub(super) const USUAL_PIECES: usize = 32;

/// A piece of a range: an element of a chunk, and its bytes.
pub(super) struct WritePiece<'m, 'b> {
    /// Index of the request in the batch.
    pub(super) request: usize,
    pub(super) chunk: &'m Chunk,
    pub(super) element: Element,
    pub(super) buffer: &'b [u8],
}

/// The requests that fail if a write to a device fails.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    /// One request of the batch, by index.
    Request(usize),
    /// A segment of a row: all requests that have a piece in it.
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

/// The outcomes of a batch's requests.
pub(super) struct Outcomes(pub(super) SmallVec<[Result<()>; USUAL_PIECES]>);

impl Outcomes {
    /// Records an error of a request unless it has one already.
    pub(super) fn fail(&mut self, request: usize, error: Error) {
        if self.0[request].is_ok() {
            self.0[request] = Err(error);
        }
    }
}

/// Fails if the chunk misses more devices than its profile tolerates.
pub(super) fn check_missing(chunk: &Chunk, missing: usize) -> Result<()> {
    let tolerated = chunk.profile().tolerated_failures();
    if missing > tolerated {
        return Err(Error::TooManyMissing { logical: chunk.start(), missing, tolerated });
    }
    Ok(())
}

/// Submits each device's writes in one batch, in ascending order. Passes the device, the owner and
/// the error of each that fails to `failed`.
///
/// Pieces are not merged. Adjacent parts of one range are one piece already, and buffers of
/// different ranges are not adjacent in memory.
pub(super) fn submit(
    devices: &DeviceTable,
    writes: &mut [DeviceWrite<'_>],
    mut failed: impl FnMut(usize, Owner, Error),
) {
    writes.sort_unstable_by_key(|write| (write.device, write.physical));
    let write = |group: &[DeviceWrite<'_>]| {
        let device = devices.device(group[0].device).expect("writes are only made for present devices");
        let mut batch: SmallVec<[_; USUAL_PIECES]> =
            group.iter().map(|write| WriteRequest::new(write.physical, write.buffer)).collect();
        device.write_many(&mut batch);
        let failed = group.iter().zip(batch).filter_map(|(write, request)| {
            let source = request.result.err()?;
            devices.count(write.device, DeviceStat::WriteErrors);
            let error = device_error(device, "write", write.physical, write.buffer.len(), source);
            Some((write.device, write.owner, error))
        });
        failed.collect::<Vec<_>>()
    };
    let groups = writes.chunk_by(|a, b| a.device == b.device);
    for (device, owner, error) in at_once(groups, devices.wait(), write).into_iter().flatten() {
        failed(device, owner, error);
    }
}

/// Returns the error for a failed operation on a device.
pub(super) fn device_error(
    device: &dyn Device,
    operation: &'static str,
    offset: PhysicalAddress,
    length: usize,
    source: io::Error,
) -> Error {
    Error::Device { device: device.name().to_owned(), operation, offset, length, source }
}

//! The pieces of devices that a range of addresses lies on, for requests in flight.
//!
//! Owns [`Volume::read_pieces`] and [`Volume::write_pieces`]. They place a request where no rebuild
//! and no parity is needed. Everything else, and every failure, is left to the calls that wait.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `btrfs_map_block` (`fs/btrfs/volumes.c`).

use super::chunk_map::Chunk;
use super::device_writes::device_error;
use super::devices::DeviceSlot;
use super::mapping::Element;
use super::read::preferred;
use super::volume::Volume;
use super::write::{check_rows, for_each_copy};
use crate::errors::Error;
use papilio_device::{Device, Direction, Piece};
use papilio_format::LogicalAddress;
use papilio_format::items::device::DeviceStat;
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;

/// The pieces of one request.
pub type Pieces = SmallVec<[Piece; 4]>;

impl Volume {
    /// Adds the pieces to read `length` bytes at `logical` to the buffer from byte `start` on.
    /// Returns `false` if a piece needs a rebuild, or the calls that wait would fail.
    pub(crate) fn read_pieces(
        &self,
        logical: LogicalAddress,
        length: usize,
        start: usize,
        pieces: &mut Pieces,
    ) -> bool {
        let devices = self.devices.load();
        self.place(logical, length, start, |chunk, element, range| {
            let Some((_, number, offset)) = preferred(&devices, chunk, element) else { return false };
            let device = devices.shared(number).expect("a preferred copy's device is present");
            let busy = Some(devices.begin(number));
            pieces.push(Piece { device: Arc::clone(device), offset, range, busy });
            true
        })
    }

    /// Adds the pieces to write the buffer's `length` bytes from byte `start` on to all copies at
    /// `logical`. Returns `false` if the chunk has parity, or the calls that wait would fail.
    pub(crate) fn write_pieces(
        &self,
        logical: LogicalAddress,
        length: usize,
        start: usize,
        pieces: &mut Pieces,
    ) -> bool {
        let devices = self.devices.load();
        self.place(logical, length, start, |chunk, element, range| {
            chunk.profile().parity() == 0
                && check_rows(chunk).is_ok()
                && for_each_copy(&devices, chunk, element, |number, offset| {
                    let device = devices.shared(number).expect("only present devices are passed");
                    let busy = Some(devices.begin(number));
                    pieces.push(Piece { device: Arc::clone(device), offset, range: range.clone(), busy });
                })
                .is_ok()
        })
    }

    /// Counts the failure of a piece, and returns its error. If it was written, its device is lost:
    /// returns whether the others are enough to go on.
    pub fn piece_failed(&self, piece: &Piece, direction: Direction, source: io::Error) -> (Error, bool) {
        let (operation, stat) = match direction {
            Direction::Read => ("read", DeviceStat::ReadErrors),
            Direction::Write => ("write", DeviceStat::WriteErrors),
        };
        let devices = self.devices.load();
        let is_it =
            |slot: &DeviceSlot| slot.device.as_ref().is_some_and(|device| Arc::ptr_eq(device, &piece.device));
        let number = devices.iter().position(is_it);
        if let Some(number) = number {
            devices.count(number, stat);
        }
        let device: &dyn Device = &*piece.device;
        let error = device_error(device, operation, piece.offset, piece.range.len(), source);
        let forgiven = direction == Direction::Write && number.is_some_and(|number| self.lose_device(number));
        (error, forgiven)
    }

    /// Passes each element of a range to `each`, until it returns `false` or no chunk covers the
    /// rest.
    fn place(
        &self,
        logical: LogicalAddress,
        length: usize,
        start: usize,
        mut each: impl FnMut(&Chunk, &Element, std::ops::Range<usize>) -> bool,
    ) -> bool {
        let chunks = self.chunks.load();
        let mut done = 0;
        while done < length {
            let at = LogicalAddress(logical.0 + done as u64);
            let Some(chunk) = chunks.find(at) else { return false };
            let inside = (chunk.end().0 - at.0).min((length - done) as u64) as usize;
            for element in chunk.elements(at, inside) {
                let range = start + done..start + done + element.length;
                done += element.length;
                if !each(chunk, &element, range) {
                    return false;
                }
            }
        }
        true
    }
}

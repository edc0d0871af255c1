//! Writing to rows with parity.
//!
//! Owns [`write`], which writes the pieces of a batch that lie in RAID5 and RAID6 chunks.
//! - The pieces of a row are grouped into *segments*: maximal ranges of the row's elements covered
//!   by overlapping or adjacent pieces.
//! - A segment's parity is computed from all its data columns. A column that the batch overwrites
//!   whole needs no read. The missing bytes of other columns are read first, or rebuilt if their
//!   device is missing, fails, or missed earlier writes.
//!
//! **Invariants**
//! - The row's lock is held from the first read to the last write.
//! - A segment with unreadable bytes is not written at all.
//! - Bytes read here are not verified, because this layer knows no checksums.
//!
//! As in the kernel, a crash during the write of a row can leave data and parity inconsistent (the
//! "write hole"). Old data of the row is then lost only if a device fails as well.
//!
//! **Locks**: those of rows, see [`super::row_locks`].
//!
//! Kernel counterpart: `rmw_rbio` (`fs/btrfs/raid56.c`).

use super::chunk_map::Chunk;
use super::device_writes::{DeviceWrite, Outcomes, Owner, WritePiece, check_missing, submit};
use super::devices::DeviceTable;
use super::mapping::Element;
use super::parity::Syndrome;
use super::read::{more_telling, read_stripe};
use super::rebuild::{Row, rebuild};
use super::row_locks::RowLocks;
use crate::errors::{Error, Result};
use std::io;

/// Number of rows computed and written together; bounds the parity in memory to 8 MiB.
const ROWS_AT_ONCE: usize = 64;

/// A range of a row's elements, and the pieces in it.
struct Segment<'p, 'm, 'b> {
    chunk: &'m Chunk,
    row: u64,
    /// Byte offset from the start of the elements.
    within: u64,
    length: usize,
    pieces: &'p [WritePiece<'m, 'b>],
}

/// P and Q of a segment; Q is empty with RAID5.
struct Parity {
    p: Vec<u8>,
    q: Vec<u8>,
}

/// Writes `pieces` with their parity, together with `plain`. `forgive` returns whether the others
/// are enough where a device fails.
pub(super) fn write<'b>(
    devices: &DeviceTable,
    locks: &RowLocks,
    mut pieces: Vec<WritePiece<'_, 'b>>,
    mut plain: Vec<DeviceWrite<'b>>,
    outcomes: &mut Outcomes,
    forgive: &dyn Fn(usize) -> bool,
) {
    pieces.sort_unstable_by_key(|piece| (row_of(piece), piece.element.within, piece.element.column));
    let mut rest = &pieces[..];
    while !rest.is_empty() {
        let rows = rest.chunk_by(|a, b| row_of(a) == row_of(b)).take(ROWS_AT_ONCE);
        let (run, after) = rest.split_at(rows.map(<[_]>::len).sum());
        rest = after;
        let _held = locks.hold(run.iter().map(|piece| (piece.chunk, piece.element.row)));
        write_run(devices, run, std::mem::take(&mut plain), outcomes, forgive);
    }
}

fn row_of(piece: &WritePiece<'_, '_>) -> (u64, u64) {
    (piece.chunk.start().0, piece.element.row)
}

fn write_run<'b>(
    devices: &DeviceTable,
    pieces: &[WritePiece<'_, 'b>],
    plain: Vec<DeviceWrite<'b>>,
    outcomes: &mut Outcomes,
    forgive: &dyn Fn(usize) -> bool,
) {
    let segments = segments(pieces);
    let mut parity = Vec::with_capacity(segments.len());
    for segment in &segments {
        parity.push(match segment.parity(devices) {
            Ok(parity) => Some(parity),
            Err(error) => {
                segment.fail(&error, outcomes);
                None
            }
        });
    }
    // From here on the writes also borrow the parity.
    let mut writes: Vec<DeviceWrite<'_>> = plain;
    for (number, (segment, parity)) in segments.iter().zip(&parity).enumerate() {
        if let Some(parity) = parity {
            segment.add_writes(devices, number, parity, &mut writes);
        }
    }
    submit(devices, &mut writes, |device, owner, error| match owner {
        _ if forgive(device) => {}
        Owner::Request(request) => outcomes.fail(request, error),
        Owner::Segment(number) => segments[number].fail(&error, outcomes),
    });
}

/// Groups pieces, in ascending order of row and offset, into segments.
fn segments<'p, 'm, 'b>(pieces: &'p [WritePiece<'m, 'b>]) -> Vec<Segment<'p, 'm, 'b>> {
    let mut segments = Vec::new();
    for row in pieces.chunk_by(|a, b| row_of(a) == row_of(b)) {
        let mut start = 0;
        while start < row.len() {
            let within = row[start].element.within;
            let mut end = within;
            let touching = row[start..].iter().take_while(|piece| {
                let touches = piece.element.within < end || end == within;
                end = if touches { end.max(end_of(piece)) } else { end };
                touches
            });
            let after = start + touching.count();
            segments.push(Segment {
                chunk: row[start].chunk,
                row: row[start].element.row,
                within,
                length: (end - within) as usize,
                pieces: &row[start..after],
            });
            start = after;
        }
    }
    segments
}

fn end_of(piece: &WritePiece<'_, '_>) -> u64 {
    piece.element.within + piece.element.length as u64
}

impl<'b> Segment<'_, '_, 'b> {
    /// Returns the segment's part of column `column`.
    fn element(&self, column: usize) -> Element {
        Element { column, row: self.row, within: self.within, length: self.length }
    }

    fn pieces_of(&self, column: usize) -> impl Iterator<Item = &WritePiece<'_, 'b>> {
        self.pieces.iter().filter(move |piece| piece.element.column == column)
    }

    /// Computes the segment's parity after its pieces are written.
    fn parity(&self, devices: &DeviceTable) -> Result<Parity> {
        let stripes = self.chunk.stripes();
        check_missing(self.chunk, stripes.iter().filter(|stripe| devices.present(stripe).is_none()).count())?;
        let mut syndrome = Syndrome::new(self.length, self.chunk.profile().parity() == 2);
        let mut scratch = Vec::new();
        for column in (0..self.chunk.data_columns()).rev() {
            if let Some(piece) = self.pieces_of(column).find(|piece| piece.buffer.len() == self.length) {
                syndrome.add_next_lower(Some(piece.buffer));
                continue;
            }
            scratch.resize(self.length, 0);
            let written: usize = self.pieces_of(column).map(|piece| piece.buffer.len()).sum();
            debug_assert!(written <= self.length, "the ranges of a batch must not overlap");
            if written < self.length {
                self.read_old(devices, column, &mut scratch)?;
            }
            for piece in self.pieces_of(column) {
                let start = (piece.element.within - self.within) as usize;
                scratch[start..][..piece.buffer.len()].copy_from_slice(piece.buffer);
            }
            syndrome.add_next_lower(Some(&scratch));
        }
        let (p, q) = syndrome.into_parity();
        Ok(Parity { p, q })
    }

    /// Reads the current contents of column `column`. A device that missed writes is the last
    /// resort: parity computed from its bytes would destroy the good data that the old parity
    /// preserves.
    fn read_old(&self, devices: &DeviceTable, column: usize, out: &mut [u8]) -> Result<()> {
        let read = |column: usize, with_stale: bool, buffer: &mut [u8]| {
            let (stripe, physical) = self.chunk.column_place(&self.element(column), column);
            let stripe = &self.chunk.stripes()[stripe];
            match devices.find(stripe) {
                Some((_, slot)) if slot.stale && !with_stale => Err(Error::DeviceMissing {
                    devid: stripe.devid,
                    uuid: stripe.device_uuid,
                    refused: false,
                }),
                _ => read_stripe(devices, stripe, physical, buffer),
            }
        };
        let Err(first) = read(column, false, out) else { return Ok(()) };
        let row =
            Row { data: self.chunk.data_columns(), parity: self.chunk.profile().parity(), target: column };
        let Err(second) = rebuild(row, 1, out, |column, buffer| read(column, false, buffer)) else {
            return Ok(());
        };
        let error = more_telling(Some(first), second);
        read(column, true, out).map_err(|third| more_telling(Some(error), third))
    }

    /// Adds writes of the segment's pieces and parity to the present devices.
    fn add_writes<'w>(
        &self,
        devices: &DeviceTable,
        number: usize,
        parity: &'w Parity,
        writes: &mut Vec<DeviceWrite<'w>>,
    ) where
        'b: 'w,
    {
        let mut add = |element: &Element, column: usize, buffer: &'w [u8], owner: Owner| {
            let (stripe, physical) = self.chunk.column_place(element, column);
            if let Some((device, _)) = devices.present(&self.chunk.stripes()[stripe]) {
                writes.push(DeviceWrite { device, physical, buffer, owner });
            }
        };
        for piece in self.pieces {
            add(&piece.element, piece.element.column, piece.buffer, Owner::Request(piece.request));
        }
        // Where parity lies depends on the row and the bytes of the element, not on its column.
        let columns = self.chunk.data_columns();
        let element = self.element(columns);
        add(&element, columns, &parity.p, Owner::Segment(number));
        if !parity.q.is_empty() {
            add(&element, columns + 1, &parity.q, Owner::Segment(number));
        }
    }

    /// Fails every request that has a piece in this segment.
    fn fail(&self, error: &Error, outcomes: &mut Outcomes) {
        for piece in self.pieces {
            outcomes.fail(piece.request, copy_of(error));
        }
    }
}

/// Copies an error for another request.
fn copy_of(error: &Error) -> Error {
    match error {
        Error::Device { device, operation, offset, length, source } => Error::Device {
            device: device.clone(),
            operation,
            offset: *offset,
            length: *length,
            source: io::Error::new(source.kind(), source.to_string()),
        },
        Error::DeviceMissing { devid, uuid, refused } => {
            Error::DeviceMissing { devid: *devid, uuid: *uuid, refused: *refused }
        }
        Error::TooManyMissing { logical, missing, tolerated } => {
            Error::TooManyMissing { logical: *logical, missing: *missing, tolerated: *tolerated }
        }
        other => Error::Invalid(other.to_string()),
    }
}

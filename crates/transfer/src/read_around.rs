//! Reads a file around what cannot be read.
//!
//! Owns [`read_around`], which gives the data of a file to a [`Receiver`] piece by piece, and each
//! range that cannot be read as a [`Gap`].
//!
//! **Invariants**
//! - Data and gaps come in ascending order and do not overlap. All other bytes are holes.
//! - A range whose extents cannot be read is a gap, although it may be a hole.
//! - Around a bad sector every other sector is read, down to the smallest sector of Btrfs.

use papilio_engine::errors::{Error, Result as FsResult, differ_in_numbers_only};
use papilio_format::objectid;
use papilio_fs::File;
use std::ops::Range;

/// The least that is read by itself around a fault, in bytes: the smallest sector of Btrfs.
const SECTOR: u64 = 4096;

/// A range of a file that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The bytes.
    pub range: Range<u64>,
    /// Why they could not be read or verified.
    pub reason: String,
    /// Whether the bytes were read all the same, without a checksum to verify them by.
    pub is_unverified: bool,
}

/// Takes what is read.
pub trait Receiver {
    /// Why reading ends early.
    type Stop;
    /// Returns a buffer of `length` bytes.
    fn buffer(&mut self, length: usize) -> Vec<u8>;
    /// Takes bytes of the file.
    fn data(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), Self::Stop>;
    /// Takes a range that could not be read or verified.
    fn gap(&mut self, gap: Gap) -> Result<(), Self::Stop>;
}

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// The most bytes that are read at once. Pieces end at multiples of it.
    pub piece: u64,
    /// Whether data is read even if its checksums are lost.
    pub unverified: bool,
}

/// Reads the data of a file. Holes are left out.
///
/// # Errors
/// The error that the receiver returns.
pub fn read_around<R: Receiver>(file: &File, how: Around, receiver: &mut R) -> Result<(), R::Stop> {
    let mut merging = Merging { receiver, last: None };
    read_pieces(file, how, &mut merging)?;
    merging.flush()
}

/// Passes on what it takes, and joins neighbouring gaps of one kind: a lost chunk is one gap of a
/// file, in however many pieces the file is read.
struct Merging<'a, R> {
    receiver: &'a mut R,
    last: Option<Gap>,
}

impl<R: Receiver> Merging<'_, R> {
    fn flush(&mut self) -> Result<(), R::Stop> {
        self.last.take().map_or(Ok(()), |gap| self.receiver.gap(gap))
    }
}

impl<R: Receiver> Receiver for Merging<'_, R> {
    type Stop = R::Stop;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        self.receiver.buffer(length)
    }

    fn data(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), R::Stop> {
        // The data of an unverified gap comes before the gap.
        if self.last.as_ref().is_some_and(|gap| !gap.is_unverified) {
            self.flush()?;
        }
        self.receiver.data(offset, bytes)
    }

    fn gap(&mut self, gap: Gap) -> Result<(), R::Stop> {
        if let Some(last) = &mut self.last
            && last.range.end == gap.range.start
            && last.is_unverified == gap.is_unverified
            && differ_in_numbers_only(&last.reason, &gap.reason)
        {
            last.range.end = gap.range.end;
            return Ok(());
        }
        self.flush()?;
        self.last = Some(gap);
        Ok(())
    }
}

fn read_pieces<R: Receiver>(file: &File, how: Around, receiver: &mut R) -> Result<(), R::Stop> {
    let size = file.len();
    let mut at = 0;
    while at < size {
        let start = match file.seek_data(at) {
            Ok(Some(start)) if start < size => start,
            Ok(_) => return Ok(()),
            Err(error) => {
                at = skip(file, at..size, &error, receiver)?;
                continue;
            }
        };
        let end = match file.seek_hole(start) {
            Ok(end) => end.min(size),
            // The data up to the fault.
            Err(_) => match file.next_unreadable(start) {
                Some((range, _)) if range.start > start => range.start.min(size),
                _ => size,
            },
        };
        if end <= start {
            return Ok(());
        }
        Segment { file, how, receiver }.read(start..end)?;
        at = end;
    }
    Ok(())
}

/// Reports the next range that cannot be read. Returns where to go on.
fn skip<R: Receiver>(file: &File, rest: Range<u64>, error: &Error, receiver: &mut R) -> Result<u64, R::Stop> {
    let found = file.next_unreadable(rest.start);
    // Without the list of extents it is unknown which of the rest are holes.
    let (range, reason) = match found {
        Some((range, reason)) => (range, reason.to_string()),
        None => (rest.clone(), error.to_string()),
    };
    let end = range.end.max(rest.start + 1);
    receiver.gap(Gap { range, reason, is_unverified: false })?;
    Ok(end)
}

/// Returns whether data cannot be verified, because its checksum is lost.
fn lacks_checksum(error: &Error) -> bool {
    match error {
        Error::MissingChecksum { .. } => true,
        Error::TreeBlock { tree, .. } | Error::Item { tree, .. } => *tree == objectid::CSUM_TREE,
        _ => false,
    }
}

struct Segment<'a, R> {
    file: &'a File,
    how: Around,
    receiver: &'a mut R,
}

impl<R: Receiver> Segment<'_, R> {
    fn read(&mut self, range: Range<u64>) -> Result<(), R::Stop> {
        let mut offset = range.start;
        while offset < range.end {
            let piece = self.how.piece;
            let wanted = (range.end - offset).min(piece - offset % piece);
            let mut bytes = self.receiver.buffer(wanted as usize);
            match self.file.read_at(&mut bytes, offset) {
                Ok(0) => {
                    let reason = format!("the data ends at {offset}, before the file's size");
                    let range = offset..range.end;
                    return self.receiver.gap(Gap { range, reason, is_unverified: false });
                }
                Ok(got) => {
                    bytes.truncate(got);
                    self.receiver.data(offset, bytes)?;
                    offset += got as u64;
                }
                Err(_) => {
                    self.sectors(offset..offset + wanted)?;
                    offset += wanted;
                }
            }
        }
        Ok(())
    }

    /// Reads the sectors of a range with a fault one by one. Faults of the same kind are one gap.
    fn sectors(&mut self, range: Range<u64>) -> Result<(), R::Stop> {
        let mut run: Option<Gap> = None;
        let mut at = range.start;
        while at < range.end {
            let next = (at - at % SECTOR + SECTOR).min(range.end);
            let mut bytes = vec![0; (next - at) as usize];
            let fault = match read_whole(&mut bytes, at, |bytes, at| self.file.read_at(bytes, at)) {
                Ok(()) => None,
                Err(Fault { reason, lacks_checksum: true }) if self.how.unverified => {
                    let read = |bytes: &mut [u8], at| self.file.read_unverified_at(bytes, at);
                    Some(match read_whole(&mut bytes, at, read) {
                        Ok(()) => (reason, true),
                        Err(fault) => (fault.reason, false),
                    })
                }
                Err(fault) => Some((fault.reason, false)),
            };
            let goes_on = match (&run, &fault) {
                (Some(run), Some((_, unverified))) => run.is_unverified == *unverified,
                _ => false,
            };
            if !goes_on && let Some(gap) = run.take() {
                self.receiver.gap(gap)?;
            }
            if fault.as_ref().is_none_or(|(_, unverified)| *unverified) {
                self.receiver.data(at, bytes)?;
            }
            if let Some((reason, is_unverified)) = fault {
                let new = Gap { range: at..next, reason, is_unverified };
                run.get_or_insert(new).range.end = next;
            }
            at = next;
        }
        run.map_or(Ok(()), |gap| self.receiver.gap(gap))
    }
}

/// Why a sector could not be read.
struct Fault {
    reason: String,
    lacks_checksum: bool,
}

/// Fills the buffer, or says why it cannot be filled.
fn read_whole(
    mut bytes: &mut [u8],
    mut offset: u64,
    read: impl Fn(&mut [u8], u64) -> FsResult<usize>,
) -> Result<(), Fault> {
    while !bytes.is_empty() {
        match read(bytes, offset) {
            Ok(0) => {
                let reason = format!("the data ends at {offset}, before the file's size");
                return Err(Fault { reason, lacks_checksum: false });
            }
            Ok(got) => {
                bytes = &mut bytes[got..];
                offset += got as u64;
            }
            Err(error) => {
                let lacks_checksum = lacks_checksum(&error);
                return Err(Fault { reason: error.to_string(), lacks_checksum });
            }
        }
    }
    Ok(())
}

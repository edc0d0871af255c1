//! Data extents of a clone: each is copied once, as it lies, however many files share it.
//!
//! Owns [`Extents`], the map from old to new extents, and [`Sectors`], the runs of sectors of an
//! extent that could not be copied or verified.
//!
//! **Invariants**
//! - A sector is copied from a copy that matches its checksum, or is zeros and listed.
//! - A sector has a checksum in the clone if it had one, or if a file that has checksums uses it.
//!
//! Locks: none held between calls.

use papilio_engine::btree::Tree;
use papilio_engine::data::checksum::DataChecksums;
use papilio_engine::data::csum_edit::ChecksumRuns;
use papilio_engine::errors::{Error, Result};
use papilio_engine::space::LogicalRange;
use papilio_engine::transaction::Transactions;
use papilio_engine::volume::Volume;
use papilio_format::{Geometry, LogicalAddress};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The most bytes read at once.
const PIECE: usize = 1 << 20;

/// A fault of a run of sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No copy could be read and verified; the clone has zeros.
    Lost(String),
    /// There is no checksum.
    NoChecksum,
    /// There was no checksum; the clone has one of the data as it was read.
    Unverified,
}

/// A run of sectors of an extent.
#[derive(Clone, Debug)]
pub(super) struct Sectors {
    /// Byte offsets in the extent.
    pub(super) range: Range<u64>,
    pub(super) fault: Fault,
}

/// An extent of the clone.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// Its address; `None` if nothing of it could be read.
    pub(super) address: Option<LogicalAddress>,
    pub(super) faults: Vec<Sectors>,
    /// Whether the data was copied; that of a preallocated extent is not.
    has_data: bool,
    /// Whether a file extent of the clone refers to it.
    pub(super) is_referenced: bool,
}

/// The data extents that were copied so far.
pub(super) struct Extents<'a> {
    source: &'a Volume,
    checksums: Option<Tree>,
    target: &'a Arc<Transactions>,
    geometry: Geometry,
    known: HashMap<(LogicalAddress, u64), Copied>,
    buffer: Vec<u8>,
    /// Bytes of data copied.
    pub(super) bytes: u64,
}

impl<'a> Extents<'a> {
    /// Copies from `source`, whose checksums are in `checksums`, to `target`.
    pub(super) fn new(source: &'a Volume, checksums: Option<Tree>, target: &'a Arc<Transactions>) -> Self {
        let geometry = source.geometry();
        Self { source, checksums, target, geometry, known: HashMap::new(), buffer: vec![0; PIECE], bytes: 0 }
    }

    /// Whether there are checksums of data to verify by.
    pub(super) fn verifies(&self) -> bool {
        self.checksums.is_some()
    }

    /// Returns the new place of an extent, and copies it if that was not done yet. `written` is
    /// false for a part that is only preallocated. Checksums go to `sums`.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a device of the clone that cannot be written.
    pub(super) fn copy(
        &mut self,
        old: LogicalAddress,
        length: u64,
        written: bool,
        sums: &mut ChecksumRuns,
    ) -> Result<&mut Copied> {
        let mut copied = self.known.remove(&(old, length)).unwrap_or_default();
        let fresh = copied.address.is_none() && !copied.has_data;
        if fresh {
            copied.address = Some(self.allocate(length)?);
        }
        if let Some(new) = copied.address
            && written
            && !copied.has_data
        {
            let mut found = Vec::new();
            copied.faults = self.copy_data(old, length, new, &mut found)?;
            copied.has_data = true;
            let is_lost = |run: &Sectors| run.range == (0..length) && matches!(run.fault, Fault::Lost(_));
            if fresh && copied.faults.iter().any(is_lost) {
                self.target.space().release(LogicalRange { start: new, length });
                copied.address = None;
            } else {
                found.iter().for_each(|(start, found)| sums.add(*start, found));
            }
        }
        Ok(self.known.entry((old, length)).or_insert(copied))
    }

    /// Returns what is wrong with an extent that was copied.
    pub(super) fn faults(&self, old: LogicalAddress, length: u64) -> &[Sectors] {
        self.known.get(&(old, length)).map_or(&[], |copied| &copied.faults)
    }

    fn allocate(&self, length: u64) -> Result<LogicalAddress> {
        self.target.retry_after_commits(|| Ok(self.target.allocate_data(length, length)?.start))
    }

    /// Copies the data of an extent, and returns what is wrong with it.
    fn copy_data(
        &mut self,
        old: LogicalAddress,
        length: u64,
        new: LogicalAddress,
        sums: &mut Vec<(LogicalAddress, Vec<u8>)>,
    ) -> Result<Vec<Sectors>> {
        let mut faults: Vec<Sectors> = Vec::new();
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut done = 0;
        while done < length {
            let size = (length - done).min(PIECE as u64) as usize;
            let (from, to) = (LogicalAddress(old.0 + done), LogicalAddress(new.0 + done));
            let found = self.read_piece(from, &mut buffer[..size]);
            self.add_sums(&found, to, sums);
            let sector = u64::from(self.geometry.sector_size);
            for (at, fault) in found.faults.into_iter().enumerate() {
                let Some(fault) = fault else { continue };
                let start = done + at as u64 * sector;
                match faults.last_mut() {
                    Some(last) if last.range.end == start && last.fault == fault => {
                        last.range.end += sector;
                    }
                    _ => faults.push(Sectors { range: start..start + sector, fault }),
                }
            }
            let written = self.target.volume().write(to, &buffer[..size]);
            if written.is_err() {
                self.buffer = buffer;
                return written.map(|()| faults);
            }
            done += size as u64;
            self.bytes += size as u64;
        }
        self.buffer = buffer;
        Ok(faults)
    }

    /// Passes on the checksums of a piece, in runs.
    fn add_sums(&self, piece: &Piece, to: LogicalAddress, sums: &mut Vec<(LogicalAddress, Vec<u8>)>) {
        let (size, sector) = (self.geometry.checksum_type.size(), u64::from(self.geometry.sector_size));
        let mut at = 0;
        while at < piece.known.len() {
            let run = piece.known[at..].iter().take_while(|known| **known).count();
            if run > 0 {
                let start = LogicalAddress(to.0 + at as u64 * sector);
                sums.push((start, piece.sums[at * size..(at + run) * size].to_vec()));
            }
            at += run.max(1);
        }
    }

    /// Fills the buffer with good sectors, and with zeros where there is none.
    fn read_piece(&self, from: LogicalAddress, buffer: &mut [u8]) -> Piece {
        let sector = self.geometry.sector_size as usize;
        let sectors = buffer.len() / sector;
        let mut piece = self.sums_of(from, sectors);
        let mut bad: Vec<usize> = (0..sectors).collect();
        let mut reason = String::new();
        let copies = match self.source.copies_in_order(from) {
            Ok(copies) => copies,
            Err(error) => {
                reason = error.to_string();
                Default::default()
            }
        };
        for copy in copies {
            let whole = bad.len() == sectors && self.source.read_copy(from, buffer, copy).is_ok();
            bad.retain(|&at| {
                let bytes = &mut buffer[at * sector..(at + 1) * sector];
                let address = LogicalAddress(from.0 + (at * sector) as u64);
                match if whole { Ok(()) } else { self.source.read_copy(address, bytes, copy) } {
                    Err(error) => {
                        reason = error.to_string();
                        true
                    }
                    Ok(()) if piece.matches(at, bytes, &self.geometry) => false,
                    Ok(()) => {
                        reason = "the data does not match its checksum".to_owned();
                        true
                    }
                }
            });
            if bad.is_empty() {
                break;
            }
        }
        let zeros = vec![0; if bad.is_empty() { 0 } else { sector }];
        for at in bad {
            buffer[at * sector..(at + 1) * sector].fill(0);
            piece.lose(at, &reason, &zeros, &self.geometry);
        }
        piece
    }

    /// Returns the checksums of sectors, as far as they can be read.
    fn sums_of(&self, from: LogicalAddress, sectors: usize) -> Piece {
        let (size, sector) = (self.geometry.checksum_type.size(), u64::from(self.geometry.sector_size));
        let mut piece = Piece {
            known: vec![false; sectors],
            sums: vec![0; sectors * size],
            faults: vec![Some(Fault::NoChecksum); sectors],
        };
        let Some(tree) = &self.checksums else { return piece };
        let mut lookup = DataChecksums::new(tree, self.geometry);
        let mut done = 0;
        while done < sectors {
            let first = done;
            let address = LogicalAddress(from.0 + first as u64 * sector);
            let found = lookup.for_each_run(address, sectors - first, |at, count, sums| {
                let run = first + at..first + at + count;
                if let Some(sums) = sums {
                    piece.known[run.clone()].fill(true);
                    piece.faults[run.clone()].fill(None);
                    piece.sums[run.start * size..run.end * size].copy_from_slice(sums);
                }
                done = run.end;
                true
            });
            // A leaf of checksums that cannot be read: the sectors after its last one may have
            // some.
            if found.is_err() {
                lookup = DataChecksums::new(tree, self.geometry);
                done += 1;
            }
        }
        piece
    }

    /// Computes checksums of the clone's sectors in `range` of an extent, from the data there.
    ///
    /// # Errors
    /// A device of the clone that cannot be read.
    pub(super) fn add_new_sums(
        &self,
        new: LogicalAddress,
        range: Range<u64>,
        sums: &mut ChecksumRuns,
    ) -> Result<()> {
        let sector = self.geometry.sector_size as usize;
        let mut at = range.start;
        while at < range.end {
            let size = (range.end - at).min(PIECE as u64) as usize;
            let mut bytes = vec![0; size];
            let address = LogicalAddress(new.0 + at);
            self.target.volume().read(address, &mut bytes)?;
            let mut found = Vec::with_capacity(sums.size_of(size));
            for sector in bytes.chunks_exact(sector) {
                found.extend_from_slice(self.geometry.checksum_type.compute(sector).as_bytes());
            }
            sums.add(address, &found);
            at += size as u64;
        }
        Ok(())
    }

    /// Marks the sectors without a checksum in `range` as having one now. Returns them.
    pub(super) fn mark_unverified(copied: &mut Copied, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut marked = Vec::new();
        let mut runs = Vec::new();
        for run in std::mem::take(&mut copied.faults) {
            let (from, to) = (run.range.start.max(range.start), run.range.end.min(range.end));
            if run.fault != Fault::NoChecksum || from >= to {
                runs.push(run);
                continue;
            }
            let parts = [
                (run.range.start..from, Fault::NoChecksum),
                (from..to, Fault::Unverified),
                (to..run.range.end, Fault::NoChecksum),
            ];
            runs.extend(
                parts
                    .into_iter()
                    .filter(|(range, _)| !range.is_empty())
                    .map(|(range, fault)| Sectors { range, fault }),
            );
            marked.push(from..to);
        }
        copied.faults = runs;
        marked
    }
}

/// The checksums of a piece, and what is wrong with its sectors.
struct Piece {
    known: Vec<bool>,
    sums: Vec<u8>,
    faults: Vec<Option<Fault>>,
}

impl Piece {
    fn matches(&self, at: usize, bytes: &[u8], geometry: &Geometry) -> bool {
        let size = geometry.checksum_type.size();
        !self.known[at] || geometry.checksum_type.verify(bytes, &self.sums[at * size..(at + 1) * size])
    }

    fn lose(&mut self, at: usize, reason: &str, zeros: &[u8], geometry: &Geometry) {
        let size = geometry.checksum_type.size();
        let sum = geometry.checksum_type.compute(zeros);
        self.sums[at * size..(at + 1) * size].copy_from_slice(sum.as_bytes());
        self.faults[at] = Some(Fault::Lost(reason.to_owned()));
    }
}

/// Returns the error for an extent that no kernel makes.
pub(super) fn check_extent(length: u64, geometry: &Geometry) -> Result<()> {
    /// The most bytes of a data extent (`BTRFS_MAX_EXTENT_SIZE`).
    const MOST: u64 = 128 << 20;
    let sector = u64::from(geometry.sector_size);
    if length == 0 || length > MOST || !length.is_multiple_of(sector) {
        return Err(Error::Invalid(format!("an extent of {length} bytes is not valid")));
    }
    Ok(())
}

//! The log of a VHDX file: changes of tables that a program may not have written to their places.
//!
//! Owns [`Log`]: the pages and runs of zeros to write, in their order. The source is [MS-VHDX] 2.3.
//!
//! The log is a ring of entries. Each has a header, descriptors and pages of 4 KiB. The entry with
//! the greatest sequence number is the head. It names the tail, the oldest entry that must be
//! applied again. The entries between them have consecutive numbers. A head whose sequence is not
//! whole was not finished, and the next smaller one counts.
//!
//! **Invariant**: a log has at most [`MAX_LOG`] bytes.

use super::super::blocks::read_range;
use super::super::sparse::Growing;
use super::header::{Header, fault, guid_at, is_valid, u32_at, u64_at};
use crate::device::Device;
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use std::io;

/// The largest log that is read. Hyper-V and QEMU make logs of 1 MiB.
const MAX_LOG: u64 = 64 << 20;
const PAGE: usize = 4096;
/// The most bytes of entries that are verified, in sizes of the log. The entries of a log that a
/// program wrote overlap only where newer ones replace older ones.
const MAX_VERIFIED: usize = 16;
/// Bytes of an entry's header, and of a descriptor.
const ENTRY_HEADER: usize = 64;
const DESCRIPTOR: usize = 32;

/// A change of the file.
#[derive(Debug)]
struct Change {
    place: u64,
    content: LogContent,
}

#[derive(Debug)]
enum LogContent {
    Page(Vec<u8>),
    /// Bytes.
    Zeros(u64),
}

/// The changes that a file still lacks.
#[derive(Debug, Default)]
pub(super) struct Log {
    changes: Vec<Change>,
    /// The least size of the file that has them all, in bytes.
    size: u64,
}

/// A valid entry of the log: its checksum is right, and so are its descriptors and pages.
#[derive(Clone, Copy)]
struct LogEntry {
    /// Bytes.
    length: usize,
    /// The place of the oldest entry that this one needs.
    tail: usize,
    sequence: u64,
}

/// The ring, and the entries that begin at its pages.
struct LogRing<'r> {
    bytes: &'r [u8],
    entries: Vec<Option<LogEntry>>,
}

impl<'r> LogRing<'r> {
    /// Finds the entries. Each is verified once.
    fn read(bytes: &'r [u8], header: &Header) -> Result<Self, OpenErrorKind> {
        let mut ring = Self { bytes, entries: Vec::new() };
        let mut verified = 0;
        for at in (0..bytes.len()).step_by(PAGE) {
            let mut found = None;
            if let Some(entry) = ring.plausible(at, header) {
                verified += entry.length;
                if verified > MAX_VERIFIED * bytes.len() {
                    return Err(fault("too many entries of its log overlap"));
                }
                let whole = ring.range(at, entry.length);
                found = (is_valid(&whole, b"loge") && entry.changes(&whole).is_some()).then_some(entry);
            }
            ring.entries.push(found);
        }
        Ok(ring)
    }

    /// Returns bytes of the ring, which goes on at its start.
    fn range(&self, at: usize, length: usize) -> Vec<u8> {
        let first = &self.bytes[at..self.bytes.len().min(at + length)];
        [first, &self.bytes[..length - first.len()]].concat()
    }

    /// Returns the entry that begins at an offset by its header, whose checksum is not verified.
    fn plausible(&self, at: usize, header: &Header) -> Option<LogEntry> {
        let start = &self.bytes[at..at + ENTRY_HEADER];
        let (length, tail) = (u32_at(start, 8) as usize, u32_at(start, 12) as usize);
        let sequence = u64_at(start, 16);
        let plausible = start.starts_with(b"loge")
            && length.is_multiple_of(PAGE)
            && (PAGE..=self.bytes.len()).contains(&length)
            && sequence > 0
            && guid_at(start, 32) == header.log_id
            && tail.is_multiple_of(PAGE)
            && tail < self.bytes.len();
        plausible.then_some(LogEntry { length, tail, sequence })
    }

    /// Returns the valid entry at an offset.
    fn entry(&self, at: usize) -> Option<LogEntry> {
        self.entries[at / PAGE]
    }

    /// Returns the places of the entries, the one with the greatest sequence number first.
    fn heads(&self) -> Vec<usize> {
        let numbered = self.entries.iter().zip((0..).step_by(PAGE));
        let mut heads: Vec<_> = numbered.filter_map(|(entry, at)| Some(((*entry)?.sequence, at))).collect();
        heads.sort_unstable();
        heads.into_iter().rev().map(|(_, at)| at).collect()
    }

    /// Returns the places of the entries from the tail of the one at `head` to that one, if none is
    /// missing.
    fn sequence(&self, head: usize) -> Option<Vec<usize>> {
        let mut at = self.entry(head)?.tail;
        let mut entry = self.entry(at)?;
        let mut places = vec![at];
        while at != head {
            at = (at + entry.length) % self.bytes.len();
            let next = self.entry(at)?;
            if Some(next.sequence) != entry.sequence.checked_add(1) {
                return None;
            }
            places.push(at);
            entry = next;
        }
        Some(places)
    }
}

impl LogEntry {
    /// Returns the changes of the entry with these bytes. Returns `None` if they are damaged.
    fn changes(&self, bytes: &[u8]) -> Option<Vec<Change>> {
        let count = u32_at(bytes, 24) as usize;
        let pages = ENTRY_HEADER.checked_add(count.checked_mul(DESCRIPTOR)?)?.next_multiple_of(PAGE);
        let descriptors = bytes.get(ENTRY_HEADER..pages)?;
        let mut pages = bytes[pages..].chunks_exact(PAGE);
        let change = |descriptor: &[u8]| {
            let place = u64_at(descriptor, 16);
            if u64_at(descriptor, 24) != self.sequence || !place.is_multiple_of(PAGE as u64) {
                return None;
            }
            let content = match &descriptor[..4] {
                b"zero" => LogContent::Zeros(u64_at(descriptor, 8)),
                b"desc" => LogContent::Page(self.page(descriptor, pages.next()?)?),
                _ => return None,
            };
            Some(Change { place, content })
        };
        descriptors.chunks_exact(DESCRIPTOR).take(count).map(change).collect()
    }

    /// Puts a page together. The number of the entry is in the place of its first and last bytes,
    /// which are in the descriptor.
    fn page(&self, descriptor: &[u8], page: &[u8]) -> Option<Vec<u8>> {
        let sequence = u64::from(u32_at(page, 4)) << 32 | u64::from(u32_at(page, PAGE - 4));
        if !page.starts_with(b"data") || sequence != self.sequence {
            return None;
        }
        Some([&descriptor[8..16], &page[8..PAGE - 4], &descriptor[4..8]].concat())
    }
}

impl Log {
    /// Reads the log of a file; an empty one if everything was written.
    pub(super) fn read(file: &dyn Device, header: &Header) -> Result<Self, OpenErrorKind> {
        let (place, length) = header.log;
        if header.log_id == [0; 16] || length == 0 {
            return Ok(Self::default());
        }
        if length > MAX_LOG || !length.is_multiple_of(PAGE as u64) {
            return Err(fault("its log has an unusual size"));
        }
        let bytes = read_range(file, place, length).map_err(|_| fault("its log is outside of the file"))?;
        let ring = LogRing::read(&bytes, header)?;
        let Some((head, places)) = ring.heads().into_iter().find_map(|at| Some((at, ring.sequence(at)?)))
        else {
            // The first entry was not finished, so nothing was changed.
            return Ok(Self::default());
        };
        let last = ring.range(head, ENTRY_HEADER);
        if u64_at(&last, 48) > file.size() {
            return Err(fault("it is shorter than when its log was written"));
        }
        let valid = "a valid entry stays valid";
        let changes = places.into_iter().flat_map(|at| {
            let entry = ring.entry(at).expect(valid);
            entry.changes(&ring.range(at, entry.length)).expect(valid)
        });
        Ok(Self { changes: changes.collect(), size: u64_at(&last, 56) })
    }

    /// Puts the changes into bytes that were read at `place`.
    pub(super) fn patch(&self, place: u64, bytes: &mut [u8]) {
        let end = place + bytes.len() as u64;
        for change in &self.changes {
            let length = change.content.length();
            let (from, to) = (change.place.max(place), change.place.saturating_add(length).min(end));
            if from >= to {
                continue;
            }
            let target = &mut bytes[(from - place) as usize..(to - place) as usize];
            match &change.content {
                LogContent::Page(page) => {
                    let skip = (from - change.place) as usize;
                    target.copy_from_slice(&page[skip..skip + target.len()]);
                }
                LogContent::Zeros(_) => target.fill(0),
            }
        }
    }

    /// Writes the changes to their places in the file, durably.
    pub(super) fn apply(&self, file: &dyn Growing) -> io::Result<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        if file.size() < self.size {
            file.set_size(self.size)?;
        }
        for change in &self.changes {
            let place = PhysicalAddress(change.place);
            match &change.content {
                LogContent::Page(page) => file.write_at(page, place)?,
                LogContent::Zeros(length) => file.write_zeroes(place, *length, false)?,
            }
        }
        file.flush()
    }
}

impl LogContent {
    fn length(&self) -> u64 {
        match self {
            Self::Page(page) => page.len() as u64,
            Self::Zeros(length) => *length,
        }
    }
}

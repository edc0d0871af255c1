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
/// Bytes of an entry's header, and of a descriptor.
const ENTRY_HEADER: usize = 64;
const DESCRIPTOR: usize = 32;

/// A change of the file.
#[derive(Debug)]
struct Change {
    place: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
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

/// An entry of the log.
struct Entry {
    bytes: Vec<u8>,
}

impl Entry {
    /// Reads the entry at an offset of the ring, if there is a valid one.
    fn read(ring: &[u8], at: usize, header: &Header) -> Option<Self> {
        let start = &ring[at..at + ENTRY_HEADER];
        let length = u32_at(start, 8) as usize;
        let plausible = start.starts_with(b"loge")
            && length.is_multiple_of(PAGE)
            && (PAGE..=ring.len()).contains(&length)
            && u64_at(start, 16) > 0
            && guid_at(start, 32) == header.log_id
            && (u32_at(start, 12) as usize).is_multiple_of(PAGE)
            && (u32_at(start, 12) as usize) < ring.len();
        if !plausible {
            return None;
        }
        // The ring goes on at its start.
        let first = &ring[at..ring.len().min(at + length)];
        let bytes = [first, &ring[..length - first.len()]].concat();
        is_valid(&bytes, b"loge").then_some(Self { bytes })
    }

    fn tail(&self) -> usize {
        u32_at(&self.bytes, 12) as usize
    }

    fn sequence(&self) -> u64 {
        u64_at(&self.bytes, 16)
    }

    /// Adds the changes of the entry. Returns `None` if they are damaged.
    fn changes(&self, changes: &mut Vec<Change>) -> Option<()> {
        let count = u32_at(&self.bytes, 24) as usize;
        let pages = ENTRY_HEADER.checked_add(count.checked_mul(DESCRIPTOR)?)?.next_multiple_of(PAGE);
        let descriptors = self.bytes.get(ENTRY_HEADER..pages)?;
        let mut pages = self.bytes[pages..].chunks_exact(PAGE);
        for descriptor in descriptors.chunks_exact(DESCRIPTOR).take(count) {
            let place = u64_at(descriptor, 16);
            if u64_at(descriptor, 24) != self.sequence() || !place.is_multiple_of(PAGE as u64) {
                return None;
            }
            let content = match &descriptor[..4] {
                b"zero" => Content::Zeros(u64_at(descriptor, 8)),
                b"desc" => Content::Page(self.page(descriptor, pages.next()?)?),
                _ => return None,
            };
            changes.push(Change { place, content });
        }
        Some(())
    }

    /// Puts a page together. The number of the entry is in the place of its first and last bytes,
    /// which are in the descriptor.
    fn page(&self, descriptor: &[u8], page: &[u8]) -> Option<Vec<u8>> {
        let sequence = u64::from(u32_at(page, 4)) << 32 | u64::from(u32_at(page, PAGE - 4));
        if !page.starts_with(b"data") || sequence != self.sequence() {
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
        let ring = read_range(file, place, length).map_err(|_| fault("its log is outside of the file"))?;
        let positions = (0..ring.len()).step_by(PAGE);
        let mut heads: Vec<_> =
            positions.filter_map(|at| Some((Entry::read(&ring, at, header)?.sequence(), at))).collect();
        heads.sort_unstable();
        for (_, at) in heads.into_iter().rev() {
            if let Some(log) = Self::of(&ring, at, header) {
                let size = file.size();
                if log.1 > size {
                    return Err(fault("it is shorter than when its log was written"));
                }
                return Ok(log.0);
            }
        }
        // The first entry was not finished, so nothing was changed.
        Ok(Self::default())
    }

    /// Reads the sequence of entries that ends with the one at `head`, if it is whole. Returns also
    /// the size that the file had.
    fn of(ring: &[u8], head: usize, header: &Header) -> Option<(Self, u64)> {
        let last = Entry::read(ring, head, header)?;
        let (mut at, mut changes) = (last.tail(), Vec::new());
        let mut entry = Entry::read(ring, at, header)?;
        loop {
            entry.changes(&mut changes)?;
            if at == head {
                break;
            }
            at = (at + entry.bytes.len()) % ring.len();
            let next = Entry::read(ring, at, header)?;
            if next.sequence() != entry.sequence() + 1 {
                return None;
            }
            entry = next;
        }
        let flushed = u64_at(&last.bytes, 48);
        Some((Self { changes, size: u64_at(&last.bytes, 56) }, flushed))
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
                Content::Page(page) => {
                    let skip = (from - change.place) as usize;
                    target.copy_from_slice(&page[skip..skip + target.len()]);
                }
                Content::Zeros(_) => target.fill(0),
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
                Content::Page(page) => file.write_at(page, place)?,
                Content::Zeros(length) => file.write_zeroes(place, *length, false)?,
            }
        }
        file.flush()
    }
}

impl Content {
    fn length(&self) -> u64 {
        match self {
            Self::Page(page) => page.len() as u64,
            Self::Zeros(length) => *length,
        }
    }
}

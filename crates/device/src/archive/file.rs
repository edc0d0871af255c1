//! `ArchiveFile`: reads an archive at any place, by its table of contents.
//!
//! **Invariants**
//! - The table lists frames that follow one another from the header to the table.
//! - The ranges of tree blocks and data do not overlap.
//! - A frame's content is believed only if its checksum is the one that the table has.
//! - The cache has at most [`CACHE_BYTES`] bytes, or one frame.
//!
//! **Locks**: `cache`, held for a lookup or an insertion. Frames are read and decompressed without
//! it, so two threads may decompress one frame.

use super::error::{ArchiveError, ArchiveFault};
use super::frame::{ArchiveFrame, parse_header};
use super::map::ArchiveMap;
use super::sequence::lines;
use crate::device::Device;
use papilio_format::PhysicalAddress;
use papilio_format::disk_archive::{
    ArchiveEnd, ArchiveHeader, FrameHeader, FrameKind, HEADER_SIZE, TableEntry, parse_ranges,
};
use papilio_locks::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes of unpacked frames that are kept.
const CACHE_BYTES: usize = 64 << 20;

/// Where a frame is, and what it has to be.
#[derive(Clone, Copy, Debug)]
struct Listed {
    offset: u64,
    checksum: u64,
    size: u32,
}

/// A range of the logical address space in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Indexed {
    pub(super) start: u64,
    pub(super) length: u32,
    /// The frame's number.
    pub(super) frame: u32,
    /// Where the range is in the frame's content; [`UNREADABLE`] if it has none.
    inner: u32,
}

const UNREADABLE: u32 = u32::MAX;

impl Indexed {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }

    /// Returns whether the source could read it.
    pub(super) fn is_readable(&self) -> bool {
        self.inner != UNREADABLE
    }
}

/// An archive that was opened.
#[derive(Debug)]
pub struct ArchiveFile {
    file: Arc<dyn Device>,
    header: ArchiveHeader,
    map: ArchiveMap,
    end: ArchiveEnd,
    frames: Vec<Listed>,
    index: Vec<Indexed>,
    /// The boot areas: offset on the device, and frame.
    boots: Vec<(u64, u32)>,
    /// Newest last.
    cache: Mutex<VecDeque<(u32, Arc<Vec<u8>>)>>,
}

impl ArchiveFile {
    /// Reads header, end mark, table of contents and map.
    ///
    /// # Errors
    /// No archive, or one that was cut or damaged there.
    pub fn open(file: Arc<dyn Device>) -> Result<Self, ArchiveError> {
        let name = file.name().to_owned();
        let size = file.size();
        let mut bytes = vec![0; HEADER_SIZE.min(size as usize)];
        read(&*file, &mut bytes, 0)?;
        let header = ArchiveHeader::from_header(&bytes).map_err(|fault| ArchiveError::at(&name, 0, fault))?;
        let place = size.saturating_sub(ArchiveEnd::SIZE as u64);
        let mut mark = [0; ArchiveEnd::SIZE];
        read(&*file, &mut mark, place)?;
        let end = ArchiveEnd::parse_checked(&mark, header.id, size)
            .map_err(|fault| ArchiveError::at(&name, place, fault))?;
        let mut opened = Self {
            file,
            header,
            map: ArchiveMap::default(),
            end,
            frames: Vec::new(),
            index: Vec::new(),
            boots: Vec::new(),
            cache: Mutex::default(),
        };
        opened.read_table(place)?;
        let mut map = Vec::new();
        for number in 0..header.map_frames {
            map.extend_from_slice(&opened.content(number)?);
        }
        opened.map = ArchiveMap::parse(&header, &bytes, &map)
            .map_err(|fault| ArchiveError::at(&name, HEADER_SIZE as u64, fault))?;
        Ok(opened)
    }

    fn read_table(&mut self, mark: u64) -> Result<(), ArchiveError> {
        let name = self.file.name().to_owned();
        let (mut offset, mut next) = (self.end.table, HEADER_SIZE as u64);
        for number in self.end.frames..self.end.frames.saturating_add(self.end.table_frames) {
            let frame = self.frame_at(number, offset, mark)?;
            let failed = |fault: ArchiveFault| ArchiveError::in_frame(&name, number, offset, fault);
            if frame.kind != FrameKind::Table {
                return Err(failed(ArchiveFault::Contradiction("it is no table of contents".to_owned())));
            }
            for line in lines(&frame.content(&name)?) {
                let (entry, ranges) = TableEntry::parse_prefix(line).map_err(|fault| failed(fault.into()))?;
                if entry.offset != next || (entry.size as usize) < FrameHeader::SIZE {
                    let text = format!("the table has a frame at byte {}, not at {next}", entry.offset);
                    return Err(failed(ArchiveFault::Contradiction(text)));
                }
                next += u64::from(entry.size);
                self.add_entry(&entry, ranges).map_err(failed)?;
            }
            offset += (FrameHeader::SIZE + frame.header.rest()) as u64;
        }
        if next != self.end.table || self.frames.len() as u64 != self.end.frames || offset != mark {
            let text = "the table of contents does not list all frames".to_owned();
            return Err(ArchiveError::at(&name, self.end.table, ArchiveFault::Contradiction(text)));
        }
        self.index.sort_unstable_by_key(|range| range.start);
        if let Some(pair) = self.index.windows(2).find(|pair| pair[0].end() > pair[1].start) {
            let text = format!("two frames have the address {}", pair[1].start);
            return Err(ArchiveError::at(&name, self.end.table, ArchiveFault::Contradiction(text)));
        }
        Ok(())
    }

    fn add_entry(&mut self, entry: &TableEntry, ranges: &[u8]) -> Result<(), ArchiveFault> {
        let kind = FrameKind::from_raw(entry.kind)?;
        let too_many = || ArchiveFault::Contradiction("the archive has too many frames".to_owned());
        let number = u32::try_from(self.frames.len()).map_err(|_| too_many())?;
        self.frames.push(Listed { offset: entry.offset, checksum: entry.checksum, size: entry.size });
        let ranges = parse_ranges(ranges, entry.ranges as usize)?;
        let mut inner = 0;
        for range in &ranges {
            match kind {
                FrameKind::Boot => self.boots.push((range.start.0, number)),
                FrameKind::Metadata | FrameKind::Data | FrameKind::Unreadable => {
                    let inner = if kind == FrameKind::Unreadable { UNREADABLE } else { inner };
                    let (start, length) = (range.start.0, range.length);
                    self.index.push(Indexed { start, length, frame: number, inner });
                }
                FrameKind::Map | FrameKind::Table => {}
            }
            inner = inner.saturating_add(range.length).min(UNREADABLE - 1);
        }
        Ok(())
    }

    /// Reads a frame that must end before `limit`.
    fn frame_at(&self, number: u64, offset: u64, limit: u64) -> Result<ArchiveFrame, ArchiveError> {
        let name = self.file.name();
        let cut = || ArchiveError::in_frame(name, number, offset, ArchiveFault::Cut);
        let rest =
            offset.checked_add(FrameHeader::SIZE as u64).filter(|rest| *rest <= limit).ok_or_else(cut)?;
        let mut bytes = [0; FrameHeader::SIZE];
        read(&*self.file, &mut bytes, offset)?;
        let header = parse_header(name, &bytes, &self.header, number, offset)?;
        if header.rest() as u64 > limit - rest {
            return Err(cut());
        }
        let mut bytes = vec![0; header.rest()];
        read(&*self.file, &mut bytes, rest)?;
        ArchiveFrame::new(name, header, offset, bytes)
    }

    fn listed_frame(&self, number: u32) -> Result<ArchiveFrame, ArchiveError> {
        let name = self.file.name();
        let Some(listed) = self.frames.get(number as usize) else {
            let fault = ArchiveFault::Contradiction("the table does not have it".to_owned());
            return Err(ArchiveError::in_frame(name, number.into(), self.end.table, fault));
        };
        let frame = self.frame_at(number.into(), listed.offset, listed.offset + u64::from(listed.size))?;
        let (stored, computed) = (listed.checksum, frame.header.checksum);
        match stored == computed {
            true => Ok(frame),
            false => {
                let fault = ArchiveFault::Checksum { stored, computed };
                Err(ArchiveError::in_frame(name, number.into(), listed.offset, fault))
            }
        }
    }

    /// Returns the content of a frame.
    fn content(&self, number: u32) -> Result<Arc<Vec<u8>>, ArchiveError> {
        let mut cache = self.cache.lock();
        if let Some(at) = cache.iter().position(|(known, _)| *known == number) {
            let found = cache.remove(at).expect("the position was just found");
            let bytes = Arc::clone(&found.1);
            cache.push_back(found);
            return Ok(bytes);
        }
        drop(cache);
        let content = self.listed_frame(number)?.content(self.file.name())?.into_owned();
        let content = Arc::new(content);
        let mut cache = self.cache.lock();
        let mut total: usize = cache.iter().map(|(_, bytes)| bytes.len()).sum();
        while total + content.len() > CACHE_BYTES
            && let Some((_, oldest)) = cache.pop_front()
        {
            total -= oldest.len();
        }
        cache.push_back((number, Arc::clone(&content)));
        Ok(content)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Returns the header.
    pub fn header(&self) -> &ArchiveHeader {
        &self.header
    }

    /// Returns the map.
    pub fn map(&self) -> &ArchiveMap {
        &self.map
    }

    /// Returns the range that has an address, or else where the next range starts.
    pub(super) fn find(&self, address: u64) -> Result<Indexed, Option<u64>> {
        let after = self.index.partition_point(|range| range.start <= address);
        let found = after.checked_sub(1).map(|at| self.index[at]).filter(|range| address < range.end());
        found.ok_or_else(|| self.index.get(after).map(|range| range.start))
    }

    /// Reads a part of a range.
    ///
    /// # Errors
    /// A damaged frame; a range that the source could not read.
    pub(super) fn read(&self, range: &Indexed, at: u64, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        let failed = |text: &str| {
            let offset = self.frames.get(range.frame as usize).map_or(0, |listed| listed.offset);
            let fault = ArchiveFault::Contradiction(text.to_owned());
            ArchiveError::in_frame(self.file.name(), range.frame.into(), offset, fault)
        };
        if !range.is_readable() {
            return Err(failed("the source could not read these bytes"));
        }
        let content = self.content(range.frame)?;
        let from = range.inner as usize + (at - range.start) as usize;
        let bytes = content.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or_else(|| failed("its content ends before its ranges"))?);
        Ok(())
    }

    /// Returns the boot area of a device: its offset and bytes.
    ///
    /// # Errors
    /// A damaged frame.
    pub(super) fn boot(&self, device: usize) -> Result<Option<(u64, Vec<u8>)>, ArchiveError> {
        for (start, number) in &self.boots {
            let frame = self.listed_frame(*number)?;
            if frame.device() == device {
                return Ok(Some((*start, frame.content(self.file.name())?.into_owned())));
            }
        }
        Ok(None)
    }
}

fn read(file: &dyn Device, buffer: &mut [u8], offset: u64) -> Result<(), ArchiveError> {
    file.read_at(buffer, PhysicalAddress(offset)).map_err(|error| {
        let fault = match error.kind() {
            std::io::ErrorKind::UnexpectedEof => ArchiveFault::Cut,
            _ => ArchiveFault::Io(error),
        };
        ArchiveError::at(file.name(), offset, fault)
    })
}

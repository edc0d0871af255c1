//! `ArchiveReader`: reads an archive from its start to its end, also from a pipe.
//!
//! **Invariants**
//! - A frame is returned only if its checksum matches and it is the next one of this archive.
//! - The end is reported only if the end mark is there and the table of contents lists exactly the
//!   frames that were read. So a caller that saw the end has read the whole archive.

use super::error::{ArchiveError, ArchiveFault};
use super::frame::{ArchiveFrame, parse_header};
use super::map::ArchiveMap;
use papilio_format::disk_archive::{
    ArchiveEnd, ArchiveHeader, END_MAGIC, FrameHeader, FrameKind, HEADER_SIZE, TableEntry, checksum_of,
    ranges_to_bytes,
};
use std::io::{self, Read};

/// The content of an archive, once its end was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveSummary {
    /// Bytes of the archive.
    pub size: u64,
    /// Frames, with those of the table of contents.
    pub frames: u64,
    /// Bytes of tree blocks, unpacked.
    pub metadata_bytes: u64,
    /// Bytes of data, unpacked.
    pub data_bytes: u64,
    /// Bytes that the source could not read.
    pub unreadable_bytes: u64,
}

/// Reads an archive in order.
#[derive(Debug)]
pub struct ArchiveReader<R> {
    input: R,
    name: String,
    header: ArchiveHeader,
    map: ArchiveMap,
    /// Bytes that were read.
    offset: u64,
    /// The number of the next frame.
    number: u64,
    /// Checksums of the table's lines, that should be and that are: each is over the last one.
    listed: u64,
    found: u64,
    /// The first frame of the table, and its place.
    table: Option<(u64, u64)>,
    summary: ArchiveSummary,
    ended: bool,
}

impl<R: Read> ArchiveReader<R> {
    /// Reads the header and the map.
    ///
    /// # Errors
    /// No archive, or a damaged one.
    pub fn new(input: R, name: &str) -> Result<Self, ArchiveError> {
        let mut bytes = vec![0; HEADER_SIZE];
        let mut input = input;
        let read = read_up_to(&mut input, &mut bytes).map_err(|error| ArchiveError::at(name, 0, error))?;
        let header = match ArchiveHeader::from_header(&bytes[..read]) {
            Ok(header) => header,
            Err(_)
                if read < HEADER_SIZE
                    && read > 0
                    && bytes.starts_with(&papilio_format::disk_archive::ARCHIVE_MAGIC) =>
            {
                return Err(ArchiveError::at(name, read as u64, ArchiveFault::Cut));
            }
            Err(fault) => return Err(ArchiveError::at(name, 0, fault)),
        };
        let mut reader = Self {
            input,
            name: name.to_owned(),
            header,
            map: ArchiveMap::default(),
            offset: HEADER_SIZE as u64,
            number: 0,
            listed: 0,
            found: 0,
            table: None,
            summary: ArchiveSummary::default(),
            ended: false,
        };
        let mut map = Vec::new();
        for number in 0..header.map_frames {
            match reader.next_frame()? {
                Some(frame) if frame.kind == FrameKind::Map => {
                    map.extend_from_slice(&frame.content(name)?);
                }
                _ => {
                    let text = "a frame of the map is missing".to_owned();
                    let fault = ArchiveFault::Contradiction(text);
                    return Err(ArchiveError::in_frame(name, number.into(), reader.offset, fault));
                }
            }
        }
        reader.map = ArchiveMap::parse(&header, &bytes, &map)
            .map_err(|fault| ArchiveError::at(name, HEADER_SIZE as u64, fault))?;
        Ok(reader)
    }

    /// Returns the header.
    pub fn header(&self) -> &ArchiveHeader {
        &self.header
    }

    /// Returns the map.
    pub fn map(&self) -> &ArchiveMap {
        &self.map
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what was read, complete once [`Self::next_frame`] returned `None`.
    pub fn summary(&self) -> ArchiveSummary {
        self.summary
    }

    /// Returns the bytes that were read so far.
    pub fn position(&self) -> u64 {
        self.offset
    }

    /// Returns the next frame; `None` at the end of a whole archive.
    ///
    /// # Errors
    /// An archive that was cut, damaged or reordered.
    pub fn next_frame(&mut self) -> Result<Option<ArchiveFrame>, ArchiveError> {
        if self.ended {
            return Ok(None);
        }
        let (offset, number) = (self.offset, self.number);
        let mut bytes = [0; ArchiveEnd::SIZE];
        let start = FrameHeader::SIZE;
        self.fill(&mut bytes[..start], offset)?;
        if bytes.starts_with(&END_MAGIC) {
            self.fill(&mut bytes[start..], offset)?;
            self.end(&bytes)?;
            return Ok(None);
        }
        let header = parse_header(&self.name, &bytes[..start], &self.header, number, offset)?;
        let mut rest = vec![0; header.rest()];
        self.fill(&mut rest, offset)?;
        let frame = ArchiveFrame::new(&self.name, header, offset, rest)?;
        self.number += 1;
        self.offset += (start + header.rest()) as u64;
        self.note(&frame)?;
        Ok(Some(frame))
    }

    fn fill(&mut self, buffer: &mut [u8], offset: u64) -> Result<(), ArchiveError> {
        let number = self.number;
        self.input.read_exact(buffer).map_err(|error| {
            let fault = match error.kind() {
                io::ErrorKind::UnexpectedEof => ArchiveFault::Cut,
                _ => ArchiveFault::Io(error),
            };
            ArchiveError::in_frame(&self.name, number, offset, fault)
        })
    }

    /// Counts a frame, and adds its line to what the table should have.
    fn note(&mut self, frame: &ArchiveFrame) -> Result<(), ArchiveError> {
        let bytes = || frame.ranges.iter().map(|range| u64::from(range.length)).sum::<u64>();
        match frame.kind {
            FrameKind::Metadata => self.summary.metadata_bytes += bytes(),
            FrameKind::Data => self.summary.data_bytes += bytes(),
            FrameKind::Unreadable => self.summary.unreadable_bytes += bytes(),
            FrameKind::Map | FrameKind::Boot => {}
            FrameKind::Table => {
                self.table.get_or_insert((frame.header.number, frame.offset));
                let content = frame.content(&self.name)?;
                for line in lines(&content) {
                    self.found = checksum_of(&[&self.found.to_le_bytes(), line]);
                }
                return Ok(());
            }
        }
        if self.table.is_some() {
            let fault = ArchiveFault::Contradiction("it follows the table of contents".to_owned());
            return Err(ArchiveError::in_frame(&self.name, frame.header.number, frame.offset, fault));
        }
        let line = [&entry_of(frame).to_bytes()[..], &ranges_to_bytes(&frame.ranges)].concat();
        self.listed = checksum_of(&[&self.listed.to_le_bytes(), &line]);
        Ok(())
    }

    fn end(&mut self, bytes: &[u8; ArchiveEnd::SIZE]) -> Result<(), ArchiveError> {
        let offset = self.offset;
        let size = offset + ArchiveEnd::SIZE as u64;
        let failed = |fault: ArchiveFault| Err(ArchiveError::at(&self.name, offset, fault));
        let end = match ArchiveEnd::parse_checked(bytes, self.header.id, size) {
            Ok(end) => end,
            Err(fault) => return failed(fault.into()),
        };
        let table = self.table.unwrap_or((self.number, offset));
        if (end.frames, end.table) != table || end.frames + end.table_frames != self.number {
            let text = "the end mark names another table of contents than there is".to_owned();
            return failed(ArchiveFault::Contradiction(text));
        }
        if self.listed != self.found {
            let text = "the table of contents does not list the frames that there are".to_owned();
            return failed(ArchiveFault::Contradiction(text));
        }
        let mut more = [0];
        match read_up_to(&mut self.input, &mut more) {
            Ok(0) => {}
            Ok(_) => return Err(ArchiveError::at(&self.name, size, ArchiveFault::Longer)),
            Err(error) => return Err(ArchiveError::at(&self.name, size, error)),
        }
        self.summary.size = size;
        self.summary.frames = self.number;
        self.ended = true;
        Ok(())
    }
}

/// Returns the line of a frame in the table, without its ranges.
fn entry_of(frame: &ArchiveFrame) -> TableEntry {
    TableEntry {
        offset: frame.offset,
        checksum: frame.header.checksum,
        size: (FrameHeader::SIZE + frame.header.rest()) as u32,
        unpacked: frame.header.unpacked,
        ranges: frame.header.ranges,
        kind: frame.header.kind,
        reserved: [0; 3],
    }
}

/// Returns the lines of a part of the table. The last one is as long as the rest, if that is wrong.
pub(super) fn lines(mut content: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if content.is_empty() {
            return None;
        }
        let length = TableEntry::parse_prefix(content).map_or(usize::MAX, |(entry, _)| {
            TableEntry::SIZE + entry.ranges as usize * papilio_format::disk_archive::ArchiveRange::SIZE
        });
        let (line, rest) = content.split_at(length.min(content.len()));
        content = rest;
        Some(line)
    })
}

/// Reads until the buffer is full or the input ends.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

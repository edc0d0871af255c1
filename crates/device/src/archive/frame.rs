//! `ArchiveFrame`: a frame whose checksum matched, and its content.

use super::error::{ArchiveError, ArchiveFault};
use papilio_format::disk_archive::{ArchiveHeader, ArchiveRange, FrameHeader, FrameKind, parse_ranges};
use std::borrow::Cow;

/// A frame as it is in an archive.
#[derive(Clone, Debug)]
pub struct ArchiveFrame {
    pub(super) header: FrameHeader,
    pub(super) kind: FrameKind,
    /// Where it starts in the archive.
    pub(super) offset: u64,
    pub(super) ranges: Vec<ArchiveRange>,
    packed: Vec<u8>,
}

impl ArchiveFrame {
    /// Checks the bytes behind a header.
    ///
    /// # Errors
    /// A checksum that does not match; ranges that are out of order, or not those of the content.
    pub(super) fn new(
        archive: &str,
        header: FrameHeader,
        offset: u64,
        mut rest: Vec<u8>,
    ) -> Result<Self, ArchiveError> {
        let failed = |fault: ArchiveFault| Err(ArchiveError::in_frame(archive, header.number, offset, fault));
        let split = rest.len() - header.packed as usize;
        let computed = header.compute(&rest[..split], &rest[split..]);
        if computed != header.checksum {
            return failed(ArchiveFault::Checksum { stored: header.checksum, computed });
        }
        let kind = FrameKind::from_raw(header.kind)
            .or_else(|fault| failed(fault.into()).map(|_: Self| FrameKind::Map))?;
        let ranges = match parse_ranges(&rest[..split], header.ranges as usize) {
            Ok(ranges) => ranges,
            Err(fault) => return failed(fault.into()),
        };
        let bytes: u64 = ranges.iter().map(|range| u64::from(range.length)).sum();
        if header.holds_ranges() && bytes != u64::from(header.unpacked) {
            let text = format!("its ranges have {bytes} bytes, its content {}", header.unpacked);
            return failed(ArchiveFault::Contradiction(text));
        }
        rest.drain(..split);
        Ok(Self { header, kind, offset, ranges, packed: rest })
    }

    /// Returns the kind.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Returns the number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Returns the index of the device in the map, for a boot area.
    pub fn device(&self) -> usize {
        self.header.device as usize
    }

    /// Returns the ranges.
    pub fn ranges(&self) -> &[ArchiveRange] {
        &self.ranges
    }

    /// Returns the content.
    ///
    /// # Errors
    /// Content that cannot be decompressed, or has another length than the header says.
    pub fn content(&self, archive: &str) -> Result<Cow<'_, [u8]>, ArchiveError> {
        if self.header.compression == 0 {
            return Ok(Cow::Borrowed(&self.packed));
        }
        let length = self.header.unpacked as usize;
        let failed = |text: String| {
            let fault = ArchiveFault::Decompress(text);
            ArchiveError::in_frame(archive, self.header.number, self.offset, fault)
        };
        let content =
            zstd::bulk::decompress(&self.packed, length).map_err(|error| failed(error.to_string()))?;
        match content.len() == length {
            true => Ok(Cow::Owned(content)),
            false => Err(failed(format!("it has {} bytes, not {length}", content.len()))),
        }
    }
}

/// Compresses content where that makes it smaller. Returns the bytes and the header's
/// `compression`.
///
/// # Errors
/// No memory, or a level that zstd does not have.
pub fn pack(content: Vec<u8>, level: i32) -> std::io::Result<(Vec<u8>, u8)> {
    if level == 0 {
        return Ok((content, 0));
    }
    let packed = zstd::bulk::compress(&content, level)?;
    // Saving less than a thirty-second is not worth the time of each reader.
    match packed.len() < content.len() - content.len() / 32 {
        true => Ok((packed, 1)),
        false => Ok((content, 0)),
    }
}

/// Reads the header of the frame that belongs at a place.
pub(super) fn parse_header(
    archive: &str,
    bytes: &[u8],
    header: &ArchiveHeader,
    number: u64,
    offset: u64,
) -> Result<FrameHeader, ArchiveError> {
    FrameHeader::parse_checked(bytes, header, number)
        .map_err(|fault| ArchiveError::in_frame(archive, number, offset, fault))
}

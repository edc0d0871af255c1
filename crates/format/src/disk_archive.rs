//! Disk archives: the used bytes of a file system, of all its devices, in one file.
//!
//! Owns the structures of the format; `docs/images.md` describes it for other implementers. All
//! numbers are little-endian.
//!
//! An archive is an [`ArchiveHeader`] in a header of [`HEADER_SIZE`] bytes, then frames, then the
//! [`ArchiveEnd`]. Frames are numbered from 0 and follow one another without gaps: first the map
//! (devices and chunks), then tree blocks, data and boot areas, at last the table of contents.
//!
//! **Invariant:** the bytes at 64 KiB are zeros, so that no archive is taken for a raw image, whose
//! superblock is there.

use crate::error::Corrupt;
use crate::parse::disk_struct;
use crate::units::{Generation, LogicalAddress};
use uuid::Uuid;
use xxhash_rust::xxh64::Xxh64;

/// The first bytes of an archive. The line ends show damage by transfers as text.
pub const ARCHIVE_MAGIC: [u8; 8] = *b"\x89PBK\r\n\x1a\n";
/// The first bytes of the end mark.
pub const END_MAGIC: [u8; 8] = *b"PBKEND\r\n";
/// The first bytes of a frame, `PBKF`.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"PBKF");
/// The version that is written and read.
pub const ARCHIVE_VERSION: u16 = 1;
/// Bytes of the whole header.
pub const HEADER_SIZE: usize = 72 << 10;
/// Where the superblock is in the header.
pub const HEADER_SUPERBLOCK: usize = 4096;
/// The most bytes of a frame's content.
pub const MAX_FRAME: u32 = 16 << 20;
/// The most ranges of a frame.
pub const MAX_RANGES: u32 = 1 << 16;

disk_struct! {
    /// The fields at the start of an archive.
    pub struct ArchiveHeader as ArchiveHeaderDisk = 104 {
        /// [`ARCHIVE_MAGIC`].
        pub magic: [u8; 8],
        /// [`ARCHIVE_VERSION`].
        pub version: u16,
        /// Zero.
        pub reserved: u16,
        /// [`HEADER_SIZE`].
        pub header_size: u32,
        /// The archive's own id, which is random.
        pub id: Uuid,
        /// The id of the archive that this one is based on; zeros for a full one.
        pub parent: Uuid,
        /// The UUID of the file system.
        pub fsid: Uuid,
        /// The commit that was archived.
        pub generation: Generation,
        /// The commit of the parent, or 0.
        pub parent_generation: Generation,
        /// Seconds since 1970.
        pub created: u64,
        /// The most bytes of a frame's content.
        pub frame_size: u32,
        /// The number of frames at the start that are the map.
        pub map_frames: u32,
        /// The number of devices in the map.
        pub devices: u32,
        /// The number of chunks in the map.
        pub chunks: u32,
    }
}

disk_struct! {
    /// The start of a frame. Its ranges and its content follow.
    pub struct FrameHeader as FrameHeaderDisk = 48 {
        /// [`FRAME_MAGIC`].
        pub magic: u32,
        /// That of a [`FrameKind`].
        pub kind: u8,
        /// 0 for none, 1 for zstd: the content is one frame of zstd.
        pub compression: u8,
        /// Zero.
        pub reserved: u16,
        /// The frame's number.
        pub number: u64,
        /// The first eight bytes of the archive's id.
        pub archive: u64,
        /// Bytes of content in the file.
        pub packed: u32,
        /// Bytes of content.
        pub unpacked: u32,
        /// The number of ranges.
        pub ranges: u32,
        /// The index of the device in the map, for [`FrameKind::Boot`]; else 0.
        pub device: u32,
        /// XXH64 with seed 0 of the fields above, the ranges and the content in the file.
        pub checksum: u64,
    }
}

disk_struct! {
    /// A range of addresses. The content of a frame is the bytes of its ranges, one after another.
    pub struct ArchiveRange as ArchiveRangeDisk = 12 {
        /// The first logical address; for [`FrameKind::Boot`] the offset on the device.
        pub start: LogicalAddress,
        /// Bytes.
        pub length: u32,
    }
}

disk_struct! {
    /// A frame in the table of contents. Its ranges follow.
    pub struct TableEntry as TableEntryDisk = 32 {
        /// Where the frame starts in the file.
        pub offset: u64,
        /// That of the frame's header.
        pub checksum: u64,
        /// Bytes of the frame in the file, with its header and ranges.
        pub size: u32,
        /// Bytes of content.
        pub unpacked: u32,
        /// The number of ranges.
        pub ranges: u32,
        /// That of a [`FrameKind`].
        pub kind: u8,
        /// Zeros.
        pub reserved: [u8; 3],
    }
}

disk_struct! {
    /// The last bytes of an archive. An archive without them was cut short.
    pub struct ArchiveEnd as ArchiveEndDisk = 64 {
        /// [`END_MAGIC`].
        pub magic: [u8; 8],
        /// The archive's id.
        pub id: Uuid,
        /// Where the first frame of the table starts.
        pub table: u64,
        /// The number of the first frame of the table, which is the number of frames before it.
        pub frames: u64,
        /// The number of frames of the table.
        pub table_frames: u64,
        /// Bytes of the archive, with this mark.
        pub size: u64,
        /// XXH64 of the fields above.
        pub checksum: u64,
    }
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The device items, then the chunks: each a logical address, a length of 4 bytes, and the
    /// item.
    Map = 1,
    /// Tree blocks.
    Metadata = 2,
    /// Data.
    Data = 3,
    /// The bytes before the first superblock of a device, where boot loaders are.
    Boot = 4,
    /// Nothing: the source could not read these ranges.
    Unreadable = 5,
    /// A part of the table of contents.
    Table = 6,
}

impl FrameKind {
    /// Returns the kind with a number.
    ///
    /// # Errors
    /// An unknown number.
    pub fn from_raw(raw: u8) -> Result<Self, Corrupt> {
        let all = [Self::Map, Self::Metadata, Self::Data, Self::Boot, Self::Unreadable, Self::Table];
        let found = all.into_iter().find(|kind| *kind as u8 == raw);
        found.ok_or_else(|| Corrupt::field("frame", "kind", raw.into(), "not one that is known"))
    }
}

/// Returns the first eight bytes of an archive's id, as its frames have them.
pub fn short_id(id: Uuid) -> u64 {
    let bytes = id.as_bytes();
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

/// Returns XXH64 with seed 0 of several byte strings, one after another.
pub fn checksum_of(parts: &[&[u8]]) -> u64 {
    let mut hash = Xxh64::new(0);
    parts.iter().for_each(|part| hash.update(part));
    hash.digest()
}

impl ArchiveHeader {
    /// Encodes the whole header, with the superblock.
    pub fn to_header(&self, superblock: &[u8; 4096]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SIZE];
        bytes[..Self::SIZE].copy_from_slice(&self.to_bytes());
        bytes[HEADER_SUPERBLOCK..HEADER_SUPERBLOCK + 4096].copy_from_slice(superblock);
        let sum = checksum_of(&[&bytes[..HEADER_SIZE - 8]]);
        bytes[HEADER_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes and checks the whole header.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn from_header(bytes: &[u8]) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("archive header", field, value, why));
        let (header, _) = Self::parse_prefix(bytes)?;
        if header.magic != ARCHIVE_MAGIC {
            return bad("magic", u64::from_le_bytes(header.magic), "not that of an archive");
        }
        if header.version != ARCHIVE_VERSION {
            return bad("version", header.version.into(), "not 1, the one that is known");
        }
        if header.header_size as usize != HEADER_SIZE {
            return bad("size", header.header_size.into(), "not 73728");
        }
        if bytes.len() != HEADER_SIZE {
            return Err(Corrupt::TooShort { what: "archive header", need: HEADER_SIZE, have: bytes.len() });
        }
        let stored = u64::from_le_bytes(std::array::from_fn(|at| bytes[HEADER_SIZE - 8 + at]));
        if stored != checksum_of(&[&bytes[..HEADER_SIZE - 8]]) {
            return bad("checksum", stored, "not that of the header");
        }
        if header.frame_size == 0 || header.frame_size > MAX_FRAME {
            return bad("frame size", header.frame_size.into(), "not from 1 byte to 16 MiB");
        }
        if header.devices == 0 {
            return bad("devices", 0, "not at least 1");
        }
        Ok(header)
    }

    /// Returns whether the archive needs its parent.
    pub fn is_incremental(&self) -> bool {
        !self.parent.is_nil()
    }
}

impl FrameHeader {
    /// Returns the header with its checksum.
    pub fn sealed(mut self, ranges: &[u8], content: &[u8]) -> Self {
        self.checksum = self.compute(ranges, content);
        self
    }

    /// Computes the checksum.
    pub fn compute(&self, ranges: &[u8], content: &[u8]) -> u64 {
        checksum_of(&[&self.to_bytes()[..Self::SIZE - 8], ranges, content])
    }

    /// Decodes a header and checks the fields that say how much follows.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse_checked(bytes: &[u8], archive: &ArchiveHeader, number: u64) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("frame", field, value, why));
        let (header, _) = Self::parse_prefix(bytes)?;
        if header.magic != FRAME_MAGIC {
            return bad("magic", header.magic.into(), "not that of a frame");
        }
        if header.archive != short_id(archive.id) {
            return bad("archive", header.archive, "that of another archive");
        }
        if header.number != number {
            return bad("number", header.number, "not the one that belongs here");
        }
        FrameKind::from_raw(header.kind)?;
        if header.compression > 1 {
            return bad("compression", header.compression.into(), "neither 0 for none nor 1 for zstd");
        }
        if header.unpacked > archive.frame_size {
            return bad("content", header.unpacked.into(), "more bytes than the archive's header allows");
        }
        if header.packed > header.unpacked {
            return bad("packed content", header.packed.into(), "more bytes than the content has");
        }
        if header.compression == 0 && header.packed != header.unpacked {
            return bad("packed content", header.packed.into(), "not the bytes of the content");
        }
        if header.ranges > MAX_RANGES {
            return bad("ranges", header.ranges.into(), "more than 65536");
        }
        Ok(header)
    }

    /// Returns the bytes that follow the header.
    pub fn rest(&self) -> usize {
        self.ranges as usize * ArchiveRange::SIZE + self.packed as usize
    }

    /// Returns whether the content consists of the bytes of the ranges.
    pub fn holds_ranges(&self) -> bool {
        [FrameKind::Metadata, FrameKind::Data, FrameKind::Boot].iter().any(|kind| *kind as u8 == self.kind)
    }
}

/// Decodes ranges, which must ascend without overlap.
///
/// # Errors
/// A range that is empty, out of order, or past the end of the address space.
pub fn parse_ranges(mut bytes: &[u8], count: usize) -> Result<Vec<ArchiveRange>, Corrupt> {
    let mut ranges = Vec::with_capacity(count.min(bytes.len() / ArchiveRange::SIZE));
    let mut end = 0;
    for _ in 0..count {
        let (range, rest) = ArchiveRange::parse_prefix(bytes)?;
        bytes = rest;
        let bad = |why| Err(Corrupt::field("range", "start", range.start.0, why));
        if range.length == 0 {
            return bad("that of an empty range");
        }
        if range.start.0 < end {
            return bad("before the end of the range before it");
        }
        let Some(next) = range.start.0.checked_add(range.length.into()) else {
            return bad("too near the end of the address space");
        };
        end = next;
        ranges.push(range);
    }
    Ok(ranges)
}

/// Encodes ranges.
pub fn ranges_to_bytes(ranges: &[ArchiveRange]) -> Vec<u8> {
    ranges.iter().flat_map(ArchiveRange::to_bytes).collect()
}

impl ArchiveEnd {
    /// Returns the mark with its checksum.
    pub fn sealed(mut self) -> Self {
        self.checksum = checksum_of(&[&self.to_bytes()[..Self::SIZE - 8]]);
        self
    }

    /// Decodes and checks the end mark of an archive with this id and size.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse_checked(bytes: &[u8], id: Uuid, size: u64) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("end mark", field, value, why));
        let end = Self::parse(bytes)?;
        if end.magic != END_MAGIC {
            return bad(
                "magic",
                u64::from_le_bytes(end.magic),
                "not that of an end mark: the archive was cut",
            );
        }
        if end.checksum != end.sealed().checksum {
            return bad("checksum", end.checksum, "not that of the mark");
        }
        if end.id != id {
            return bad("archive", short_id(end.id), "that of another archive");
        }
        if end.size != size {
            return bad("size", end.size, "not that of the file");
        }
        if end.table < HEADER_SIZE as u64 || end.table > size - Self::SIZE as u64 {
            return bad("table", end.table, "not between the header and the mark");
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ArchiveHeader {
        ArchiveHeader {
            magic: ARCHIVE_MAGIC,
            version: ARCHIVE_VERSION,
            reserved: 0,
            header_size: HEADER_SIZE as u32,
            id: Uuid::from_bytes([7; 16]),
            parent: Uuid::nil(),
            fsid: Uuid::from_bytes([9; 16]),
            generation: Generation(5),
            parent_generation: Generation(0),
            created: 1,
            frame_size: 1 << 20,
            map_frames: 1,
            devices: 1,
            chunks: 3,
        }
    }

    #[test]
    fn every_byte_of_a_header_counts() {
        let bytes = header().to_header(&[0xaa; 4096]);
        assert_eq!(ArchiveHeader::from_header(&bytes).unwrap(), header());
        assert!(bytes[64 << 10..68 << 10].iter().all(|byte| *byte == 0), "nothing looks like a superblock");
        for at in [0, 8, 10, 12, 20, 100, 111, 5000, 60_000, HEADER_SIZE - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(ArchiveHeader::from_header(&damaged).is_err(), "{at}");
        }
        assert!(ArchiveHeader::from_header(&bytes[..200]).is_err());
    }

    #[test]
    fn frames_of_other_places_and_archives_are_refused() {
        let frame = FrameHeader {
            magic: FRAME_MAGIC,
            kind: FrameKind::Data as u8,
            compression: 1,
            reserved: 0,
            number: 3,
            archive: short_id(header().id),
            packed: 10,
            unpacked: 20,
            ranges: 1,
            device: 0,
            checksum: 0,
        }
        .sealed(b"ranges", b"content");
        let parse = |frame: FrameHeader, number| {
            FrameHeader::parse_checked(&frame.to_bytes(), &header(), number)
                .map_err(|error| error.to_string())
        };
        assert_eq!(parse(frame, 3).unwrap(), frame);
        assert!(parse(frame, 2).unwrap_err().contains("number"));
        assert!(parse(FrameHeader { archive: 1, ..frame }, 3).unwrap_err().contains("another archive"));
        assert!(parse(FrameHeader { packed: 21, ..frame }, 3).unwrap_err().contains("packed"));
        assert!(parse(FrameHeader { unpacked: 2 << 20, ..frame }, 3).unwrap_err().contains("content"));
        assert!(parse(FrameHeader { kind: 0, ..frame }, 3).unwrap_err().contains("kind"));
        assert!(parse(FrameHeader { ranges: u32::MAX, ..frame }, 3).unwrap_err().contains("ranges"));
        assert_ne!(frame.compute(b"ranges", b"other"), frame.checksum);
    }

    #[test]
    fn ranges_ascend() {
        let range = |start, length| ArchiveRange { start: LogicalAddress(start), length };
        let good = [range(4096, 4096), range(8192, 1), range(u64::MAX - 5, 5)];
        assert_eq!(parse_ranges(&ranges_to_bytes(&good), 3).unwrap(), good);
        for bad in
            [[range(9, 3), range(11, 1)], [range(1, 0), range(5, 5)], [range(1, 1), range(u64::MAX, 5)]]
        {
            assert!(parse_ranges(&ranges_to_bytes(&bad), 2).is_err(), "{bad:?}");
        }
        assert!(parse_ranges(&[0; 5], usize::MAX).is_err());
    }

    #[test]
    fn an_end_belongs_to_its_archive() {
        let id = header().id;
        let end = ArchiveEnd {
            magic: END_MAGIC,
            id,
            table: 80_000,
            frames: 2,
            table_frames: 1,
            size: 100_000,
            checksum: 0,
        }
        .sealed();
        assert_eq!(ArchiveEnd::parse_checked(&end.to_bytes(), id, 100_000).unwrap(), end);
        assert!(ArchiveEnd::parse_checked(&end.to_bytes(), id, 99_999).is_err());
        assert!(ArchiveEnd::parse_checked(&end.to_bytes(), Uuid::nil(), 100_000).is_err());
        for at in 0..ArchiveEnd::SIZE {
            let mut bytes = end.to_bytes();
            bytes[at] ^= 0x40;
            assert!(ArchiveEnd::parse_checked(&bytes, id, 100_000).is_err(), "{at}");
        }
    }
}

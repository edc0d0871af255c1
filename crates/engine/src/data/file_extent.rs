//! The extents of a file for callers: where the bytes are, and how they are stored.
//!
//! Owns [`FileExtent`]. Holes are not listed. Nothing is merged, unlike in FIEMAP, so each entry is
//! one item of the file.
//!
//! Locks: none.

use crate::data::extent_map::{DiskExtent, Extent, ExtentKind};
use papilio_format::items::file_extent::Compression;
use papilio_format::{FileOffset, Generation, LogicalAddress};

/// A range of a file that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// The file offset of the first byte.
    pub start: FileOffset,
    /// The length in bytes of the file; of inline data, as much as the inode's leaf stores of it.
    pub length: u64,
    /// Where the data is.
    pub kind: FileExtentKind,
    /// The compression of the stored bytes.
    pub compression: Compression,
    /// The address of the whole extent, of which the file may use a part; 0 for inline data.
    pub address: LogicalAddress,
    /// The bytes that the whole extent takes on disk, or inline data in its leaf.
    pub stored: u64,
    /// The uncompressed bytes of the whole extent.
    pub uncompressed: u64,
    /// Where the file's part begins in the extent, in bytes of uncompressed data.
    pub offset: u64,
    /// The transaction that wrote the extent; 0 for inline data.
    pub generation: Generation,
}

/// Where the data of a [`FileExtent`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileExtentKind {
    /// In the leaf with the inode.
    Inline,
    /// In an extent on disk.
    Regular,
    /// Allocated on disk, but not written: the range reads as zeros.
    Preallocated,
}

impl FileExtent {
    /// Returns the address of the file's part of the extent, as FIEMAP reports it: a part of a
    /// compressed extent has that of the whole.
    pub fn mapped_address(&self) -> LogicalAddress {
        match self.compression {
            Compression::None => LogicalAddress(self.address.0.saturating_add(self.offset)),
            _ => self.address,
        }
    }

    /// Returns the entry of an extent, or `None` for a hole.
    pub fn of(extent: &Extent) -> Option<Self> {
        let (start, length) = (extent.start, extent.end.0 - extent.start.0);
        let on_disk = |disk: &DiskExtent, kind| Self {
            start,
            length,
            kind,
            compression: disk.compression,
            address: disk.disk_address,
            stored: disk.disk_length,
            uncompressed: match disk.compression {
                Compression::None => disk.disk_length,
                _ => disk.ram_bytes,
            },
            offset: disk.offset,
            generation: disk.generation,
        };
        match &extent.kind {
            ExtentKind::Hole => None,
            ExtentKind::Inline(inline) => Some(Self {
                start,
                length: inline.ram_bytes,
                kind: FileExtentKind::Inline,
                compression: inline.compression,
                address: LogicalAddress(0),
                stored: inline.data().len() as u64,
                uncompressed: inline.ram_bytes,
                offset: 0,
                generation: Generation(0),
            }),
            ExtentKind::Regular(disk) => Some(on_disk(disk, FileExtentKind::Regular)),
            ExtentKind::Prealloc(disk) => Some(on_disk(disk, FileExtentKind::Preallocated)),
        }
    }
}

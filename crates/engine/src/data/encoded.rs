//! Extents that a caller hands in, or gets, compressed.
//!
//! Owns [`EncodedExtent`] and the rule for when a file can have one as it lies, [`EncodedRead`],
//! and the numbers by which ioctls and streams name a compression.
//!
//! Kernel counterparts: `btrfs_do_encoded_write`, `btrfs_encoded_read` (`fs/btrfs/inode.c`); the
//! numbers: `BTRFS_ENCODED_IO_COMPRESSION_*` (`include/uapi/linux/btrfs.h`).

use crate::data::data_context::DataContext;
use crate::data::file_edit::FileEdit;
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::items::inode::InodeFlags;
use std::borrow::Cow;
use std::ops::Range;

/// A compressed extent, and the part of it that a file gets (`BTRFS_IOC_ENCODED_WRITE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedExtent<'a> {
    /// The algorithm.
    pub compression: Compression,
    /// The sector size that LZO split the data by; other algorithms do not depend on it.
    pub lzo_sector: u32,
    /// The compressed bytes.
    pub data: &'a [u8],
    /// The size of the whole extent in bytes, without compression.
    pub uncompressed: u64,
    /// Bytes of the uncompressed extent before those that the file gets.
    pub offset: u64,
    /// Bytes that the file gets.
    pub length: u64,
}

/// A part of a file as it lies on the device (`BTRFS_IOC_ENCODED_READ`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRead {
    /// The bytes as stored: those of the whole extent if it is compressed, padded to sectors unless
    /// it is inline. Otherwise the bytes of the file. Empty at the end of the file.
    pub data: Vec<u8>,
    /// Bytes of the file that the read covers.
    pub length: u64,
    /// The size of the whole extent in bytes, without compression.
    pub uncompressed: u64,
    /// Bytes of the uncompressed extent before those of the file.
    pub offset: u64,
    /// The algorithm.
    pub compression: Compression,
}

impl EncodedRead {
    /// Returns a read of plain bytes of the file.
    pub(crate) fn plain(data: Vec<u8>) -> Self {
        let length = data.len() as u64;
        Self { data, length, uncompressed: length, offset: 0, compression: Compression::None }
    }
}

/// Returns the compression that a number means, and the sector size that LZO depends on. `None` for
/// an unknown number.
pub fn compression_of_number(number: u32) -> Option<(Compression, u32)> {
    match number {
        0 => Some((Compression::None, 4096)),
        1 => Some((Compression::Zlib, 4096)),
        2 => Some((Compression::Zstd, 4096)),
        lzo @ 3..=7 => Some((Compression::Lzo, 4096 << (lzo - 3))),
        _ => None,
    }
}

/// Returns the number that names a compression, in a file system with this sector size in bytes.
pub fn number_of_compression(compression: Compression, sector_size: u32) -> u32 {
    match compression {
        Compression::None => 0,
        Compression::Zlib => 1,
        Compression::Zstd => 2,
        Compression::Lzo => 3 + (sector_size / 4096).trailing_zeros(),
    }
}

impl<'a> EncodedExtent<'a> {
    /// Returns the compressed bytes as whole sectors, if the file can have the extent at `range`.
    pub(super) fn padded(
        &self,
        context: &DataContext<'_>,
        file: &FileEdit<'_>,
        range: Range<u64>,
    ) -> Option<Cow<'a, [u8]>> {
        let sector = context.sector();
        let aligned = |number: u64| number.is_multiple_of(sector);
        let ends = aligned(range.end) || range.end >= file.item.size;
        let whole = context.round_up(self.uncompressed);
        let inside = self.offset.checked_add(self.length).is_some_and(|end| end <= whole);
        let stored = context.round_up(self.data.len() as u64);
        let good = !range.is_empty()
            && self.compression != Compression::None
            && (self.compression != Compression::Lzo || u64::from(self.lzo_sector) == sector)
            && !file.item.flags.intersects(InodeFlags::NODATASUM | InodeFlags::NODATACOW)
            && (aligned(range.start) && aligned(self.offset) && ends && inside)
            && (whole <= MAX_UNCOMPRESSED && stored > 0 && stored < whole);
        if !good {
            return None;
        }
        if self.data.len() as u64 == stored {
            return Some(Cow::Borrowed(self.data));
        }
        let mut bytes = self.data.to_vec();
        bytes.resize(stored as usize, 0);
        Some(Cow::Owned(bytes))
    }
}

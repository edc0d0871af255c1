//! Extents that a caller hands in compressed.
//!
//! Owns [`EncodedExtent`] and the rule for when a file can have one as it lies.
//!
//! Kernel counterpart: `btrfs_do_encoded_write` (`fs/btrfs/inode.c`).

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

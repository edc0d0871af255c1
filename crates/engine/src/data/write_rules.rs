//! The rules that writes of data follow: geometry and options.
//!
//! Owns [`WriteRules`] and [`WriteOptions`]. Locks: none. Kernel counterpart: `inode_need_compress`
//! (`fs/btrfs/inode.c`).

use crate::errors::{Error, PathError, Result};
use crate::options::CompressionChoice;
use crate::tuning::{VerifyCompression, WriteChecksum};
use papilio_format::items::file_extent::{Compression, FileExtentItem};
use papilio_format::items::inode::InodeFlags;
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{FileOffset, Geometry, InodeNumber};

/// Largest size of a file (`MAX_LFS_FILESIZE`).
pub(crate) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// The part of the open options that writes of data follow.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// The most bytes that a file stores in its extent item (`max_inline`); 0 for none.
    pub(crate) max_inline: u32,
    /// The compression of files without one of their own (`compress`).
    pub compression: Option<CompressionChoice>,
    /// Whether each piece is tried even if others did not shrink (`compress-force`).
    pub(crate) force_compression: bool,
    /// When checksums are computed.
    pub(crate) checksum: WriteChecksum,
    /// Which results of a compressor are verified.
    pub(crate) verify_compression: VerifyCompression,
    /// Whether immutable files can be written: the caller refuses to open them.
    pub(crate) immutable: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            max_inline: 2048,
            compression: None,
            force_compression: false,
            checksum: WriteChecksum::default(),
            verify_compression: VerifyCompression::default(),
            immutable: false,
        }
    }
}

/// How a write compresses a file's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompressionPlan {
    pub(crate) choice: CompressionChoice,
    /// Whether pieces are compressed that do not look compressible.
    pub(crate) forced: bool,
    /// Whether a piece that does not shrink sets the inode flag `NOCOMPRESS`.
    pub(crate) marks: bool,
}

/// Geometry and options, with the arithmetic that both phases of a write share.
#[derive(Clone, Copy)]
pub(crate) struct WriteRules<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) options: &'a WriteOptions,
}

impl WriteRules<'_> {
    /// Returns the bytes of a sector.
    pub(crate) fn sector(&self) -> u64 {
        self.geometry.sector_size.into()
    }

    /// Returns the first sector boundary at or after `offset`, which is at most the largest file
    /// size. That of the largest size is 2^63.
    pub(crate) fn round_up(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.sector())
    }

    /// Returns the last sector boundary at or before `offset`.
    pub(crate) fn round_down(&self, offset: u64) -> u64 {
        offset - offset % self.sector()
    }

    /// Returns the end of `length` bytes from `offset` on in inode `inode`.
    ///
    /// # Errors
    /// [`PathError::TooLarge`] past the largest size of a file.
    pub(crate) fn end_of(&self, inode: InodeNumber, offset: FileOffset, length: u64) -> Result<u64> {
        match offset.0.checked_add(length) {
            Some(end) if end <= MAX_FILE_SIZE => Ok(end),
            _ => Err(Error::path(format!("inode {}", inode).as_bytes(), PathError::TooLarge)),
        }
    }

    /// Returns how a file with inode flags `flags` and the property `btrfs.compression` is
    /// compressed, if it is.
    pub(crate) fn compression(
        &self,
        flags: InodeFlags,
        property: Option<CompressionChoice>,
    ) -> Option<CompressionPlan> {
        if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
            return None;
        }
        let is_one = |choice: &CompressionChoice| choice.algorithm() != Compression::None;
        let (property, option) = (property.filter(is_one), self.options.compression.filter(is_one));
        let forced = self.options.force_compression && option.is_some();
        if !forced && flags.contains(InodeFlags::NOCOMPRESS) {
            return None;
        }
        // The flag alone asks for the oldest algorithm.
        let flagged = flags.contains(InodeFlags::COMPRESS).then(|| CompressionChoice::new(Compression::Zlib));
        let choice = property.or(option).or(flagged)?;
        Some(CompressionPlan { choice, forced, marks: !forced && property.is_none() })
    }

    /// Returns the most bytes that the data of an inline extent may have.
    pub(crate) fn max_inline(&self) -> usize {
        let geometry = self.geometry;
        let item = geometry.node_size as usize - NodeHeader::SIZE - ItemHeader::SIZE;
        let space = item - FileExtentItem::INLINE_DATA_START;
        space.min(self.options.max_inline as usize).min(geometry.sector_size as usize - 1)
    }
}

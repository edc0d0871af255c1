//! A file's extents as the FIEMAP ioctl reports them.
//!
//! Owns [`fiemap`] and [`FiemapExtent`]. Extents that are neighbours both in the file and on disk,
//! with equal flags, are merged. Holes are not reported; preallocated space after the end of the
//! file is.
//!
//! Locks: none. Kernel counterparts: `extent_fiemap`, `emit_fiemap_extent` (`fs/btrfs/fiemap.c`);
//! flags: `include/uapi/linux/fiemap.h`.

use crate::btree::Tree;
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind, FileExtents};
use crate::data::file_extent::FileExtent;
use crate::errors::Result;
use papilio_format::items::file_extent::Compression;
use papilio_format::{FileOffset, InodeNumber, LogicalAddress};

/// An extent as FIEMAP reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct FiemapExtent {
    /// The file offset of the first byte.
    pub start: FileOffset,
    /// The logical address of the first byte; of the whole extent, if it is compressed; 0 for
    /// inline data.
    pub address: LogicalAddress,
    /// The length in bytes of the file, a multiple of the sector size.
    pub length: u64,
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
}

impl FiemapExtent {
    /// The last extent of the file.
    pub const LAST: u32 = 0x1;
    /// The bytes at `address` are compressed.
    pub const ENCODED: u32 = 0x8;
    /// The data does not start at a block boundary.
    pub const NOT_ALIGNED: u32 = 0x100;
    /// The data is stored in metadata.
    pub const DATA_INLINE: u32 = 0x200;
    /// Allocated but not written: the range reads as zeros.
    pub const UNWRITTEN: u32 = 0x800;
    /// Other items refer to the extent, too.
    pub const SHARED: u32 = 0x2000;

    /// Returns the extent as it is reported, or `None` for a hole.
    fn of(extent: &Extent, shared: &mut impl FnMut(&FileExtent) -> Result<bool>) -> Result<Option<Self>> {
        let encoded = |compression| if compression == Compression::None { 0 } else { Self::ENCODED };
        let mut on_disk = |disk: &DiskExtent, flags| -> Result<_> {
            let is_shared = FileExtent::of(extent).map_or(Ok(false), |extent| shared(&extent))?;
            let shared = if is_shared { Self::SHARED } else { 0 };
            let flags = flags | shared | encoded(disk.compression);
            // A part of a compressed extent has no address of its own.
            let offset = if disk.compression == Compression::None { disk.offset } else { 0 };
            // No overflow: the part lies inside its extent, and the extent inside the address
            // space.
            Ok((LogicalAddress(disk.disk_address.0 + offset), flags))
        };
        let (address, flags) = match &extent.kind {
            ExtentKind::Hole => return Ok(None),
            ExtentKind::Inline(inline) => {
                (LogicalAddress(0), Self::DATA_INLINE | Self::NOT_ALIGNED | encoded(inline.compression))
            }
            ExtentKind::Regular(disk) => on_disk(disk, 0)?,
            ExtentKind::Prealloc(disk) => on_disk(disk, Self::UNWRITTEN)?,
        };
        Ok(Some(Self { start: extent.start, address, length: extent.end.0 - extent.start.0, flags }))
    }

    /// Merges `next` into this extent if it continues it.
    fn absorb(&mut self, next: &Self) -> bool {
        let follows = self.start.checked_add(self.length) == Some(next.start)
            && self.address.checked_add(self.length) == Some(next.address)
            && self.flags == next.flags;
        if follows {
            self.length += next.length;
        }
        follows
    }
}

/// Calls `report` with the extents of a file, from the one that contains `start` on, until it
/// returns `false`. `shared` tells whether other items refer to an extent; `|_| Ok(false)` where
/// the caller does not know.
///
/// # Errors
/// A tree block or an extent that cannot be read, or an error of `shared`.
pub fn fiemap(
    tree: &Tree,
    inode: InodeNumber,
    sector_size: u32,
    start: FileOffset,
    mut shared: impl FnMut(&FileExtent) -> Result<bool>,
    mut report: impl FnMut(FiemapExtent) -> bool,
) -> Result<()> {
    let end = FileOffset(u64::MAX - u64::from(sector_size));
    let mut pending: Option<FiemapExtent> = None;
    for extent in FileExtents::whole(tree, inode, sector_size, start, end) {
        let Some(next) = FiemapExtent::of(&extent?, &mut shared)? else { continue };
        if let Some(before) = &mut pending {
            if before.absorb(&next) {
                continue;
            }
            if !report(*before) {
                return Ok(());
            }
        }
        pending = Some(next);
    }
    if let Some(mut last) = pending {
        last.flags |= FiemapExtent::LAST;
        report(last);
    }
    Ok(())
}

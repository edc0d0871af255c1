//! A file's extents as the FIEMAP ioctl reports them.
//!
//! Owns [`fiemap`] and [`FiemapExtent`]. Neighbours in the file that are neighbours on disk and have
//! the same flags come as one, holes do not come at all, and preallocated room behind the end of the
//! file does. Locks: none. Kernel counterpart: `extent_fiemap`, `emit_fiemap_extent`
//! (`fs/btrfs/fiemap.c`); flags: `include/uapi/linux/fiemap.h`.

use crate::btree::Tree;
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind, FileExtents};
use crate::errors::Result;
use papilio_format::items::file_extent::Compression;
use papilio_format::{FileOffset, InodeNumber, LogicalAddress};

/// One extent as reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FiemapExtent {
    /// Where it starts in the file.
    pub start: FileOffset,
    /// Where it starts in the file system's address space; where the whole extent starts, if it is
    /// compressed; 0 for inline data.
    pub address: LogicalAddress,
    /// Bytes of the file, a multiple of the sector size.
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
    /// The data lies in metadata.
    pub const DATA_INLINE: u32 = 0x200;
    /// Allocated and not written: it reads as zeros.
    pub const UNWRITTEN: u32 = 0x800;
    /// Others refer to it too.
    pub const SHARED: u32 = 0x2000;

    /// The extent as reported, or `None` for a hole.
    fn of(extent: &Extent, shared: &mut impl FnMut(&DiskExtent) -> Result<bool>) -> Result<Option<Self>> {
        let encoded = |compression| if compression == Compression::None { 0 } else { Self::ENCODED };
        let mut on_disk = |disk: &DiskExtent, flags| -> Result<_> {
            let shared = if shared(disk)? { Self::SHARED } else { 0 };
            let flags = flags | shared | encoded(disk.compression);
            // A part of a compressed extent has no place of its own on disk.
            let offset = if disk.compression == Compression::None { disk.offset } else { 0 };
            // No overflow: the part lies inside its extent, and that inside the address space.
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

    /// Takes the extent that follows, if the two are one.
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

/// Reports the extents of a file, from the one that holds `start` on, to `report`, which says whether
/// to go on. `shared` says whether others refer to an extent; where that is not to be known,
/// `|_| Ok(false)`.
///
/// # Errors
/// A tree block or an extent that cannot be read, or what `shared` returns.
pub(crate) fn fiemap(
    tree: &Tree,
    inode: InodeNumber,
    sector_size: u32,
    start: FileOffset,
    mut shared: impl FnMut(&DiskExtent) -> Result<bool>,
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

//! Finding data and holes, as `lseek` with SEEK_DATA and SEEK_HOLE does.
//!
//! Owns [`seek`]. Preallocated space counts as a hole. A hole always follows the end of the file.
//!
//! Locks: none. Kernel counterpart: `find_desired_extent` (`fs/btrfs/file.c`).

use crate::btree::Tree;
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::errors::Result;
use papilio_format::{FileOffset, InodeNumber};

/// The kind of range to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Bytes in an inline or regular extent.
    Data,
    /// Bytes that read as zeros because none were written.
    Hole,
}

/// Returns the first offset at or after `offset` with data, or in a hole, of a file of `size`
/// bytes. `None` (ENXIO) where `offset` is at or after the end, or no data follows.
///
/// # Errors
/// A tree block or an extent that cannot be read.
pub fn seek(
    tree: &Tree,
    inode: InodeNumber,
    size: u64,
    sector_size: u32,
    offset: FileOffset,
    whence: Whence,
) -> Result<Option<FileOffset>> {
    if offset.0 >= size {
        return Ok(None);
    }
    for extent in FileExtents::new(tree, inode, sector_size, offset, FileOffset(size)) {
        let extent = extent?;
        let found = match extent.kind {
            ExtentKind::Hole | ExtentKind::Prealloc(_) => Whence::Hole,
            ExtentKind::Inline(_) | ExtentKind::Regular(_) => Whence::Data,
        };
        if found == whence {
            return Ok(Some(extent.start));
        }
    }
    Ok(match whence {
        Whence::Data => None,
        Whence::Hole => Some(FileOffset(size)),
    })
}

//! What lies between a file's end and what is about to be written or to become its end.
//!
//! Owns [`reach`]. Invariants: bytes that come into the file by its growing read as zeros, whatever the
//! last sector held behind the old end; without NO_HOLES, items cover the file without a gap. Locks: as
//! [`super::file_edit`]. Kernel counterpart: `btrfs_cont_expand`, `btrfs_truncate_block`
//! (`fs/btrfs/inode.c`).

use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::inline::{move_out_of_line, replace_sectors};
use crate::data::new_extents::Image;
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::features::IncompatFeatures;

/// Prepares a file for bytes from `to` on, a sector boundary at or behind the sector that it ends in:
/// zeroes the rest of its last sector, and without NO_HOLES says that what follows is a hole. The size
/// does not change.
///
/// # Errors
/// What reading and writing meets, [`crate::Error::NoSpace`].
pub(crate) fn reach(context: &WriteContext<'_>, file: &mut FileEdit<'_>, to: u64) -> Result<()> {
    let end = context.round_up(file.item.size);
    if to < end {
        return Ok(());
    }
    move_out_of_line(context, file, None)?;
    zero_tail(context, file)?;
    if to == end || context.geometry().incompat.contains(IncompatFeatures::NO_HOLES) {
        return Ok(());
    }
    let mut changes = context.changes(file);
    changes.fill_gaps(&file.tree.tree(), end, to)?;
    let item = context.stamped(file);
    file.publish(context, changes, item)
}

/// Zeroes the bytes on disk behind the end of the file, up to the end of its last sector. Shrinking
/// leaves them, as the kernel does, so that it costs no write.
fn zero_tail(context: &WriteContext<'_>, file: &mut FileEdit<'_>) -> Result<()> {
    let size = file.item.size;
    let (start, end) = (context.round_down(size), context.round_up(size));
    if start == end {
        return Ok(());
    }
    if !is_written(context, file, start)? {
        return Ok(());
    }
    let mut sector = vec![0; (end - start) as usize];
    context.read_as(file, end, start, &mut sector)?;
    let tail = &mut sector[(size - start) as usize..];
    if tail.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    tail.fill(0);
    replace_sectors(context, file, &Image::of_sectors(start, sector))
}

/// Whether bytes on disk stand for the one at `offset`.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn is_written(context: &WriteContext<'_>, file: &FileEdit<'_>, offset: u64) -> Result<bool> {
    let tree = file.tree.tree();
    let sector_size = context.geometry().sector_size;
    let mut extents =
        FileExtents::new(&tree, file.inode, sector_size, FileOffset(offset), FileOffset(offset + 1));
    let extent = extents.next().transpose()?;
    Ok(extent.is_some_and(|extent| matches!(extent.kind, ExtentKind::Inline(_) | ExtentKind::Regular(_))))
}

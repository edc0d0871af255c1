//! Preallocation: space for a range that reads as zeros until it is written.
//!
//! Owns [`preallocate_step`]. Whole sectors are written into such space where it is the file's
//! alone ([`super::nocow`]). Other data is copied to new extents, and the preallocated space is
//! released.
//!
//! Locks: as [`super::file_edit`]. Kernel counterparts: `btrfs_fallocate` (`fs/btrfs/file.c`),
//! `__btrfs_prealloc_file_range` (`fs/btrfs/inode.c`).

use crate::data::data_context::DataContext;
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::progress::Progress;
use crate::data::rewrite::{SectorRewrite, fill_gap};
use crate::data::space::DataExtent;
use crate::errors::Result;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, Generation};

/// The most bytes of a preallocated extent.
const MAX_PREALLOC: u64 = 256 << 20;
/// Extents made in one step.
const STEP: usize = 256;

/// Allocated space that no tree refers to. Dropping it releases the space.
struct Unreferenced<'a, 'b> {
    context: &'a WriteContext<'b>,
    extents: Vec<(u64, DataExtent)>,
}

impl Drop for Unreferenced<'_, '_> {
    fn drop(&mut self) {
        for (_, extent) in self.extents.drain(..) {
            self.context.space.release_data(extent);
        }
    }
}

/// Allocates space for those sectors of `length` bytes from `offset` on that have none: for all of
/// them, or a bounded number. The file becomes long enough to contain the range, unless
/// `keep_size`. `rewrite` is the result of [`preallocate_rewrite`].
///
/// # Errors
/// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`], or an error of reading or changing
/// trees.
pub(crate) fn preallocate_step(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    offset: FileOffset,
    length: u64,
    keep_size: bool,
    rewrite: &mut SectorRewrite<'_>,
) -> Result<Progress> {
    let end = context.end_of(file.inode, offset, length)?;
    let (start, stop) = (context.round_down(offset.0), context.round_up(end));
    if length == 0 {
        return Ok(Progress::Done);
    }
    if end > file.item.size {
        rewrite.publish(context, file)?;
        let last = context.round_up(file.item.size);
        fill_gap(context, file, start.max(last))?;
    }
    let tree = file.tree.tree();
    let mut changes = context.changes(file);
    let mut space = Unreferenced { context, extents: Vec::new() };
    let mut more = false;
    let sector_size = context.geometry.sector_size;
    'gaps: for extent in FileExtents::new(&tree, file.inode, sector_size, FileOffset(start), FileOffset(stop))
    {
        let extent = extent?;
        if !matches!(extent.kind, ExtentKind::Hole) {
            continue;
        }
        let (mut at, to) = (extent.start.0, extent.end.0.min(stop));
        // The part of the gap that gets space is one range, so that no item is cut twice.
        let gap = at;
        while at < to {
            if space.extents.len() == STEP {
                more = true;
                changes.drop_range(&tree, gap, at, usize::MAX)?;
                break 'gaps;
            }
            let wanted = (to - at).min(MAX_PREALLOC);
            let disk = context.space.allocate_data(context.sector(), wanted)?;
            space.extents.push((at, disk));
            at += disk.length;
        }
        changes.drop_range(&tree, gap, to, usize::MAX)?;
    }
    drop(tree);
    for &(start, disk) in &space.extents {
        changes.insert(start, &preallocated(disk), true);
    }
    let mut item = context.touched(file);
    item.flags |= InodeFlags::PREALLOC;
    if !more && !keep_size {
        item.size = item.size.max(end);
    }
    file.publish(context, changes, item)?;
    space.extents.clear();
    Ok(if more { Progress::More } else { Progress::Done })
}

/// Writes the sectors that preallocation needs rewritten first.
///
/// # Errors
/// As [`SectorRewrite::prepare`].
pub(crate) fn preallocate_rewrite<'a>(
    context: &DataContext<'a>,
    file: &FileEdit<'_>,
    offset: FileOffset,
    length: u64,
) -> Result<SectorRewrite<'a>> {
    let end = context.end_of(file.inode, offset, length)?;
    if length == 0 || end <= file.item.size {
        return Ok(SectorRewrite::default());
    }
    let grown_to = context.round_down(offset.0).max(context.round_up(file.item.size));
    SectorRewrite::prepare(context, file, None, Some(grown_to))
}

fn preallocated(disk: DataExtent) -> FileExtentItem<'static> {
    let part =
        ExtentPart { disk_address: disk.address, disk_length: disk.length, offset: 0, length: disk.length };
    FileExtentItem {
        generation: Generation(0),
        ram_bytes: disk.length,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Prealloc(part),
    }
}

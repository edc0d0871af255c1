//! Preallocation: room for a range that reads as zeros until it is written.
//!
//! Owns [`preallocate_step`]. Whole sectors are written into such room where it is the file's alone
//! ([`super::nocow`]); other data is copied to new room, and the old is given back. Locks: as [`super::file_edit`]. Kernel counterpart: `btrfs_fallocate`
//! (`fs/btrfs/file.c`), `__btrfs_prealloc_file_range` (`fs/btrfs/inode.c`).

use crate::data::extend::reach;
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::space::DataExtent;
use crate::data::truncate::Progress;
use crate::errors::Result;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, Generation};

/// Most bytes of a preallocated extent.
const MAX_PREALLOC: u64 = 256 << 20;
/// Extents made in one step.
const STEP: usize = 256;

/// Room that is in no tree yet; given back when dropped.
struct Room<'a, 'b> {
    context: &'a WriteContext<'b>,
    extents: Vec<(u64, DataExtent)>,
}

impl Drop for Room<'_, '_> {
    fn drop(&mut self) {
        for (_, extent) in self.extents.drain(..) {
            self.context.space.release_data(extent);
        }
    }
}

/// Gives room to all sectors of `length` bytes from `offset` on that have none, or to some of them: see
/// [`Progress`]. The file becomes long enough to hold the range, unless `keep_size`.
///
/// # Errors
/// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`], or what reading and writing meets.
pub(crate) fn preallocate_step(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    offset: FileOffset,
    length: u64,
    keep_size: bool,
) -> Result<Progress> {
    let end = context.end_of(file, offset, length)?;
    let (start, stop) = (context.round_down(offset.0), context.round_up(end));
    if length == 0 {
        return Ok(Progress::Done);
    }
    if end > file.item.size {
        let last = context.round_up(file.item.size);
        reach(context, file, start.max(last))?;
        context.space.settle();
    }
    let tree = file.tree.tree();
    let mut changes = context.changes(file);
    let mut room = Room { context, extents: Vec::new() };
    let mut more = false;
    let sector_size = context.geometry().sector_size;
    'gaps: for extent in FileExtents::new(&tree, file.inode, sector_size, FileOffset(start), FileOffset(stop))
    {
        let extent = extent?;
        if !matches!(extent.kind, ExtentKind::Hole) {
            continue;
        }
        let (mut at, to) = (extent.start.0, extent.end.0.min(stop));
        // The part of the gap that gets room must be one range: no item may be cut twice.
        let gap = at;
        while at < to {
            if room.extents.len() == STEP {
                more = true;
                changes.drop_range(&tree, gap, at, usize::MAX)?;
                break 'gaps;
            }
            let wanted = (to - at).min(MAX_PREALLOC);
            let disk = context.space.allocate_data(context.sector(), wanted)?;
            room.extents.push((at, disk));
            at += disk.length;
        }
        changes.drop_range(&tree, gap, to, usize::MAX)?;
    }
    drop(tree);
    for &(start, disk) in &room.extents {
        changes.insert(start, &preallocated(disk), true);
    }
    let mut item = context.touched(file);
    item.flags |= InodeFlags::PREALLOC;
    if !more && !keep_size {
        item.size = item.size.max(end);
    }
    file.publish(context, changes, item)?;
    room.extents.clear();
    Ok(if more { Progress::More } else { Progress::Done })
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

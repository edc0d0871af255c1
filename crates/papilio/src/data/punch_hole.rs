//! Punching holes: a range reads as zeros and takes no room.
//!
//! Owns [`punch_hole_step`]. Whole sectors are dropped, the rest of the range is written over with
//! zeros. Locks: as [`super::file_edit`]. Kernel counterpart: `btrfs_punch_hole` (`fs/btrfs/file.c`).

use crate::data::extend::is_written;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::inline::move_out_of_line;
use crate::data::truncate::{Progress, STEP_EXTENTS};
use crate::data::write::write;
use crate::errors::Result;
use papilio_format::FileOffset;

/// Makes `length` bytes from `offset` on a hole, or a part of them: see [`Progress`]. The size does not
/// change; preallocated room behind the end of the file goes too if the range starts in the file.
///
/// # Errors
/// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`], or what reading and writing meets.
pub(crate) fn punch_hole_step(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    offset: FileOffset,
    length: u64,
) -> Result<Progress> {
    let end = context.end_of(file, offset, length)?;
    let last = context.round_up(file.item.size);
    if length == 0 || offset.0 >= last {
        return Ok(Progress::Done);
    }
    let (start, stop) = (context.round_up(offset.0), context.round_down(end));
    if start > stop {
        zero(context, file, offset.0, end)?;
        return Ok(Progress::Done);
    }
    if start < stop {
        move_out_of_line(context, file, Some((start, stop)))?;
        let mut changes = context.changes(file);
        let reached = changes.drop_range(&file.tree.tree(), start, stop, STEP_EXTENTS)?;
        changes.insert_hole(start, reached.min(last));
        let item = context.touched(file);
        file.publish(context, changes, item)?;
        // A part of the range is a hole now, as after any step.
        context.space.settle();
        if reached < stop {
            return Ok(Progress::More);
        }
    }
    zero(context, file, offset.0, start)?;
    zero(context, file, stop, end)?;
    Ok(Progress::Done)
}

/// Writes zeros from `start` to `end`, in one sector, unless it reads so or lies behind the end of the
/// file.
fn zero(context: &WriteContext<'_>, file: &mut FileEdit<'_>, start: u64, end: u64) -> Result<()> {
    let end = end.min(file.item.size);
    if start >= end || !is_written(context, file, start)? {
        return Ok(());
    }
    write(context, file, FileOffset(start), &vec![0; (end - start) as usize])
}

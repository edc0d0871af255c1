//! Changing the size of a file, and letting go of the data of one that is deleted.
//!
//! Owns [`truncate_step`]. A shrinking file loses its extents from the end on, a bounded number in a
//! step, and after each step its size is where its extents end: a file system that stops in between
//! shows a file that is partly truncated, and consistent. Locks: as [`super::file_edit`]. Kernel
//! counterparts: `btrfs_setsize`, `btrfs_truncate` (`fs/btrfs/inode.c`), `btrfs_truncate_inode_items`
//! (`fs/btrfs/inode-item.c`).

use crate::data::extend::reach;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::inline::{inline_of, publish_inline, replace_sectors, write_inline};
use crate::data::new_extents::Image;
use crate::data::stored_extents::last_extents;
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::items::inode::InodeItem;

/// Extents that a step deals with, so that it ends soon and its references stay few.
pub(crate) const STEP_EXTENTS: usize = 1024;

/// How far something came that is done in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Progress {
    /// To its end.
    Done,
    /// Not yet: the same call goes on, in this handle or another.
    More,
}

/// Makes the file `size` bytes long, or gets nearer to it: see [`Progress`]. What lies behind the end,
/// such as preallocated room, goes also if the size stays. With 0, it is what deleting an inode begins
/// with.
///
/// # Errors
/// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`] (also shrinking takes room for metadata), or
/// what reading and writing meets.
pub(crate) fn truncate_step(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    size: u64,
) -> Result<Progress> {
    context.end_of(file, FileOffset(0), size)?;
    if size > file.item.size {
        return grow(context, file, size).map(|()| Progress::Done);
    }
    shrink(context, file, size, STEP_EXTENTS)
}

fn grow(context: &WriteContext<'_>, file: &mut FileEdit<'_>, size: u64) -> Result<()> {
    let tree = file.tree.tree();
    let inline = inline_of(context, file, &tree)?.is_some();
    drop(tree);
    // Without a byte to write, it still is a file that can stay inline, with zeros behind.
    if inline && write_inline(context, file, file.item.size, &[], size)? {
        return Ok(());
    }
    reach(context, file, context.round_up(size))?;
    let changes = context.changes(file);
    let item = InodeItem { size, ..context.touched(file) };
    file.publish(context, changes, item)
}

/// Drops the last `limit` extents behind `size`.
pub(crate) fn shrink(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    size: u64,
    limit: usize,
) -> Result<Progress> {
    let end = context.round_up(size);
    // First, because it may take room for data: that there is none is an answer while all is as it was.
    if size > 0 {
        shorten_inline(context, file, size)?;
    }
    let tree = file.tree.tree();
    // One more, to see whether there is more.
    let extents = last_extents(&tree, file.inode, context.geometry().sector_size, end, limit + 1)?;
    let more = extents.len() > limit;
    let mut changes = context.changes(file);
    let mut reached = file.item.size;
    for extent in extents.iter().take(limit) {
        // Inline data was cut above; only that of old tools is longer than a sector.
        if !(extent.is_inline() && extent.start < end) {
            changes.cut(extent, end, u64::MAX)?;
        }
        reached = reached.min(extent.start);
    }
    drop((extents, tree));
    let size = if more { reached.max(size) } else { size };
    let item = InodeItem { size, ..context.touched(file) };
    file.publish(context, changes, item)?;
    Ok(if more { Progress::More } else { Progress::Done })
}

/// Takes from inline data what lies behind `size`, which is to become the end of the file.
fn shorten_inline(context: &WriteContext<'_>, file: &mut FileEdit<'_>, size: u64) -> Result<()> {
    let tree = file.tree.tree();
    let Some(inline) = inline_of(context, file, &tree)?.filter(|inline| inline.extent().ram_bytes > size)
    else {
        return Ok(());
    };
    let end = inline.end;
    drop((inline, tree));
    let mut content = vec![0; size as usize];
    context.read_as(file, size, 0, &mut content)?;
    let item = context.stamped(file);
    if publish_inline(context, file, &content, item)? {
        return Ok(());
    }
    // It was compressed, or longer than is asked for now.
    content.resize(end as usize, 0);
    replace_sectors(context, file, &Image::of_sectors(0, content))?;
    let rest = context.round_up(size);
    let mut changes = context.changes(file);
    changes.drop_range(&file.tree.tree(), rest, end, usize::MAX)?;
    let item = context.stamped(file);
    file.publish(context, changes, item)
}

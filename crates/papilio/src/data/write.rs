//! Writing file data.
//!
//! Owns [`write`] and [`write_back`]. There is no page cache below: a call allocates, writes the device, computes the
//! sums and changes the trees before it returns; what it wrote is durable once the
//! transaction has been committed. This is the way of all that [`super::ordered_extents`] is not for: parts of
//! sectors, what makes a file longer, compressed and inline data, and files without checksums. Sectors that are written in part are read, merged and written anew.
//! What is aligned goes to the device straight from the caller's buffer.
//!
//! Everything is copied on write, also for files that ask otherwise (`NODATACOW`): their data is put
//! into new extents without sums, which is what the kernel does where a snapshot shares the old ones.
//! Locks: as [`super::file_edit`]. Kernel counterparts: `btrfs_direct_write` (`fs/btrfs/direct-io.c`),
//! `btrfs_run_delalloc_range`, `insert_ordered_extent_file_extent` (`fs/btrfs/inode.c`).

use crate::data::extend::reach;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::inline::{move_out_of_line, write_inline};
use crate::data::new_extents::{Image, NewExtents};
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::items::inode::InodeItem;

/// Writes all of `data` at `offset`, neither of which has to be aligned, and brings size, times and the
/// other fields of the inode up to date. Behind the end of the file, zeros come in between.
///
/// What a call writes is one change of the trees: a caller with much to write cuts it, so that a
/// transaction is not kept open for long.
///
/// # Errors
/// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`], or what reading and writing meets. The
/// file is as it was then, unless changing a tree failed, which aborts the transaction.
pub(crate) fn write(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    offset: FileOffset,
    data: &[u8],
) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let end = context.end_of(file, offset, data.len() as u64)?;
    let size = file.item.size.max(end);
    if write_inline(context, file, offset.0, data, size)? {
        return Ok(());
    }
    let (start, last) = (context.round_down(offset.0), context.round_up(end));
    move_out_of_line(context, file, Some((start, last)))?;
    if start >= context.round_up(file.item.size) {
        reach(context, file, start)?;
    }
    // The file holds the same bytes as before: that there is no room for new ones is an answer.
    context.space.settle();
    let image = Image::over(context, file, offset.0, data)?;
    store(context, file, &image, size)
}

/// Writes what a page cache holds of a file of `size` bytes: `pages`, whole sectors one behind the other from
/// `start` on, with zeros behind the file's end. The file on disk becomes as long as what is written of it, and
/// bears the times of [`FileEdit::touched`].
///
/// # Errors
/// As [`write`].
pub(crate) fn write_back(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    start: u64,
    pages: &[&[u8]],
    size: u64,
) -> Result<()> {
    let length: u64 = pages.iter().map(|page| page.len() as u64).sum();
    let end = start + length;
    if start == 0 && size <= context.sector() && length >= size {
        // It may fit into its item.
        return write(context, file, FileOffset(0), &pages[0][..size as usize]);
    }
    move_out_of_line(context, file, Some((start, end)))?;
    if start >= context.round_up(file.item.size) {
        reach(context, file, start)?;
    }
    context.space.settle();
    let size = file.item.size.max(end.min(size));
    store(context, file, &Image::of_pages(start, pages), size)
}

/// Puts the image in the place of what the file has there.
fn store(context: &WriteContext<'_>, file: &mut FileEdit<'_>, image: &Image<'_>, size: u64) -> Result<()> {
    let mut extents = NewExtents::new(context, file.item.flags);
    match context.compression(file) {
        Some(plan) => extents.add_compressed(image, size, &plan)?,
        None => extents.add_plain(image)?,
    }
    let mut changes = context.changes(file);
    changes.drop_range(&file.tree.tree(), image.start(), image.end(), usize::MAX)?;
    let item = InodeItem { size, ..context.touched(file) };
    extents.publish(file, changes, item)
}

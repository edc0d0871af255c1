//! Small files whose data lies in their extent item.
//!
//! Owns the decision what becomes inline ([`write_inline`]), and turning such data into an extent on
//! disk when the file grows out of it ([`move_out_of_line`]). Invariants: an inline extent is the whole
//! file: it starts at 0, is as long as the file, and nothing stands behind it; it is shorter than a
//! sector unless compressed. Files that the kernel or older tools wrote otherwise are read as they are
//! and brought into this form when they are written. Locks: as [`super::file_edit`]. Kernel counterpart:
//! `can_cow_file_range_inline`, `insert_inline_extent` (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::data::compress::{compress_inline, is_compressible};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::new_extents::{Image, NewExtents, feature_of};
use crate::data::stored_extents::{StoredExtent, inline_extent};
use crate::errors::Result;
use papilio_format::Generation;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use std::borrow::Cow;

/// The inline extent of a file.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn inline_of(
    context: &WriteContext<'_>,
    file: &FileEdit<'_>,
    tree: &Tree,
) -> Result<Option<StoredExtent>> {
    inline_extent(tree, file.inode, context.geometry().sector_size)
}

/// Whether a file of `size` bytes may be inline at all: whether its bytes then fit is another question.
fn may_be_inline(context: &WriteContext<'_>, file: &FileEdit<'_>, size: u64) -> Result<bool> {
    if size == 0 || size > context.sector() || context.max_inline() == 0 {
        return Ok(false);
    }
    if file.item.flags.contains(InodeFlags::NODATACOW) {
        return Ok(false);
    }
    Ok(!file.has_extent_from(context.sector())?)
}

/// Writes `data` at `offset` if the whole file, `size` bytes then, becomes inline; says whether it does.
///
/// # Errors
/// What reading the rest of the file or changing trees meets.
pub(crate) fn write_inline(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    offset: u64,
    data: &[u8],
    size: u64,
) -> Result<bool> {
    if !may_be_inline(context, file, size)? {
        return Ok(false);
    }
    let old = file.item.size.min(size);
    let mut content = vec![0; size as usize];
    if offset > 0 || offset + (data.len() as u64) < old {
        context.read_as(file, old, 0, &mut content)?;
    }
    content[offset as usize..][..data.len()].copy_from_slice(data);
    let item = InodeItem { size, ..context.touched(file) };
    publish_inline(context, file, &content, item)
}

/// Makes `content`, the whole file, inline, if it fits; says whether it does. `item` becomes the inode.
///
/// # Errors
/// What changing trees meets.
pub(crate) fn publish_inline(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    content: &[u8],
    item: InodeItem,
) -> Result<bool> {
    let Some((compression, bytes)) = encode(context, file, content) else { return Ok(false) };
    let features = feature_of(compression);
    if !features.is_empty() {
        context.space.require_features(features)?;
    }
    let extent = FileExtentItem {
        generation: Generation(0),
        ram_bytes: content.len() as u64,
        compression,
        other_encoding: 0,
        content: FileExtentContent::Inline(&bytes),
    };
    let mut changes = context.changes(file);
    let tree = file.tree.tree();
    let stored = inline_of(context, file, &tree)?;
    match &stored {
        Some(stored) => changes.replace_inline(stored, &extent),
        None => {
            changes.drop_range(&tree, 0, context.sector(), usize::MAX)?;
            changes.insert(0, &extent, false);
        }
    }
    drop((stored, tree));
    file.publish(context, changes, item)?;
    Ok(true)
}

/// The bytes of the item, compressed if that helps; `None` where they do not fit.
fn encode<'c>(
    context: &WriteContext<'_>,
    file: &FileEdit<'_>,
    content: &'c [u8],
) -> Option<(Compression, Cow<'c, [u8]>)> {
    let most = context.max_inline();
    if content.len() <= context.sector() as usize
        && let Some(plan) = context.compression(file)
        && (plan.forced || is_compressible(content))
    {
        let mut packed = Vec::new();
        let smaller = compress_inline(plan.choice, content, &mut packed, context.geometry().sector_size);
        if smaller && packed.len() <= most {
            return Some((plan.choice.algorithm(), packed.into()));
        }
    }
    (content.len() <= most).then_some((Compression::None, content.into()))
}

/// Puts the bytes of an inline extent on disk, unless the file has none or `covered`, sector boundaries,
/// replaces all of it anyway. The file's size does not change.
///
/// # Errors
/// What reading and writing meets, [`crate::Error::NoSpace`].
pub(crate) fn move_out_of_line(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    covered: Option<(u64, u64)>,
) -> Result<()> {
    let tree = file.tree.tree();
    let Some(inline) = inline_of(context, file, &tree)? else { return Ok(()) };
    let end = inline.end;
    if end == 0 || covered.is_some_and(|(start, covered_end)| start == 0 && covered_end >= end) {
        return Ok(());
    }
    drop((inline, tree));
    let mut bytes = vec![0; end as usize];
    context.read_as(file, file.item.size, 0, &mut bytes)?;
    let image = Image::of_sectors(0, bytes);
    replace_sectors(context, file, &image)
}

/// Writes whole sectors over what stands there, uncompressed; neither size nor times change.
///
/// # Errors
/// What reading and writing meets, [`crate::Error::NoSpace`].
pub(crate) fn replace_sectors(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    image: &Image<'_>,
) -> Result<()> {
    let mut extents = NewExtents::new(context, file.item.flags);
    extents.add_plain(image)?;
    let mut changes = context.changes(file);
    changes.drop_range(&file.tree.tree(), image.start(), image.end(), usize::MAX)?;
    let item = context.stamped(file);
    extents.publish(file, changes, item)
}

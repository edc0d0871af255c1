//! Changing the size of a file, and dropping the data of one that is deleted.
//!
//! Owns [`PreparedTruncate`]. A shrinking file loses a bounded number of extents in a step, from
//! the end on. After each step its size is where its extents end: a crash in between leaves a file
//! that is partly truncated, and consistent.
//!
//! Locks: as [`super::file_edit`]. Kernel counterparts: `btrfs_setsize`, `btrfs_truncate`
//! (`fs/btrfs/inode.c`), `btrfs_truncate_inode_items` (`fs/btrfs/inode-item.c`).

use crate::data::data_context::DataContext;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::image::Image;
use crate::data::inline::InlineContent;
use crate::data::progress::{Progress, STEP_EXTENTS};
use crate::data::rewrite::{SectorRewrite, fill_gap};
use crate::data::stored_extents::{inline_extent, last_extents};
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::items::inode::InodeItem;

/// A change of size whose data is on the device.
pub(crate) struct PreparedTruncate<'a> {
    size: u64,
    /// The content of a file that is inline afterwards.
    inline: Option<InlineContent>,
    rewrite: SectorRewrite<'a>,
}

impl<'a> PreparedTruncate<'a> {
    /// Prepares to make the file `size` bytes long. Extents after the end, such as preallocated
    /// ones, are dropped even where the size stays.
    ///
    /// # Errors
    /// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`], or an error of reading or
    /// writing.
    pub(crate) fn new(context: &DataContext<'a>, file: &FileEdit<'_>, size: u64) -> Result<Self> {
        context.end_of(file.inode, FileOffset(0), size)?;
        let prepared = Self { size, inline: None, rewrite: SectorRewrite::default() };
        let tree = file.tree.tree();
        let inline = inline_extent(&tree, file.inode, context.geometry.sector_size)?;
        let inline = inline.map(|inline| (inline.extent().ram_bytes, inline.end));
        drop(tree);
        if size > file.item.size {
            if inline.is_some()
                && let Some(content) = InlineContent::after_write(context, file, file.item.size, &[], size)?
            {
                return Ok(Self { inline: Some(content), ..prepared });
            }
            let grown_to = Some(context.round_up(size));
            return Ok(Self { rewrite: SectorRewrite::prepare(context, file, None, grown_to)?, ..prepared });
        }
        let Some((_, end)) = inline.filter(|(bytes, _)| size > 0 && *bytes > size) else {
            return Ok(prepared);
        };
        let mut content = vec![0; size as usize];
        context.read_as(file, size, 0, &mut content)?;
        if let Some(content) = InlineContent::encode(context, file, content.clone()) {
            return Ok(Self { inline: Some(content), ..prepared });
        }
        // The inline data was compressed, or longer than the options allow now.
        content.resize(end as usize, 0);
        let rewrite = SectorRewrite::of_image(context, file, &Image::of_sectors(0, content))?;
        Ok(Self { rewrite, ..prepared })
    }

    /// Makes the next step.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] (shrinking takes space for metadata, too), or an error of reading
    /// or changing trees.
    pub(crate) fn step(&mut self, context: &WriteContext<'_>, file: &mut FileEdit<'_>) -> Result<Progress> {
        self.limited_step(context, file, STEP_EXTENTS)
    }

    /// As [`PreparedTruncate::step`], dropping at most `limit` extents.
    ///
    /// # Errors
    /// As [`PreparedTruncate::step`].
    pub(crate) fn limited_step(
        &mut self,
        context: &WriteContext<'_>,
        file: &mut FileEdit<'_>,
        limit: usize,
    ) -> Result<Progress> {
        let size = self.size;
        if size <= file.item.size {
            // First: an error here leaves everything as it was.
            self.rewrite.publish(context, file)?;
            if let Some(content) = &self.inline {
                let item = context.stamped(file);
                content.publish(context, file, item)?;
                self.inline = None;
            }
            return shrink(context, file, size, limit);
        }
        let item = |file: &FileEdit<'_>| InodeItem { size, ..context.touched(file) };
        if let Some(content) = &self.inline {
            let item = item(file);
            content.publish(context, file, item)?;
            return Ok(Progress::Done);
        }
        self.rewrite.publish(context, file)?;
        fill_gap(context, file, context.round_up(size))?;
        let changes = context.changes(file);
        let item = item(file);
        file.publish(context, changes, item)?;
        Ok(Progress::Done)
    }
}

/// Drops the last `limit` extents after `size`, and sets the size to where the remaining extents
/// end. With size 0, it is the first part of deleting an inode.
///
/// # Errors
/// An error of reading or changing trees.
pub(crate) fn shrink(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    size: u64,
    limit: usize,
) -> Result<Progress> {
    let end = context.round_up(size);
    let tree = file.tree.tree();
    // One more than `limit`, to see whether there are more.
    let extents = last_extents(&tree, file.inode, context.geometry.sector_size, end, limit + 1)?;
    let more = extents.len() > limit;
    let mut changes = context.changes(file);
    let mut reached = file.item.size;
    for extent in extents.iter().take(limit) {
        // Inline data was shortened before.
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

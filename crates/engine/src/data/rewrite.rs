//! Sectors that must be rewritten before a change.
//!
//! Owns [`SectorRewrite`]. A rewrite changes neither size, times nor the bytes that readers see.
//! Two changes need one:
//! - A file grows out of its inline extent: the inline bytes move to an extent on disk.
//! - A file grows, and its last sector has bytes other than zeros after the old end. Shrinking
//!   leaves them there, as the kernel does, so that it costs no write.
//!
//! Invariants:
//! - Bytes that a file gains by growing read as zeros.
//! - Without NO_HOLES, items cover the file without a gap.
//!
//! Locks: as [`super::file_edit`]. Kernel counterparts: `btrfs_cont_expand`, `btrfs_truncate_block`
//! (`fs/btrfs/inode.c`).

use crate::data::data_context::DataContext;
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::image::Image;
use crate::data::publish_extents::publish_written;
use crate::data::stored_extents::inline_extent;
use crate::data::written_extents::WrittenExtents;
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::features::IncompatFeatures;
use std::ops::Range;

/// The rewritten sectors of a change, on the device already; often there are none.
#[derive(Default)]
pub(crate) struct SectorRewrite<'a> {
    written: Option<Box<WrittenExtents<'a>>>,
}

impl<'a> SectorRewrite<'a> {
    /// Writes the sectors that a change needs rewritten. The change replaces `covered`, sector
    /// boundaries, and makes the file at least `grown_to` bytes long, a sector boundary.
    ///
    /// # Errors
    /// Data that cannot be read, [`crate::Error::NoSpace`], or a device's error.
    pub(crate) fn prepare(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        covered: Option<&Range<u64>>,
        grown_to: Option<u64>,
    ) -> Result<Self> {
        let size = file.item.size;
        let grows = grown_to.is_some_and(|to| to >= context.round_up(size));
        let tree = file.tree.tree();
        if let Some(inline) = inline_extent(&tree, file.inode, context.geometry.sector_size)? {
            let end = inline.end;
            drop((inline, tree));
            let replaced = covered.is_some_and(|covered| covered.start == 0 && covered.end >= end);
            if end == 0 || replaced && !grows {
                return Ok(Self::default());
            }
            let mut bytes = vec![0; end as usize];
            context.read_as(file, size, 0, &mut bytes)?;
            return Self::of_image(context, file, &Image::of_sectors(0, bytes));
        }
        drop(tree);
        if !grows {
            return Ok(Self::default());
        }
        match stale_tail(context, file)? {
            Some(sector) => {
                Self::of_image(context, file, &Image::of_sectors(context.round_down(size), sector))
            }
            None => Ok(Self::default()),
        }
    }

    /// Writes whole sectors, uncompressed.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a device's error.
    pub(super) fn of_image(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        image: &Image<'_>,
    ) -> Result<Self> {
        let mut written = WrittenExtents::of_range(context, file, &(image.start()..image.end()))?;
        written.write_plain(image)?;
        Ok(Self { written: Some(Box::new(written)) })
    }

    /// Publishes the sectors. A second call does nothing.
    ///
    /// # Errors
    /// An error of changing trees.
    pub(crate) fn publish(&mut self, context: &WriteContext<'_>, file: &mut FileEdit<'_>) -> Result<()> {
        if let Some(written) = &mut self.written {
            let item = context.stamped(file);
            publish_written(context, file, written, item)?;
            self.written = None;
            context.space.settle();
        }
        Ok(())
    }
}

/// Returns the sector with the end of a file, with zeros after the end, if other bytes are there: a
/// longer file would show them.
///
/// # Errors
/// Data that cannot be read.
pub(crate) fn stale_tail(context: &DataContext<'_>, file: &FileEdit<'_>) -> Result<Option<Vec<u8>>> {
    let size = file.item.size;
    let (start, end) = (context.round_down(size), context.round_up(size));
    if start == end || !is_written(context, file, start)? {
        return Ok(None);
    }
    let mut sector = vec![0; (end - start) as usize];
    context.read_as(file, end, start, &mut sector)?;
    let tail = &mut sector[(size - start) as usize..];
    if tail.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    tail.fill(0);
    Ok(Some(sector))
}

/// Fills the gap between the end of a file and `to`, a sector boundary, with a hole item, where the
/// file system has explicit holes. The size does not change.
///
/// # Errors
/// An error of reading or changing trees.
pub(crate) fn fill_gap(context: &WriteContext<'_>, file: &mut FileEdit<'_>, to: u64) -> Result<()> {
    let end = context.round_up(file.item.size);
    if to <= end || context.geometry.incompat.contains(IncompatFeatures::NO_HOLES) {
        return Ok(());
    }
    let mut changes = context.changes(file);
    changes.fill_gaps(&file.tree.tree(), end, to)?;
    let item = context.stamped(file);
    file.publish(context, changes, item)?;
    context.space.settle();
    Ok(())
}

/// Returns whether the byte at `offset` is in an inline or regular extent.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn is_written(context: &DataContext<'_>, file: &FileEdit<'_>, offset: u64) -> Result<bool> {
    let tree = file.tree.tree();
    let sector_size = context.geometry.sector_size;
    let mut extents =
        FileExtents::new(&tree, file.inode, sector_size, FileOffset(offset), FileOffset(offset + 1));
    let extent = extents.next().transpose()?;
    Ok(extent.is_some_and(|extent| matches!(extent.kind, ExtentKind::Inline(_) | ExtentKind::Regular(_))))
}

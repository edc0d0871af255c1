//! Changes of a file's data, in two phases.
//!
//! Owns [`PreparedWrite`]. The first phase reads the rest of partly written sectors, allocates
//! space, and writes the device; it runs outside any transaction. The second publishes the extents.
//! Aligned bytes go to the device straight from the caller's buffer.
//!
//! Data is copied on write, except into extents that [`super::own_extents`] finds.
//!
//! Locks: as [`super::file_edit`]. Kernel counterparts: `btrfs_direct_write`
//! (`fs/btrfs/direct-io.c`), `btrfs_run_delalloc_range`, `insert_ordered_extent_file_extent`
//! (`fs/btrfs/inode.c`).

use crate::data::data_context::DataContext;
use crate::data::encoded::EncodedExtent;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::image::Image;
use crate::data::inline::InlineContent;
use crate::data::publish_extents::publish_written;
use crate::data::rewrite::{SectorRewrite, fill_gap};
use crate::data::written_extents::WrittenExtents;
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::items::inode::InodeItem;
use std::os::fd::BorrowedFd;

/// A write whose data is on the device, or encoded for the extent item.
pub(crate) struct PreparedWrite<'a> {
    /// The size of the file after the write.
    size: u64,
    content: Content<'a>,
}

enum Content<'a> {
    /// The write changes nothing.
    Unchanged,
    Inline(InlineContent),
    Extents {
        /// The first sector of the write.
        start: u64,
        rewrite: SectorRewrite<'a>,
        written: Box<WrittenExtents<'a>>,
    },
}

impl<'a> PreparedWrite<'a> {
    /// Prepares a write of all of `data` at `offset`, neither of which has to be aligned. Bytes
    /// between the end of the file and `offset` become zeros.
    ///
    /// # Errors
    /// [`crate::PathError::TooLarge`], [`crate::Error::NoSpace`], or an error of reading or
    /// writing.
    pub(crate) fn new(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        offset: FileOffset,
        data: &[u8],
    ) -> Result<Self> {
        if data.is_empty() {
            return Ok(Self { size: file.item.size, content: Content::Unchanged });
        }
        let end = context.end_of(file.inode, offset, data.len() as u64)?;
        let size = file.item.size.max(end);
        if let Some(content) = InlineContent::after_write(context, file, offset.0, data, size)? {
            return Ok(Self { size, content: Content::Inline(content) });
        }
        let image = Image::over(context, file, offset.0, data)?;
        let written = WrittenExtents::of_range(context, file, &(image.start()..image.end()))?;
        Self::of_image(context, file, &image, size, written)
    }

    /// As [`PreparedWrite::new`], but the data goes to new space, so that it is moved.
    ///
    /// # Errors
    /// As [`PreparedWrite::new`].
    pub(crate) fn elsewhere(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        offset: FileOffset,
        data: &[u8],
    ) -> Result<Self> {
        let end = context.end_of(file.inode, offset, data.len() as u64)?;
        let size = file.item.size.max(end);
        if data.is_empty() {
            return Ok(Self { size, content: Content::Unchanged });
        }
        if let Some(content) = InlineContent::after_write(context, file, offset.0, data, size)? {
            return Ok(Self { size, content: Content::Inline(content) });
        }
        let image = Image::over(context, file, offset.0, data)?;
        let written = WrittenExtents::new(context, file.item.flags);
        Self::of_image(context, file, &image, size, written)
    }

    /// Prepares the writeback of `pages`, whole sectors that start at `start`, of a file that is to
    /// have `size` bytes. Bytes after that size are zeros. The file on disk becomes as long as the
    /// pages reach, at most `size`.
    ///
    /// # Errors
    /// As [`PreparedWrite::new`].
    pub(crate) fn of_pages(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        start: u64,
        pages: &[&[u8]],
        size: u64,
    ) -> Result<Self> {
        let length: u64 = pages.iter().map(|page| page.len() as u64).sum();
        let end = start + length;
        if start == 0 && size <= context.sector() && length >= size {
            // The file may become inline.
            return Self::new(context, file, FileOffset(0), &pages[0][..size as usize]);
        }
        let size = file.item.size.max(end.min(size));
        let written = WrittenExtents::of_range(context, file, &(start..start + length))?;
        Self::of_image(context, file, &Image::of_pages(start, pages), size, written)
    }

    /// Prepares a write of a compressed extent as it lies. Returns `None` if the file cannot have
    /// it so: a range that does not end at a sector or the end of the file, a file without
    /// checksums, or an extent that saves no sector.
    ///
    /// # Errors
    /// As [`PreparedWrite::new`].
    pub(crate) fn of_encoded(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        offset: FileOffset,
        extent: &EncodedExtent<'_>,
    ) -> Result<Option<Self>> {
        let end = context.end_of(file.inode, offset, extent.length)?;
        let Some(packed) = extent.padded(context, file, offset.0..end) else { return Ok(None) };
        let (start, size) = (offset.0, file.item.size.max(end));
        let range = start..context.round_up(end);
        let rewrite = SectorRewrite::prepare(context, file, Some(&range), Some(start))?;
        let mut written = WrittenExtents::new(context, file.item.flags);
        let part = [extent.offset, context.round_up(extent.uncompressed)];
        written.write_encoded(start, range.end - start, &packed, extent.compression, part)?;
        Ok(Some(Self { size, content: Content::Extents { start, rewrite, written: Box::new(written) } }))
    }

    /// Prepares a write at `offset` that shares `length` bytes of a host file, from byte `from` on.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for numbers that are no multiples of the sector size; as
    /// [`PreparedWrite::new`] and
    /// [`Volume::clone_from_file`](crate::volume::Volume::clone_from_file).
    pub(crate) fn of_clone(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        offset: FileOffset,
        source: BorrowedFd<'_>,
        from: u64,
        length: u64,
    ) -> Result<Self> {
        let sector = context.sector();
        if [offset.0, from, length].iter().any(|number| !number.is_multiple_of(sector)) {
            return Err(crate::errors::Error::Invalid(format!(
                "{length} bytes at {from} cannot be shared at {}: not whole sectors of {sector} bytes",
                offset.0
            )));
        }
        let end = context.end_of(file.inode, offset, length)?;
        let (start, size) = (offset.0, file.item.size.max(end));
        let rewrite = SectorRewrite::prepare(context, file, Some(&(start..end)), Some(start))?;
        let mut written = WrittenExtents::new(context, file.item.flags);
        written.write_cloned(start, length, source, from)?;
        Ok(Self { size, content: Content::Extents { start, rewrite, written: Box::new(written) } })
    }

    fn of_image(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        image: &Image<'_>,
        size: u64,
        mut written: WrittenExtents<'a>,
    ) -> Result<Self> {
        let (start, range) = (image.start(), image.start()..image.end());
        let rewrite = SectorRewrite::prepare(context, file, Some(&range), Some(start))?;
        match context.compression_of(file) {
            Some(plan) => written.write_compressed(image, size, &plan)?,
            None => written.write_plain(image)?,
        }
        Ok(Self { size, content: Content::Extents { start, rewrite, written: Box::new(written) } })
    }

    /// Publishes the write, with the times of [`FileEdit::touched`]. A second call does nothing.
    ///
    /// # Errors
    /// An error of changing trees; the transaction is aborted then.
    pub(crate) fn publish(&mut self, context: &WriteContext<'_>, file: &mut FileEdit<'_>) -> Result<()> {
        let size = self.size;
        match &mut self.content {
            Content::Unchanged => return Ok(()),
            Content::Inline(content) => {
                let item = InodeItem { size, ..context.touched(file) };
                content.publish(context, file, item)?;
            }
            Content::Extents { start, rewrite, written } => {
                rewrite.publish(context, file)?;
                fill_gap(context, file, *start)?;
                let item = InodeItem { size, ..context.touched(file) };
                publish_written(context, file, written, item)?;
            }
        }
        self.content = Content::Unchanged;
        Ok(())
    }
}

//! Small files whose data is in their extent item.
//!
//! Owns [`InlineContent`]: the decision whether a file becomes inline, and the publishing of one
//! that does.
//!
//! Invariants:
//! - An inline extent is the whole file: it starts at 0, is as long as the file, and no other
//!   extent follows.
//! - It is shorter than a sector unless it is compressed.
//!
//! Inline extents of another form, as the kernel or older tools wrote them, are read as they are. A
//! write brings the file into this form. Locks: as [`super::file_edit`]. Kernel counterparts:
//! `can_cow_file_range_inline`, `insert_inline_extent` (`fs/btrfs/inode.c`).

use crate::data::compress::{compress_inline, is_compressible};
use crate::data::data_context::DataContext;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::stored_extents::{StoredExtents, inline_extent};
use crate::errors::Result;
use papilio_format::Generation;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem};

/// The whole content of a file, encoded for its extent item.
pub(crate) struct InlineContent {
    compression: Compression,
    bytes: Vec<u8>,
    /// Bytes of the file.
    size: u64,
}

impl InlineContent {
    /// Returns the file's content with `data` written at `offset` and a size of `size` bytes, if
    /// the file then becomes inline.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub(crate) fn after_write(
        context: &DataContext<'_>,
        file: &FileEdit<'_>,
        offset: u64,
        data: &[u8],
        size: u64,
    ) -> Result<Option<Self>> {
        if !may_be_inline(context, file, size)? {
            return Ok(None);
        }
        let old = file.item.size.min(size);
        let mut content = vec![0; size as usize];
        if offset > 0 || offset + (data.len() as u64) < old {
            context.read_as(file, old, 0, &mut content)?;
        }
        content[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(Self::encode(context, file, content))
    }

    /// Encodes `content`, compressed if that helps; `None` if it does not fit.
    pub(crate) fn encode(context: &DataContext<'_>, file: &FileEdit<'_>, content: Vec<u8>) -> Option<Self> {
        let (most, size) = (context.max_inline(), content.len() as u64);
        if size <= context.sector()
            && let Some(plan) = context.compression_of(file)
            && (plan.forced || is_compressible(&content))
        {
            let mut packed = Vec::new();
            let (sector, verify) = (context.geometry.sector_size, context.rules.options.verify_compression);
            let smaller = compress_inline(plan.choice, &content, &mut packed, sector, verify);
            if smaller && packed.len() <= most {
                return Some(Self { compression: plan.choice.algorithm(), bytes: packed, size });
            }
        }
        (content.len() <= most).then_some(Self { compression: Compression::None, bytes: content, size })
    }

    /// Publishes the content as the file's only extent. `item` becomes the inode item.
    ///
    /// # Errors
    /// An error of changing a tree.
    pub(crate) fn publish(
        &self,
        context: &WriteContext<'_>,
        file: &mut FileEdit<'_>,
        item: InodeItem,
    ) -> Result<()> {
        let features = self.compression.feature();
        if !features.is_empty() {
            context.space.require_features(features)?;
        }
        let extent = FileExtentItem {
            generation: Generation(0),
            ram_bytes: self.size,
            compression: self.compression,
            other_encoding: 0,
            content: FileExtentContent::Inline(&self.bytes),
        };
        let mut changes = context.changes(file);
        let tree = file.tree.tree();
        let stored = inline_extent(&tree, file.inode, context.geometry.sector_size)?;
        match &stored {
            Some(stored) => changes.replace_inline(stored, &extent),
            None => {
                changes.drop_range(&tree, 0, context.sector(), usize::MAX)?;
                changes.insert(0, &extent, false);
            }
        }
        drop((stored, tree));
        file.publish(context, changes, item)
    }
}

/// Returns whether a file of `size` bytes may be inline. Whether its bytes fit is decided when they
/// are encoded.
fn may_be_inline(context: &DataContext<'_>, file: &FileEdit<'_>, size: u64) -> Result<bool> {
    if size == 0 || size > context.sector() || context.max_inline() == 0 {
        return Ok(false);
    }
    if file.item.flags.contains(InodeFlags::NODATACOW) {
        return Ok(false);
    }
    let tree = file.tree.tree();
    let first = StoredExtents::new(&tree, file.inode, context.geometry.sector_size, 0, context.sector());
    for extent in first {
        let extent = extent?;
        // Preallocated space is there to be written, as in the kernel.
        if extent.end > context.sector() || matches!(extent.extent().content, FileExtentContent::Prealloc(_))
        {
            return Ok(false);
        }
    }
    drop(tree);
    Ok(!file.has_extent_from(context.sector())?)
}

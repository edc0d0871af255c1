//! A file that is being changed, and what changing it takes.
//!
//! Owns [`WriteContext`], [`WriteOptions`] and [`FileEdit`]. Invariant: whoever has a [`FileEdit`] is the
//! only one to change that inode (the layer above holds the inode's lock), so that what is read of it
//! stays true until it is published. A change first reads and checks, then allocates and writes data,
//! and only then edits trees; an error before that last step leaves file and trees as they were.
//!
//! Locks: none held between calls; a tree's editor is taken for the moment of publishing only.
//! Kernel counterparts: `struct btrfs_inode` (`fs/btrfs/btrfs_inode.h`), `inode_need_compress`
//! (`fs/btrfs/inode.c`).

use crate::btree::LiveTree;
use crate::data::file_extents_edit::ExtentChanges;
use crate::data::read::{FileData, ReadContext};
use crate::data::space::DataSpace;
use crate::errors::{Error, PathError, Result};
use crate::options::CompressionChoice;
use crate::tuning::WriteChecksum;
use crate::volume::Volume;
use papilio_format::items::file_extent::{Compression, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem, Timespec};
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{FileOffset, Geometry, InodeNumber, ItemType, Key};
use std::sync::Arc;

/// Largest size of a file (`MAX_LFS_FILESIZE`).
pub(crate) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// How data is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteOptions {
    /// Most bytes of a file whose data lies in its item (`max_inline`); 0 for never.
    pub(crate) max_inline: u32,
    /// Compresses all files that do not say otherwise (`compress`).
    pub(crate) compression: Option<CompressionChoice>,
    /// Tries each piece even if others did not get smaller (`compress-force`).
    pub(crate) force_compression: bool,
    /// When its checksums are computed.
    pub(crate) checksum: WriteChecksum,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            max_inline: 2048,
            compression: None,
            force_compression: false,
            checksum: WriteChecksum::default(),
        }
    }
}

/// What changing data needs besides the file: made for one handle of a transaction.
#[derive(Clone, Copy)]
pub(crate) struct WriteContext<'a> {
    /// Room and references.
    pub(crate) space: &'a dyn DataSpace,
    /// Where data goes.
    pub(crate) volume: &'a Arc<Volume>,
    /// The checksum tree.
    pub(crate) checksum_tree: &'a LiveTree,
    /// How.
    pub(crate) options: &'a WriteOptions,
}

/// A file that is being changed.
pub(crate) struct FileEdit<'a> {
    /// Its subvolume.
    pub(crate) tree: &'a LiveTree,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// Its inode item; each change that succeeds leaves here what it put into the tree.
    pub(crate) item: InodeItem,
    /// The compression that its property (`btrfs.compression`) asks for.
    pub(crate) property: Option<CompressionChoice>,
    /// When the data that is written was changed, and the change counter after that, if that was earlier.
    pub(crate) touched: Option<(Timespec, u64)>,
}

/// How a file's data is to be compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompressionPlan {
    pub(crate) choice: CompressionChoice,
    /// Without asking whether it looks compressible.
    pub(crate) forced: bool,
    /// Whether data that did not get smaller marks the inode (`NOCOMPRESS`).
    pub(crate) marks: bool,
}

impl WriteContext<'_> {
    /// Sector and node size, features.
    pub(crate) fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    /// Bytes of a sector.
    pub(crate) fn sector(&self) -> u64 {
        self.geometry().sector_size.into()
    }

    /// The first sector boundary at or behind `offset`; offsets of files are far from overflowing it.
    pub(crate) fn round_up(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.sector())
    }

    /// The last sector boundary at or before `offset`.
    pub(crate) fn round_down(&self, offset: u64) -> u64 {
        offset - offset % self.sector()
    }

    /// The end of `length` bytes from `offset` on.
    ///
    /// # Errors
    /// [`PathError::TooLarge`] past the largest size of a file.
    pub(crate) fn end_of(&self, file: &FileEdit<'_>, offset: FileOffset, length: u64) -> Result<u64> {
        // The last sector must not end behind the largest offset either.
        let limit = self.round_down(MAX_FILE_SIZE);
        match offset.0.checked_add(length) {
            Some(end) if end <= limit => Ok(end),
            _ => Err(Error::path(format!("inode {}", file.inode).as_bytes(), PathError::TooLarge)),
        }
    }

    /// A plan of changes of a file's extents.
    pub(crate) fn changes(&self, file: &FileEdit<'_>) -> ExtentChanges {
        ExtentChanges::new(file.tree.id(), file.inode, &self.geometry(), self.space.generation())
    }

    /// The inode as a change of its data leaves it: times, change counter, transaction.
    pub(crate) fn touched(&self, file: &FileEdit<'_>) -> InodeItem {
        let (time, sequence) = match file.touched {
            Some((time, sequence)) => (time, sequence.max(file.item.sequence)),
            None => (self.space.now(), file.item.sequence.wrapping_add(1)),
        };
        InodeItem { mtime: time, ctime: time, sequence, ..self.stamped(file) }
    }

    /// The inode as a change leaves it that nobody is to see.
    pub(crate) fn stamped(&self, file: &FileEdit<'_>) -> InodeItem {
        InodeItem { transid: self.space.generation(), ..file.item }
    }

    /// Fills `buffer` with the file's bytes from `offset` on as if it were `size` long; zeros behind.
    ///
    /// # Errors
    /// What reading meets.
    pub(crate) fn read_as(
        &self,
        file: &FileEdit<'_>,
        size: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        // A context of its own: what threads remember of decompressed extents is only good for as long
        // as their addresses are not written again.
        let sums = self.checksum_tree.tree();
        let context = ReadContext::new(Arc::clone(self.volume), Some(sums), true);
        let tree = file.tree.tree();
        let data = FileData {
            tree: (&tree).into(),
            inode: file.inode,
            flags: file.item.flags,
            size,
            written: None,
            known: None,
            ordered: None,
        };
        let read = context.read(&data, FileOffset(offset), buffer)?;
        buffer[read..].fill(0);
        Ok(())
    }

    /// Whether and how the file's data is compressed.
    pub(crate) fn compression(&self, file: &FileEdit<'_>) -> Option<CompressionPlan> {
        let flags = file.item.flags;
        if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
            return None;
        }
        let is_one = |choice: &CompressionChoice| choice.algorithm() != Compression::None;
        let (property, option) = (file.property.filter(is_one), self.options.compression.filter(is_one));
        let forced = self.options.force_compression && option.is_some();
        if !forced && flags.contains(InodeFlags::NOCOMPRESS) {
            return None;
        }
        // What the flag alone asks for is the oldest algorithm.
        let flagged = flags.contains(InodeFlags::COMPRESS).then(|| CompressionChoice::new(Compression::Zlib));
        let choice = property.or(option).or(flagged)?;
        Some(CompressionPlan { choice, forced, marks: !forced && property.is_none() })
    }

    /// Most bytes that an inline extent's data may have.
    pub(crate) fn max_inline(&self) -> usize {
        let geometry = self.geometry();
        let item = geometry.node_size as usize - NodeHeader::SIZE - ItemHeader::SIZE;
        let room = item - FileExtentItem::INLINE_DATA_START;
        room.min(self.options.max_inline as usize).min(geometry.sector_size as usize - 1)
    }
}

impl FileEdit<'_> {
    /// Makes planned changes and takes in the inode that results.
    ///
    /// # Errors
    /// As [`ExtentChanges::publish`].
    pub(crate) fn publish(
        &mut self,
        context: &WriteContext<'_>,
        changes: ExtentChanges,
        item: InodeItem,
    ) -> Result<()> {
        self.item = changes.publish(self.tree, context.space, item)?;
        Ok(())
    }

    /// Whether an item stands for something at or behind `offset`, a sector boundary.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn has_extent_from(&self, offset: u64) -> Result<bool> {
        let tree = self.tree.tree();
        let last = Key::new(self.inode.0, ItemType::EXTENT_DATA, u64::MAX);
        let item = tree.last_up_to(&last)?;
        Ok(item.is_some_and(|item| {
            (item.key.objectid, item.key.item_type) == (self.inode.0, ItemType::EXTENT_DATA)
                && item.key.offset >= offset
        }))
    }
}

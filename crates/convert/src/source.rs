//! The face of a file system that can be converted.
//!
//! Owns [`Source`], which the ext and XFS readers implement, and the types that it speaks in. All
//! that follows the reading is the same for all sources.
//!
//! **Invariants** of every source
//! - Blocks are numbered along the device.
//! - The root directory has the lowest number of all inodes with a name.
//! - Extents of a file ascend and do not overlap.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::losses::Losses;
use crate::shared::SharedExtents;
use papilio_device::Device;
use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
use papilio_format::{InodeNumber, PhysicalAddress, Uuid};
use std::ops::Range;
use std::sync::Arc;

/// The facts of a source as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// The name of the device.
    pub(crate) device: String,
    /// `ext2`, `ext3`, `ext4` or `XFS`.
    pub(crate) variant: &'static str,
    /// The subvolume that keeps it.
    pub(crate) saved: &'static str,
    pub(crate) label: Vec<u8>,
    pub(crate) uuid: Uuid,
    pub(crate) block_size: u64,
    pub(crate) blocks: u64,
    /// Inodes that it has room for, and those that are free.
    pub(crate) inodes: u64,
    pub(crate) free_inodes: u64,
    /// The root directory.
    pub(crate) root: u64,
    /// The distance from inode numbers of the source to those of Btrfs.
    pub(crate) inode_offset: u64,
    /// The highest number that an inode can have.
    pub(crate) last_inode: u64,
    /// Whether every block in use has an owner that the walk finds.
    pub(crate) accounts_for_all: bool,
    /// Whether a replay of the journal is a part of what is read, while the device is as it was.
    pub(crate) is_replayed: bool,
    /// The program that repairs it.
    pub(crate) tool: &'static str,
}

impl Profile {
    /// Bytes of the file system.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks * self.block_size
    }

    /// Returns the number of an inode in Btrfs.
    pub(crate) fn number_of(&self, inode: u64) -> InodeNumber {
        InodeNumber(inode + self.inode_offset)
    }

    /// Returns the error of a damaged structure.
    pub(crate) fn damaged(&self, place: impl Into<String>, reason: impl Into<String>) -> ConvertError {
        ConvertError::Damaged {
            device: self.device.clone(),
            place: place.into(),
            reason: reason.into(),
            tool: self.tool,
        }
    }

    /// Returns the error of something that cannot be converted.
    pub(crate) fn unsupported(&self, reason: impl Into<String>) -> ConvertError {
        ConvertError::Unsupported { device: self.device.clone(), reason: reason.into() }
    }

    /// A source for tests of single structures.
    #[cfg(test)]
    pub(crate) fn for_test(block_size: u64, blocks: u64) -> Self {
        Self {
            device: "test".to_owned(),
            variant: "test",
            saved: crate::SAVED,
            label: Vec::new(),
            uuid: Uuid::from_bytes([0; 16]),
            block_size,
            blocks,
            inodes: 0,
            free_inodes: 0,
            root: 1,
            inode_offset: 255,
            last_inode: u64::MAX - 1,
            accounts_for_all: false,
            is_replayed: false,
            tool: "none",
        }
    }
}

/// The facts of an inode.
#[derive(Clone, Debug)]
pub(crate) struct InodeFacts {
    pub(crate) number: u64,
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) links: u32,
    /// Major and minor number of a device.
    pub(crate) device: (u32, u32),
    /// Flags that Btrfs has, too.
    pub(crate) flags: InodeFlags,
    pub(crate) atime: Timespec,
    pub(crate) ctime: Timespec,
    pub(crate) mtime: Timespec,
    /// The time of creation, if the inode has one.
    pub(crate) otime: Option<Timespec>,
    /// Whether the content is in the inode, for [`Source::inline_content`].
    pub(crate) is_inline: bool,
    /// Whether the content may share blocks with other files.
    pub(crate) may_share: bool,
    /// Whether it is a part of others, and rightly has no name.
    pub(crate) is_internal: bool,
}

/// A run of blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first block in the file.
    pub(crate) logical: u64,
    /// The first block on the device.
    pub(crate) physical: u64,
    /// Blocks.
    pub(crate) length: u64,
    /// Whether the blocks are written; others read as zeros.
    pub(crate) written: bool,
}

impl Extent {
    /// The blocks on the device.
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.physical..self.physical + self.length
    }
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceEntry<'a> {
    pub(crate) inode: u64,
    pub(crate) name: &'a [u8],
    /// The kind of file, if the entry says it.
    pub(crate) kind: Option<FileKind>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Xattr {
    /// The name with its prefix.
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// Blocks that an inode uses beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) blocks: Range<u64>,
    /// Whether other inodes may use the same.
    pub(crate) is_shared: bool,
}

/// A file system that can be converted.
pub(crate) trait Source: Send + Sync {
    /// An inode that is in use.
    type Inode;

    /// The facts of the whole.
    fn profile(&self) -> &Profile;
    /// The device.
    fn device(&self) -> &Arc<dyn Device>;
    /// The blocks in use.
    fn used_blocks(&self) -> Result<BlockSet>;
    /// The blocks in use that belong to no inode.
    fn structure_blocks(&self) -> Result<BlockSet>;
    /// The blocks that files share.
    fn shared(&self) -> &SharedExtents;
    /// The number of an inode as people know it.
    fn shown(&self, inode: u64) -> u64;
    /// Whether an inode of the file system itself has no name, rightly.
    fn is_nameless(&self, inode: u64) -> bool;
    /// Counts the properties of the whole that Btrfs cannot have.
    fn note_losses(&self, losses: &mut Losses);

    /// Reads one inode.
    fn inode(&self, number: u64) -> Result<Self::Inode>;
    /// Calls `act` with each inode in use from `first` on, in the order of numbers, until it
    /// returns false.
    fn for_each_inode(&self, first: u64, act: &mut dyn FnMut(Self::Inode) -> Result<bool>) -> Result<()>;
    /// Returns the facts of an inode.
    fn facts(&self, inode: &Self::Inode) -> InodeFacts;
    /// Counts the properties of an inode that Btrfs cannot have.
    ///
    /// # Errors
    /// An inode that cannot be converted at all.
    fn check_inode(&self, inode: &Self::Inode, losses: &mut Losses) -> Result<()>;
    /// Calls `act` with the entries of a directory, except for `.` and `..`. Returns the parent.
    fn for_each_entry(
        &self,
        directory: &Self::Inode,
        act: &mut dyn FnMut(SourceEntry<'_>) -> Result<()>,
    ) -> Result<u64>;
    /// Calls `act` with the extents of the content, and `inner` with the blocks of its map.
    fn for_each_extent(
        &self,
        inode: &Self::Inode,
        act: &mut dyn FnMut(Extent) -> Result<()>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()>;
    /// Calls `act` with the blocks that extended attributes take.
    fn for_each_xattr_block(
        &self,
        inode: &Self::Inode,
        act: &mut dyn FnMut(Claim) -> Result<()>,
    ) -> Result<()>;
    /// Returns the content of a file that is in its inode.
    fn inline_content(&self, inode: &Self::Inode) -> Result<Vec<u8>>;
    /// Reads the written bytes of a file from its start, at most `limit`. Holes read as zeros.
    ///
    /// # Errors
    /// As [`Source::for_each_extent`]; the device's errors.
    fn read_start(&self, inode: &Self::Inode, limit: u64) -> Result<Vec<u8>> {
        let length = self.facts(inode).size.min(limit);
        let mut bytes = vec![0; length as usize];
        let size = self.profile().block_size;
        let mut fill = |extent: Extent| {
            let start = extent.logical.saturating_mul(size);
            if extent.written && start < length {
                let end = (start + extent.length * size).min(length);
                read(&**self.device(), &mut bytes[start as usize..end as usize], extent.physical * size)?;
            }
            Ok(())
        };
        self.for_each_extent(inode, &mut fill, &mut |_| Ok(()))?;
        Ok(bytes)
    }
    /// Returns the target of a symbolic link.
    fn target(&self, inode: &Self::Inode) -> Result<Vec<u8>>;
    /// Whether blocks are read from the journal and not from their places.
    fn is_replayed(&self, _blocks: &Range<u64>) -> bool {
        false
    }
    /// Returns the extended attributes of an inode.
    fn xattrs(&self, inode: &Self::Inode) -> Result<Vec<Xattr>>;
}

/// Returns the flags of Btrfs that an inode has, by pairs of a source's flag and its counterpart.
pub(crate) fn flags_of<F: Copy>(pairs: &[(F, InodeFlags)], has: impl Fn(F) -> bool) -> InodeFlags {
    pairs.iter().filter(|(theirs, _)| has(*theirs)).fold(InodeFlags::empty(), |all, (_, ours)| all | *ours)
}

/// Reads from a device, with the place in errors.
pub(crate) fn read(device: &dyn Device, buffer: &mut [u8], offset: u64) -> Result<()> {
    device.read_at(buffer, PhysicalAddress(offset)).map_err(|source| ConvertError::Device {
        device: device.name().to_owned(),
        operation: "read",
        offset,
        source,
    })
}

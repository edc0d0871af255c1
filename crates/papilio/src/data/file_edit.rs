//! The second phase of a change of data: publishing it in the trees.
//!
//! Owns [`WriteContext`] and [`FileEdit`].
//!
//! Invariants:
//! - The holder of a [`FileEdit`] is the only thread that changes the inode: the floor above holds the inode's lock.
//! - Data that a change refers to is on the device before the change is published.
//! - A change looks everything up before it edits a tree. An error before that leaves file and trees as they were.
//!
//! Locks: none held between calls. A tree's editor is held only while changes are published. Kernel counterpart:
//! `struct btrfs_inode` (`fs/btrfs/btrfs_inode.h`).

use crate::btree::LiveTree;
use crate::data::file_extents_edit::ExtentChanges;
use crate::data::space::DataSpace;
use crate::data::write_rules::WriteRules;
use crate::errors::Result;
use crate::options::CompressionChoice;
use papilio_format::items::inode::{InodeItem, Timespec};
use papilio_format::{InodeNumber, ItemType, Key};
use std::ops::Deref;

/// Access to the trees for a change of data, for as long as one transaction handle lives. It cannot reach the device.
#[derive(Clone, Copy)]
pub(crate) struct WriteContext<'a> {
    /// Space and references.
    pub(crate) space: &'a dyn DataSpace,
    pub(crate) checksum_tree: &'a LiveTree,
    pub(crate) rules: WriteRules<'a>,
}

impl<'a> Deref for WriteContext<'a> {
    type Target = WriteRules<'a>;

    fn deref(&self) -> &WriteRules<'a> {
        &self.rules
    }
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

impl WriteContext<'_> {
    /// A plan of changes of a file's extents.
    pub(crate) fn changes(&self, file: &FileEdit<'_>) -> ExtentChanges {
        ExtentChanges::new(file.tree.id(), file.inode, &self.geometry, self.space.generation())
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

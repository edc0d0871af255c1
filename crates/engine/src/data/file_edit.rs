//! The second phase of a change of data: publishing it in the trees.
//!
//! Owns [`WriteContext`], [`FileEdit`] and [`Touch`].
//!
//! Invariants:
//! - The holder of a [`FileEdit`] is the only thread that changes the inode: the layer above holds
//!   the inode's lock.
//! - Data that a change refers to is on the device before the change is published.
//! - A change looks everything up before it edits a tree. An error before that leaves file and
//!   trees as they were.
//!
//! Locks: none held between calls. A tree's editor is held only while changes are published. Kernel
//! counterpart: `struct btrfs_inode` (`fs/btrfs/btrfs_inode.h`).

use crate::btree::LiveTree;
use crate::data::file_extents_edit::ExtentChanges;
use crate::data::space::DataSpace;
use crate::data::write_rules::WriteRules;
use crate::errors::Result;
use crate::options::CompressionChoice;
use papilio_format::items::inode::{InodeItem, Timespec};
use papilio_format::{InodeNumber, ItemType, Key};
use std::ops::Deref;

/// Access to the trees for a change of data, for as long as one transaction handle lives. It cannot
/// reach the device.
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
    /// The tree of the file's subvolume.
    pub(crate) tree: &'a LiveTree,
    /// The inode number.
    pub(crate) inode: InodeNumber,
    /// The inode item. A change that succeeds leaves here what it stored in the tree.
    pub(crate) item: InodeItem,
    /// The compression that the file's property (`btrfs.compression`) asks for.
    pub(crate) property: Option<CompressionChoice>,
    /// The last change of the data that is being published. `None` for a change that happens now.
    pub(crate) touched: Option<Touch>,
}

/// The times of a change of data, and the change counter after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// The new mtime; `None` leaves the tree's.
    pub(crate) mtime: Option<Timespec>,
    /// The new ctime; `None` leaves the tree's.
    pub(crate) ctime: Option<Timespec>,
    pub(crate) sequence: u64,
}

impl Touch {
    /// Returns `item` with these times and this change counter.
    pub(crate) fn applied_to(&self, item: InodeItem) -> InodeItem {
        InodeItem {
            mtime: self.mtime.unwrap_or(item.mtime),
            // A change of names or attributes may have been later.
            ctime: self.ctime.map_or(item.ctime, |ctime| ctime.max(item.ctime)),
            sequence: self.sequence.max(item.sequence),
            ..item
        }
    }
}

impl WriteContext<'_> {
    /// Returns an empty plan of changes to a file's extents.
    pub(crate) fn changes(&self, file: &FileEdit<'_>) -> ExtentChanges {
        ExtentChanges::new(file.tree.id(), file.inode, &self.geometry, self.space.generation())
    }

    /// Returns the inode item after a change of data: new times, change counter and transaction.
    pub(crate) fn touched(&self, file: &FileEdit<'_>) -> InodeItem {
        let touch = file.touched.unwrap_or_else(|| {
            let now = Some(self.space.now());
            Touch { mtime: now, ctime: now, sequence: file.item.sequence.wrapping_add(1) }
        });
        touch.applied_to(self.stamped(file))
    }

    /// Returns the inode item after a change that users do not see: only the transaction is new.
    pub(crate) fn stamped(&self, file: &FileEdit<'_>) -> InodeItem {
        InodeItem { transid: self.space.generation(), ..file.item }
    }
}

impl FileEdit<'_> {
    /// Publishes planned changes, and takes over the resulting inode item.
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

    /// Returns whether the file has an extent item at or after `offset`, a sector boundary.
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

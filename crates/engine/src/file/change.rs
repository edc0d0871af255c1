//! The way into a transaction for changes of names, inodes and data.
//!
//! Owns the steps from [`FsInfo`] to an editor of a subvolume's tree.
//!
//! Invariant: the orphans that earlier mounts left in a subvolume are deleted before its first
//! change.
//!
//! Locks: `first_change`, then the transaction's. The caller holds the inode's data lock where data
//! changes.

use crate::btree::{LiveTree, RootRecord, TreeEditor};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::errors::{Error, PathError, Result};
use crate::file::fs_info::FsInfo;
use crate::items::inode;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::xattr;
use crate::namespace::Place;
use crate::namespace::setattr::{self, SetAttributes};
use crate::transaction::{Handle, Start};
use papilio_format::items::inode::{InodeFlags, Timespec};
use papilio_format::items::root::RootFlags;
use papilio_format::{InodeNumber, TreeId, objectid};
use std::sync::Arc;

/// Items that a change of names touches, for the metadata reservation.
pub const NAME_ITEMS: u64 = 8;
/// Items that a change of a file's extents touches.
pub(crate) const EXTENT_ITEMS: u64 = 6;
/// Flushes of other files for one change that finds no space, at most: other writers may take what
/// a flush frees.
pub(super) const FLUSHES: u32 = 3;

impl FsInfo {
    /// Returns the counters of a subvolume that is about to change.
    pub fn numbers(&self, tree: TreeId) -> Result<Arc<SubvolumeNumbers>> {
        if let Some(numbers) = self.subvolumes.lock().get(&tree) {
            return Ok(Arc::clone(numbers));
        }
        // One thread at a time: once another one gets the counters, it may make orphans of its own.
        let _one = self.first_change.lock();
        if let Some(numbers) = self.subvolumes.lock().get(&tree) {
            return Ok(Arc::clone(numbers));
        }
        let numbers = Arc::new(SubvolumeNumbers::default());
        numbers.begin(&self.transactions()?.live().get(tree)?.tree())?;
        self.clean_orphans(tree)?;
        self.subvolumes.lock().insert(tree, Arc::clone(&numbers));
        Ok(numbers)
    }

    /// Deletes the orphans that earlier mounts left in the subvolume that paths start from.
    pub(crate) fn clean_root_orphans(&self) -> Result<()> {
        match self.check_changeable(self.root.tree) {
            Ok(()) => self.numbers(self.root.tree).map(drop),
            // Nobody changes a read-only subvolume.
            Err(_) => Ok(()),
        }
    }

    /// Runs `change` with an editor of a subvolume's tree, in a transaction.
    pub fn change_tree<'r, R>(
        &self,
        tree: TreeId,
        start: impl Into<Start<'r>>,
        mut change: impl FnMut(&mut TreeEditor<'_>, &SubvolumeNumbers, Timespec) -> Result<R>,
    ) -> Result<R> {
        self.change(tree, start, |handle, numbers| {
            let live = handle.live_tree(tree)?;
            change(&mut live.edit(handle), numbers, handle.now())
        })
    }

    /// Changes mode, owner and times of an inode.
    pub fn set_attributes(&self, place: Place, set: &SetAttributes) -> Result<()> {
        self.check_changeable(place.tree)?;
        self.store_attributes(place, set)
    }

    /// As [`FsInfo::set_attributes`], also in a subvolume that has become read-only.
    pub fn store_attributes(&self, place: Place, set: &SetAttributes) -> Result<()> {
        self.change_attributes(place, set.mtime.is_some(), |editor, now| {
            setattr::set_attributes(editor, now, place.inode, set).map(drop)
        })
    }

    /// Clears privileges of a file, as [`setattr::kill_privileges`].
    pub fn kill_privileges(&self, place: Place, kept: u32) -> Result<()> {
        self.check_changeable(place.tree)?;
        self.change_attributes(place, false, |editor, now| {
            setattr::kill_privileges(editor, now, place.inode, kept)
        })
    }

    fn change_attributes(
        &self,
        place: Place,
        sets_mtime: bool,
        mut set: impl FnMut(&mut TreeEditor<'_>, Timespec) -> Result<()>,
    ) -> Result<()> {
        let mut change = || {
            self.change(place.tree, Start::items(NAME_ITEMS).accepted(), |handle, _| {
                let live = handle.live_tree(place.tree)?;
                set(&mut live.edit(handle), handle.now())
            })
        };
        // A flush publishes the times of the writes that it publishes. None may run meanwhile, nor
        // publish older times afterwards.
        let Some(open) = self.dirty_inodes.get(place) else { return change() };
        let _exclusive = open.data.write();
        change()?;
        open.times_were_set(sets_mtime);
        Ok(())
    }

    /// Runs `change` in a transaction, on the terms of `start`: the one entry for changes of names,
    /// inodes and data.
    ///
    /// - Where there is no space, it tries again after flushes of other files.
    /// - A change that was not accepted before is refused in a read-only subvolume.
    ///
    /// # Errors
    /// As [`Transactions::change`]; [`PathError::ReadOnly`]; [`PathError::NoSubvolume`].
    pub fn change<'r, R>(
        &self,
        tree: TreeId,
        start: impl Into<Start<'r>>,
        mut change: impl FnMut(&Handle<'_>, &SubvolumeNumbers) -> Result<R>,
    ) -> Result<R> {
        let start: Start<'_> = start.into();
        let transactions = self.transactions()?;
        match start.accepted {
            true => drop(self.check_usable(tree)?),
            false => self.check_changeable(tree)?,
        }
        let numbers = self.numbers(tree)?;
        self.retry_after_flushes(|| transactions.change(start, |handle| change(handle, &numbers)))
    }

    /// Runs `attempt`, and again after flushes of other files where it found no space: much more is
    /// reserved for dirty files than they take. The caller holds no handle.
    ///
    /// # Errors
    /// Those of `attempt`.
    pub(crate) fn retry_after_flushes<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let mut flushes = 0;
        loop {
            match attempt() {
                Err(Error::NoSpace { .. }) if flushes < FLUSHES && self.free_by_flushing() => flushes += 1,
                result => return result,
            }
        }
    }

    /// Announces a change of a subvolume by `data` bytes of data and about `items` items, if the
    /// limits of its qgroups allow it. Where they seem not to, flushes and commits, so that the
    /// numbers are exact, and asks once more. The caller holds no lock.
    ///
    /// # Errors
    /// [`QuotaError::Exceeded`](crate::QuotaError::Exceeded); errors of the flush and the commit.
    pub fn charge(&self, tree: TreeId, data: u64, items: u64) -> Result<()> {
        let transactions = self.transactions()?;
        let quotas = transactions.quotas();
        if !quotas.is_limited() {
            return Ok(());
        }
        let metadata = items.saturating_mul(transactions.node_size());
        if let Err(error) = quotas.announce(tree, data, metadata) {
            tracing::debug!("{error}: flushing first");
            let before = quotas.announced();
            // A file that cannot be written back fails its own writers.
            let _ = self.flush_all();
            transactions.commit()?;
            quotas.settle(&before);
            return quotas.announce(tree, data, metadata);
        }
        Ok(())
    }

    /// Refuses a subvolume that is read-only, or that was deleted and is not held for inodes in
    /// use.
    pub fn check_changeable(&self, tree: TreeId) -> Result<()> {
        let live = self.check_usable(tree)?;
        let read_only = |record: &RootRecord| record.item.flags.contains(RootFlags::RDONLY);
        match live.with_record(read_only) {
            Some(true) => Err(Error::path(format!("subvolume {tree}").as_bytes(), PathError::ReadOnly)),
            _ => Ok(()),
        }
    }

    /// Refuses a subvolume that was deleted and is not held for inodes in use, and returns any
    /// other.
    pub(super) fn check_usable(&self, tree: TreeId) -> Result<Arc<LiveTree>> {
        let live = self.transactions()?.live().find(tree)?;
        live.filter(|live| live.is_usable() && objectid::is_subvolume(tree))
            .ok_or_else(|| Error::path(format!("subvolume {tree}").as_bytes(), PathError::NoSubvolume))
    }

    /// Runs `change` on a file's data, in a transaction. The caller has checked that the file may
    /// change.
    ///
    /// # Errors
    /// As [`FsInfo::change`] and [`FsInfo::edit_data`].
    pub(crate) fn change_data<'r, R>(
        &self,
        place: Place,
        start: impl Into<Start<'r>>,
        mut change: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.change(place.tree, start.into().accepted(), |handle, _| {
            self.edit_data(handle, place, |context, file| change(context, file))
        })
    }

    /// Runs `change` on a file's data, in the transaction of `handle`. The caller has the file
    /// open.
    ///
    /// # Errors
    /// [`PathError::NotFound`] if the file was deleted before it was opened; errors of `change`.
    pub(crate) fn edit_data<R>(
        &self,
        handle: &Handle<'_>,
        place: Place,
        change: impl FnOnce(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.open_inodes.is_deleting(place) {
            return Err(not_found(place));
        }
        self.edit_data_of_deleted(handle, place, change)
    }

    /// As [`FsInfo::edit_data`], for the thread that deletes the file.
    pub(super) fn edit_data_of_deleted<R>(
        &self,
        handle: &Handle<'_>,
        place: Place,
        change: impl FnOnce(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        let live = handle.live_tree(place.tree)?;
        let checksum_tree = handle.live_tree(objectid::CSUM_TREE)?;
        let context =
            WriteContext { space: handle, checksum_tree: &checksum_tree, rules: self.write_rules() };
        change(&context, &mut self.file_edit(&live, place.inode)?)
    }

    /// Returns the file with number `inode` in `live`, its subvolume, as it is now.
    pub(super) fn file_edit<'t>(&self, live: &'t LiveTree, inode: InodeNumber) -> Result<FileEdit<'t>> {
        let tree = live.tree();
        let place = Place { tree: live.id(), inode };
        let item = inode::inode(&tree, inode)?.ok_or_else(|| not_found(place))?;
        let mut property = None;
        if item.flags.contains(InodeFlags::COMPRESS)
            && let Some(value) = xattr::get(&tree, inode, b"btrfs.compression")?
        {
            property = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        }
        Ok(FileEdit { tree: live, inode, item, property, touched: None })
    }

    /// Runs `attempt`, and again where it found no space: after a commit, and after other files
    /// flushed.
    pub(super) fn retry_for_space<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let transactions = self.transactions()?;
        self.retry_after_flushes(|| transactions.retry_after_commits(&mut attempt))
    }
}

fn not_found(place: Place) -> Error {
    Error::path(format!("subvolume {}, inode {}", place.tree, place.inode).as_bytes(), PathError::NotFound)
}

//! What every change of names, inodes and data goes through.
//!
//! Owns the way from a [`FileSystem`] to an editor of a subvolume's tree in a transaction, and the
//! deletion of inodes without names. Invariant: before the first change of a subvolume its orphans of
//! earlier mounts are cleaned up. Locks: those of the transaction; an inode's data lock is the caller's.

use crate::btree::TreeEditor;
use crate::data::file_edit::{FileEdit, WriteContext, WriteOptions};
use crate::data::truncate::{Progress, truncate_step};
use crate::errors::{Error, ErrorKind, PathError, Result};
use crate::fs::{FileSystem, Inode};
use crate::items::inode;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::xattr;
use crate::namespace::evict::{self, OrphanState};
use crate::namespace::{Handle as InodeHandle, Place};
use crate::options::CompressionChoice;
use crate::transaction::{Handle, Transactions};
use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
use papilio_format::items::root::RootFlags;
use papilio_format::{InodeNumber, TreeId, objectid};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Places in trees that a change of names touches.
pub(super) const NAME_ITEMS: u64 = 8;
/// And a change of a file's extents.
pub(super) const EXTENT_ITEMS: u64 = 6;

/// What is kept of subvolumes that were changed.
pub(crate) type Subvolumes = Mutex<HashMap<TreeId, Arc<SubvolumeNumbers>>>;

impl FileSystem {
    /// The transactions of a file system that is open for writing.
    pub(crate) fn transactions(&self) -> Result<&Arc<Transactions>> {
        self.mounted
            .trees
            .transactions()
            .ok_or_else(|| Error::ReadOnlyFileSystem { cause: "it was opened for reading only".to_owned() })
    }

    /// Counters of a subvolume that is about to change.
    pub(super) fn numbers(&self, tree: TreeId) -> Result<Arc<SubvolumeNumbers>> {
        if let Some(numbers) = self.mounted.subvolumes.lock().get(&tree) {
            return Ok(Arc::clone(numbers));
        }
        let numbers = Arc::new(SubvolumeNumbers::default());
        numbers.begin(&self.transactions()?.live().get(tree)?.tree())?;
        self.clean_orphans(tree)?;
        let mut subvolumes = self.mounted.subvolumes.lock();
        Ok(Arc::clone(subvolumes.entry(tree).or_insert(numbers)))
    }

    /// Changes a subvolume's tree in one go.
    pub(super) fn change_tree<R>(
        &self,
        tree: TreeId,
        items: u64,
        mut change: impl FnMut(&mut TreeEditor<'_>, &SubvolumeNumbers, Timespec) -> Result<R>,
    ) -> Result<R> {
        self.change_handle(tree, items, |handle, numbers| {
            let live = handle.live_tree(tree)?;
            change(&mut live.edit(handle), numbers, handle.now())
        })
    }

    /// Changes something of a subvolume.
    pub(super) fn change_handle<R>(
        &self,
        tree: TreeId,
        items: u64,
        mut change: impl FnMut(&Handle<'_>, &SubvolumeNumbers) -> Result<R>,
    ) -> Result<R> {
        let transactions = self.transactions()?;
        self.check_changeable(tree)?;
        let numbers = self.numbers(tree)?;
        match transactions.change(items, |handle| change(handle, &numbers)) {
            Err(Error::NoSpace { .. }) if self.make_room() => {
                transactions.change(items, |handle| change(handle, &numbers))
            }
            result => result,
        }
    }

    /// Changes something of a subvolume that frees space: it may use what is kept back, so that a full file
    /// system can be emptied.
    pub(super) fn change_to_free<R>(
        &self,
        tree: TreeId,
        items: u64,
        mut change: impl FnMut(&Handle<'_>, &SubvolumeNumbers) -> Result<R>,
    ) -> Result<R> {
        let transactions = self.transactions()?;
        self.check_changeable(tree)?;
        let numbers = self.numbers(tree)?;
        transactions.change_to_free(items, |handle| change(handle, &numbers))
    }

    /// Refuses a subvolume that is read-only or being deleted.
    pub(super) fn check_changeable(&self, tree: TreeId) -> Result<()> {
        let fail = |kind| Err(Error::path(format!("subvolume {tree}").as_bytes(), kind));
        let live = self.transactions()?.live().find(tree)?;
        match live.and_then(|live| live.record()).map(|record| record.item) {
            Some(item) if objectid::is_subvolume(tree) && item.refs > 0 => {
                if item.flags.contains(RootFlags::RDONLY) {
                    return fail(PathError::ReadOnly);
                }
            }
            _ => return fail(PathError::NoSubvolume),
        }
        Ok(())
    }

    /// Runs `change` on a file's data, in a transaction.
    pub(super) fn change_data<R>(
        &self,
        place: Place,
        items: u64,
        mut change: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.change_handle(place.tree, items, |handle, _| {
            self.edit_data(handle, place, |context, file| change(context, file))
        })
    }

    /// Runs `change` on a file's data, in the transaction of `handle`.
    pub(super) fn edit_data<R>(
        &self,
        handle: &Handle<'_>,
        place: Place,
        change: impl FnOnce(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        let live = handle.live_tree(place.tree)?;
        let sums = handle.live_tree(objectid::CSUM_TREE)?;
        let transactions = handle.transactions();
        let context = WriteContext {
            space: handle,
            volume: transactions.volume(),
            checksum_tree: &sums,
            options: &self.mounted.write_options,
        };
        let tree = live.tree();
        let item = inode::inode(&tree, place.inode)?.ok_or_else(|| not_found(place))?;
        let mut property = None;
        if item.flags.contains(InodeFlags::COMPRESS)
            && let Some(value) = xattr::get(&tree, place.inode, b"btrfs.compression")?
        {
            property = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        }
        drop(tree);
        change(&context, &mut FileEdit { tree: &live, inode: place.inode, item, property, touched: None })
    }

    /// Deletes an inode that has no name: its data in steps, then itself.
    pub(crate) fn evict(&self, place: Place) -> Result<()> {
        let transactions = self.transactions()?;
        let kind = {
            let subvolume = match self.mounted.trees.subvolume(place.tree) {
                // It went with its subvolume.
                Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => return Ok(()),
                subvolume => subvolume?,
            };
            let Some(item) = inode::inode(&subvolume.tree, place.inode)? else { return Ok(()) };
            if item.nlink > 0 {
                return Ok(());
            }
            item.kind()
        };
        if matches!(kind, Some(FileKind::Regular | FileKind::Symlink)) {
            loop {
                let progress = transactions.change_to_free(EXTENT_ITEMS, |handle| {
                    self.edit_data(handle, place, |context, file| truncate_step(context, file, 0))
                })?;
                if progress == Progress::Done {
                    break;
                }
            }
        }
        transactions.change_to_free(NAME_ITEMS, |handle| {
            let live = handle.live_tree(place.tree)?;
            evict::evict(&mut live.edit(handle), place.inode)
        })
    }

    /// Deletes what earlier mounts left without a name.
    fn clean_orphans(&self, tree: TreeId) -> Result<()> {
        let transactions = Arc::clone(self.transactions()?);
        let mut from = InodeNumber(0);
        loop {
            let now = transactions.live().get(tree)?.tree();
            let Some(orphan) = evict::next_orphan(&now, from)? else { return Ok(()) };
            drop(now);
            from = InodeNumber(orphan.inode.0.saturating_add(1));
            match orphan.state {
                OrphanState::Unnamed(_) => self.evict(Place { tree, inode: orphan.inode })?,
                OrphanState::Named | OrphanState::Gone => {
                    transactions.change_to_free(NAME_ITEMS, |handle| {
                        let live = handle.live_tree(tree)?;
                        evict::forget_orphan(&mut live.edit(handle), orphan.inode).map(drop)
                    })?;
                }
            }
        }
    }

    /// The inode at a place, as it is now.
    pub(super) fn reload(&self, place: Place) -> Result<Inode> {
        Ok(self.wrap(InodeHandle::open(&self.mounted.trees, place)?))
    }
}

/// How the options say that data is written.
pub(crate) fn write_options(options: &crate::OpenOptions) -> WriteOptions {
    let compression: Option<CompressionChoice> = options.compression;
    WriteOptions {
        max_inline: options.max_inline,
        compression,
        force_compression: options.force_compression,
        checksum: options.tuning.write_checksum,
    }
}

fn not_found(place: Place) -> Error {
    Error::path(format!("subvolume {}, inode {}", place.tree, place.inode).as_bytes(), PathError::NotFound)
}

//! Entries of logged directories, and how a replay adds and removes a name.
//!
//! Part of [`Replay`].
//!
//! **Invariants**
//! - A name is added or removed as a whole: both items of the directory, the inode's reference, and
//!   the directory's size.
//! - Every inode that gains or loses a name is recounted at the end.
//! - A directory keeps its logged times when names are added. When names are removed it gets the
//!   current time, as in the kernel.
//!
//! **Locks**: the tree's editor, for one change.
//!
//! Kernel counterparts: `replay_one_name`, `drop_one_dir_item`, `insert_one_name`
//! (`fs/btrfs/tree-log.c`).

use super::replay::Replay;
use super::replay_inodes::ReplayedEntry;
use crate::btree::{Item, Tree};
use crate::errors::{Error, Result};
use crate::items::dir_edit::{self, EntryValue, dir_index_key};
use crate::items::draft::edit;
use crate::items::inode_ref_edit::{self, Name, inode_ref_key};
use crate::items::{dir, inode_edit, item_error};
use papilio_format::items::dir_item::{DirEntry, FileType, dir_item_key};
use papilio_format::items::inode::InodeItem;
use papilio_format::items::inode_ref::{InodeExtref, InodeExtrefs, InodeRefs};
use papilio_format::{Corrupt, InodeNumber, ItemType, Key};

impl Replay<'_> {
    /// Adds an entry of a logged directory to the subvolume, unless the inode's references will.
    pub(super) fn replay_entry(&mut self, item: &Item) -> Result<()> {
        let log = self.log.clone();
        self.inode_of(&item.key)?;
        for entry in dir::entries_of(&log, item)? {
            self.replay_name(item, &entry)?;
        }
        Ok(())
    }

    fn replay_name(&mut self, item: &Item, entry: &DirEntry<'_>) -> Result<()> {
        let directory = InodeNumber(item.key.objectid);
        // Only commits add and remove subvolumes, so the entry exists, or its subvolume is gone
        // again.
        if entry.location.item_type != ItemType::INODE_ITEM {
            return Ok(());
        }
        let inode = InodeNumber(entry.location.objectid);
        let target = self.inode(inode)?;
        let Some(target) = target else { return Ok(()) };
        let by_name = self.entry_by_name(directory, entry.name)?;
        let is_there = by_name.as_ref().is_some_and(|found| found.location == entry.location);
        if let Some(other) = by_name.filter(|_| !is_there) {
            self.drop_entry(directory, &other)?;
        }
        // An inode's logged references add its names later, and move the entry where needed.
        if is_there || has_ref(&self.log, inode, directory, entry.name)? {
            return Ok(());
        }
        if let Some(other) = self.entry_by_index(directory, item.key.offset)? {
            self.drop_entry(directory, &other)?;
        }
        let file_type = file_type(&target, &item.key)?;
        self.link(directory, inode, item.key.offset, entry.name, file_type, true)?;
        if file_type != FileType::Directory {
            self.recount.insert(inode);
        }
        Ok(())
    }

    /// Finds the entry of a directory by its name.
    pub(super) fn entry_by_name(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<ReplayedEntry>> {
        let tree = self.live.tree();
        let Some(item) = tree.get(&dir_item_key(directory, name))? else { return Ok(None) };
        let found = dir::entries_of(&tree, &item)?.find(|entry| entry.name == name);
        Ok(found.map(|entry| ReplayedEntry { name: name.to_vec(), location: entry.location }))
    }

    /// Finds the entry of a directory by its index.
    pub(super) fn entry_by_index(&self, directory: InodeNumber, index: u64) -> Result<Option<ReplayedEntry>> {
        let tree = self.live.tree();
        let Some(item) = tree.get(&dir_index_key(directory, index))? else { return Ok(None) };
        let found = dir::entries_of(&tree, &item)?.next();
        Ok(found.map(|entry| ReplayedEntry { name: entry.name.to_vec(), location: entry.location }))
    }

    /// Removes an entry that contradicts the log.
    ///
    /// # Errors
    /// [`Error::Item`] for a subvolume's entry: only commits add and remove those.
    pub(super) fn drop_entry(&mut self, directory: InodeNumber, entry: &ReplayedEntry) -> Result<()> {
        if entry.location.item_type != ItemType::INODE_ITEM {
            let key = dir_item_key(directory, &entry.name);
            let reason = Corrupt::field(
                "directory entry",
                "location.objectid",
                entry.location.objectid,
                "a subvolume, which a log cannot remove",
            );
            return Err(Error::Item { tree: self.id(), key, reason });
        }
        self.unlink(directory, InodeNumber(entry.location.objectid), &entry.name)
    }

    /// Removes a name of an inode.
    pub(super) fn unlink(&mut self, directory: InodeNumber, inode: InodeNumber, name: &[u8]) -> Result<()> {
        let now = self.handle.now();
        edit(&mut self.live.edit(self.handle), |draft| {
            let index = inode_ref_edit::remove(draft, inode, &Name { parent: directory, name })?;
            dir_edit::remove(draft, directory, index, name)?;
            let parent = inode_edit::load(draft, directory)?;
            let size = parent.size.saturating_sub(size_of_name(name));
            inode_edit::store(draft, directory, &InodeItem { size, ..parent });
            let victim = inode_edit::load(draft, inode)?;
            inode_edit::store(draft, inode, &InodeItem { ctime: now, ..victim });
            Ok(())
        })?;
        self.recount.insert(inode);
        Ok(())
    }

    /// Adds a name that the directory does not have, under a free index. `with_ref` also adds the
    /// inode's reference to it.
    pub(super) fn link(
        &mut self,
        directory: InodeNumber,
        inode: InodeNumber,
        index: u64,
        name: &[u8],
        file_type: FileType,
        with_ref: bool,
    ) -> Result<()> {
        edit(&mut self.live.edit(self.handle), |draft| {
            dir_edit::insert(draft, directory, index, name, &EntryValue::inode(inode, file_type))?;
            if with_ref {
                inode_ref_edit::insert(draft, inode, &Name { parent: directory, name }, index)?;
            }
            let parent = inode_edit::load(draft, directory)?;
            let size = parent.size.saturating_add(size_of_name(name));
            inode_edit::store(draft, directory, &InodeItem { size, ..parent });
            Ok(())
        })
    }
}

/// Bytes that a name adds to its directory's size: it counts twice, once for each of its two items.
fn size_of_name(name: &[u8]) -> u64 {
    name.len() as u64 * 2
}

/// The file type that directory entries store for an inode.
pub(super) fn file_type(inode: &InodeItem, key: &Key) -> Result<FileType> {
    inode.kind().map(|kind| kind.file_type()).ok_or_else(|| {
        let reason = Corrupt::field("inode", "mode", inode.mode.into(), "not the mode of any kind of file");
        Error::Item { tree: papilio_format::objectid::TREE_LOG, key: *key, reason }
    })
}

/// Whether a tree has a reference of an inode to a name, plain or extended.
pub(super) fn has_ref(tree: &Tree, inode: InodeNumber, directory: InodeNumber, name: &[u8]) -> Result<bool> {
    if let Some(item) = tree.get(&inode_ref_key(inode, directory))? {
        let mut refs = InodeRefs::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        if refs.any(|entry| entry.name == name) {
            return Ok(true);
        }
    }
    has_extref(tree, inode, directory, name)
}

/// Whether a tree has an extended reference of an inode to a name.
pub(super) fn has_extref(
    tree: &Tree,
    inode: InodeNumber,
    directory: InodeNumber,
    name: &[u8],
) -> Result<bool> {
    let key = InodeExtref { parent: directory, index: 0, name }.key(inode);
    let Some(item) = tree.get(&key)? else { return Ok(false) };
    let mut refs = InodeExtrefs::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
    Ok(refs.any(|entry| entry.parent == directory && entry.name == name))
}

//! Inodes of a log: their items, and the parts that they no longer have.
//!
//! Part of [`Replay`]: inode items, removed attributes, extents past the end, and removed entries
//! of directories.
//!
//! **Invariants**
//! - An inode's `nbytes` and a directory's size stay those of the subvolume, and change as items
//!   are replayed.
//! - Generation 0 only states that the inode exists. Of such an inode, only a regular file's size
//!   counts, and only if it is not 0.
//!
//! **Locks**: the tree's editor.
//!
//! Kernel counterparts: `overwrite_item`, `replay_xattr_deletes`, `replay_dir_deletes`
//! (`fs/btrfs/tree-log.c`).

use super::dir_log_key;
use super::replay::Replay;
use crate::btree::Tree;
use crate::data::file_extents_edit::ExtentChanges;
use crate::data::stored_extents::StoredExtents;
use crate::errors::{Error, Result};
use crate::items::draft::edit;
use crate::items::{dir, item_error, xattr, xattr_edit};
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::dir_log::DirLogItem;
use papilio_format::items::inode::{FileKind, InodeItem, inode_key};
use papilio_format::{Corrupt, Generation, InodeNumber, Key};
use std::ops::RangeInclusive;

/// An entry of a directory in the subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplayedEntry {
    pub name: Vec<u8>,
    /// The key of the inode or subvolume that it names.
    pub(super) location: Key,
}

impl Replay<'_> {
    /// Replays a logged inode that had a name into the subvolume.
    pub(super) fn replay_inode(&mut self, number: InodeNumber, logged: &InodeItem) -> Result<()> {
        let old = self.inode(number)?;
        if let Some(old) = old
            && old.kind() != logged.kind()
        {
            let reason = Corrupt::field(
                "inode",
                "mode",
                logged.mode.into(),
                "the subvolume's inode is of another kind",
            );
            return Err(Error::Item { tree: self.log.id(), key: inode_key(number), reason });
        }
        self.remove_xattrs(number)?;
        if logged.kind() == Some(FileKind::Directory) && old.is_some() {
            self.remove_logged_deletions(number)?;
        }
        let item = self.merged_inode(number, logged)?;
        self.put(inode_key(number), &item.to_bytes())?;
        if logged.kind() == Some(FileKind::Regular) {
            // Done now, because the log may have preallocated extents past the end.
            self.drop_behind_end(number, item)?;
        }
        self.recount.insert(number);
        Ok(())
    }

    /// Merges the logged inode item with the subvolume's.
    fn merged_inode(&self, number: InodeNumber, logged: &InodeItem) -> Result<InodeItem> {
        let is_directory = logged.kind() == Some(FileKind::Directory);
        // Read again, because entries were removed.
        Ok(match self.inode(number)? {
            None => InodeItem {
                nbytes: 0,
                size: if is_directory { 0 } else { logged.size },
                generation: match logged.generation {
                    Generation(0) => self.handle.generation(),
                    known => known,
                },
                ..*logged
            },
            Some(old) if logged.generation == Generation(0) => {
                let sized = logged.kind() == Some(FileKind::Regular) && logged.size != 0;
                InodeItem { size: if sized { logged.size } else { old.size }, ..old }
            }
            Some(old) => InodeItem {
                nbytes: old.nbytes,
                size: if is_directory { old.size } else { logged.size },
                ..*logged
            },
        })
    }

    /// Removes attributes that the log does not have: it has all of an inode's attributes.
    fn remove_xattrs(&self, number: InodeNumber) -> Result<()> {
        let mut gone = Vec::new();
        for attribute in xattr::list(&self.live.tree(), number)? {
            if xattr::get(&self.log, number, &attribute.name)?.is_none() {
                gone.push(attribute.name);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        edit(&mut self.live.edit(self.handle), |draft| {
            gone.iter().try_for_each(|name| xattr_edit::remove(draft, number, name).map(drop))
        })
    }

    /// Drops the extents of a file past its end.
    fn drop_behind_end(&self, number: InodeNumber, item: InodeItem) -> Result<()> {
        let tree = self.live.tree();
        let sector_size = self.geometry.sector_size;
        let end = item.size.next_multiple_of(sector_size.into());
        if StoredExtents::new(&tree, number, sector_size, end, u64::MAX).next().transpose()?.is_none() {
            return Ok(());
        }
        let mut changes = ExtentChanges::new(self.id(), number, &self.geometry, self.handle.generation());
        changes.drop_range(&tree, end, u64::MAX, usize::MAX)?;
        drop(tree);
        changes.publish(&self.live, self.handle, item).map(drop)
    }

    /// Unlinks a directory's entries that lie in a logged range and are not in the log.
    fn remove_logged_deletions(&mut self, directory: InodeNumber) -> Result<()> {
        let log = self.log.clone();
        for range in log.range(dir_log_key(directory, 0)..=dir_log_key(directory, u64::MAX)) {
            let range = range?;
            let logged =
                DirLogItem::parse(range.data()).map_err(|reason| item_error(&log, &range, reason))?;
            for (key, entry) in self.entries(directory, range.key.offset..=logged.end)? {
                if !has_entry(&log, &key, &entry.name)? {
                    self.drop_entry(directory, &entry)?;
                }
            }
        }
        Ok(())
    }

    /// The entries of a directory in the subvolume with an index in `range`.
    pub(super) fn entries(
        &self,
        directory: InodeNumber,
        range: RangeInclusive<u64>,
    ) -> Result<Vec<(Key, ReplayedEntry)>> {
        let tree = self.live.tree();
        let keys =
            dir::index_first_key(directory, *range.start())..=dir::index_first_key(directory, *range.end());
        let mut entries = Vec::new();
        for item in tree.range(keys) {
            let item = item?;
            for entry in dir::entries_of(&tree, &item)? {
                entries
                    .push((item.key, ReplayedEntry { name: entry.name.to_vec(), location: entry.location }));
            }
        }
        Ok(entries)
    }
}

/// Whether a tree has an entry with this key and name.
pub(super) fn has_entry(tree: &Tree, key: &Key, name: &[u8]) -> Result<bool> {
    let Some(item) = tree.get(key)? else { return Ok(false) };
    let mut entries = DirEntries::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
    Ok(entries.any(|entry| entry.name == name))
}

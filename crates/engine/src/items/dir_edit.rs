//! Changes of directory entries.
//!
//! A name is stored in two items: in the DIR_ITEM of its hash, beside other names of that hash, and
//! in the DIR_INDEX of its index, alone.
//!
//! **Invariant**: both items are added and removed together.
//!
//! Kernel counterparts: `btrfs_insert_dir_item`, `btrfs_check_dir_item_collision`,
//! `btrfs_delete_one_dir_name` (`fs/btrfs/dir-item.c`), `btrfs_set_inode_index_count`
//! (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::errors::{Error, PathError, Result};
use crate::items::draft::Draft;
use crate::items::packed_edit::{place_of, with, without};
use crate::items::{dir, item_error};
use papilio_format::items::dir_item::{DirEntries, DirEntry, FileType, dir_item_key};
use papilio_format::items::inode::inode_key;
use papilio_format::{Corrupt, InodeNumber, ItemType, Key, TreeId};

/// The first index in a directory; 0 and 1 stand for `.` and `..` (`BTRFS_DIR_START_INDEX`).
pub(crate) const FIRST_INDEX: u64 = 2;

/// The target of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryValue {
    /// The key of the inode, or of the subvolume's root.
    pub(crate) location: Key,
    /// The target's file type.
    pub(crate) file_type: FileType,
}

impl EntryValue {
    /// An entry that names an inode of the same tree.
    pub(crate) fn inode(number: InodeNumber, file_type: FileType) -> Self {
        Self { location: inode_key(number), file_type }
    }

    /// An entry that names a subvolume. No reader looks at the offset of its location. Kernels
    /// write 0 where they create a subvolume, `u64::MAX` for a snapshot, and the offset of the root
    /// item's key where they move either.
    pub(crate) fn subvolume(id: TreeId, offset: u64) -> Self {
        let location = Key::new(id.0, ItemType::ROOT_ITEM, offset);
        Self { location, file_type: FileType::Directory }
    }
}

/// The key of an entry's DIR_INDEX.
pub(crate) fn dir_index_key(directory: InodeNumber, index: u64) -> Key {
    Key::new(directory.0, ItemType::DIR_INDEX, index)
}

/// Finds the entry `name`; `None` if there is none.
///
/// # Errors
/// A tree block that cannot be read, or an item that cannot be parsed.
pub(crate) fn find(draft: &mut Draft<'_>, directory: InodeNumber, name: &[u8]) -> Result<Option<EntryValue>> {
    let key = dir_item_key(directory, name);
    let found = match draft.get(&key)? {
        None => Ok(None),
        Some(data) => DirEntries::parse(data).map(|mut entries| {
            let entry = entries.find(|entry| entry.name == name)?;
            Some(EntryValue { location: entry.location, file_type: entry.file_type })
        }),
    };
    found.map_err(|reason| draft.fault(key, reason))
}

/// Adds an entry under a free index.
///
/// # Errors
/// [`PathError::Exists`]; [`PathError::HashOverflow`] if the names of one hash would exceed a leaf;
/// errors of reading.
pub(crate) fn insert(
    draft: &mut Draft<'_>,
    directory: InodeNumber,
    index: u64,
    name: &[u8],
    value: &EntryValue,
) -> Result<()> {
    let entry = DirEntry {
        location: value.location,
        transid: draft.generation(),
        file_type: value.file_type,
        encrypted: false,
        name,
        data: &[],
    };
    let key = dir_item_key(directory, name);
    let limit = draft.max_item_size();
    let collided = match draft.get(&key)? {
        None => None,
        Some(data) => {
            let there = DirEntries::parse(data).map(|mut entries| entries.any(|entry| entry.name == name));
            match there {
                Err(reason) => return Err(draft.fault(key, reason)),
                Ok(true) => return Err(Error::path(name, PathError::Exists)),
                Ok(false) if data.len() + entry.size_on_disk() > limit => {
                    return Err(Error::path(name, PathError::HashOverflow));
                }
                Ok(false) => Some(with(data, entry.size_on_disk(), |bytes| entry.append_to(bytes))),
            }
        }
    };
    match collided {
        Some(data) => draft.replace(key, data),
        None => draft.insert(key, entry.to_bytes()),
    }
    draft.insert(dir_index_key(directory, index), entry.to_bytes());
    Ok(())
}

/// Removes the entry `name`, whose index is `index`.
///
/// # Errors
/// [`Error::MissingItem`] if either item is missing; [`Error::Item`] if they differ; errors of
/// reading.
pub(crate) fn remove(draft: &mut Draft<'_>, directory: InodeNumber, index: u64, name: &[u8]) -> Result<()> {
    let index_key = dir_index_key(directory, index);
    let by_index = match draft.get(&index_key)? {
        None => return Err(draft.missing(index_key, "a directory entry by its index")),
        Some(data) => DirEntries::parse(data).map(|mut entries| entries.any(|entry| entry.name == name)),
    };
    match by_index {
        Ok(true) => {}
        Ok(false) => {
            let reason = Corrupt::field("directory entry", "index", index, "the entry has another name");
            return Err(draft.fault(index_key, reason));
        }
        Err(reason) => return Err(draft.fault(index_key, reason)),
    }
    let key = dir_item_key(directory, name);
    let missing = || "a directory entry by its name";
    let rest = match draft.get(&key)? {
        None => return Err(draft.missing(key, missing())),
        Some(data) => DirEntries::parse(data).map(|entries| {
            let (place, _) = place_of(entries, DirEntry::size_on_disk, |entry| entry.name == name)?;
            Some(without(data, &place))
        }),
    };
    match rest.map_err(|reason| draft.fault(key, reason))? {
        None => return Err(draft.missing(key, missing())),
        Some(None) => draft.remove(key),
        Some(Some(rest)) => draft.replace(key, rest),
    }
    draft.remove(index_key);
    Ok(())
}

/// The index for a directory's next entry: one more than the largest, and at least [`FIRST_INDEX`].
///
/// # Errors
/// A tree block that cannot be read; [`Error::Item`] if the largest index leaves no next one.
pub(crate) fn next_index(tree: &Tree, directory: InodeNumber) -> Result<u64> {
    let last = tree.last_up_to(&dir::index_last_key(directory))?;
    let Some(last) =
        last.filter(|item| item.key.objectid == directory.0 && item.key.item_type == ItemType::DIR_INDEX)
    else {
        return Ok(FIRST_INDEX);
    };
    match last.key.offset.checked_add(1) {
        // `u64::MAX` stands for "none" elsewhere.
        Some(next) if next < u64::MAX => Ok(next.max(FIRST_INDEX)),
        _ => {
            let reason = Corrupt::field("directory entry", "index", last.key.offset, "leaves no next one");
            Err(item_error(tree, &last, reason))
        }
    }
}

/// Finds the index of the entry `name` by scanning all entries. For targets without a back
/// reference in this tree.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn index_of(tree: &Tree, directory: InodeNumber, name: &[u8]) -> Result<Option<u64>> {
    let range = dir::index_first_key(directory, 0)..=dir::index_last_key(directory);
    for item in tree.range(range) {
        let item = item?;
        if dir::entries_of(tree, &item)?.any(|entry| entry.name == name) {
            return Ok(Some(item.key.offset));
        }
    }
    Ok(None)
}

/// Whether the tree has no entry of a directory, by name or by index.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn is_empty(draft: &mut Draft<'_>, directory: InodeNumber) -> Result<bool> {
    let next = draft.next_key(&Key::new(directory.0, ItemType::DIR_ITEM, 0))?;
    Ok(next.is_none_or(|key| key > dir::index_last_key(directory)))
}

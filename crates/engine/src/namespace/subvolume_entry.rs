//! Directory entries that name subvolumes.
//!
//! The back reference of such an entry is in the root tree (ROOT_BACKREF) instead of the inode. The
//! layer that creates and deletes subvolumes maintains it.
//!
//! Kernel counterparts: `btrfs_add_link`, `btrfs_unlink_subvol` (`fs/btrfs/inode.c`).

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::dir::EntryTarget;
use crate::items::dir_edit::{self, EntryValue};
use crate::items::draft::{Draft, edit};
use crate::items::numbers::SubvolumeNumbers;
use crate::namespace::names::{Directory, check_name};
use papilio_format::items::inode::Timespec;
use papilio_format::{InodeNumber, TreeId};

/// Adds an entry for a subvolume to a directory of this tree, whose `sequence` counts so many
/// changes. Returns the entry's index.
///
/// # Errors
/// [`PathError::InvalidName`], [`PathError::NameTooLong`], [`PathError::Exists`],
/// [`PathError::HashOverflow`]; errors of [`Directory::to_add`] for the directory; errors of
/// reading and changing the tree.
pub(crate) fn insert_subvolume_entry(
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
    (subvolume, changes): (EntryValue, u64),
) -> Result<u64> {
    check_name(name)?;
    edit(editor, |draft| {
        let mut parent = Directory::to_add(draft, directory, name)?;
        let index = numbers.index(draft.tree(), directory)?;
        dir_edit::insert(draft, directory, index, name, &subvolume)?;
        parent.grow(name);
        parent.store_changes(draft, now, changes);
        Ok(index)
    })
}

/// Removes the entry of a subvolume and returns its index. The caller passes `index` if it knows it
/// from the root tree; otherwise the directory is searched for it. The directory's `sequence`
/// counts so many changes.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NoSubvolume`] for an entry that names something else;
/// errors of [`Directory::to_remove`] for the directory; errors of reading and changing the tree.
pub(crate) fn remove_subvolume_entry(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
    (subvolume, index): (TreeId, Option<u64>),
    changes: u64,
) -> Result<u64> {
    edit(editor, |draft| {
        let mut parent = Directory::to_remove(draft, directory, name)?;
        let Some(value) = dir_edit::find(draft, directory, name)? else {
            return Err(Error::path(name, PathError::NotFound));
        };
        // The location's offset is `u64::MAX` or that of the root item, depending on the kernel.
        if EntryTarget::of(&value.location) != EntryTarget::Subvolume(subvolume) {
            return Err(Error::path(name, PathError::NoSubvolume));
        }
        let index = match index {
            Some(index) => index,
            None => dir_edit::index_of(draft.tree(), directory, name)?.ok_or_else(|| {
                let key = dir_edit::dir_index_key(directory, 0);
                draft.missing(key, "a subvolume's directory entry by its index")
            })?,
        };
        dir_edit::remove(draft, directory, index, name)?;
        parent.shrink(name);
        parent.store_changes(draft, now, changes);
        Ok(index)
    })
}

/// Checks that [`insert_subvolume_entry`] would succeed, before changes that depend on it.
///
/// # Errors
/// As [`insert_subvolume_entry`].
pub(crate) fn check_subvolume_entry(
    editor: &TreeEditor<'_>,
    directory: InodeNumber,
    name: &[u8],
    subvolume: TreeId,
) -> Result<()> {
    check_name(name)?;
    let tree = editor.tree();
    let mut draft = Draft::new(editor, &tree);
    Directory::to_add(&mut draft, directory, name)?;
    // The index and the offset do not matter, because the draft is discarded.
    let value = EntryValue::subvolume(subvolume, 0);
    dir_edit::insert(&mut draft, directory, dir_edit::FIRST_INDEX, name, &value)
}

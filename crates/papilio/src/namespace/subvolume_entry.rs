//! Directory entries that name subvolumes.
//!
//! Such an entry has its back reference in the root tree (ROOT_BACKREF), not in the inode; the layer that
//! makes and deletes subvolumes keeps that one. Kernel counterparts: `btrfs_add_link`,
//! `btrfs_unlink_subvol` (`fs/btrfs/inode.c`).

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::dir::EntryTarget;
use crate::items::dir_edit::{self, EntryValue};
use crate::items::draft::{Draft, edit};
use crate::items::numbers::SubvolumeNumbers;
use crate::namespace::names::{Directory, check_name};
use papilio_format::items::inode::Timespec;
use papilio_format::{InodeNumber, TreeId};

/// Names a subvolume in a directory of this tree and returns the entry's index.
///
/// # Errors
/// [`PathError::InvalidName`], [`PathError::NameTooLong`], [`PathError::Exists`],
/// [`PathError::HashOverflow`]; what [`Directory::to_add`] says of the directory; or what reading and
/// changing the tree says.
pub(crate) fn insert_subvolume_entry(
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
    subvolume: TreeId,
) -> Result<u64> {
    check_name(name)?;
    edit(editor, |draft| {
        let mut parent = Directory::to_add(draft, directory, name)?;
        let index = numbers.index(draft.tree(), directory)?;
        dir_edit::insert(draft, directory, index, name, &EntryValue::subvolume(subvolume))?;
        parent.grow(name);
        parent.store(draft, now);
        Ok(index)
    })
}

/// Takes the name of a subvolume away and returns the index that the entry had: `index` where the caller
/// knows it from the root tree, else it is searched for.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NoSubvolume`] for an entry that names something else; what
/// [`Directory::to_remove`] says of the directory; or what reading and changing the tree says.
pub(crate) fn remove_subvolume_entry(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
    subvolume: TreeId,
    index: Option<u64>,
) -> Result<u64> {
    edit(editor, |draft| {
        let mut parent = Directory::to_remove(draft, directory, name)?;
        let Some(value) = dir_edit::find(draft, directory, name)? else {
            return Err(Error::path(name, PathError::NotFound));
        };
        // The offset of the location is u64::MAX, or that of the root item: kernels differ.
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
        parent.store(draft, now);
        Ok(index)
    })
}

/// Whether [`insert_subvolume_entry`] would succeed: for changes that come before it and must not be made
/// in vain.
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
    // The index does not matter: the draft is thrown away.
    dir_edit::insert(&mut draft, directory, dir_edit::FIRST_INDEX, name, &EntryValue::subvolume(subvolume))
}

//! Adding and removing names of an inode.
//!
//! **Invariants**
//! - An inode's link count is the number of its references.
//! - An inode that loses its last name becomes an orphan in the same change, so that clean-up finds
//!   it after a crash.
//!
//! Kernel counterparts: `btrfs_link`, `btrfs_unlink`, `btrfs_rmdir`, `__btrfs_unlink_inode`
//! (`fs/btrfs/inode.c`).

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::dir_edit::EntryValue;
use crate::items::draft::{Draft, edit};
use crate::items::inode_ref_edit::Name;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::{dir_edit, inode_edit, inode_ref_edit, orphan};
use crate::namespace::names::{Directory, check_changeable, check_name};
use papilio_format::items::inode::{FileKind, InodeItem, Timespec, inode_key};
use papilio_format::{Corrupt, InodeNumber, ItemType};

/// The most names that an inode can have (`BTRFS_LINK_MAX`).
pub(crate) const LINK_MAX: u32 = 65535;

/// A name that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode that had the name.
    pub inode: InodeNumber,
    /// The inode's item after the change.
    pub item: InodeItem,
    /// The index that the entry had in its directory.
    pub(crate) index: u64,
}

impl Removed {
    /// Whether it was the last name. The inode is then an orphan, to be removed once it is no
    /// longer open.
    pub fn is_last(&self) -> bool {
        self.item.nlink == 0
    }
}

/// Adds a name to an inode of this tree and returns the inode's item. Only an inode created without
/// a name (`unnamed`) may have none so far.
///
/// # Errors
/// - [`PathError::InvalidName`], [`PathError::NameTooLong`], [`PathError::Exists`];
/// - errors of [`Directory::to_add`] for the directory;
/// - [`PathError::NotPermitted`] for a directory, or an immutable or append-only inode;
/// - [`PathError::NotFound`] for an inode that lost its last name;
/// - [`PathError::TooManyLinks`] at 65,535, or earlier without extended references;
/// - [`PathError::HashOverflow`]; errors of reading and changing the tree.
pub fn link(
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    now: Timespec,
    inode: InodeNumber,
    unnamed: bool,
    directory: InodeNumber,
    name: &[u8],
) -> Result<InodeItem> {
    check_name(name)?;
    edit(editor, |draft| {
        let refuse = |kind| Err(Error::path(name, kind));
        let mut item = inode_edit::load(draft, inode)?;
        let kind = match item.kind() {
            None | Some(FileKind::Directory) => return refuse(PathError::NotPermitted),
            Some(kind) => kind,
        };
        check_changeable(&item, name)?;
        if item.nlink == 0 && !unnamed {
            return refuse(PathError::NotFound);
        }
        if item.nlink >= LINK_MAX {
            return refuse(PathError::TooManyLinks);
        }
        let mut parent = Directory::to_add(draft, directory, name)?;
        let index = numbers.index(draft.tree(), directory)?;
        let value = EntryValue::inode(inode, kind.file_type());
        dir_edit::insert(draft, directory, index, name, &value)?;
        inode_ref_edit::insert(draft, inode, &Name { parent: directory, name }, index)?;
        if item.nlink == 0 {
            orphan::remove(draft, inode)?;
        }
        item.nlink += 1;
        item.ctime = now;
        inode_edit::store(draft, inode, &item);
        parent.grow(name);
        parent.store(draft, now);
        Ok(item)
    })
}

/// Removes a name of an inode that is not a directory.
///
/// # Errors
/// - [`PathError::InvalidName`], [`PathError::NameTooLong`], [`PathError::NotFound`];
/// - [`PathError::IsADirectory`], also for a subvolume;
/// - errors of [`Directory::to_remove`] for the directory, and [`PathError::NotPermitted`] for an
///   immutable or append-only inode;
/// - errors of reading and changing the tree.
pub fn unlink(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
) -> Result<Removed> {
    remove_name(editor, now, directory, name, false)
}

/// Removes the name of an empty directory.
///
/// # Errors
/// As [`unlink`], but [`PathError::NotADirectory`] for another kind, [`PathError::NotEmpty`] for a
/// directory with entries, and [`PathError::IsASubvolume`] for a subvolume, which only its deletion
/// removes.
pub fn rmdir(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
) -> Result<Removed> {
    remove_name(editor, now, directory, name, true)
}

fn remove_name(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
    want_directory: bool,
) -> Result<Removed> {
    check_name(name)?;
    edit(editor, |draft| {
        let refuse = |kind| Err(Error::path(name, kind));
        let mut parent = Directory::to_remove(draft, directory, name)?;
        let Some(value) = dir_edit::find(draft, directory, name)? else {
            return refuse(PathError::NotFound);
        };
        if value.location.item_type == ItemType::ROOT_ITEM {
            return refuse(if want_directory { PathError::IsASubvolume } else { PathError::IsADirectory });
        }
        let inode = InodeNumber(value.location.objectid);
        let item = inode_edit::load(draft, inode)?;
        match (item.kind() == Some(FileKind::Directory), want_directory) {
            (true, false) => return refuse(PathError::IsADirectory),
            (false, true) => return refuse(PathError::NotADirectory),
            _ => {}
        }
        let removed = drop_name(draft, now, &Name { parent: directory, name }, (inode, item), 1)?;
        parent.shrink(name);
        parent.store(draft, now);
        Ok(removed)
    })
}

/// Removes a name of `inode`, whose `sequence` counts so many changes, and leaves the parent
/// directory's own item to the caller.
///
/// # Errors
/// As [`rmdir`] for a directory, as [`unlink`] for other kinds.
pub(super) fn drop_name(
    draft: &mut Draft<'_>,
    now: Timespec,
    name: &Name<'_>,
    (inode, mut item): (InodeNumber, InodeItem),
    changes: u64,
) -> Result<Removed> {
    check_changeable(&item, name.name)?;
    let is_directory = item.kind() == Some(FileKind::Directory);
    if is_directory && !dir_edit::is_empty(draft, inode)? {
        return Err(Error::path(name.name, PathError::NotEmpty));
    }
    let Some(nlink) = item.nlink.checked_sub(1) else {
        let reason = Corrupt::field("inode", "nlink", 0, "the inode still has a name");
        return Err(draft.fault(inode_key(inode), reason));
    };
    let index = inode_ref_edit::remove(draft, inode, name)?;
    dir_edit::remove(draft, name.parent, index, name.name)?;
    item.nlink = nlink;
    item.ctime = now;
    if is_directory {
        item.size = 0;
    }
    inode_edit::store_changes(draft, inode, &item, changes);
    if nlink == 0 {
        orphan::insert(draft, inode)?;
    }
    Ok(Removed { inode, item, index })
}

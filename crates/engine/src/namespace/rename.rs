//! Renaming: moving a name, possibly over another one, and exchanging two names.
//!
//! **Invariant**: a rename is one change, so that a crash leaves either the old name or the new
//! one.
//!
//! A rename counts as several changes in the `sequence` of inodes. It counts itself once for each
//! directory it names and for each inode, then the removal and the addition of each name.
//!
//! Kernel counterparts: `btrfs_rename`, `btrfs_rename_exchange` (`fs/btrfs/inode.c`); `vfs_rename`,
//! `do_renameat2` (`fs/namei.c`) for the rules of replacement.

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::dir::EntryTarget;
use crate::items::dir_edit::EntryValue;
use crate::items::draft::{Draft, edit};
use crate::items::inode_ref_edit::Name;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::{dir_edit, inode_edit, inode_ref_edit};
use crate::namespace::link::{self, Removed};
use crate::namespace::names::{Directory, check_changeable, check_name};
use papilio_format::items::dir_item::FileType;
use papilio_format::items::inode::{InodeFlags, Timespec};
use papilio_format::{Corrupt, InodeNumber, TreeId};

/// The changes that a rename counts for an inode that loses or gets one name: itself, and the name.
pub(crate) const CHANGES: u64 = 2;

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum RenameMode {
    /// Replaces the target.
    #[default]
    Replace,
    /// Fails if the target exists (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges both names; the target must exist (`RENAME_EXCHANGE`).
    Exchange,
}

/// A moved subvolume's entry. The caller updates the root tree's references to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedSubvolume {
    /// The subvolume.
    pub id: TreeId,
    /// The index that the entry had.
    pub(crate) old_index: u64,
    /// The index that the entry has now.
    pub new_index: u64,
}

/// The effects of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Renamed {
    /// Set if the source is a subvolume.
    pub subvolume: Option<MovedSubvolume>,
    /// Set if the target of an exchange is a subvolume.
    pub exchanged_subvolume: Option<MovedSubvolume>,
    /// The replaced name and its inode.
    pub replaced: Option<Removed>,
}

/// Renames `from` to `to`, both in this tree. Two names of one inode stay as they are.
///
/// # Errors
/// - [`PathError::InvalidName`], [`PathError::NameTooLong`]; [`PathError::NotFound`] without a
///   source, or without a target to exchange;
/// - [`PathError::Exists`] for a target that must not be replaced;
/// - [`PathError::IntoItself`] for a directory that would end up below itself;
/// - [`PathError::IsADirectory`], [`PathError::NotADirectory`], [`PathError::NotEmpty`] if the
///   target cannot be replaced, which a subvolume never can;
/// - errors of [`Directory::to_remove`] for either directory, and [`PathError::NotPermitted`] for
///   an immutable or append-only inode;
/// - [`PathError::HashOverflow`], [`PathError::TooManyLinks`]; errors of reading and changing the
///   tree.
pub fn rename(
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    now: Timespec,
    from: Name<'_>,
    to: Name<'_>,
    mode: RenameMode,
) -> Result<Renamed> {
    check_name(from.name)?;
    check_name(to.name)?;
    edit(editor, |draft| {
        let mut directories = Directories::load(draft, &from, &to, mode)?;
        let Some(source) = dir_edit::find(draft, from.parent, from.name)? else {
            return Err(Error::path(from.name, PathError::NotFound));
        };
        let target = dir_edit::find(draft, to.parent, to.name)?;
        let refuse = |kind| Err(Error::path(to.name, kind));
        match (&target, mode) {
            (Some(_), RenameMode::NoReplace) => return refuse(PathError::Exists),
            (None, RenameMode::Exchange) => return refuse(PathError::NotFound),
            _ => {}
        }
        check_ancestors(draft, &from, &to, &source, target.as_ref(), mode)?;
        let mut renamed = Renamed::default();
        match target {
            Some(target) if target.location == source.location => return Ok(renamed),
            Some(target) if mode == RenameMode::Exchange => {
                directories.from_changes += 1;
                directories.to_changes += 1;
                let old = take(draft, &from, &source)?;
                let other_old = take(draft, &to, &target)?;
                renamed.subvolume = put(draft, numbers, &to, &source, old)?;
                renamed.exchanged_subvolume = put(draft, numbers, &from, &target, other_old)?;
                touch(draft, now, &to, &target)?;
            }
            _ => {
                match target {
                    Some(target) => {
                        renamed.replaced = Some(replace(draft, now, &to, &source, &target)?);
                        directories.to_changes += 1;
                    }
                    None => directories.to().grow(to.name),
                }
                let old = take(draft, &from, &source)?;
                renamed.subvolume = put(draft, numbers, &to, &source, old)?;
                directories.from.shrink(from.name);
            }
        }
        touch(draft, now, &from, &source)?;
        directories.store(draft, now);
        Ok(renamed)
    })
}

/// The source and target directories of a rename.
struct Directories {
    /// `None` if both are the same.
    from: Directory,
    to: Option<Directory>,
    /// The changes that each counts.
    from_changes: u64,
    to_changes: u64,
}

impl Directories {
    fn load(draft: &mut Draft<'_>, from: &Name<'_>, to: &Name<'_>, mode: RenameMode) -> Result<Self> {
        let first = Directory::to_remove(draft, from.parent, from.name)?;
        let (from_changes, to_changes) = (CHANGES, CHANGES);
        if from.parent == to.parent {
            return Ok(Self { from: first, to: None, from_changes, to_changes });
        }
        let second = if mode == RenameMode::Exchange {
            Directory::to_remove(draft, to.parent, to.name)?
        } else {
            Directory::to_add(draft, to.parent, to.name)?
        };
        Ok(Self { from: first, to: Some(second), from_changes, to_changes })
    }

    fn to(&mut self) -> &mut Directory {
        self.to.as_mut().unwrap_or(&mut self.from)
    }

    fn store(self, draft: &mut Draft<'_>, now: Timespec) {
        let Self { from, to, from_changes, to_changes } = self;
        match to {
            Some(to) => {
                from.store_changes(draft, now, from_changes);
                to.store_changes(draft, now, to_changes);
            }
            None => from.store_changes(draft, now, from_changes + to_changes),
        }
    }
}

/// Refuses to put a directory below itself, and to replace a directory that contains the source.
fn check_ancestors(
    draft: &mut Draft<'_>,
    from: &Name<'_>,
    to: &Name<'_>,
    source: &EntryValue,
    target: Option<&EntryValue>,
    mode: RenameMode,
) -> Result<()> {
    if from.parent == to.parent {
        return Ok(());
    }
    let refuse = |kind| Err(Error::path(to.name, kind));
    if let Some(directory) = directory_of(source)
        && is_within(draft, to.parent, directory)?
    {
        return refuse(PathError::IntoItself);
    }
    if let Some(directory) = target.and_then(directory_of)
        && is_within(draft, from.parent, directory)?
    {
        let exchange = mode == RenameMode::Exchange;
        return refuse(if exchange { PathError::IntoItself } else { PathError::NotEmpty });
    }
    Ok(())
}

/// The inode of an entry that names a directory of this tree.
fn directory_of(value: &EntryValue) -> Option<InodeNumber> {
    match EntryTarget::of(&value.location) {
        EntryTarget::Inode(inode) if value.file_type == FileType::Directory => Some(inode),
        _ => None,
    }
}

/// Whether `directory` is `above` or below it.
fn is_within(draft: &mut Draft<'_>, directory: InodeNumber, above: InodeNumber) -> Result<bool> {
    let mut current = directory;
    // Brent's algorithm: a walk in a cycle of directories meets the mark again and ends.
    let (mut mark, mut steps, mut limit) = (directory, 0_u64, 1_u64);
    while current != above {
        let parent = match inode_ref_edit::parent(draft, current)? {
            // A subvolume's root directory is its own parent.
            Some(parent) if parent != current => parent,
            _ => return Ok(false),
        };
        current = parent;
        if current == mark {
            let reason = Corrupt::field("directory", "inode", current.0, "the directory is inside itself");
            return Err(draft.fault(inode_ref_edit::inode_ref_key(current, InodeNumber(0)), reason));
        }
        steps += 1;
        if steps == limit {
            (mark, steps, limit) = (current, 0, limit * 2);
        }
    }
    Ok(true)
}

/// Removes the target's name for the source to take.
fn replace(
    draft: &mut Draft<'_>,
    now: Timespec,
    to: &Name<'_>,
    source: &EntryValue,
    target: &EntryValue,
) -> Result<Removed> {
    let refuse = |kind| Err(Error::path(to.name, kind));
    match (source.file_type == FileType::Directory, target.file_type == FileType::Directory) {
        (true, false) => return refuse(PathError::NotADirectory),
        (false, true) => return refuse(PathError::IsADirectory),
        _ => {}
    }
    let EntryTarget::Inode(inode) = EntryTarget::of(&target.location) else {
        return refuse(PathError::NotEmpty);
    };
    if is_append_only(draft, to.parent)? {
        return refuse(PathError::NotPermitted);
    }
    let item = inode_edit::load(draft, inode)?;
    link::drop_name(draft, now, to, (inode, item), CHANGES)
}

/// Whether a directory is append-only.
fn is_append_only(draft: &mut Draft<'_>, directory: InodeNumber) -> Result<bool> {
    Ok(inode_edit::load(draft, directory)?.flags.contains(InodeFlags::APPEND))
}

/// Removes an entry and returns its index.
fn take(draft: &mut Draft<'_>, name: &Name<'_>, value: &EntryValue) -> Result<u64> {
    let index = match EntryTarget::of(&value.location) {
        EntryTarget::Inode(inode) => inode_ref_edit::remove(draft, inode, name)?,
        // A subvolume's back reference is in the root tree, which is not accessible here.
        EntryTarget::Subvolume(_) => {
            dir_edit::index_of(draft.tree(), name.parent, name.name)?.ok_or_else(|| {
                let key = dir_edit::dir_index_key(name.parent, 0);
                draft.missing(key, "a subvolume's directory entry by its index")
            })?
        }
    };
    dir_edit::remove(draft, name.parent, index, name.name)?;
    Ok(index)
}

/// Adds an entry that was removed elsewhere, where it had `old_index`.
fn put(
    draft: &mut Draft<'_>,
    numbers: &SubvolumeNumbers,
    name: &Name<'_>,
    value: &EntryValue,
    old_index: u64,
) -> Result<Option<MovedSubvolume>> {
    let new_index = numbers.index(draft.tree(), name.parent)?;
    dir_edit::insert(draft, name.parent, new_index, name.name, value)?;
    match EntryTarget::of(&value.location) {
        EntryTarget::Inode(inode) => {
            inode_ref_edit::insert(draft, inode, name, new_index)?;
            Ok(None)
        }
        EntryTarget::Subvolume(id) => Ok(Some(MovedSubvolume { id, old_index, new_index })),
    }
}

/// Updates the time of change of a renamed inode.
fn touch(draft: &mut Draft<'_>, now: Timespec, name: &Name<'_>, value: &EntryValue) -> Result<()> {
    if let EntryTarget::Inode(inode) = EntryTarget::of(&value.location) {
        let mut item = inode_edit::load(draft, inode)?;
        check_changeable(&item, name.name)?;
        item.ctime = now;
        inode_edit::store_changes(draft, inode, &item, CHANGES);
    }
    Ok(())
}

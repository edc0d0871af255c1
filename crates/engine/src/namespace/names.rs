//! The rules for names, and for adding them to and removing them from directories.
//!
//! Kernel counterparts: `may_create`, `may_delete` (`fs/namei.c`). The caller checks the user's
//! permissions.

use crate::errors::{Error, PathError, Result};
use crate::items::draft::Draft;
use crate::items::inode_edit;
use papilio_format::InodeNumber;
use papilio_format::items::dir_item::{NAME_MAX, is_file_name};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, Timespec};

/// Checks a name: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
///
/// # Errors
/// [`PathError::NameTooLong`] or [`PathError::InvalidName`].
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::path(name, PathError::NameTooLong));
    }
    if !is_file_name(name) {
        return Err(Error::path(name, PathError::InvalidName));
    }
    Ok(())
}

/// A directory whose entries are being changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    pub(crate) number: InodeNumber,
    pub(crate) item: InodeItem,
}

impl Directory {
    /// Loads the directory `number` in order to add `name`.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`]; [`PathError::NotFound`] for a removed directory;
    /// [`PathError::NotPermitted`] for an immutable one; errors of reading.
    pub(crate) fn to_add(draft: &mut Draft<'_>, number: InodeNumber, name: &[u8]) -> Result<Self> {
        let item = inode_edit::load(draft, number)?;
        let refuse = |kind| Err(Error::path(name, kind));
        if item.kind() != Some(FileKind::Directory) {
            return refuse(PathError::NotADirectory);
        }
        if item.nlink == 0 {
            return refuse(PathError::NotFound);
        }
        if item.flags.contains(InodeFlags::IMMUTABLE) {
            return refuse(PathError::NotPermitted);
        }
        Ok(Self { number, item })
    }

    /// Loads the directory `number` in order to remove `name`.
    ///
    /// # Errors
    /// As [`Directory::to_add`], and [`PathError::NotPermitted`] for an append-only directory.
    pub(crate) fn to_remove(draft: &mut Draft<'_>, number: InodeNumber, name: &[u8]) -> Result<Self> {
        let directory = Self::to_add(draft, number, name)?;
        if directory.item.flags.contains(InodeFlags::APPEND) {
            return Err(Error::path(name, PathError::NotPermitted));
        }
        Ok(directory)
    }

    /// Counts an added name. A directory's size counts the bytes of each name twice.
    pub(crate) fn grow(&mut self, name: &[u8]) {
        self.item.size = self.item.size.saturating_add(2 * name.len() as u64);
    }

    /// Counts a removed name.
    pub(crate) fn shrink(&mut self, name: &[u8]) {
        self.item.size = self.item.size.saturating_sub(2 * name.len() as u64);
    }

    /// Stores the directory with the present as its time of change.
    pub(crate) fn store(self, draft: &mut Draft<'_>, now: Timespec) {
        self.store_changes(draft, now, 1);
    }

    /// As [`Directory::store`], after so many changes as the directory's `sequence` counts.
    pub(crate) fn store_changes(mut self, draft: &mut Draft<'_>, now: Timespec, changes: u64) {
        (self.item.mtime, self.item.ctime) = (now, now);
        inode_edit::store_changes(draft, self.number, &self.item, changes);
    }
}

/// Refuses to change the names, owner or attributes of an immutable or append-only inode.
///
/// # Errors
/// [`PathError::NotPermitted`].
pub(crate) fn check_changeable(item: &InodeItem, name: &[u8]) -> Result<()> {
    if item.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(Error::path(name, PathError::NotPermitted));
    }
    Ok(())
}

//! Creating, renaming and removing files by path.
//!
//! Owns the methods of [`FileSystem`] that change directory entries and attributes by path. The last component is looked
//! up in the directory before it; a symbolic link there is not followed.

use crate::errors::{Error, PathError, Result};
use crate::fs::file::File;
use crate::fs::file_system::FileSystem;
use crate::fs::inode::Inode;
use crate::fs::paths::name_path;
use crate::items::xattr_edit::XattrSet;
use crate::namespace::create::{NewInode, NewKind};
use crate::namespace::rename::RenameMode;
use crate::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::items::inode::FileKind;

impl FileSystem {
    /// The directory that `path` names its last component in, and that component.
    ///
    /// # Errors
    /// [`PathError::InvalidName`] for a path that ends in no name (`/`, `.`, `..`), or as
    /// [`FileSystem::inode`].
    pub fn parent<'p>(&self, path: &'p (impl AsRef<[u8]> + ?Sized)) -> Result<(Inode, &'p [u8])> {
        let path = path.as_ref();
        let trimmed = match path.iter().rposition(|&byte| byte != b'/') {
            Some(last) => &path[..=last],
            None => return Err(Error::path(path, PathError::InvalidName)),
        };
        let start = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, name) = trimmed.split_at(start);
        if name == b"." || name == b".." {
            return Err(Error::path(path, PathError::InvalidName));
        }
        let parent = self.inode(directory).map_err(|error| name_path(error, path))?;
        parent
            .must_be(FileKind::Directory, PathError::NotADirectory)
            .map_err(|error| name_path(error, path))?;
        Ok((parent, name))
    }

    /// Makes an inode at `path`.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn create(&self, path: impl AsRef<[u8]>, new: &NewInode<'_>) -> Result<Inode> {
        let path = path.as_ref();
        if path.ends_with(b"/") && !matches!(new.kind, NewKind::Directory) {
            return Err(Error::path(path, PathError::NotADirectory));
        }
        let (parent, name) = self.parent(path)?;
        parent.create(name, new).map_err(|error| name_path(error, path))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        self.create(path, &NewInode::new(NewKind::Directory, 0o755))
    }

    /// Makes an empty regular file and opens it.
    ///
    /// # Errors
    /// As [`Inode::create`]; [`PathError::Exists`] where there is one.
    pub fn create_file(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.create(path, &NewInode::new(NewKind::Regular, 0o644))?.open()
    }

    /// Makes a symbolic link at `path` to `target`.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Inode> {
        self.create(path, &NewInode::new(NewKind::Symlink(target.as_ref()), 0o777))
    }

    /// Names what is at `existing` once more, as `path`.
    ///
    /// # Errors
    /// As [`Inode::link`].
    pub fn hard_link(&self, existing: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let target = self.inode_nofollow(existing)?;
        let (parent, name) = self.parent(path.as_ref())?;
        parent.link(&target, name).map_err(|error| name_path(error, path.as_ref()))
    }

    /// Takes the name of what is no directory away.
    ///
    /// # Errors
    /// As [`Inode::unlink`].
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        parent.unlink(name).map_err(|error| name_path(error, path.as_ref()))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Inode::rmdir`].
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        parent.rmdir(name).map_err(|error| name_path(error, path.as_ref()))
    }

    /// Renames `from` to `to`.
    ///
    /// # Errors
    /// As [`Inode::rename`].
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, mode: RenameMode) -> Result<()> {
        let (old, old_name) = self.parent(from.as_ref())?;
        let (new, new_name) = self.parent(to.as_ref())?;
        old.rename(old_name, &new, new_name, mode).map_err(|error| name_path(error, to.as_ref()))
    }

    /// Sets mode bits (`chmod`); a symbolic link is followed.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn set_permissions(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.inode(path)?.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() })
    }

    /// Sets owner and group (`lchown`); a symbolic link is not followed.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn set_owner(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = SetAttributes { uid, gid, ..SetAttributes::default() };
        self.inode_nofollow(path)?.set_attributes(&set)
    }

    /// Sets times (`utimensat`); a symbolic link is not followed.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
        self.inode_nofollow(path)?.set_attributes(&set)
    }

    /// Sets an extended attribute; a symbolic link is not followed.
    ///
    /// # Errors
    /// As [`Inode::set_xattr`].
    pub fn set_xattr(&self, path: impl AsRef<[u8]>, name: &[u8], value: &[u8]) -> Result<()> {
        self.inode_nofollow(path)?.set_xattr(name, value, XattrSet::Any)
    }
}

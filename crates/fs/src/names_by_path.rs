//! Creating, renaming and removing files by path.
//!
//! Owns the methods of [`FileSystem`] that change directory entries and attributes by path. They
//! look up the last component in the directory before it, and do not follow a symbolic link there.

use crate::as_path::AsPath;
use crate::file::File;
use crate::file_system::FileSystem;
use crate::inode::Inode;
use crate::paths::name_path;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::items::xattr_edit::XattrSet;
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::namespace::rename::RenameMode;
use papilio_engine::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::items::inode::FileKind;

/// Most symbolic links that [`FileSystem::open_or_create`] follows, as in the kernel.
const SYMLINK_LIMIT: usize = 40;

/// Returns the path of a link's target, relative to the link's directory.
fn beside(link: &[u8], target: &[u8]) -> Vec<u8> {
    if target.starts_with(b"/") {
        return target.to_vec();
    }
    let end = link.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    [&link[..end], target].concat()
}

impl FileSystem {
    /// Splits `path` into the directory and the name that its last component has there.
    ///
    /// # Errors
    /// [`PathError::InvalidName`] if `path` does not end in a name (`/`, `.`, `..`), or as
    /// [`FileSystem::inode`].
    pub fn parent<'p>(&self, path: &'p (impl AsPath + ?Sized)) -> Result<(Inode, &'p [u8])> {
        let path = path.as_path_bytes();
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

    /// Creates an inode at `path`.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn create(&self, path: impl AsPath, new: &NewInode<'_>) -> Result<Inode> {
        let path = path.as_path_bytes();
        if path.ends_with(b"/") && !matches!(new.kind, NewKind::Directory) {
            return Err(Error::path(path, PathError::NotADirectory));
        }
        let (parent, name) = self.parent(path)?;
        parent.create(name, new).map_err(|error| name_path(error, path))
    }

    /// Creates a directory with mode 0755.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn create_dir(&self, path: impl AsPath) -> Result<Inode> {
        self.create(path, &NewInode::new(NewKind::Directory, 0o755))
    }

    /// Creates an empty regular file with mode 0644 and opens it.
    ///
    /// # Errors
    /// As [`Inode::create`]; [`PathError::Exists`] if `path` exists.
    pub fn create_file(&self, path: impl AsPath) -> Result<File> {
        self.create(path, &NewInode::new(NewKind::Regular, 0o644))?.open()
    }

    /// Writes `contents` as the whole content of the file at `path`, which is created if there is
    /// none. A symbolic link is followed. Other threads may see the file in between.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`], [`FileSystem::create_file`] and [`File::write_all_at`].
    pub fn write(&self, path: impl AsPath, contents: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_path_bytes();
        let file = match self.open_file(path) {
            Err(Error::Path { kind: PathError::NotFound, .. }) => self.create_file(path)?,
            opened => {
                let file = opened?;
                file.set_len(0)?;
                file
            }
        };
        file.write_all_at(contents.as_ref(), 0)
    }

    /// Creates a symbolic link to `target` at `path`.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn symlink(&self, target: impl AsPath, path: impl AsPath) -> Result<Inode> {
        self.create(path, &NewInode::new(NewKind::Symlink(target.as_path_bytes()), 0o777))
    }

    /// Gives the inode at `existing` the further name `path`.
    ///
    /// # Errors
    /// As [`Inode::hard_link`].
    pub fn hard_link(&self, existing: impl AsPath, path: impl AsPath) -> Result<()> {
        let target = self.inode_nofollow(existing)?;
        let path = path.as_path_bytes();
        let (parent, name) = self.parent(path)?;
        parent.hard_link(&target, name).map_err(|error| name_path(error, path))
    }

    /// Opens the regular file at `path`, and creates it if it is missing, as `open` with `O_CREAT`:
    /// also where a symbolic link leads to.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`] and [`FileSystem::create`]; [`PathError::SymlinkLoop`].
    pub fn open_or_create(&self, path: impl AsPath, new: &NewInode<'_>) -> Result<File> {
        let path = path.as_path_bytes();
        let mut at = path.to_vec();
        for _ in 0..SYMLINK_LIMIT {
            match self.open_file(&at) {
                Err(Error::Path { kind: PathError::NotFound, .. }) => {}
                result => return result,
            }
            match self.inode_nofollow(&at) {
                Ok(link) if link.file_type() == FileKind::Symlink => at = beside(&at, &link.read_link()?),
                Ok(_) | Err(Error::Path { kind: PathError::NotFound, .. }) => match self.create(&at, new) {
                    // Another thread created it meanwhile.
                    Err(Error::Path { kind: PathError::Exists, .. }) => {}
                    created => return created?.open(),
                },
                Err(error) => return Err(error),
            }
        }
        Err(Error::Path { path: path.to_vec(), kind: PathError::SymlinkLoop })
    }

    /// Removes the name `path`; refuses directories.
    ///
    /// # Errors
    /// As [`Inode::remove_file`].
    pub fn remove_file(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        let (parent, name) = self.parent(path)?;
        parent.remove_file(name).map_err(|error| name_path(error, path))
    }

    /// Removes the empty directory at `path`.
    ///
    /// # Errors
    /// As [`Inode::remove_dir`].
    pub fn remove_dir(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        let (parent, name) = self.parent(path)?;
        parent.remove_dir(name).map_err(|error| name_path(error, path))
    }

    /// Renames `from` to `to`, replacing a file or an empty directory there.
    ///
    /// # Errors
    /// As [`Inode::rename`].
    pub fn rename(&self, from: impl AsPath, to: impl AsPath) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames `from` to `to`; `mode` chooses the treatment of an existing `to`.
    ///
    /// # Errors
    /// As [`Inode::rename`].
    pub fn rename_with(&self, from: impl AsPath, to: impl AsPath, mode: RenameMode) -> Result<()> {
        let to = to.as_path_bytes();
        let (old, old_name) = self.parent(&from)?;
        let (new, new_name) = self.parent(to)?;
        old.rename(old_name, &new, new_name, mode).map_err(|error| name_path(error, to))
    }

    /// Sets the mode bits (`chmod`), following symbolic links.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn set_permissions(&self, path: impl AsPath, mode: u32) -> Result<()> {
        self.inode(path)?.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() })
    }

    /// Sets owner and group, following symbolic links. `None` leaves a field unchanged.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn chown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.inode(path)?.set_attributes(&SetAttributes { uid, gid, ..SetAttributes::default() })
    }

    /// Sets owner and group of `path` itself, even if it is a symbolic link. `None` leaves a field
    /// unchanged.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn lchown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = SetAttributes { uid, gid, ..SetAttributes::default() };
        self.inode_nofollow(path)?.set_attributes(&set)
    }

    /// Sets the times of `path` itself, even if it is a symbolic link (`utimensat`). `None` leaves
    /// a time unchanged.
    ///
    /// # Errors
    /// As [`Inode::set_attributes`].
    pub fn set_times_nofollow(
        &self,
        path: impl AsPath,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
        self.inode_nofollow(path)?.set_attributes(&set)
    }

    /// Sets an extended attribute of `path` itself, even if it is a symbolic link.
    ///
    /// # Errors
    /// As [`Inode::set_xattr`].
    pub fn set_xattr(&self, path: impl AsPath, name: &[u8], value: &[u8]) -> Result<()> {
        self.inode_nofollow(path)?.set_xattr(name, value, XattrSet::Any)
    }
}

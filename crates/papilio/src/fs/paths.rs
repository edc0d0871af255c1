//! Lookups by path, and by subvolume and number.
//!
//! Owns the methods of [`FileSystem`] that resolve a path and return an inode, a file or an iterator.

use crate::errors::{Error, PathError, Result};
use crate::fs::dir::Entries;
use crate::fs::file::File;
use crate::fs::file_system::FileSystem;
use crate::fs::inode::Inode;
use crate::fs::metadata::Metadata;
use crate::fs::walk::Walk;
use crate::namespace::{Handle, Place, resolve};
use crate::subvolume::subvolume_root;
use papilio_format::{InodeNumber, TreeId};

impl FileSystem {
    /// The directory that paths start from.
    ///
    /// # Errors
    /// A tree block that cannot be read, or a subvolume that was deleted since.
    pub fn root(&self) -> Result<Inode> {
        Ok(self.wrap(self.root_handle()?))
    }

    /// The root directory of subvolume `id`.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] where there is none.
    pub fn subvolume_root(&self, id: TreeId) -> Result<Inode> {
        Ok(self.wrap(subvolume_root(&self.info.trees, id)?))
    }

    /// The inode at `path`; a symbolic link is followed.
    ///
    /// # Errors
    /// [`Error::Path`] with POSIX's reason, or a tree block that cannot be read.
    pub fn inode(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        self.resolve(path.as_ref(), true)
    }

    /// The inode at `path`; a symbolic link in the last component is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn inode_nofollow(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        self.resolve(path.as_ref(), false)
    }

    /// The inode by its subvolume and number.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] or [`PathError::NotFound`].
    pub fn inode_at(&self, tree: TreeId, inode: InodeNumber) -> Result<Inode> {
        Ok(self.wrap(Handle::open(&self.info.trees, Place { tree, inode })?))
    }

    /// What `stat` shows of `path`.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        Ok(*self.inode(path)?.metadata())
    }

    /// What `lstat` shows of `path`.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        Ok(*self.inode_nofollow(path)?.metadata())
    }

    /// The entries of the directory at `path`, in the order of their creation.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], or as [`FileSystem::inode`].
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Entries> {
        let path = path.as_ref();
        self.inode(path)?.entries().map_err(|error| name_path(error, path))
    }

    /// Opens the regular file at `path`.
    ///
    /// # Errors
    /// [`PathError::IsADirectory`], [`PathError::NotAFile`], or as [`FileSystem::inode`].
    pub fn open_file(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        self.inode(path)?.open().map_err(|error| name_path(error, path))
    }

    /// The whole content of the regular file at `path`. Memory grows with what is really there: a
    /// size that the device cannot hold is met by zeros read in steps, not by one allocation.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`], or data that no copy holds with the right checksum.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.open_file(path)?.read_all()
    }

    /// The target of the symbolic link at `path`.
    ///
    /// # Errors
    /// [`PathError::NotASymlink`], or as [`FileSystem::inode`].
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.inode_nofollow(path)?.read_link().map_err(|error| name_path(error, path))
    }

    /// Everything below `path`, each directory before its content, without following symbolic
    /// links, across subvolumes.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn walk(&self, path: impl AsRef<[u8]>) -> Result<Walk> {
        Ok(Walk::new(self.inode(path)?))
    }

    pub(super) fn root_handle(&self) -> Result<Handle> {
        Handle::open(&self.info.trees, self.info.root)
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Inode> {
        let handle = resolve(&self.info.trees, &self.root_handle()?, path, follow)?;
        Ok(self.wrap(handle))
    }
}

/// Puts the caller's path into an error that knows only a name or an inode number.
pub(super) fn name_path(error: Error, path: &[u8]) -> Error {
    match error {
        Error::Path { kind, .. } if kind != PathError::NoSubvolume => Error::path(path, kind),
        other => other,
    }
}

//! Lookups by path, and by subvolume and number.
//!
//! Owns the methods of [`FileSystem`] that resolve a path and return an inode, a file or an
//! iterator.

use crate::as_path::AsPath;
use crate::dir::Entries;
use crate::file::File;
use crate::file_system::FileSystem;
use crate::inode::Inode;
use crate::metadata::Metadata;
use crate::walk::Walk;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::namespace::{InodeHandle, Place, resolve};
use papilio_engine::subvolume::subvolume_root;
use papilio_format::{InodeNumber, TreeId};

impl FileSystem {
    /// Returns the directory that paths start from.
    ///
    /// # Errors
    /// A tree block that cannot be read, or a subvolume that was deleted since.
    pub fn root(&self) -> Result<Inode> {
        Ok(self.wrap(self.root_handle()?))
    }

    /// Returns the root directory of subvolume `id`.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if there is none.
    pub fn subvolume_root(&self, id: TreeId) -> Result<Inode> {
        Ok(self.wrap(subvolume_root(&self.info.trees, id)?))
    }

    /// Returns the inode at `path`, following symbolic links.
    ///
    /// # Errors
    /// [`Error::Path`] with the POSIX reason, or a tree block that cannot be read.
    pub fn inode(&self, path: impl AsPath) -> Result<Inode> {
        self.resolve(path.as_path_bytes(), true)
    }

    /// Returns the inode at `path`. A symbolic link in the last component is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn inode_nofollow(&self, path: impl AsPath) -> Result<Inode> {
        self.resolve(path.as_path_bytes(), false)
    }

    /// Returns the inode with a number in a subvolume.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] or [`PathError::NotFound`].
    pub fn inode_at(&self, tree: TreeId, inode: InodeNumber) -> Result<Inode> {
        Ok(self.wrap(InodeHandle::open(&self.info.trees, Place { tree, inode })?))
    }

    /// Returns the metadata of the inode at `path`, following symbolic links (`stat`).
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn metadata(&self, path: impl AsPath) -> Result<Metadata> {
        Ok(*self.inode(path)?.metadata())
    }

    /// Returns the metadata of the inode at `path`. A symbolic link in the last component is not
    /// followed (`lstat`).
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn symlink_metadata(&self, path: impl AsPath) -> Result<Metadata> {
        Ok(*self.inode_nofollow(path)?.metadata())
    }

    /// Returns the entries of the directory at `path`, in the order of their creation.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], or as [`FileSystem::inode`].
    pub fn read_dir(&self, path: impl AsPath) -> Result<Entries> {
        let path = path.as_path_bytes();
        self.inode(path)?.read_dir().map_err(|error| name_path(error, path))
    }

    /// Opens the regular file at `path`.
    ///
    /// # Errors
    /// [`PathError::IsADirectory`], [`PathError::NotAFile`], or as [`FileSystem::inode`].
    pub fn open_file(&self, path: impl AsPath) -> Result<File> {
        let path = path.as_path_bytes();
        self.inode(path)?.open().map_err(|error| name_path(error, path))
    }

    /// Reads the whole regular file at `path`. Memory grows as bytes are read, not by the size that
    /// the inode claims.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`], or data that no copy has with the right checksum.
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        self.open_file(path)?.read_all()
    }

    /// Returns the target of the symbolic link at `path`.
    ///
    /// # Errors
    /// [`PathError::NotASymlink`], or as [`FileSystem::inode`].
    pub fn read_link(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let path = path.as_path_bytes();
        self.inode_nofollow(path)?.read_link().map_err(|error| name_path(error, path))
    }

    /// Returns an iterator over everything below `path`, each directory before its content. The
    /// walk does not follow symbolic links, and crosses into subvolumes.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn walk(&self, path: impl AsPath) -> Result<Walk> {
        Ok(Walk::new(self.inode(path)?))
    }

    pub(super) fn root_handle(&self) -> Result<InodeHandle> {
        InodeHandle::open(&self.info.trees, self.info.root)
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Inode> {
        let handle = resolve(&self.info.trees, &self.root_handle()?, path, follow)?;
        Ok(self.wrap(handle))
    }
}

/// Replaces the name or inode number in a path error by the caller's path.
pub(super) fn name_path(error: Error, path: &[u8]) -> Error {
    match error {
        Error::Path { kind, .. } if kind != PathError::NoSubvolume => Error::path(path, kind),
        other => other,
    }
}

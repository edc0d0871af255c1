//! Committing and closing.
//!
//! Owns [`FileSystem::sync`], [`FileSystem::close`], and the cleaning of deleted subvolumes on
//! request.

use crate::errors::Result;
use crate::fs::file_system::FileSystem;
use crate::subvolume::clean_step;

impl FileSystem {
    /// Makes all changes up to now durable, those of all files included, by a commit (`syncfs`).
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`](crate::Error::ReadOnlyFileSystem) if the file system is open
    /// for reading only or an earlier failure made it read-only; the failure of the commit, after
    /// which it is read-only.
    pub fn sync(&self) -> Result<()> {
        self.info.sync()
    }

    /// Syncs, and drops this handle. Dropping the last handle also syncs, but can only log a
    /// failure.
    ///
    /// # Errors
    /// As [`FileSystem::sync`]; none if the file system is open for reading only.
    pub fn close(self) -> Result<()> {
        match self.info.trees.transactions() {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    /// Returns why the file system became read-only, if a failure made it so.
    pub fn failure(&self) -> Option<String> {
        self.info.failure()
    }

    /// Cleans deleted subvolumes in the calling thread until none is left.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn clean_subvolumes(&self) -> Result<()> {
        while self.clean_subvolumes_step()? {}
        Ok(())
    }

    /// Cleans about four thousand extents of a deleted subvolume, and returns whether more may be
    /// left.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn clean_subvolumes_step(&self) -> Result<bool> {
        clean_step(self.info.transactions()?)
    }
}

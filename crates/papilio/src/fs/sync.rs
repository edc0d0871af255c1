//! Making changes durable, and closing.
//!
//! Owns [`FileSystem::sync`] and what happens when the last handle goes.

use crate::errors::Result;
use crate::fs::file_system::FileSystem;
use crate::subvolume::clean_step;

impl FileSystem {
    /// Makes everything that was changed before the call durable: a commit.
    ///
    /// # Errors
    /// [`crate::Error::ReadOnlyFileSystem`] where it is open for reading only or an earlier failure made it
    /// so; the failure of the commit, which makes it so.
    pub fn sync(&self) -> Result<()> {
        self.info.sync()
    }

    /// Syncs and gives up this handle. Dropping the last handle syncs too, but has nobody to tell of a
    /// failure.
    ///
    /// # Errors
    /// As [`FileSystem::sync`]; none for a file system that is open for reading only.
    pub fn close(self) -> Result<()> {
        match self.info.trees.transactions() {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    /// Why the file system became read-only, if it did.
    pub fn failure(&self) -> Option<String> {
        self.info.failure()
    }

    /// Cleans up deleted subvolumes now, instead of in the background, until none is left.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn clean_subvolumes(&self) -> Result<()> {
        while self.clean_subvolumes_step()? {}
        Ok(())
    }

    /// Cleans up a piece of a deleted subvolume, about four thousand extents; says whether more may be left.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn clean_subvolumes_step(&self) -> Result<bool> {
        clean_step(self.info.transactions()?)
    }
}

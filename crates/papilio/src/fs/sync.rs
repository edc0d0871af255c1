//! Making changes durable, and closing.
//!
//! Owns [`FileSystem::sync`] and what happens when the last handle goes.

use crate::errors::Result;
use crate::fs::FileSystem;
use crate::fs::committer::Committer;
use crate::fs::mount::Mounted;
use crate::subvolume::clean_step;
use std::sync::Arc;
use std::time::Duration;

impl FileSystem {
    /// Makes everything that was changed before the call durable: a commit.
    ///
    /// # Errors
    /// [`crate::Error::ReadOnlyFileSystem`] where it is open for reading only or an earlier failure made it
    /// so; the failure of the commit, which makes it so.
    pub fn sync(&self) -> Result<()> {
        let transactions = self.transactions()?;
        self.flush_all()?;
        transactions.commit()
    }

    /// Syncs and gives up this handle. Dropping the last handle syncs too, but has nobody to tell of a
    /// failure.
    ///
    /// # Errors
    /// As [`FileSystem::sync`]; none for a file system that is open for reading only.
    pub fn close(self) -> Result<()> {
        match self.mounted.trees.transactions() {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    /// Why the file system became read-only, if it did.
    pub fn failure(&self) -> Option<String> {
        self.mounted.trees.transactions()?.failure()
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
        clean_step(self.transactions()?)
    }
}

/// Closes a file system when it is dropped: with the last handle of a caller.
#[derive(Debug)]
pub(super) struct Closer {
    mounted: Arc<Mounted>,
}

impl Closer {
    /// Starts what runs in the background of a file system that is open for writing.
    pub(super) fn start(mounted: &Arc<Mounted>, interval: Option<Duration>) -> Option<Arc<Self>> {
        mounted.trees.transactions()?;
        if let Some(interval) = interval {
            let committer = Committer::start(mounted, interval);
            // Subvolumes that an earlier mount deleted and did not get to.
            committer.clean();
            *mounted.committer.lock() = Some(committer);
        }
        Some(Arc::new(Self { mounted: Arc::clone(mounted) }))
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        // Taken out first: the thread may be waiting for the lock.
        let committer = self.mounted.committer.lock().take();
        drop(committer);
        let fs = FileSystem::of_mounted(Arc::clone(&self.mounted));
        let Ok(transactions) = fs.transactions() else { return };
        if transactions.check_running().is_ok()
            && let Err(error) = fs.sync()
        {
            tracing::error!("the last changes could not be committed: {error}");
        }
    }
}

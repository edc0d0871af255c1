//! Closing a file system with its last handle.
//!
//! Owns [`Closer`], which starts the background threads, and on drop ends it and makes the last
//! changes durable.

use crate::file::fs_info::FsInfo;
use crate::mount::committer::Committer;
use std::sync::Arc;
use std::time::Duration;

/// Closes a file system when it is dropped, with the caller's last handle.
#[derive(Debug)]
pub struct Closer {
    /// Dropped first: the thread ends before the last commit.
    committer: Option<Committer>,
    fs: Arc<FsInfo>,
    /// Rewrites copies that reads found bad; it is of a layer above.
    heal: fn(&FsInfo),
}

impl Closer {
    /// Starts the background threads of a file system that is open for writing; returns `None` for
    /// one that is not. Without an `interval` there are none.
    pub fn start(fs: &Arc<FsInfo>, interval: Option<Duration>, heal: fn(&FsInfo)) -> Option<Arc<Self>> {
        fs.trees.transactions()?;
        let committer = interval.map(|interval| Committer::start(fs, interval, heal));
        // Subvolumes that an earlier mount deleted but did not clean.
        fs.background.clean();
        // A rescan of quotas that an earlier mount did not finish.
        fs.background.rescan();
        Some(Arc::new(Self { committer, fs: Arc::clone(fs), heal }))
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        drop(self.committer.take());
        (self.heal)(&self.fs);
        let Ok(transactions) = self.fs.transactions() else { return };
        if transactions.check_running().is_ok()
            && let Err(error) = self.fs.sync()
        {
            tracing::error!("the last changes could not be committed: {error}");
        }
    }
}

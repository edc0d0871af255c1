//! The background thread: commits at an interval, writes dirty pages back, cleans deleted
//! subvolumes, carries on a rescan of quotas.
//!
//! Owns [`Committer`].
//!
//! Invariants:
//! - The thread holds a reference to the file system only while it works, so that it never keeps
//!   one open.
//! - When a [`Committer`] has been dropped, its thread has ended: nothing changes after the file
//!   system is closed.
//!
//! Kernel counterparts: `transaction_kthread`, `cleaner_kthread` (`fs/btrfs/disk-io.c`).

use crate::file::background::{Requests, Wake};
use crate::file::fs_info::FsInfo;
use crate::subvolume::clean_step;
use crate::transaction::quota::RescanStep;
use papilio_locks::Class;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The running thread. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Committer {
    fs: Weak<FsInfo>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread, which heals bad copies and commits once every `interval`.
    pub(super) fn start(fs: &Arc<FsInfo>, interval: Duration, heal: fn(&FsInfo)) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let work = Work {
            fs: Arc::downgrade(fs),
            interval,
            heal,
            stop: Arc::clone(&stop),
            requests: fs.background.connect(),
        };
        let spawned = std::thread::Builder::new().name("papilio-commit".to_owned()).spawn(move || work.run());
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::warn!("no background commits: starting the thread failed: {error}");
                None
            }
        };
        Self { fs: Arc::downgrade(fs), stop, thread }
    }
}

/// The thread at work, which closing waits for.
static COMMITTER: Class = Class::new("committer-thread");

impl Drop for Committer {
    fn drop(&mut self) {
        COMMITTER.might_wait(&*self.stop);
        self.stop.store(true, Ordering::Release);
        if let Some(fs) = self.fs.upgrade() {
            fs.background.disconnect();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the background thread panicked");
        }
    }
}

/// The thread's side.
struct Work {
    fs: Weak<FsInfo>,
    interval: Duration,
    /// Rewrites copies that reads found bad; it is of a floor above.
    heal: fn(&FsInfo),
    stop: Arc<AtomicBool>,
    requests: Requests,
}

impl Work {
    fn run(&self) {
        let _at_work = COMMITTER.tried(&*self.stop);
        let mut commit_at = Instant::now() + self.interval;
        loop {
            let timeout = commit_at.saturating_duration_since(Instant::now());
            let request = self.requests.receiver.recv_timeout(timeout);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let Some(fs) = self.fs.upgrade() else { return };
            match request {
                Ok(Wake::Clean) => self.clean(&fs),
                Ok(Wake::Rescan) => self.rescan(&fs),
                Ok(Wake::WriteBack) => {
                    self.requests.write_back_requested.store(false, Ordering::Release);
                    if let Err(error) = fs.flush_all() {
                        // The pages stay dirty, so that the next sync reports the failure.
                        tracing::error!("writing back dirty pages: {error}");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    (self.heal)(&fs);
                    if let Err(error) = fs.sync() {
                        // The file system is read-only now: the next change reports the failure.
                        tracing::error!("committing in the background: {error}");
                    }
                    commit_at = Instant::now() + self.interval;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if fs.failure().is_some() {
                return;
            }
        }
    }

    fn rescan(&self, fs: &FsInfo) {
        while !self.stop.load(Ordering::Acquire) {
            match fs.transactions().and_then(|transactions| transactions.rescan_step()) {
                Ok(RescanStep::Counted(_)) => {}
                Ok(RescanStep::Done) => return,
                Err(error) => {
                    tracing::error!("counting for quotas: {error}");
                    return;
                }
            }
        }
    }

    fn clean(&self, fs: &FsInfo) {
        if let Err(error) = fs.clean_root_orphans() {
            // The first change meets the same error.
            tracing::error!("deleting files without names that an earlier mount left: {error}");
        }
        while !self.stop.load(Ordering::Acquire) {
            match fs.transactions().and_then(clean_step) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!("the next mount has to clean a deleted subvolume: {error}");
                    return;
                }
            }
        }
    }
}

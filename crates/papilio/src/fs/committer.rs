//! The committer: a thread that commits what waits long enough, and cleans up deleted subvolumes.
//!
//! Owns [`Committer`]. Invariants: the thread holds the file system only while it works, so that it never
//! keeps a file system open; when the [`Committer`] is dropped, the thread has ended: nothing changes
//! behind the back of who closed the file system. Kernel counterparts: `transaction_kthread`,
//! `cleaner_kthread` (`fs/btrfs/disk-io.c`).

use crate::fs::FileSystem;
use crate::fs::mount::Mounted;
use papilio_locks::Class;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// A subvolume waits to be cleaned up.
    Clean,
    /// Dirty pages are many.
    WriteBack,
}

/// The thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Committer {
    /// Absent only while it is dropped.
    wake: Option<Sender<Wake>>,
    stop: Arc<AtomicBool>,
    /// It was told of dirty pages and has not begun to write them back.
    writing_back: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread.
    pub(crate) fn start(mounted: &Arc<Mounted>, interval: Duration) -> Self {
        let (wake, told) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let writing_back = Arc::new(AtomicBool::new(false));
        let work = Work {
            mounted: Arc::downgrade(mounted),
            interval,
            stop: Arc::clone(&stop),
            writing_back: Arc::clone(&writing_back),
        };
        let spawned =
            std::thread::Builder::new().name("papilio-commit".to_owned()).spawn(move || work.run(&told));
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::warn!("nothing is committed in the background: {error}");
                None
            }
        };
        Self { wake: Some(wake), stop, writing_back, thread }
    }

    /// Asks for deleted subvolumes to be cleaned up.
    pub(crate) fn clean(&self) {
        self.wake(Wake::Clean);
    }

    /// Asks for something; dirty pages need not be asked for twice.
    pub(super) fn wake(&self, what: Wake) {
        if what == Wake::WriteBack && self.writing_back.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(wake) = &self.wake {
            // The thread may have ended after a failure, which whoever changes something is told of.
            let _ = wake.send(what);
        }
    }
}

/// The thread at work, for which closing waits.
static COMMITTER: Class = Class::new("committer-thread");

impl Drop for Committer {
    fn drop(&mut self) {
        COMMITTER.might_wait(&*self.stop);
        self.stop.store(true, Ordering::Release);
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that commits in the background panicked");
        }
    }
}

/// What the thread does.
struct Work {
    mounted: Weak<Mounted>,
    interval: Duration,
    stop: Arc<AtomicBool>,
    writing_back: Arc<AtomicBool>,
}

impl Work {
    fn run(&self, told: &Receiver<Wake>) {
        let _at_work = COMMITTER.tried(&*self.stop);
        let mut commit_at = Instant::now() + self.interval;
        loop {
            let told_now = told.recv_timeout(commit_at.saturating_duration_since(Instant::now()));
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let Some(mounted) = self.mounted.upgrade() else { return };
            let fs = FileSystem::of_mounted(mounted);
            match told_now {
                Ok(Wake::Clean) => self.clean(&fs),
                Ok(Wake::WriteBack) => {
                    self.writing_back.store(false, Ordering::Release);
                    if let Err(error) = fs.flush_all() {
                        // The pages stay dirty: who syncs is told.
                        tracing::error!("writing back: {error}");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = fs.sync() {
                        // Latched: who changes something next is told.
                        tracing::error!("in the background: {error}");
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

    fn clean(&self, fs: &FileSystem) {
        while !self.stop.load(Ordering::Acquire) {
            match fs.clean_subvolumes_step() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!("a deleted subvolume is left to the next mount: {error}");
                    return;
                }
            }
        }
    }
}

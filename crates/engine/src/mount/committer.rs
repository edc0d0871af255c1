//! The background threads. One commits at an interval, one writes dirty pages back, one cleans
//! deleted subvolumes and carries on a rescan of quotas, one discards freed space. On devices that
//! wait, one reads ahead.
//!
//! Owns [`Committer`].
//!
//! Invariants:
//! - A thread holds a reference to the file system only while it works, so that it never keeps one
//!   open.
//! - When a [`Committer`] has been dropped, its threads have ended: nothing changes after the file
//!   system is closed.
//! - No thread waits for another's work, so commits keep their interval beside a long clean-up.
//!
//! Kernel counterparts: `transaction_kthread`, `cleaner_kthread` (`fs/btrfs/disk-io.c`), the
//! flusher threads (`fs/fs-writeback.c`).

use crate::file::background::{Requests, Task, Wake};
use crate::file::fs_info::FsInfo;
use crate::transaction::quota::RescanStep;
use papilio_locks::Class;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The shortest pause after a discard. A nanosecond for each byte limits long ones to 10^9 bytes a
/// second.
const DISCARD_PAUSE: Duration = Duration::from_millis(1);

/// The running threads. Dropping this ends them.
#[derive(Debug)]
pub(super) struct Committer {
    fs: Weak<FsInfo>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Committer {
    /// Starts the threads. One heals bad copies and commits once every `interval`.
    pub(super) fn start(fs: &Arc<FsInfo>, interval: Duration, heal: fn(&FsInfo)) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |task| {
            let work = CommitterThread {
                fs: Arc::downgrade(fs),
                interval: (task == Task::Commit).then_some(interval),
                heal,
                stop: Arc::clone(&stop),
                requests: fs.background.connect(task),
            };
            let (name, lost) = match task {
                Task::Commit => ("papilio-commit", "no commits in the background"),
                Task::Clean => ("papilio-clean", "deleted subvolumes are not cleaned"),
                Task::WriteBack => ("papilio-flush", "dirty pages are written by their writers only"),
                Task::Discard => ("papilio-discard", "freed space is not discarded"),
            };
            let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || work.run());
            spawned.inspect_err(|error| tracing::warn!("{lost}: starting a thread failed: {error}")).ok()
        };
        let discards = fs.transactions().is_ok_and(|transactions| transactions.discards_in_background());
        let tasks = Task::ALL.into_iter().filter(|task| *task != Task::Discard || discards);
        let mut threads: Vec<_> = tasks.filter_map(start).collect();
        if fs.page_cache.is_some() && fs.volume().waits() {
            match fs.read_ahead.start() {
                Ok(thread) => threads.push(thread),
                Err(error) => tracing::warn!("readers wait for readahead: starting a thread failed: {error}"),
            }
        }
        Self { fs: Arc::downgrade(fs), stop, threads }
    }
}

/// The threads at work, which closing waits for.
static COMMITTER: Class = Class::new("committer-thread");

impl Drop for Committer {
    fn drop(&mut self) {
        COMMITTER.might_wait(&*self.stop);
        self.stop.store(true, Ordering::Release);
        if let Some(fs) = self.fs.upgrade() {
            fs.background.disconnect();
            fs.read_ahead.stop();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

/// A thread's side.
struct CommitterThread {
    fs: Weak<FsInfo>,
    /// For the thread that commits.
    interval: Option<Duration>,
    /// Rewrites copies that reads found bad; it is of a layer above.
    heal: fn(&FsInfo),
    stop: Arc<AtomicBool>,
    requests: Requests,
}

impl CommitterThread {
    fn run(&self) {
        let _at_work = COMMITTER.tried(&*self.stop);
        let mut commit_at = self.interval.map(|interval| Instant::now() + interval);
        loop {
            let request = match commit_at {
                Some(at) => self.requests.receiver.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => self.requests.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let Some(fs) = self.fs.upgrade() else { return };
            match request {
                Ok(Wake::Clean) => self.clean(&fs),
                Ok(Wake::Rescan) => self.rescan(&fs),
                Ok(Wake::Discard) => self.discard(&fs),
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
                    if let Err(error) =
                        fs.transactions().and_then(|transactions| transactions.commit_for_discards())
                    {
                        tracing::error!("committing to discard freed space: {error}");
                    }
                    fs.background.discard();
                    commit_at = self.interval.map(|interval| Instant::now() + interval);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if fs.failure().is_some() {
                return;
            }
        }
    }

    /// Discards at a limited rate, so that other requests of the device do not have to wait.
    fn discard(&self, fs: &FsInfo) {
        let pause = |bytes: u64| {
            std::thread::sleep(DISCARD_PAUSE.max(Duration::from_nanos(bytes)));
            !self.stop.load(Ordering::Acquire)
        };
        match fs.transactions().and_then(|transactions| transactions.discard_freed(pause)) {
            Ok(0) => {}
            Ok(bytes) => tracing::debug!("discarded {bytes} bytes of freed space"),
            Err(error) => tracing::warn!("discarding freed space: {error}"),
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
            match fs.clean_subvolumes_step() {
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

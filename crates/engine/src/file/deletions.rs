//! Deletions that are about to give space back.
//!
//! Owns [`Deletions`]. The last name of a file goes before its space does: a handle may be open, a
//! FUSE kernel tells its server later, and a large file is deleted in steps. A change that finds no
//! space meanwhile waits for these deletions and tries again, so that space is there after `rm` as
//! it is in the kernel, where `unlink` itself frees it.
//!
//! A caller may keep an unlinked inode for as long as a program uses it. So a wait for such an
//! inode ends soon, and after a wait in vain nobody waits for the same inodes again.
//!
//! Locks: `vain`, alone, for a moment or to sleep. A waiting thread holds no other lock.

use crate::errors::{Error, Result};
use papilio_locks::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a change waits for the end of the last use of unlinked inodes that callers keep.
const GRACE: Duration = Duration::from_secs(1);
/// How long one change waits at most.
const MOST: Duration = Duration::from_secs(10);
/// How often one change is tried again at most, while other threads delete and write.
const ATTEMPTS: usize = 4;

/// Counts deletions that run, and unlinked inodes whose deletion a caller delays.
#[derive(Debug, Default)]
pub struct Deletions {
    running: AtomicU64,
    /// Unlinked inodes that callers keep, or kept until just now.
    kept: AtomicU64,
    /// Deletions that ended, ever.
    ended: AtomicU64,
    waiting: AtomicU64,
    /// How often a kept inode lost its last name or its last keeper.
    expectations: AtomicU64,
    /// The expectations at the end of the last wait in vain.
    vain: Mutex<u64>,
    changed: Condvar,
}

/// A deletion that runs. It ends with [`Deletion::end`]; one that is dropped did not happen.
pub(crate) struct Deletion<'a>(&'a Deletions);

impl Deletion<'_> {
    /// Notes that the space of the inode is free.
    pub(crate) fn end(self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.tell();
    }
}

impl Deletions {
    /// Notes that a deletion begins.
    pub(crate) fn begin(&self) -> Deletion<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        Deletion(self)
    }

    /// Notes that a kept inode has no name any more.
    pub(crate) fn keeps_unnamed(&self) {
        self.expectations.fetch_add(1, Ordering::SeqCst);
        self.kept.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that such an inode lost its last keeper. A thread may use it for another moment.
    pub(crate) fn lets_go(&self) {
        self.expectations.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that such an inode is no longer open. The caller has begun its deletion.
    pub(crate) fn released_unnamed(&self) {
        self.kept.fetch_sub(1, Ordering::SeqCst);
        self.tell();
    }

    fn tell(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // A thread that is about to sleep holds the lock.
            drop(self.vain.lock());
            self.changed.notify_all();
        }
    }

    /// Runs `change`, which may be run again. If it fails for space, waits for deletions that give
    /// some back, and runs it again. The caller holds no lock.
    pub fn beside<R>(&self, mut change: impl FnMut() -> Result<R>) -> Result<R> {
        for _ in 1..ATTEMPTS {
            let ended = self.ended.load(Ordering::SeqCst);
            match change() {
                Err(Error::NoSpace { what }) if self.wait(ended) => {
                    tracing::debug!("no space for {what}: deletions gave some back");
                }
                result => return result,
            }
        }
        change()
    }

    /// Waits until no deletion runs or is expected. Returns whether one ended after `ended` was
    /// read.
    fn wait(&self, ended: u64) -> bool {
        let begun = Instant::now();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut vain = self.vain.lock();
        let some_ended = loop {
            let (now, expectations) = (Instant::now(), self.expectations.load(Ordering::SeqCst));
            let kept = self.kept.load(Ordering::SeqCst) > 0;
            let until = if self.running.load(Ordering::SeqCst) > 0 {
                begun + MOST
            } else if kept && *vain < expectations {
                begun + GRACE
            } else {
                now
            };
            if until <= now {
                let some_ended = self.ended.load(Ordering::SeqCst) != ended;
                if kept && !some_ended {
                    *vain = expectations;
                }
                break some_ended;
            }
            self.changed.wait_for(&mut vain, until - now);
        };
        drop(vain);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        some_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_wait_for() {
        let deletions = Deletions::default();
        let begun = Instant::now();
        assert!(!deletions.wait(0));
        // One that ended between the failure and the wait counts.
        deletions.begin().end();
        assert!(deletions.wait(0));
        assert!(!deletions.wait(1));
        assert!(begun.elapsed() < GRACE);
    }

    #[test]
    fn waits_for_kept_and_running_deletions() {
        let deletions = Deletions::default();
        deletions.keeps_unnamed();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| deletions.wait(0));
            while deletions.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let deletion = deletions.begin();
            deletions.released_unnamed();
            // The deletion may take longer than the grace.
            std::thread::sleep(GRACE + Duration::from_millis(100));
            assert!(!waiter.is_finished());
            deletion.end();
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn inode_that_stays_in_use_is_waited_for_briefly() {
        let deletions = Deletions::default();
        deletions.keeps_unnamed();
        assert!(!deletions.wait(0));
        let begun = Instant::now();
        assert!(!deletions.wait(0));
        assert!(begun.elapsed() < GRACE, "the second wait takes no time");
    }

    /// The kernel may tell its server of the end of a file long after the `unlink`.
    #[test]
    fn inode_that_was_unlinked_long_ago_is_waited_for() {
        let deletions = Deletions::default();
        deletions.keeps_unnamed();
        std::thread::sleep(GRACE + Duration::from_millis(50));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| deletions.wait(0));
            while deletions.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // No keeper is left, and the last handle is dropped a moment later.
            deletions.lets_go();
            std::thread::sleep(Duration::from_millis(50));
            let deletion = deletions.begin();
            deletions.released_unnamed();
            deletion.end();
            assert!(waiter.join().unwrap());
        });
    }
}

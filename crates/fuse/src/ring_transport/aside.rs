//! Threads beside those of the queues.
//!
//! Owns [`Workers`], which answer slow requests, and [`Nudge`], which makes the kernel use new
//! entries. The threads of both end when the last handle is dropped.

use super::cpus;
use papilio_locks::Mutex;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

type Task = Box<dyn FnOnce() + Send>;

/// A handle to threads that answer slow requests.
#[derive(Clone, Debug)]
pub(super) struct Workers(Sender<Task>);

impl Workers {
    /// Starts `count` threads and appends their handles to `threads`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(count: usize, threads: &mut Vec<JoinHandle<()>>) -> io::Result<Self> {
        let (tasks, received) = channel::<Task>();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..count {
            let received = Arc::clone(&received);
            let work = move || {
                while let Some(task) = next(&received) {
                    if catch_unwind(AssertUnwindSafe(task)).is_err() {
                        tracing::error!("a worker's request panicked");
                    }
                }
            };
            threads.push(Builder::new().name("papilio-worker".to_owned()).spawn(work)?);
        }
        Ok(Self(tasks))
    }

    /// Runs a task. A task that cannot run is dropped.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let _ = self.0.send(Box::new(task));
    }
}

/// Returns the next task. The waiting thread holds the lock, so other threads wait for the lock.
fn next<T>(received: &Mutex<Receiver<T>>) -> Option<T> {
    received.lock().recv().ok()
}

/// Threads that send a request to the mount from the processor of a queue.
///
/// The kernel assigns requests when an entry comes back. Requests that arrived while a queue had no
/// entry keep waiting even after a new entry is added. When all entries are held and one is added,
/// a request of our own makes the kernel assign the earlier ones first. Another request may take
/// the new entry and be held as well. Ours then waits with the others until a further one takes the
/// next entry, so each of ours needs its own thread.
#[derive(Clone, Debug)]
pub(super) struct Nudge {
    wanted: Sender<u16>,
    threads: Arc<Nudgers>,
}

/// The state that the threads of a [`Nudge`] share.
struct Nudgers {
    wanted: Mutex<Receiver<u16>>,
    /// Number of threads that are idle and not assigned.
    idle: AtomicUsize,
    /// Threads that were added after the first.
    added: Mutex<Vec<JoinHandle<()>>>,
    /// Sends a request to the mount from the given processor.
    ask: Box<dyn Fn(u16) + Send + Sync>,
}

impl Nudge {
    /// Starts the first thread, which sends its requests to the mount at `directory`. Appends its
    /// handle to `threads`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(directory: PathBuf, threads: &mut Vec<JoinHandle<()>>) -> io::Result<Self> {
        let ask = move |queue| {
            cpus::stay_on(queue);
            // Only the request matters, not its answer.
            let _ = rustix::fs::statvfs(&directory);
        };
        Self::asking(Box::new(ask), threads)
    }

    fn asking(ask: Box<dyn Fn(u16) + Send + Sync>, threads: &mut Vec<JoinHandle<()>>) -> io::Result<Self> {
        let (wanted, received) = channel::<u16>();
        let (idle, added) = (AtomicUsize::new(1), Mutex::default());
        let nudgers = Arc::new(Nudgers { wanted: Mutex::new(received), idle, added, ask });
        let first = Arc::clone(&nudgers);
        let serve = move || {
            first.serve();
            // No thread is left that could add another one.
            let added = std::mem::take(&mut *first.added.lock());
            added.into_iter().for_each(|thread| drop(thread.join()));
        };
        threads.push(builder().spawn(serve)?);
        Ok(Self { wanted, threads: nudgers })
    }

    /// Makes the kernel assign the waiting requests of a queue.
    pub(super) fn queue(&self, queue: u16) {
        let one_less = |idle: usize| idle.checked_sub(1);
        if self.threads.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_err() {
            let nudgers = Arc::clone(&self.threads);
            match builder().spawn(move || nudgers.serve()) {
                Ok(thread) => self.threads.added.lock().push(thread),
                Err(error) => return tracing::warn!("starting a thread for queue {queue}: {error}"),
            }
        }
        let _ = self.wanted.send(queue);
    }
}

impl Nudgers {
    fn serve(&self) {
        leave_descriptors();
        while let Some(queue) = next(&self.wanted) {
            (self.ask)(queue);
            self.idle.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl fmt::Debug for Nudgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nudgers").field("idle", &self.idle).finish_non_exhaustive()
    }
}

/// Gives this thread a table of descriptors of its own, with the standard streams only.
///
/// The kernel ends the requests of a killed server when the last descriptor of its channel is
/// closed. A request of our own cannot be killed before that, so its thread must not hold one.
fn leave_descriptors() {
    // SAFETY: both calls take no memory. The second one closes descriptors of this thread's own
    // table, of which the thread uses none.
    let left = unsafe {
        libc::unshare(libc::CLONE_FILES) == 0 && libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) == 0
    };
    if !left {
        let error = io::Error::last_os_error();
        tracing::debug!("a thread that nudges keeps the descriptors of the server: {error}");
    }
}

fn builder() -> Builder {
    Builder::new().name("papilio-nudge".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn waiting_nudge_does_not_block_the_next() {
        const LAST: u16 = 4;
        let (go, gone) = channel::<()>();
        let (say, said) = channel();
        let gone = Mutex::new(gone);
        let ask = move |queue: u16| {
            // The standard streams, and that of the listing.
            let descriptors = std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
            assert!(descriptors <= 4, "{descriptors} descriptors");
            if queue < LAST {
                // Blocks until the end of the test.
                let _ = gone.lock().recv();
            }
            let _ = say.send(queue);
        };
        let mut threads = Vec::new();
        let nudge = Nudge::asking(Box::new(ask), &mut threads).unwrap();
        (0..=LAST).for_each(|queue| nudge.queue(queue));
        assert_eq!(said.recv_timeout(Duration::from_secs(60)), Ok(LAST));
        drop(go);
        let mut others: Vec<u16> = (0..LAST).map(|_| said.recv().unwrap()).collect();
        others.sort_unstable();
        assert_eq!(others, [0, 1, 2, 3]);
        // The existing threads suffice from here on.
        nudge.queue(LAST);
        assert_eq!(said.recv_timeout(Duration::from_secs(60)), Ok(LAST));
        assert!(nudge.threads.added.lock().len() <= usize::from(LAST) + 1);
        drop(nudge);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

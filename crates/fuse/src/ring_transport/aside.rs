//! Threads beside those of the queues.
//!
//! Owns [`Workers`], which answer requests that may take long, and [`Nudge`], which has a queue get going again. Both end when
//! the last handle on them is gone.

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

/// Threads that answer requests which may take long.
#[derive(Clone, Debug)]
pub(super) struct Workers(Sender<Task>);

impl Workers {
    /// Starts so many; their handles are added to `threads`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(count: usize, threads: &mut Vec<JoinHandle<()>>) -> io::Result<Self> {
        let (tasks, received) = channel::<Task>();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..count {
            let received = Arc::clone(&received);
            let work = move || {
                while let Some(task) = next(&received) {
                    if catch_unwind(AssertUnwindSafe(task)).is_err() {
                        tracing::error!("a request panicked");
                    }
                }
            };
            threads.push(Builder::new().name("papilio-worker".to_owned()).spawn(work)?);
        }
        Ok(Self(tasks))
    }

    /// Runs a task; one that cannot be run is dropped.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let _ = self.0.send(Box::new(task));
    }
}

/// The next task. Who waits for one holds the lock, and the others wait for that.
fn next<T>(received: &Mutex<Receiver<T>>) -> Option<T> {
    received.lock().recv().ok()
}

/// Threads that ask the mount for something, from the processor of a queue.
///
/// The kernel hands out requests when an entry is given back; those that came while a queue had no entry wait for
/// that even if another one was added since. So when an entry is added because all others are held, a request of our
/// own goes the way that those before it have to go first. A request of others may come before it and take the entry, to
/// be held as well: then ours waits with the rest until a further one finds the next entry, so that there is a thread for
/// each.
#[derive(Clone, Debug)]
pub(super) struct Nudge {
    wanted: Sender<u16>,
    threads: Arc<Nudgers>,
}

/// The threads of a [`Nudge`].
struct Nudgers {
    wanted: Mutex<Receiver<u16>>,
    /// How many have nothing to do, nor will.
    idle: AtomicUsize,
    /// Those that were added.
    added: Mutex<Vec<JoinHandle<()>>>,
    ask: Box<dyn Fn(u16) + Send + Sync>,
}

impl Nudge {
    /// Starts the first thread, which asks the mount at `directory`; its handle is added to `threads`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(directory: PathBuf, threads: &mut Vec<JoinHandle<()>>) -> io::Result<Self> {
        let ask = move |queue| {
            cpus::stay_on(queue);
            // Its answer is nobody's concern.
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
            // Nobody is left who could add one.
            let added = std::mem::take(&mut *first.added.lock());
            added.into_iter().for_each(|thread| drop(thread.join()));
        };
        threads.push(builder().spawn(serve)?);
        Ok(Self { wanted, threads: nudgers })
    }

    /// Has a queue get going.
    pub(super) fn queue(&self, queue: u16) {
        let one_less = |idle: usize| idle.checked_sub(1);
        if self.threads.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_err() {
            let nudgers = Arc::clone(&self.threads);
            match builder().spawn(move || nudgers.serve()) {
                Ok(thread) => self.threads.added.lock().push(thread),
                Err(error) => return tracing::warn!("queue {queue}: {error}"),
            }
        }
        let _ = self.wanted.send(queue);
    }
}

impl Nudgers {
    fn serve(&self) {
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

fn builder() -> Builder {
    Builder::new().name("papilio-nudge".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_request_of_ours_that_waits_does_not_hold_up_the_next() {
        const LAST: u16 = 4;
        let (go, gone) = channel::<()>();
        let (say, said) = channel();
        let gone = Mutex::new(gone);
        let ask = move |queue: u16| {
            if queue < LAST {
                // Until the test is over.
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
        // Those that are there by now are enough.
        nudge.queue(LAST);
        assert_eq!(said.recv_timeout(Duration::from_secs(60)), Ok(LAST));
        assert!(nudge.threads.added.lock().len() <= usize::from(LAST) + 1);
        drop(nudge);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

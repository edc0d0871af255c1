//! Threads beside those of the queues.
//!
//! Owns [`Workers`], which answer requests that may take long, and [`Nudge`], which has a queue get going again. Both end when
//! the last handle on them is gone.

use super::cpus;
use papilio_locks::Mutex;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
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
fn next(received: &Mutex<Receiver<Task>>) -> Option<Task> {
    received.lock().recv().ok()
}

/// A thread that asks the mount for something, from the processor of a queue.
///
/// The kernel hands out requests when an entry is given back; those that came while a queue had no entry wait for
/// that even if another one was added since. So when an entry is added because all others are held, a request of our
/// own goes the way that those before it have to go first.
#[derive(Clone, Debug)]
pub(super) struct Nudge(Sender<u16>);

impl Nudge {
    /// Starts the thread, which asks the mount at `directory`; its handle is added to `threads`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(directory: PathBuf, threads: &mut Vec<JoinHandle<()>>) -> io::Result<Self> {
        let (queues, received) = channel::<u16>();
        let ask = move || {
            for queue in received {
                cpus::stay_on(queue);
                // Its answer is nobody's concern.
                let _ = rustix::fs::statvfs(&directory);
            }
        };
        threads.push(Builder::new().name("papilio-nudge".to_owned()).spawn(ask)?);
        Ok(Self(queues))
    }

    /// Has a queue get going.
    pub(super) fn queue(&self, queue: u16) {
        let _ = self.0.send(queue);
    }
}

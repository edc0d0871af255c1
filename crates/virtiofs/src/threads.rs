//! The threads that answer slow requests.
//!
//! Owns [`Threads`]: a queue of tasks of bounded length. The thread that takes requests from the
//! guest waits while it is full, so a guest cannot make the server hold more.
//!
//! **Invariants**
//! - Each task that was accepted runs, also after [`Threads::end`] was called.
//! - A panic in a task ends that task only.
//!
//! **Locks:** `state`, for an instant. No task runs under it.

use papilio_locks::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

type Task = Box<dyn FnOnce() + Send>;

/// Tasks that wait, for each thread.
const WAITING: usize = 2;

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    ended: bool,
}

struct TaskQueue {
    state: Mutex<Waiting>,
    /// A task was added, or there will be none.
    added: Condvar,
    /// A task was taken.
    taken: Condvar,
    most: usize,
}

/// Threads that run tasks.
pub(crate) struct Threads {
    shared: Arc<TaskQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let shared = Arc::new(TaskQueue {
            state: Mutex::default(),
            added: Condvar::new(),
            taken: Condvar::new(),
            most: count * WAITING,
        });
        let started = Self { shared, threads: Mutex::default() };
        for _ in 0..count {
            let shared = Arc::clone(&started.shared);
            let thread = Builder::new().name("papilio-virtiofs".to_owned()).spawn(move || shared.run())?;
            started.threads.lock().push(thread);
        }
        Ok(started)
    }

    /// Runs a task on a thread. Waits while too many others wait.
    pub(crate) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        while state.tasks.len() >= self.shared.most {
            self.shared.taken.wait(&mut state);
        }
        state.tasks.push_back(Box::new(task));
        drop(state);
        self.shared.added.notify_one();
    }

    /// Waits until all tasks have run, and ends the threads.
    pub(crate) fn end(&self) {
        self.shared.state.lock().ended = true;
        self.shared.added.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // Panics of tasks are caught.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}

impl TaskQueue {
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            let task = loop {
                if let Some(task) = state.tasks.pop_front() {
                    break task;
                }
                if state.ended {
                    return;
                }
                self.added.wait(&mut state);
            };
            drop(state);
            self.taken.notify_one();
            if catch_unwind(AssertUnwindSafe(task)).is_err() {
                tracing::error!("answering a request panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_task_runs_before_the_end() {
        let threads = Threads::start(3).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for number in 0..200 {
            let ran = Arc::clone(&ran);
            threads.run(move || {
                ran.fetch_add(1, Ordering::Relaxed);
                if number == 7 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
            });
        }
        threads.end();
        assert_eq!(ran.load(Ordering::Relaxed), 200);
        // A second end does nothing.
        threads.end();
    }
}

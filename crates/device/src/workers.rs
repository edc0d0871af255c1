//! Threads for requests that wait: where there is no io_uring, or it cannot carry a request.
//!
//! Owns [`Workers`], a pool of at most [`MAX_THREADS`] threads, and [`run`], whose pool the whole
//! process shares. A thread ends after [`IDLE`] without work.
//!
//! **Locks**: `state`, never held while a job runs.
//!
//! Kernel counterpart: io_uring/io-wq.c.

use papilio_locks::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The most requests that wait at once.
const MAX_THREADS: usize = 64;
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct WorkerState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// A pool of threads.
#[derive(Default)]
pub(crate) struct Workers {
    state: Mutex<WorkerState>,
    work: Condvar,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

static WORKERS: LazyLock<Arc<Workers>> = LazyLock::new(Arc::default);

/// Runs `job` in a thread of the process's pool; in this one if the host has no more threads.
pub(crate) fn run(job: Job) {
    WORKERS.run(job);
}

impl Workers {
    /// Runs `job` in a thread of this pool; in this one if the host has no more threads.
    pub(crate) fn run(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle || state.threads == MAX_THREADS {
            drop(state);
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let thread = std::thread::Builder::new().name("papilio-device".into());
        let workers = Arc::clone(self);
        if thread.spawn(move || work(&workers)).is_err() {
            let mut state = self.state.lock();
            state.threads -= 1;
            let job = if state.threads == 0 { state.jobs.pop_front() } else { None };
            drop(state);
            if let Some(job) = job {
                job();
            }
        }
    }
}

fn work(workers: &Workers) {
    let mut state = workers.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = workers.state.lock();
            continue;
        }
        state.idle += 1;
        let timed_out = workers.work.wait_for(&mut state, IDLE);
        state.idle -= 1;
        if timed_out.timed_out() && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

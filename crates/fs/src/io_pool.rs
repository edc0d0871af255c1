//! The threads that carry out the requests of a queue: all of them, or on devices that answer later
//! those that have to wait for more than their own data.
//!
//! Owns [`Pool`], and [`Signal`], which wakes an event loop.
//!
//! **Locks:** `Shared::lists`, held for one operation on the lists, never while a request runs.
//!
//! Kernel counterpart: `io_uring/io-wq.c`.

use crate::file::File;
use crate::io_request::{IoCompletion, IoRequest};
use papilio_device::{Job, StableBuffer, WakeFd};
use papilio_engine::errors::Result;
use papilio_engine::file::in_flight_io::DeferredWork;
use papilio_locks::{Class, Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// The lock-order class of running requests, which a collector waits for.
static RUNNING: Class = Class::new("io-queue:running");

/// An eventfd for an event loop, made when one asks for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Signal(Arc<OnceLock<WakeFd>>);

impl Signal {
    /// Returns the eventfd, which is readable at first: there may be completions already.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub(super) fn event_fd(&self) -> std::io::Result<OwnedFd> {
        if self.0.get().is_none() {
            // Of two threads that are first, one keeps its eventfd.
            let made = WakeFd::new()?;
            made.set();
            let _ = self.0.set(made);
        }
        self.0.get().expect("it was set above").try_clone()
    }

    /// Makes the eventfd readable, if there is one.
    pub(super) fn notify(&self) {
        if let Some(fd) = self.0.get() {
            fd.set();
        }
    }
}

/// The threads that run requests.
pub(super) struct Pool<B> {
    shared: Arc<Shared<B>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<B> {
    lists: Mutex<Lists<B>>,
    /// Notified when a request waits or the queue is dropped.
    work: Condvar,
    /// Notified when a request completed or a thread panicked.
    completed: Condvar,
    signal: Signal,
}

struct Lists<B> {
    waiting: VecDeque<(Work<B>, Option<Job>)>,
    done: Vec<IoCompletion<B>>,
    closed: bool,
    panicked: bool,
}

/// Work for a thread.
pub(super) enum Work<B> {
    /// A request.
    Request(IoRequest<B>),
    /// The rest of a write in flight, before its completion can be taken.
    DeferredWork(IoCompletion<B>, Arc<File>, DeferredWork),
}

impl<B: StableBuffer> Work<B> {
    fn run(self) -> IoCompletion<B> {
        match self {
            Self::Request(request) => request.run(),
            Self::DeferredWork(mut completion, file, deferred) => {
                if let Err(error) = do_deferred(&file, deferred) {
                    completion.result = Err(error);
                }
                completion
            }
        }
    }
}

/// Does what a write in flight has left.
///
/// # Errors
/// An error of the device or of changing trees.
pub(super) fn do_deferred(file: &File, deferred: DeferredWork) -> Result<()> {
    file.writable().expect("only open files have requests in flight").do_deferred(deferred)
}

impl<B: StableBuffer> Pool<B> {
    pub(super) fn start(depth: usize, threads: usize, signal: Signal) -> std::io::Result<Self> {
        let lists = Lists {
            waiting: VecDeque::with_capacity(depth),
            done: Vec::with_capacity(depth),
            closed: false,
            panicked: false,
        };
        let (work, completed) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { lists: Mutex::new(lists), work, completed, signal });
        let mut pool = Self { shared, threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name("papilio-io".into());
            pool.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }
}

impl<B> Pool<B> {
    /// Returns the number of threads.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Accepts work. `job` ends once its completion can be taken.
    pub(super) fn submit(&self, work: Work<B>, job: Option<Job>) {
        self.shared.lists.lock().waiting.push_back((work, job));
        self.shared.work.notify_one();
    }

    /// Appends the completions so far.
    ///
    /// # Panics
    /// As [`Pool::collect`].
    pub(super) fn take_done(&self, completions: &mut Vec<IoCompletion<B>>) {
        let mut lists = self.shared.lists.lock();
        assert!(!lists.panicked, "a thread of an I/O queue panicked");
        completions.append(&mut lists.done);
    }

    /// # Panics
    /// If a request panicked in its thread: it will never complete.
    pub(super) fn collect(&self, min: usize, completions: &mut Vec<IoCompletion<B>>) {
        RUNNING.might_wait(&*self.shared);
        let mut lists = self.shared.lists.lock();
        while lists.done.len() < min && !lists.panicked {
            self.shared.completed.wait(&mut lists);
        }
        assert!(!lists.panicked, "a thread of an I/O queue panicked");
        completions.append(&mut lists.done);
    }
}

impl<B: StableBuffer> Shared<B> {
    /// Runs requests until the queue is closed; the main function of a thread.
    fn work(&self) {
        let _report = ReportPanic(self);
        let mut lists = self.lists.lock();
        loop {
            if let Some((work, job)) = lists.waiting.pop_front() {
                drop(lists);
                let completion = {
                    let _running = RUNNING.tried(self);
                    work.run()
                };
                lists = self.lists.lock();
                lists.done.push(completion);
                self.completed.notify_one();
                self.signal.notify();
                if job.is_some() {
                    drop(lists);
                    drop(job);
                    lists = self.lists.lock();
                }
            } else if lists.closed {
                return;
            } else {
                self.work.wait(&mut lists);
            }
        }
    }
}

/// Tells the collector if its thread panics.
struct ReportPanic<'a, B>(&'a Shared<B>);

impl<B> Drop for ReportPanic<'_, B> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lists.lock().panicked = true;
            self.0.completed.notify_one();
            self.0.signal.notify();
        }
    }
}

impl<B> Drop for Pool<B> {
    fn drop(&mut self) {
        RUNNING.might_wait(&*self.shared);
        let unbegun = {
            let mut lists = self.shared.lists.lock();
            lists.closed = true;
            std::mem::take(&mut lists.waiting)
        };
        // This may drop the last handle of a file, which must not happen under the lists' lock.
        drop(unbegun);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was already reported to the collector.
            drop(thread.join());
        }
    }
}

//! Asynchronous requests on files: each is submitted with a token, and its completion is collected
//! later.
//!
//! Owns [`IoQueue`].
//!
//! **Invariants**
//! - A request owns its buffer from [`IoQueue::submit`] until its completion returns it.
//! - Each accepted request is carried out, and completes exactly once.
//! - At most `depth` requests are accepted and not yet collected.
//!
//! **Locks:** see [`super::io_driven`] and [`super::io_pool`].
//!
//! Kernel counterpart: `io_uring/`, `fs/aio.c`.

use crate::file_system::FileSystem;
use crate::io_driven::Driven;
use crate::io_pool::{Pool, Signal, Work};
use crate::io_request::{IoCompletion, IoRequest};
use papilio_device::StableBuffer;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;

/// A queue of requests on files of one or several file systems.
///
/// On devices that answer later
/// ([`OpenOptions::direct_io`](papilio_engine::OpenOptions::direct_io)), reads and writes of whole
/// sectors are in flight while no thread waits for them. In a queue from [`IoQueue::new`], the
/// thread that polls or waits runs all other requests, one after the other. A queue from
/// [`IoQueue::with_threads`] has threads for them, so that none holds up the rest: syncs, reads
/// whose place or checksums are not cached, writes of parts of sectors. On devices that answer at
/// once, those threads run all requests.
///
/// **Order.** Requests run in any order, also on one file. A caller that must read the result of a
/// write waits for the write's completion first. A sync covers the requests that had completed when
/// it was submitted. Each request is as atomic as the method of `File` that it calls: a read sees
/// a write of up to 8 MiB as a whole or not at all.
///
/// Dropping a queue carries out all accepted requests, and discards their completions.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("store.img");
/// # papilio::mkfs(&image, &papilio::MkfsOptions::new().size(256 << 20))?;
/// use papilio::{FileSystem, IoOperation, IoQueue, IoRequest, OpenOptions};
/// use std::sync::Arc;
///
/// let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
/// let file = Arc::new(fs.create_file("/data")?);
/// let mut queue = IoQueue::new(16);
/// for token in 0..16 {
///     let buffer = vec![token as u8; 4096];
///     let operation = IoOperation::Write { buffer, offset: token * 4096 };
///     let request = IoRequest { file: Arc::clone(&file), operation, token };
///     queue.submit(request).expect("the queue accepts 16 requests");
/// }
/// let mut done = Vec::new();
/// queue.wait(16, &mut done);
/// for completion in &done {
///     assert_eq!(*completion.result.as_ref().unwrap(), 4096);
/// }
///
/// // The completions returned the buffers; reuse one for a read.
/// let buffer = done.pop().unwrap().buffer.unwrap();
/// let operation = IoOperation::Read { buffer, offset: 5 * 4096 };
/// queue.submit(IoRequest { file, operation, token: 99 }).unwrap();
/// done.clear();
/// queue.wait(1, &mut done);
/// assert_eq!((done[0].token, done[0].buffer.as_deref()), (99, Some(&[5; 4096][..])));
/// # Ok(())
/// # }
/// ```
pub struct IoQueue<B: StableBuffer> {
    depth: usize,
    /// Requests accepted and not yet collected.
    in_flight: usize,
    runner: Runner<B>,
    signal: Signal,
}

/// How requests are carried out.
enum Runner<B: StableBuffer> {
    /// By the thread that polls, one after the other. Becomes `Driven` or `Pool` with the first
    /// request that gains from it.
    Caller(VecDeque<IoRequest<B>>),
    Driven(Box<Driven<B>>),
    Pool(Pool<B>),
}

impl<B: StableBuffer> IoQueue<B> {
    /// Creates a queue for `depth` requests, at least one, without threads.
    pub fn new(depth: usize) -> Self {
        let depth = depth.max(1);
        let runner = Runner::Caller(VecDeque::with_capacity(depth));
        Self { depth, in_flight: 0, runner, signal: Signal::default() }
    }

    /// Creates a queue for `depth` requests, at least one, with a pool of `threads` threads. 0
    /// threads are the same as [`IoQueue::new`].
    ///
    /// # Errors
    /// The host's error if a thread cannot be started.
    pub fn with_threads(depth: usize, threads: usize) -> std::io::Result<Self> {
        let mut queue = Self::new(depth);
        if threads > 0 {
            queue.runner = Runner::Pool(Pool::start(queue.depth, threads, queue.signal.clone())?);
        }
        Ok(queue)
    }

    /// Creates a queue as [`IoQueue::with_threads`], for requests on files of `fs` only. It has an
    /// eventfd from the start, whatever the devices are: [`IoQueue::completion_fd`].
    ///
    /// # Errors
    /// As [`IoQueue::with_threads`].
    pub fn for_file_system(fs: &FileSystem, depth: usize, threads: usize) -> std::io::Result<Self> {
        let mut queue = Self::with_threads(depth, threads)?;
        if fs.queues_reads() {
            queue.drive();
        }
        Ok(queue)
    }

    /// Accepts a request without blocking. It may begin now, or with the next call that collects.
    ///
    /// # Errors
    /// The request itself, if `depth` requests are in flight: collect completions first.
    pub fn submit(&mut self, request: IoRequest<B>) -> std::result::Result<(), IoRequest<B>> {
        self.begin(request)?;
        if let Runner::Driven(driven) = &mut self.runner {
            driven.submit();
        }
        Ok(())
    }

    /// As [`IoQueue::submit`], for a queue whose requests come from other threads than the one that
    /// collects: the devices get the request from the latter, with its next [`IoQueue::poll`]. The
    /// kernel interrupts the thread that handed a request over when the request completes.
    ///
    /// # Errors
    /// As [`IoQueue::submit`].
    pub fn begin(&mut self, request: IoRequest<B>) -> std::result::Result<(), IoRequest<B>> {
        if self.in_flight == self.depth {
            return Err(request);
        }
        if !matches!(self.runner, Runner::Driven(_)) && request.file.queues_reads() {
            self.drive();
        }
        match &mut self.runner {
            Runner::Caller(waiting) => {
                waiting.push_back(request);
                self.signal.notify();
            }
            Runner::Driven(driven) => driven.begin(request),
            Runner::Pool(pool) => pool.submit(Work::Request(request), None),
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Lets requests be in flight without threads from now on.
    fn drive(&mut self) {
        // The threads' completions are not those of a driver.
        let busy = matches!(self.runner, Runner::Pool(_)) && self.in_flight > 0;
        // Without descriptors left the queue works as before.
        let driven = if busy { None } else { Driven::new(self.depth).ok() };
        let Some(mut driven) = driven.map(Box::new) else { return };
        match std::mem::replace(&mut self.runner, Runner::Caller(VecDeque::new())) {
            Runner::Caller(waiting) => waiting.into_iter().for_each(|earlier| driven.begin(earlier)),
            Runner::Pool(pool) => driven.set_pool(pool),
            Runner::Driven(_) => unreachable!("it drives them already"),
        }
        self.runner = Runner::Driven(driven);
    }

    /// Appends the completions so far to `completions` and returns their number. A queue without
    /// threads first runs the requests that need a thread.
    pub fn poll(&mut self, completions: &mut Vec<IoCompletion<B>>) -> usize {
        self.collect(0, completions)
    }

    /// Collects as [`IoQueue::poll`], but first waits until `min` requests have completed, or all
    /// if fewer are in flight.
    pub fn wait(&mut self, min: usize, completions: &mut Vec<IoCompletion<B>>) -> usize {
        self.collect(min.min(self.in_flight), completions)
    }

    fn collect(&mut self, min: usize, completions: &mut Vec<IoCompletion<B>>) -> usize {
        let before = completions.len();
        match &mut self.runner {
            Runner::Caller(waiting) => completions.extend(waiting.drain(..).map(IoRequest::run)),
            Runner::Driven(driven) => driven.collect(min, completions),
            Runner::Pool(pool) => pool.collect(min, completions),
        }
        let collected = completions.len() - before;
        self.in_flight -= collected;
        collected
    }

    /// Returns an eventfd for an event loop: it is readable when completions may wait. The loop
    /// reads its counter and then calls [`IoQueue::poll`], also once after it has submitted. Only a
    /// queue on devices that answer later has one: others complete when they are polled.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn event_fd(&self) -> std::io::Result<Option<OwnedFd>> {
        match &self.runner {
            Runner::Driven(driven) => driven.event_fd().map(Some),
            Runner::Caller(_) | Runner::Pool(_) => Ok(None),
        }
    }

    /// Returns an eventfd as [`IoQueue::event_fd`] does, but for every queue of
    /// [`IoQueue::for_file_system`]. It stays the same while the queue lives. Where no thread runs
    /// the requests, it is readable when [`IoQueue::poll`] has one to run.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn completion_fd(&self) -> std::io::Result<OwnedFd> {
        match &self.runner {
            Runner::Driven(driven) => driven.event_fd(),
            Runner::Caller(_) | Runner::Pool(_) => self.signal.event_fd(),
        }
    }

    /// Returns the limit of requests in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of requests whose completions were not collected yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl<B: StableBuffer> fmt::Debug for IoQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = match &self.runner {
            Runner::Caller(_) => 0,
            Runner::Driven(driven) => driven.threads(),
            Runner::Pool(pool) => pool.threads(),
        };
        f.debug_struct("IoQueue")
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight)
            .field("threads", &threads)
            .finish()
    }
}

impl<B: StableBuffer> Drop for IoQueue<B> {
    fn drop(&mut self) {
        // The pool waits for its own requests. A panic may have left a file in any state.
        if self.in_flight > 0 && !std::thread::panicking() {
            self.wait(usize::MAX, &mut Vec::new());
        }
    }
}

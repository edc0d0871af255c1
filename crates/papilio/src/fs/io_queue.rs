//! Asynchronous requests on files: each is submitted with a token, and its completion is collected
//! later.
//!
//! Owns [`IoQueue`], [`IoRequest`], [`IoOperation`] and [`IoCompletion`].
//!
//! **Invariants**
//! - A request owns its buffer from [`IoQueue::submit`] until its completion returns it.
//! - Each accepted request completes exactly once, unless the queue is dropped.
//! - At most `depth` requests are accepted and not yet collected.
//! - A request calls the public methods of [`File`], in the caller's thread or in one of the pool.
//!   Reads of a device with `O_DIRECT` that wait in the caller's thread are carried out together.
//!
//! **Locks:** `Shared::lists`, held for one operation on the lists, never while a request runs.
//!
//! Kernel counterpart: `io_uring/`, `fs/aio.c`.

use crate::data::FileRead;
use crate::errors::Result;
use crate::fs::file::File;
use papilio_locks::{Class, Condvar, Mutex};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Requests of a batch that take no allocation.
const USUAL_DEPTH: usize = 64;

/// An operation on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoOperation<B> {
    /// Reads into `buffer` at byte `offset`, as [`File::read_at`].
    Read {
        /// The buffer to fill; its length is the number of bytes to read.
        buffer: B,
        /// File offset in bytes.
        offset: u64,
    },
    /// Writes all of `buffer` at byte `offset`, as [`File::write_all_at`].
    Write {
        /// The bytes to write.
        buffer: B,
        /// File offset in bytes.
        offset: u64,
    },
    /// Makes the file durable, as [`File::sync_all`].
    Fsync,
    /// Makes the file's data durable, as [`File::sync_data`].
    Fdatasync,
    /// Makes a hole, as [`File::punch_hole`].
    PunchHole {
        /// File offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Allocates space for a range, as [`File::allocate`].
    Allocate {
        /// File offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether to keep the file's size if the range ends past it.
        keep_size: bool,
    },
}

/// A request: an operation, its file, and a token that identifies the completion.
#[derive(Clone, Debug)]
pub struct IoRequest<B> {
    /// The file.
    pub file: Arc<File>,
    /// The operation.
    pub operation: IoOperation<B>,
    /// A number chosen by the caller and returned in the completion. Tokens need not be unique.
    pub token: u64,
}

/// The result of a request.
#[derive(Debug)]
#[non_exhaustive]
pub struct IoCompletion<B> {
    /// The token of the request.
    pub token: u64,
    /// The buffer of a read or a write.
    pub buffer: Option<B>,
    /// Bytes read, written, punched or allocated; 0 for syncs. Only a read at the end of the file
    /// gives fewer than requested.
    pub result: Result<usize>,
}

/// A queue of requests on files of one or several file systems.
///
/// A queue from [`IoQueue::new`] has no threads: the thread that polls or waits runs the requests.
/// This suits image files and memory, which rarely block. A queue from [`IoQueue::with_threads`]
/// has a pool of threads, which suits block devices.
///
/// **Order.** Requests run in any order, also on one file. A caller that must read the result of a
/// write waits for the write's completion first. A sync covers the requests that had completed when
/// it was submitted. Each request is as atomic as the method of [`File`] that it calls: a read sees
/// a write of up to 8 MiB as a whole or not at all.
///
/// Dropping a queue waits for running requests and discards the others without a completion.
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
pub struct IoQueue<B> {
    depth: usize,
    /// Requests accepted and not yet collected.
    in_flight: usize,
    runner: Runner<B>,
}

/// The threads that run the requests.
enum Runner<B> {
    /// The thread that polls runs the requests of this list.
    Caller(VecDeque<IoRequest<B>>),
    Pool(Pool<B>),
}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send> IoQueue<B> {
    /// Creates a queue for `depth` requests, at least one, which the thread that polls runs.
    pub fn new(depth: usize) -> Self {
        let depth = depth.max(1);
        Self { depth, in_flight: 0, runner: Runner::Caller(VecDeque::with_capacity(depth)) }
    }

    /// Accepts a request without blocking.
    ///
    /// # Errors
    /// The request itself, if `depth` requests are in flight: collect completions first.
    pub fn submit(&mut self, request: IoRequest<B>) -> std::result::Result<(), IoRequest<B>> {
        if self.in_flight == self.depth {
            return Err(request);
        }
        match &mut self.runner {
            Runner::Caller(waiting) => waiting.push_back(request),
            Runner::Pool(pool) => pool.submit(request),
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Appends the completions so far to `completions` and returns their number. A queue without
    /// threads runs all its requests now.
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
            Runner::Caller(waiting) => {
                let read = read_batches(waiting.make_contiguous());
                let requests = waiting.drain(..).zip(read.into_iter().chain(std::iter::repeat(None)));
                completions.extend(requests.map(|(request, read)| request.complete(read)));
            }
            Runner::Pool(pool) => pool.collect(min, completions),
        }
        let collected = completions.len() - before;
        self.in_flight -= collected;
        collected
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> IoQueue<B> {
    /// Creates a queue for `depth` requests, at least one, with a pool of `threads` threads. 0
    /// threads are the same as [`IoQueue::new`].
    ///
    /// # Errors
    /// The host's error if a thread cannot be started.
    pub fn with_threads(depth: usize, threads: usize) -> std::io::Result<Self> {
        let mut queue = Self::new(depth);
        if threads > 0 {
            queue.runner = Runner::Pool(Pool::start(queue.depth, threads)?);
        }
        Ok(queue)
    }
}

impl<B> IoQueue<B> {
    /// Returns the limit of requests in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of requests whose completions were not collected yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl<B> fmt::Debug for IoQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = match &self.runner {
            Runner::Caller(_) => 0,
            Runner::Pool(pool) => pool.threads.len(),
        };
        f.debug_struct("IoQueue")
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight)
            .field("threads", &threads)
            .finish()
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> IoOperation<B> {
    /// Runs the operation in the calling thread.
    fn run(&mut self, file: &File) -> Result<usize> {
        match self {
            IoOperation::Read { buffer, offset } => file.read_at(buffer.as_mut(), *offset),
            IoOperation::Write { buffer, offset } => {
                let bytes = (*buffer).as_ref();
                file.write_all_at(bytes, *offset).map(|()| bytes.len())
            }
            IoOperation::Fsync => file.sync_all().map(|()| 0),
            IoOperation::Fdatasync => file.sync_data().map(|()| 0),
            IoOperation::PunchHole { offset, length } => {
                file.punch_hole(*offset, *length).map(|()| *length as usize)
            }
            IoOperation::Allocate { offset, length, keep_size } => {
                file.allocate(*offset, *length, *keep_size).map(|()| *length as usize)
            }
        }
    }

    fn into_buffer(self) -> Option<B> {
        match self {
            IoOperation::Read { buffer, .. } | IoOperation::Write { buffer, .. } => Some(buffer),
            _ => None,
        }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> IoRequest<B> {
    /// Runs the request at once in the calling thread, as a queue of depth 1 does.
    pub fn run(mut self) -> IoCompletion<B> {
        let result = self.operation.run(&self.file);
        IoCompletion { token: self.token, buffer: self.operation.into_buffer(), result }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> IoRequest<B> {
    /// Completes a read of `read` bytes, or runs the request.
    fn complete(self, read: Option<usize>) -> IoCompletion<B> {
        match read {
            Some(read) => {
                let (token, buffer) = (self.token, self.operation.into_buffer());
                IoCompletion { token, buffer, result: Ok(read) }
            }
            None => self.run(),
        }
    }
}

/// Carries out the waiting reads whose extents and checksums are cached, those of one file at once.
/// Returns for each of these requests the number of bytes that it read, and `None` for the others.
fn read_batches<B: AsMut<[u8]>>(waiting: &mut [IoRequest<B>]) -> SmallVec<[Option<usize>; USUAL_DEPTH]> {
    let mut results: SmallVec<[Option<usize>; USUAL_DEPTH]> = SmallVec::new();
    if waiting.len() < 2 {
        return results;
    }
    results.resize(waiting.len(), None);
    let mut first = 0;
    while first < waiting.len() {
        let file = Arc::clone(&waiting[first].file);
        let end = first + waiting[first..].iter().take_while(|next| Arc::ptr_eq(&next.file, &file)).count();
        if let Some(open) = file.writable() {
            let mut numbers: SmallVec<[usize; USUAL_DEPTH]> = SmallVec::new();
            let mut reads: SmallVec<[FileRead<'_>; USUAL_DEPTH]> = SmallVec::new();
            for (number, request) in waiting[first..end].iter_mut().enumerate() {
                if let IoOperation::Read { buffer, offset } = &mut request.operation {
                    numbers.push(first + number);
                    reads.push(FileRead { offset: *offset, buffer: buffer.as_mut(), read: None });
                }
            }
            if reads.len() > 1 {
                open.read_many(&mut reads);
                numbers.iter().zip(&reads).for_each(|(&number, read)| results[number] = read.read);
            }
        }
        first = end;
    }
    results
}

/// The lock-order class of running requests, which a collector waits for.
static RUNNING: Class = Class::new("io-queue:running");

/// The threads that run requests.
struct Pool<B> {
    shared: Arc<Shared<B>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<B> {
    lists: Mutex<Lists<B>>,
    /// Notified when a request waits or the queue is dropped.
    work: Condvar,
    /// Notified when a request completed or a thread panicked.
    completed: Condvar,
}

struct Lists<B> {
    waiting: VecDeque<IoRequest<B>>,
    done: Vec<IoCompletion<B>>,
    closed: bool,
    panicked: bool,
}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> Pool<B> {
    fn start(depth: usize, threads: usize) -> std::io::Result<Self> {
        let lists = Lists {
            waiting: VecDeque::with_capacity(depth),
            done: Vec::with_capacity(depth),
            closed: false,
            panicked: false,
        };
        let shared =
            Arc::new(Shared { lists: Mutex::new(lists), work: Condvar::new(), completed: Condvar::new() });
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
    fn submit(&self, request: IoRequest<B>) {
        self.shared.lists.lock().waiting.push_back(request);
        self.shared.work.notify_one();
    }

    /// # Panics
    /// If a request panicked in its thread: it will never complete.
    fn collect(&self, min: usize, completions: &mut Vec<IoCompletion<B>>) {
        RUNNING.might_wait(&*self.shared);
        let mut lists = self.shared.lists.lock();
        while lists.done.len() < min && !lists.panicked {
            self.shared.completed.wait(&mut lists);
        }
        assert!(!lists.panicked, "a thread of an I/O queue panicked");
        completions.append(&mut lists.done);
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Shared<B> {
    /// Runs requests until the queue is closed; the main function of a thread.
    fn work(&self) {
        let _report = ReportPanic(self);
        let mut lists = self.lists.lock();
        loop {
            if let Some(request) = lists.waiting.pop_front() {
                drop(lists);
                let completion = {
                    let _running = RUNNING.tried(self);
                    request.run()
                };
                lists = self.lists.lock();
                lists.done.push(completion);
                self.completed.notify_one();
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

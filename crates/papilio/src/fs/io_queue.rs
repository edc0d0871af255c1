//! Many requests on files at once: submitted with a token each, their completions collected later.
//!
//! Owns [`IoQueue`], [`IoRequest`], [`IoOperation`] and [`IoCompletion`]. A request owns its buffer from
//! [`IoQueue::submit`] until its completion gives it back, so that nobody can change it meanwhile.
//!
//! Invariants: what was accepted is answered exactly once, unless the queue is dropped; at most `depth`
//! requests are accepted and not handed back. A request runs through the very calls of [`File`] that a
//! caller would make, whoever runs it.
//!
//! Locks: a pool's, for one operation on its lists, never while a request runs.

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

/// What a request asks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoOperation<B> {
    /// Fills `buffer` from byte `offset` on, as [`File::read_at`].
    Read {
        /// Where the bytes go; its length is how many are asked for.
        buffer: B,
        /// File offset in bytes.
        offset: u64,
    },
    /// Writes all of `buffer` at byte `offset`, as [`File::write_at`].
    Write {
        /// The bytes.
        buffer: B,
        /// File offset in bytes.
        offset: u64,
    },
    /// Makes the file durable, as [`File::sync`].
    Fsync,
    /// Makes the file's data durable, as [`File::sync_data`].
    Fdatasync,
    /// Makes a hole, as [`File::punch_hole`] (a trim).
    PunchHole {
        /// File offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Gives room to a range, as [`File::allocate`].
    Allocate {
        /// File offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether the file's size stays even if the range ends behind it.
        keep_size: bool,
    },
}

/// An operation on a file, and the token by which its completion is known.
#[derive(Clone, Debug)]
pub struct IoRequest<B> {
    /// The file.
    pub file: Arc<File>,
    /// What is asked of it.
    pub operation: IoOperation<B>,
    /// The caller's, returned as it is. Tokens need not differ.
    pub token: u64,
}

/// The answer to a request.
#[derive(Debug)]
pub struct IoCompletion<B> {
    /// The request's.
    pub token: u64,
    /// The buffer of a read or a write.
    pub buffer: Option<B>,
    /// Bytes read, written, punched or allocated, fewer than asked only for reads at the end of the file; 0 for
    /// syncs.
    pub result: Result<usize>,
}

/// A queue of requests on files of one or several file systems.
///
/// Without threads of its own ([`IoQueue::new`]) requests run in the thread that polls or waits: right
/// for image files and memory, which answer at once, so that depth costs no threads. With threads
/// ([`IoQueue::with_threads`]) they run as soon as one is free: right for devices that let their callers wait.
///
/// **Order.** There is none between requests, not even on one file: who needs a write to be over before a
/// read of the same place waits for its completion. A sync covers what had completed when it was submitted. (Each
/// request by itself is what the call of [`File`] is: a read sees a write of 8 MiB or less whole or not at all.)
///
/// A queue belongs to one thread at a time. Dropping it waits for the requests that run; those that had not
/// begun are never run, and nobody is told.
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
///     let operation = IoOperation::Write { buffer: vec![token as u8; 4096], offset: token * 4096 };
///     queue.submit(IoRequest { file: Arc::clone(&file), operation, token }).expect("there is room for 16");
/// }
/// let mut done = Vec::new();
/// queue.wait(16, &mut done);
/// for completion in &done {
///     assert_eq!(*completion.result.as_ref().unwrap(), 4096);
/// }
///
/// // The buffers are back, and are read into.
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
    /// Accepted and not handed back.
    in_flight: usize,
    runner: Runner<B>,
}

/// Who runs requests.
enum Runner<B> {
    /// Whoever polls, from this list.
    Caller(VecDeque<IoRequest<B>>),
    Pool(Pool<B>),
}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send> IoQueue<B> {
    /// A queue for `depth` requests, at least one, that run in the thread that polls.
    pub fn new(depth: usize) -> Self {
        let depth = depth.max(1);
        Self { depth, in_flight: 0, runner: Runner::Caller(VecDeque::with_capacity(depth)) }
    }

    /// Accepts a request, without waiting for anything.
    ///
    /// # Errors
    /// The request itself, where as many as the depth are under way: collect completions first.
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

    /// Appends what has completed to `completions` and returns how many that are. Requests that run in the
    /// caller's thread run now, all of them.
    pub fn poll(&mut self, completions: &mut Vec<IoCompletion<B>>) -> usize {
        self.collect(0, completions)
    }

    /// As [`IoQueue::poll`], but returns no sooner than `min` have completed, or all where fewer are under
    /// way.
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
    /// A queue for `depth` requests, at least one, that run in `threads` threads of its own; without any, as
    /// [`IoQueue::new`].
    ///
    /// # Errors
    /// What the host says where it gives no thread.
    pub fn with_threads(depth: usize, threads: usize) -> std::io::Result<Self> {
        let mut queue = Self::new(depth);
        if threads > 0 {
            queue.runner = Runner::Pool(Pool::start(queue.depth, threads)?);
        }
        Ok(queue)
    }
}

impl<B> IoQueue<B> {
    /// Most requests that may be under way.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Requests that were accepted and whose completions were not collected.
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
    /// Runs it, in the thread that calls.
    fn run(&mut self, file: &File) -> Result<usize> {
        match self {
            IoOperation::Read { buffer, offset } => file.read_at(buffer.as_mut(), *offset),
            IoOperation::Write { buffer, offset } => {
                let bytes = (*buffer).as_ref();
                file.write_at(bytes, *offset).map(|()| bytes.len())
            }
            IoOperation::Fsync => file.sync().map(|()| 0),
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
    /// Runs it at once, in the thread that calls: the same as through a queue of depth 1.
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

/// Requests that run, for which is waited.
static RUNNING: Class = Class::new("io-queue:running");

/// Threads that run requests.
struct Pool<B> {
    shared: Arc<Shared<B>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<B> {
    lists: Mutex<Lists<B>>,
    /// Something waits, or the queue is gone.
    work: Condvar,
    /// Something completed, or a thread panicked.
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
    /// When a request made its thread panic: it will never be answered.
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
    /// A thread's life.
    fn work(&self) {
        let _told = TellOfPanic(self);
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

/// Tells who waits that a thread is gone.
struct TellOfPanic<'a, B>(&'a Shared<B>);

impl<B> Drop for TellOfPanic<'_, B> {
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
        // Files may close here, which the lists' lock has no business with.
        drop(unbegun);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // That it panicked was said where completions are collected.
            drop(thread.join());
        }
    }
}

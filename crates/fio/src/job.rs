//! A running job: its files and its I/O.
//!
//! Owns [`Job`], which belongs to the job's thread, and [`Transfer`], the buffer of an I/O. I/O
//! runs in the job's own thread unless `queue_threads` is set, because a hand-over to another
//! thread costs several times what a short I/O takes. With `iodepth=1` an I/O is complete when
//! `queue` returns. With a greater depth the job collects I/O until fio commits, submits it to an
//! [`IoQueue`] in one batch, and runs it when fio asks for completions.
//!
//! **Invariants**
//! - An `io_u` belongs to fio again once fio has its completion. The engine touches its buffer only
//!   before that.
//! - A sync runs when no other I/O of the job is queued or running.
//!
//! It takes no locks.

use crate::abi::{BUSY, COMPLETED, Direction, IoUnit, QUEUED, ThreadData};
use crate::discover::Fio;
use crate::error::EngineError;
use crate::files::Files;
use crate::message::say;
use crate::mount;
use crate::options::JobOptions;
use papilio::{File, FileSystem, IoCompletion, IoOperation, IoQueue, IoRequest, StableBuffer};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The buffer of an I/O, owned by fio.
#[derive(Debug)]
pub struct Transfer {
    start: *mut u8,
    length: usize,
}

// SAFETY: fio leaves the buffer alone from `queue` until it has the completion, and no other thread
// uses it meanwhile.
unsafe impl Send for Transfer {}

// SAFETY: address and length never change, and the bytes are not part of the value.
unsafe impl StableBuffer for Transfer {
    fn stable(&self) -> &[u8] {
        // SAFETY: fio's buffer of this length, which this value uses exclusively while it lives.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `stable`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

/// A job in its thread.
#[derive(Debug)]
pub struct Job {
    fio: &'static Fio,
    options: JobOptions,
    fs: FileSystem,
    /// Open files by fio's number.
    files: Vec<Option<Arc<File>>>,
    /// The queue; `None` with `iodepth=1` and no queue threads.
    queue: Option<IoQueue<Transfer>>,
    /// Queued by fio and not yet committed.
    uncommitted: Vec<IoUnit>,
    /// Complete with their results, and not yet handed to fio.
    done: VecDeque<*mut c_void>,
    collected: Vec<IoCompletion<Transfer>>,
    /// Completions that `getevents` counted and `event` returns.
    events: Vec<*mut c_void>,
    checked: bool,
    /// The job has printed its first error.
    error_printed: bool,
}

/// Threads of a queue whose other requests are in flight without one: for requests that miss a
/// tree block, and for syncs.
const MISS_THREADS: usize = 2;

impl Job {
    /// Starts a job in its thread.
    ///
    /// # Errors
    /// An option cannot be honoured, or the mount fails.
    pub fn start(fio: &'static Fio, thread: ThreadData) -> Result<Self, EngineError> {
        let options = JobOptions::of(fio, thread)?;
        if !fio.is_main_process() {
            return Err(EngineError::Forked { job: options.name });
        }
        let fs = mount::mount(&options.mount)?;
        let depth = options.iodepth;
        let threads = match options.queue_threads {
            0 if depth > 1 && fs.waits_for_devices() => MISS_THREADS,
            threads => threads,
        };
        let queued = depth > 1 || threads > 0;
        let queue = queued.then(|| IoQueue::with_threads(depth, threads)).transpose();
        let queue =
            queue.map_err(|source| EngineError::Threads { job: options.name.clone(), threads, source })?;
        Ok(Self {
            fio,
            fs,
            files: Vec::new(),
            queue,
            uncommitted: Vec::with_capacity(depth),
            done: VecDeque::with_capacity(depth),
            collected: Vec::with_capacity(depth),
            events: Vec::with_capacity(depth),
            checked: false,
            error_printed: false,
            options,
        })
    }

    /// Opens a file for I/O and returns its size. Drops the file from the cache first if the job
    /// asks for that.
    ///
    /// # Errors
    /// The file cannot be opened or created, or writeback of its cached pages fails.
    pub fn open(&mut self, number: usize, name: &str) -> Result<u64, EngineError> {
        let files = Files { fs: &self.fs, options: &self.options };
        let mut file = files.open(name)?;
        if self.options.invalidate {
            files.forget(&file, name)?;
        }
        file.set_direct(self.options.direct);
        let size = files.size(&file, name)?;
        if self.files.len() <= number {
            self.files.resize_with(number + 1, || None);
        }
        self.files[number] = Some(Arc::new(file));
        Ok(size)
    }

    /// Closes a file after all I/O of the job is complete: fio frees the buffers once it has closed
    /// all files.
    pub fn close(&mut self, number: usize) {
        self.collect(usize::MAX);
        if let Some(file) = self.files.get_mut(number) {
            *file = None;
        }
    }

    /// Accepts an I/O; runs it at once unless the job has a queue.
    pub fn queue(&mut self, unit: IoUnit) -> c_int {
        match unit.direction() {
            Some(Direction::Sync) => self.sync(unit, IoOperation::Fsync),
            Some(Direction::DataSync) => self.sync(unit, IoOperation::Fdatasync),
            Some(_) if self.queue.is_some() => {
                if self.uncommitted.len() == self.options.iodepth {
                    return BUSY;
                }
                self.uncommitted.push(unit);
                QUEUED
            }
            Some(_) => {
                self.fio.stamp(unit);
                match self.request(unit) {
                    Ok(request) => self.finish(request.run()),
                    Err(errno) => unit.finish(unit.length(), errno),
                }
                COMPLETED
            }
            None => {
                say(format_args!("job {}: fio asked for an unknown operation", self.options.name));
                unit.finish(0, libc::EINVAL);
                COMPLETED
            }
        }
    }

    /// Runs a sync once all earlier I/O of the job is complete.
    fn sync(&mut self, unit: IoUnit, operation: IoOperation<Transfer>) -> c_int {
        if !self.uncommitted.is_empty() {
            return BUSY;
        }
        self.collect(usize::MAX);
        self.fio.stamp(unit);
        match self.file(unit) {
            Ok(file) => {
                let request = IoRequest { file, operation, token: unit.pointer() as u64 };
                self.finish(request.run());
            }
            Err(errno) => unit.finish(0, errno),
        }
        COMPLETED
    }

    /// Issues the queued I/O.
    pub fn commit(&mut self, thread: ThreadData) {
        let Some(&first) = self.uncommitted.first() else { return };
        self.fio.stamp(first);
        let now = first.issue_time();
        let mut units = std::mem::take(&mut self.uncommitted);
        for unit in units.drain(..) {
            unit.set_issue_time(now);
            let refused = match (self.request(unit), &mut self.queue) {
                (Ok(request), Some(queue)) => queue.submit(request).err().map(|_| libc::EAGAIN),
                (Ok(_), None) => Some(libc::EINVAL),
                (Err(errno), _) => Some(errno),
            };
            if let Some(errno) = refused {
                unit.finish(unit.length(), errno);
                self.done.push_back(unit.pointer());
            }
            self.fio.queued(thread, unit);
        }
        self.uncommitted = units;
    }

    /// Waits until `min` I/Os are complete. Makes up to `max` completions available to
    /// [`Job::event`] and returns their number.
    pub fn wait(&mut self, min: usize, max: usize) -> usize {
        self.collect(min);
        let count = self.done.len().min(max);
        self.events.clear();
        self.events.extend(self.done.drain(..count));
        count
    }

    /// Returns one of the completions of the last [`Job::wait`].
    pub fn event(&self, index: usize) -> *mut c_void {
        self.events[index]
    }

    /// Runs queued I/O until at least `min` are complete; with 0, only polls.
    fn collect(&mut self, min: usize) {
        if self.done.len() >= min.max(1) {
            return;
        }
        let mut collected = std::mem::take(&mut self.collected);
        if let Some(queue) = &mut self.queue {
            queue.wait(min.saturating_sub(self.done.len()), &mut collected);
        }
        for completion in collected.drain(..) {
            self.done.push_back(completion.token as *mut c_void);
            self.finish(completion);
        }
        self.collected = collected;
    }

    fn file(&mut self, unit: IoUnit) -> Result<Arc<File>, c_int> {
        let number = unit.file().number();
        self.files.get(number).and_then(Option::as_ref).map(Arc::clone).ok_or(libc::EBADF)
    }

    /// Builds the library's request for a read, write or trim; an errno if that is impossible.
    fn request(&mut self, unit: IoUnit) -> Result<IoRequest<Transfer>, c_int> {
        let direction = unit.direction();
        // A trim has no buffer, so it cannot verify the layout.
        if !self.checked && direction != Some(Direction::Trim) {
            if !unit.is_plausible() {
                say(format_args!(
                    "fio version {}: its I/O units have an unknown layout; this version is not supported",
                    self.fio.version
                ));
                return Err(libc::EINVAL);
            }
            self.checked = true;
        }
        let file = self.file(unit)?;
        let (offset, length) = (unit.offset(), unit.length());
        let buffer = Transfer { start: unit.buffer(), length };
        let operation = match direction {
            Some(Direction::Read) => IoOperation::Read { buffer, offset },
            Some(Direction::Write) => IoOperation::Write { buffer, offset },
            _ => IoOperation::PunchHole { offset, length: length as u64 },
        };
        Ok(IoRequest { file, operation, token: unit.pointer() as u64 })
    }

    /// Stores the result of an I/O for fio.
    fn finish(&mut self, completion: IoCompletion<Transfer>) {
        // SAFETY: tokens are pointers to units that fio queued and that are not completed.
        let unit = unsafe { IoUnit::new(completion.token as *mut c_void, self.fio.io_unit_shift) };
        match completion.result {
            Ok(bytes) => {
                let is_sync = matches!(unit.direction(), Some(Direction::Sync | Direction::DataSync));
                unit.finish(if is_sync { 0 } else { unit.length() - bytes }, 0);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.error_printed, true) {
                    let (file, offset) = (unit.file().name(), unit.offset());
                    say(format_args!("job {}: I/O on {file} at offset {offset}: {error}", self.options.name));
                }
                unit.finish(0, error.errno());
            }
        }
    }
}

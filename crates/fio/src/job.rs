//! A running job: its files and its I/O.
//!
//! Owns [`Job`], which belongs to the job's thread, and [`Transfer`], the buffer of an I/O. I/O runs in the
//! job's own thread unless `queue_threads` says otherwise: handing it to others costs several times what a short one
//! takes. With `iodepth=1` it is
//! over when `queue` returns. With more it is collected until fio commits, goes to an [`IoQueue`] together, and
//! runs when fio asks for completions.
//!
//! Invariants: an `io_u` is fio's again once its completion was handed over, and its buffer is touched only
//! before that; a sync runs when nothing of the job waits or runs. No locks.

use crate::abi::{BUSY, COMPLETED, Direction, IoUnit, QUEUED, ThreadData};
use crate::discover::Fio;
use crate::error::EngineError;
use crate::files::Files;
use crate::message::say;
use crate::mount;
use crate::options::JobOptions;
use papilio::{File, FileSystem, IoCompletion, IoOperation, IoQueue, IoRequest};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The buffer of an I/O, which is fio's.
#[derive(Debug)]
pub struct Transfer {
    start: *mut u8,
    length: usize,
}

// SAFETY: fio leaves the buffer alone from `queue` until it has the completion; nobody else has it meanwhile.
unsafe impl Send for Transfer {}

impl AsRef<[u8]> for Transfer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: fio's buffer of this length, which is this value's alone for as long as it lives.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl AsMut<[u8]> for Transfer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_ref`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

/// A job, in its thread.
#[derive(Debug)]
pub struct Job {
    fio: &'static Fio,
    options: JobOptions,
    fs: FileSystem,
    /// By fio's number.
    files: Vec<Option<Arc<File>>>,
    /// With `iodepth=1` nothing is queued.
    queue: Option<IoQueue<Transfer>>,
    /// Queued and not committed.
    uncommitted: Vec<IoUnit>,
    /// Over, with their results, and not handed to fio: beyond what it asked for.
    done: VecDeque<*mut c_void>,
    collected: Vec<IoCompletion<Transfer>>,
    /// What `getevents` counted and `event` hands over.
    events: Vec<*mut c_void>,
    checked: bool,
    /// An error was told.
    told: bool,
}

impl Job {
    /// A job that starts.
    ///
    /// # Errors
    /// Options that cannot be honoured; what mounting meets.
    pub fn start(fio: &'static Fio, thread: ThreadData) -> Result<Self, EngineError> {
        let options = JobOptions::of(fio, thread)?;
        if !fio.is_main_process() {
            return Err(EngineError::Forked { job: options.name });
        }
        let fs = mount::mount(&options.mount)?;
        let (depth, threads) = (options.iodepth, options.queue_threads);
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
            told: false,
            options,
        })
    }

    /// Opens a file for I/O, with nothing of it cached if the job asks for that; returns its size.
    ///
    /// # Errors
    /// What opening or creating it meets, or writing back what is cached.
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

    /// Closes a file, when nothing runs any more: fio frees buffers after it has closed all files.
    pub fn close(&mut self, number: usize) {
        self.collect(usize::MAX);
        if let Some(file) = self.files.get_mut(number) {
            *file = None;
        }
    }

    /// Takes an I/O on.
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
                say(format_args!("job {}: fio asks for an operation that is not known", self.options.name));
                unit.finish(0, libc::EINVAL);
                COMPLETED
            }
        }
    }

    /// Runs a sync when all I/O before it is over.
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

    /// Issues what was queued.
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

    /// Waits until `min` I/Os are over and returns how many are handed over, `max` at most.
    pub fn wait(&mut self, min: usize, max: usize) -> usize {
        self.collect(min);
        let count = self.done.len().min(max);
        self.events.clear();
        self.events.extend(self.done.drain(..count));
        count
    }

    /// One of those that [`Job::wait`] handed over.
    pub fn event(&self, index: usize) -> *mut c_void {
        self.events[index]
    }

    /// Runs what is queued until at least `min` are over; with 0, looks what is.
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

    /// What a read, write or trim asks of the library; an errno where it cannot be asked.
    fn request(&mut self, unit: IoUnit) -> Result<IoRequest<Transfer>, c_int> {
        let direction = unit.direction();
        // A trim has no buffer, and proves nothing.
        if !self.checked && direction != Some(Direction::Trim) {
            if !unit.is_plausible() {
                say(format_args!(
                    "fio version {}: its I/O units are not laid out as known; this version is not supported",
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

    /// Tells fio how an I/O ended.
    fn finish(&mut self, completion: IoCompletion<Transfer>) {
        // SAFETY: tokens are the pointers of units that fio queued and that are not completed yet.
        let unit = unsafe { IoUnit::new(completion.token as *mut c_void, self.fio.io_unit_shift) };
        match completion.result {
            Ok(bytes) => {
                let is_sync = matches!(unit.direction(), Some(Direction::Sync | Direction::DataSync));
                unit.finish(if is_sync { 0 } else { unit.length() - bytes }, 0);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.told, true) {
                    let (file, offset) = (unit.file().name(), unit.offset());
                    say(format_args!("job {}, {file} at {offset}: {error}", self.options.name));
                }
                unit.finish(0, error.errno());
            }
        }
    }
}

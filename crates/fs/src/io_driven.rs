//! The requests of a queue on devices that answer later.
//!
//! Owns [`Driven`]. A read or a write begins without waiting, its pieces go to the devices, and it
//! ends when they have answered. No thread waits for it meanwhile. A request that cannot begin so
//! is carried out by the calls that wait: in a thread of the queue's pool, so that it holds up no
//! other, or without a pool in the thread that collects completions, while the others stay in
//! flight.
//!
//! **Invariants**
//! - Each request is in one place: `waiting`, `blocked`, the pool, the driver, or `ended`.
//! - With a pool, the queue's thread waits for no tree block that a read or its verification needs.
//! - A request in flight holds its file open. Its handle is dropped by the queue's thread, not by a
//!   thread that collects for it: closing a file may take locks.
//!
//! **Locks:** `Core::state`, held while completions are collected, also across the wait for the
//! next one. Requests end under it. No other lock is held while it is acquired, except by a thread
//! that collects for the queue, which only tries.
//!
//! Kernel counterpart: `io_uring/rw.c`.

use crate::file::File;
use crate::io_pool::{Pool, Work, do_deferred};
use crate::io_request::{IoCompletion, IoOperation, IoRequest};
use papilio_device::{Completed, Direction, Driver, Piece, StableBuffer};
use papilio_engine::data::in_flight::{self, Collect};
use papilio_engine::file::committed_read::CommittedRead;
use papilio_engine::file::in_flight_io::{Begin, DeferredWork, MayWait, ReadInFlight, WriteInFlight};
use papilio_engine::file::open_file::{OpenFile, Stamp};
use papilio_engine::volume::Pieces;
use papilio_locks::Mutex;
use papilio_pagecache::thread_number;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The requests of a queue.
pub(super) struct Driven<B: StableBuffer> {
    core: Arc<Core<B>>,
    /// Requests for ranges that others have locked.
    waiting: VecDeque<IoRequest<B>>,
    /// Requests for the calls that wait, where there is no pool.
    blocked: VecDeque<IoRequest<B>>,
    pool: Option<Pool<B>>,
    /// Writes in flight whose checksums are not computed.
    unsummed: Vec<u32>,
    pieces: Pieces,
    /// Requests that were started since the last submission.
    unsubmitted: usize,
    ended: Vec<Ended<B>>,
}

/// The part that other threads may collect from.
struct Core<B: StableBuffer> {
    state: Mutex<State<B>>,
    /// The number of the thread that used the queue last.
    user: AtomicUsize,
}

struct State<B: StableBuffer> {
    driver: Driver<B, Tag>,
    ended: Vec<Ended<B>>,
}

/// A request in flight.
struct Tag {
    file: Arc<File>,
    token: u64,
    offset: u64,
    io: Io,
}

enum Io {
    Read(ReadInFlight),
    /// Of a file system that is open for reading only.
    CommittedRead(CommittedRead),
    Write(WriteInFlight),
}

/// A request whose I/O has ended.
enum Ended<B> {
    /// It is complete, but for deferred work.
    Done(IoCompletion<B>, Arc<File>, Option<DeferredWork>),
    /// A read that arrived bad, or a write that a device failed which the others can do without.
    Again(IoRequest<B>),
}

impl<B: StableBuffer> fmt::Debug for Core<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl<B: StableBuffer> State<B> {
    /// Ends the requests that have completed. Waits for one if `wait` is set.
    fn collect(&mut self, wait: bool) -> usize {
        let Self { driver, ended } = self;
        driver.collect(wait, |completed| ended.push(end(completed)))
    }
}

/// Ends a request.
fn end<B: StableBuffer>(completed: Completed<B, Tag>) -> Ended<B> {
    let Completed { buffer, tag: Tag { file, token, offset, io }, failed } = completed;
    let volume = file.volume();
    let read_failed = |failed: Option<Failed>| {
        failed.map(|(piece, source)| volume.piece_failed(&piece, Direction::Read, source).0)
    };
    let read = match io {
        Io::Read(read) => open_file(&file).end_read(read, buffer.stable(), read_failed(failed)),
        Io::CommittedRead(read) => file.end_committed_read(&read, buffer.stable(), read_failed(failed)),
        Io::Write(write) => return end_write(write, (file, token, offset), buffer, failed),
    };
    let result = match read {
        Ok(true) => Ok(buffer.stable().len()),
        Ok(false) => {
            let operation = IoOperation::Read { buffer, offset };
            return Ended::Again(IoRequest { file, operation, token });
        }
        Err(error) => Err(error),
    };
    Ended::Done(IoCompletion { token, buffer: Some(buffer), result }, file, None)
}

/// The first piece of a request that failed, and the device's error.
type Failed = (Piece, std::io::Error);

/// Ends a write.
fn end_write<B: StableBuffer>(
    write: WriteInFlight,
    (file, token, offset): (Arc<File>, u64, u64),
    buffer: B,
    failed: Option<Failed>,
) -> Ended<B> {
    let volume = file.volume();
    let failed = failed.map(|(piece, source)| volume.piece_failed(&piece, Direction::Write, source));
    let forgiven = failed.as_ref().is_some_and(|(_, forgiven)| *forgiven);
    let ended = open_file(&file).end_write(write, buffer.stable(), failed.map(|(error, _)| error));
    if forgiven {
        // The other devices have a copy, unless they failed, too.
        let operation = IoOperation::Write { buffer, offset };
        return Ended::Again(IoRequest { file, operation, token });
    }
    let (result, deferred) = match ended {
        Ok(deferred) => (Ok(buffer.stable().len()), deferred),
        Err(error) => (Err(error), None),
    };
    Ended::Done(IoCompletion { token, buffer: Some(buffer), result }, file, deferred)
}

/// Returns the open file of a request in flight that only a writable file system has.
fn open_file(file: &File) -> &OpenFile {
    file.writable().expect("only open files have such requests in flight")
}

impl<B: StableBuffer> Collect for Core<B> {
    fn is_own(&self) -> bool {
        self.user.load(Ordering::Relaxed) == thread_number()
    }

    fn collect_some(&self) -> bool {
        // A thread that has it locked is collecting.
        let Some(mut state) = self.state.try_lock() else { return false };
        state.collect(false) > 0 || state.driver.advance_devices() && state.collect(false) > 0
    }
}

impl<B: StableBuffer> Driven<B> {
    /// Creates the state of a queue for `depth` requests.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub(super) fn new(depth: usize) -> std::io::Result<Self> {
        let state = State { driver: Driver::new(depth)?, ended: Vec::with_capacity(depth) };
        let core = Arc::new(Core { state: Mutex::new(state), user: AtomicUsize::new(thread_number()) });
        let weak: Weak<dyn Collect> = Arc::<Core<B>>::downgrade(&core);
        in_flight::register(weak);
        Ok(Self {
            core,
            waiting: VecDeque::with_capacity(depth),
            blocked: VecDeque::with_capacity(depth),
            pool: None,
            unsummed: Vec::with_capacity(depth),
            pieces: Pieces::new(),
            unsubmitted: 0,
            ended: Vec::with_capacity(depth),
        })
    }

    /// Leaves requests that have to wait to the threads of `pool`, which is idle.
    pub(super) fn set_pool(&mut self, pool: Pool<B>) {
        self.pool = Some(pool);
    }

    /// Returns the number of threads.
    pub(super) fn threads(&self) -> usize {
        self.pool.as_ref().map_or(0, Pool::threads)
    }

    /// Returns a descriptor that is readable when completions may wait.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub(super) fn event_fd(&self) -> std::io::Result<OwnedFd> {
        self.core.state.lock().driver.event_fd()?.try_clone_to_owned()
    }

    /// Hands the requests that have begun to the devices. Collecting them into batches saves system
    /// calls, and leaves a device with too little to do.
    pub(super) fn submit(&mut self) {
        if self.unsubmitted > 0 {
            self.core.state.lock().driver.submit();
            self.unsubmitted = 0;
        }
    }

    /// Accepts a request, and begins it if it can.
    pub(super) fn begin(&mut self, request: IoRequest<B>) {
        self.core.user.store(thread_number(), Ordering::Relaxed);
        let pieces = &mut self.pieces;
        pieces.clear();
        let may_wait = if self.pool.is_some() { MayWait::No } else { MayWait::Yes };
        let begun = match (&request.operation, request.file.writable()) {
            (IoOperation::Read { buffer, offset }, Some(open)) => {
                map(open.begin_read(*offset, buffer.stable().len(), may_wait, pieces), Io::Read)
            }
            (IoOperation::Read { buffer, offset }, None) => {
                let range = (*offset, buffer.stable().len());
                map(request.file.begin_committed_read(range, may_wait, pieces), Io::CommittedRead)
            }
            (IoOperation::Write { buffer, offset }, Some(open)) => {
                map(open.begin_write(buffer.stable(), *offset, (Stamp::Now, may_wait), pieces), Io::Write)
            }
            _ => Begin::Wait,
        };
        let io = match begun {
            Begin::Started(io) => io,
            Begin::Later => return self.waiting.push_back(request),
            Begin::Wait => return self.block(request),
        };
        let IoRequest { file, operation, token } = request;
        let (direction, buffer, offset) = match operation {
            IoOperation::Read { buffer, offset } => (Direction::Read, buffer, offset),
            IoOperation::Write { buffer, offset } => (Direction::Write, buffer, offset),
            _ => unreachable!("only reads and writes begin"),
        };
        let tag = Tag { file, token, offset, io };
        let number = self.core.state.lock().driver.start(direction, buffer, tag, self.pieces.drain(..));
        self.unsubmitted += 1;
        if direction == Direction::Write {
            self.unsummed.push(number);
        }
    }

    /// Leaves a request to the calls that wait.
    fn block(&mut self, request: IoRequest<B>) {
        match &self.pool {
            Some(pool) => {
                let job = self.core.state.lock().driver.job();
                pool.submit(Work::Request(request), Some(job));
            }
            None => self.blocked.push_back(request),
        }
    }

    /// Appends completions, at least `min` of them.
    pub(super) fn collect(&mut self, min: usize, completions: &mut Vec<IoCompletion<B>>) {
        self.core.user.store(thread_number(), Ordering::Relaxed);
        let before = completions.len();
        loop {
            self.hand_over();
            // One at a time: the others' completions are collected in between.
            let blocked = self.blocked.pop_front();
            if let Some(request) = blocked {
                completions.push(request.run());
            }
            let enough = completions.len() - before >= min;
            let wait = !enough && self.blocked.is_empty();
            let mut state = self.core.state.lock();
            if state.ended.is_empty() {
                state.collect(wait);
            }
            std::mem::swap(&mut state.ended, &mut self.ended);
            let in_flight = state.driver.in_flight();
            drop(state);
            let taken = completions.len();
            if let Some(pool) = &self.pool {
                pool.take_done(completions);
            }
            let ended = self.ended.len() + completions.len() - taken;
            self.take_ended(completions);
            if !self.waiting.is_empty() {
                if ended > 0 {
                    self.begin_waiting();
                } else if in_flight == 0 {
                    // Another thread has the range locked.
                    for _ in 0..self.waiting.len() {
                        let request = self.waiting.pop_front().expect("they are counted");
                        self.block(request);
                    }
                }
            }
            let enough = completions.len() - before >= min;
            if self.blocked.is_empty() && (enough || in_flight == 0 && ended == 0 && self.waiting.is_empty())
            {
                return;
            }
        }
    }

    /// Hands what has begun to the devices, and computes checksums while they work.
    fn hand_over(&mut self) {
        if self.unsubmitted == 0 && self.unsummed.is_empty() {
            return;
        }
        let mut state = self.core.state.lock();
        state.driver.submit();
        self.unsubmitted = 0;
        for number in self.unsummed.drain(..) {
            // Another thread may have ended it.
            let Some((data, tag)) = state.driver.write_in_flight(number) else { continue };
            if let Io::Write(write) = &mut tag.io {
                open_file(&tag.file).compute_checksums(write, data);
            }
        }
    }

    /// Takes the requests that have ended, and does what they left.
    fn take_ended(&mut self, completions: &mut Vec<IoCompletion<B>>) {
        let mut list = std::mem::take(&mut self.ended);
        for ended in list.drain(..) {
            match ended {
                Ended::Again(request) => self.block(request),
                Ended::Done(completion, _, None) => completions.push(completion),
                Ended::Done(mut completion, file, Some(deferred)) => match &self.pool {
                    Some(pool) => {
                        let job = self.core.state.lock().driver.job();
                        pool.submit(Work::DeferredWork(completion, file, deferred), Some(job));
                    }
                    None => {
                        if let Err(error) = do_deferred(&file, deferred) {
                            completion.result = Err(error);
                        }
                        completions.push(completion);
                    }
                },
            }
        }
        self.ended = list;
    }

    /// Begins the requests that had to wait for others, as far as they can.
    fn begin_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { return };
            self.begin(request);
        }
    }
}

fn map<R>(begun: Begin<R>, io: impl FnOnce(R) -> Io) -> Begin<Io> {
    match begun {
        Begin::Started(request) => Begin::Started(io(request)),
        Begin::Later => Begin::Later,
        Begin::Wait => Begin::Wait,
    }
}

impl<B: StableBuffer> Drop for Driven<B> {
    fn drop(&mut self) {
        // Its threads carry out what they have.
        drop(self.pool.take());
        // A driver would drop its requests without ending them.
        let mut state = self.core.state.lock();
        while state.driver.in_flight() > 0 {
            state.collect(true);
        }
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        drop(ended);
    }
}

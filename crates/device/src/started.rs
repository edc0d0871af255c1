//! `StartedOp`: a read or write that a device carries out later.
//!
//! Owns [`StartedOp`], which a [`Driver`](crate::Driver) hands to [`Device::start`], [`Job`], which
//! stands for work of another thread, and [`Inbox`], where their outcomes arrive.
//!
//! **Invariants**
//! - Each operation posts exactly one outcome; a dropped one posts an error.
//! - The driver keeps the memory of an operation until its outcome was posted. A read has its
//!   memory for itself; writes may share theirs.
//!
//! **Locks**: `finished`, held for one push or one swap.

use crate::host::WakeFd;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::OnceLock;

/// Whether bytes are read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the device to memory.
    Read,
    /// From memory to the device.
    Write,
}

/// The slot of a job's outcome.
pub(crate) const JOB: u32 = u32::MAX;

/// Work of another thread that a driver waits for. Dropping this ends it.
#[derive(Debug)]
pub struct Job {
    pub(crate) inbox: Arc<Inbox>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.inbox.post(Finished { slot: JOB, piece: 0, result: Ok(()) });
    }
}

/// The outcome of an operation.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) slot: u32,
    pub(crate) piece: u32,
    pub(crate) result: io::Result<()>,
}

/// Where outcomes arrive, from any thread.
#[derive(Debug)]
pub(crate) struct Inbox {
    finished: Mutex<Vec<Finished>>,
    /// Readable while outcomes may wait; wakes the driver.
    wake: WakeFd,
    /// Readable when completions may be collected; for the driver's user.
    signal: OnceLock<WakeFd>,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { finished: Mutex::default(), wake: WakeFd::new()?, signal: OnceLock::new() })
    }

    fn post(&self, finished: Finished) {
        let mut list = self.finished.lock();
        list.push(finished);
        let first = list.len() == 1;
        drop(list);
        if first {
            self.wake.set();
        }
        if let Some(signal) = self.signal.get() {
            signal.set();
        }
    }

    /// Moves all outcomes to `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<Finished>) {
        debug_assert!(into.is_empty());
        let mut list = self.finished.lock();
        if !list.is_empty() {
            std::mem::swap(&mut *list, into);
            // Under the lock, so that no later wake-up is lost.
            self.wake.clear();
        }
    }

    /// Returns the descriptor that is readable while outcomes wait.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Waits until outcomes arrive. May return early.
    pub(crate) fn wait(&self) {
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
    }

    /// Returns the descriptor for the driver's user.
    pub(crate) fn signal(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(signal) = self.signal.get() {
            return Ok(signal.as_fd());
        }
        let made = WakeFd::new()?;
        Ok(self.signal.get_or_init(|| made).as_fd())
    }
}

/// A read or write that was handed to a device. The device completes it in any thread, at once or
/// later.
#[derive(Debug)]
pub struct StartedOp {
    direction: Direction,
    offset: PhysicalAddress,
    bytes: *mut u8,
    length: usize,
    inbox: Option<Arc<Inbox>>,
    slot: u32,
    piece: u32,
}

// SAFETY: the operation has the right to its bytes until it posts its outcome (see the invariants),
// and that right does not depend on the thread.
unsafe impl Send for StartedOp {}
// SAFETY: shared references only read the bytes.
unsafe impl Sync for StartedOp {}

impl StartedOp {
    /// # Safety
    /// `bytes` stays valid for `length` bytes until the outcome is in `inbox`. Until then no code
    /// writes them, and for a read no code reads them either.
    pub(crate) unsafe fn new(
        direction: Direction,
        offset: PhysicalAddress,
        (bytes, length): (*mut u8, usize),
        inbox: Arc<Inbox>,
        (slot, piece): (u32, u32),
    ) -> Self {
        Self { direction, offset, bytes, length, inbox: Some(inbox), slot, piece }
    }

    /// Returns whether it reads or writes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the byte offset on the device.
    pub fn offset(&self) -> PhysicalAddress {
        self.offset
    }

    /// Returns the operation for a device on which the range starts `bytes` further on.
    pub(crate) fn shifted(mut self, bytes: u64) -> Self {
        self.offset = PhysicalAddress(self.offset.get() + bytes);
        self
    }

    /// Returns the bytes to write, or the memory to fill.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: see `new`; nothing writes them while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.bytes, self.length) }
    }

    /// Returns the memory that a read fills.
    ///
    /// # Panics
    /// If it is a write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.direction, Direction::Read, "a write only reads its memory");
        // SAFETY: see `new`; a read has its bytes for itself.
        unsafe { std::slice::from_raw_parts_mut(self.bytes, self.length) }
    }

    /// Completes the operation.
    pub fn complete(mut self, result: io::Result<()>) {
        self.post(result);
    }

    fn post(&mut self, result: io::Result<()>) {
        if let Some(inbox) = self.inbox.take() {
            inbox.post(Finished { slot: self.slot, piece: self.piece, result });
        }
    }
}

impl Drop for StartedOp {
    fn drop(&mut self) {
        if self.inbox.is_some() {
            self.post(Err(io::Error::other("the device dropped the request")));
        }
    }
}

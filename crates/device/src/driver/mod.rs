//! `Driver`: requests in flight without a thread for each.
//!
//! Owns [`Driver`], [`Piece`] and [`Completed`]. A request is a buffer and the pieces of devices
//! that its bytes come from or go to. Its pieces are in flight together: in an io_uring where the
//! device is a file that can carry them, elsewhere as [`StartedOp`]s of the device.
//!
//! **Invariants**
//! - The driver owns the buffer of a request until it completes, and its devices, too.
//! - Nothing in flight is abandoned: dropping a driver waits for all of it.
//! - A ring failure costs speed only. Plain calls carry out the entries that the ring did not take.
//! - The steady state allocates nothing, for requests of up to [`USUAL_PIECES`] pieces.
//!
//! **Locks**: that of the inbox, see [`crate::started`].
//!
//! Kernel counterparts: io_uring/rw.c, block/bio.c.

#[cfg(not(target_os = "linux"))]
mod no_ring;
#[cfg(target_os = "linux")]
mod ring;

use crate::device::{DEVICE_IO, Device, RingTarget};
use crate::load::Busy;
use crate::stable::StableBuffer;
use crate::started::{Direction, Finished, Inbox, JOB, Job, StartedOp};
#[cfg(not(target_os = "linux"))]
use no_ring as ring;
use papilio_format::PhysicalAddress;
use ring::Ring;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The user data of the ring entry that waits for the inbox.
const INBOX: u64 = u64::MAX;
/// Pieces of a request that take no allocation.
const USUAL_PIECES: usize = 2;
/// The most bytes of a ring entry. The kernel's limit is MAX_RW_COUNT, just under 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

/// A part of a request: bytes of its buffer, and their place on a device.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Byte offset on the device.
    pub offset: PhysicalAddress,
    /// The range of the buffer, in bytes.
    pub range: Range<usize>,
    /// Counts the piece as under way at its device, if anything asks.
    pub busy: Option<Busy>,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completed<B, T> {
    /// The buffer. A read has filled its pieces, unless one failed.
    pub buffer: B,
    /// The value that was given when the request was started.
    pub tag: T,
    /// The first piece that failed, in the order of the pieces, and its error.
    pub failed: Option<(Piece, io::Error)>,
}

/// The pieces of a request.
type Pieces = SmallVec<[Piece; USUAL_PIECES]>;

#[derive(Debug)]
struct RequestSlot<B, T> {
    request: Option<(B, T)>,
    /// The start of the buffer.
    bytes: *mut u8,
    direction: Direction,
    pieces: Pieces,
    /// Pieces that have not completed.
    left: u32,
    failed: Option<(usize, io::Error)>,
}

// SAFETY: `bytes` belongs to the buffer, which is `Send` as every stable buffer, and is only handed
// to the kernel and to operations.
unsafe impl<B: StableBuffer, T: Send> Send for RequestSlot<B, T> {}

impl<B, T> RequestSlot<B, T> {
    /// Returns address and length of the memory of a piece.
    fn memory(&self, piece: u32) -> (*mut u8, usize) {
        let range = &self.pieces[piece as usize].range;
        // SAFETY: `start` has checked that the range is inside of the buffer.
        (unsafe { self.bytes.add(range.start) }, range.len())
    }
}

/// Requests in flight, with one owner at a time.
#[derive(Debug)]
pub struct Driver<B: StableBuffer, T> {
    ring: Option<Ring>,
    inbox: Arc<Inbox>,
    slots: Vec<RequestSlot<B, T>>,
    free: Vec<u32>,
    /// Requests that have completed and were not collected.
    ended: Vec<u32>,
    /// Pieces that devices carry out and jobs, whose outcomes go to the inbox.
    started: usize,
    /// Jobs that have not ended.
    jobs: usize,
    polls_inbox: bool,
    /// Scratch memory.
    finished: Vec<Finished>,
    process: u32,
}

impl<B: StableBuffer, T> Driver<B, T> {
    /// Creates a driver for about `depth` requests in flight. It works without io_uring, too.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(depth: usize) -> io::Result<Self> {
        Self::with_ring(depth, true)
    }

    /// As [`Driver::new`]; without a ring if `ring` is `false`.
    ///
    /// # Errors
    /// As [`Driver::new`].
    pub fn with_ring(depth: usize, ring: bool) -> io::Result<Self> {
        Ok(Self {
            ring: ring.then(|| Ring::new(depth).ok()).flatten(),
            inbox: Arc::new(Inbox::new()?),
            slots: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            started: 0,
            jobs: 0,
            polls_inbox: false,
            finished: Vec::new(),
            process: std::process::id(),
        })
    }

    /// Returns whether requests to files go through an io_uring.
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Returns the number of requests that were started and not collected, jobs included.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.jobs
    }

    /// Begins a job: work that another thread does, and that this driver waits for as for a
    /// request. It ends when the returned value is dropped.
    pub fn job(&mut self) -> Job {
        self.jobs += 1;
        self.started += 1;
        Job { inbox: Arc::clone(&self.inbox) }
    }

    /// Returns a descriptor that is readable when completions may wait. The user reads its counter
    /// before it collects.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let signal = self.inbox.signal()?;
        if let Some(ring) = &self.ring {
            // Registered before: the ring signals it already.
            let _ = ring.register_eventfd(signal);
        }
        Ok(signal)
    }

    /// Starts a request and returns its number, which is valid until it completes. It reaches the
    /// devices with the next [`Driver::submit`] or [`Driver::collect`].
    ///
    /// # Panics
    /// If a piece is outside of the buffer, or pieces of a read overlap.
    pub fn start(
        &mut self,
        direction: Direction,
        mut buffer: B,
        tag: T,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let (pieces, bytes) = (Pieces::new(), std::ptr::null_mut());
            self.slots.push(RequestSlot { request: None, bytes, direction, pieces, left: 0, failed: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[number as usize];
        slot.direction = direction;
        slot.pieces.extend(pieces);
        slot.left = slot.pieces.len() as u32;
        let length = buffer.stable().len();
        let mut end = 0;
        for Piece { range, .. } in &slot.pieces {
            assert!(range.start <= range.end && range.end <= length, "the buffer has the piece");
            assert!(direction == Direction::Write || range.start >= end, "pieces of a read do not overlap");
            end = range.end;
        }
        slot.bytes = match direction {
            Direction::Read => buffer.stable_mut().as_mut_ptr(),
            // The memory of a write is only read, also by others.
            Direction::Write => buffer.stable().as_ptr().cast_mut(),
        };
        slot.request = Some((buffer, tag));
        if slot.left == 0 {
            self.ended.push(number);
        }
        for piece in 0..self.slots[number as usize].left {
            self.start_piece(number, piece);
        }
        number
    }

    /// Returns the bytes and the tag of a write in flight; `None` if the request of that number is
    /// a read or has completed.
    pub fn write_in_flight(&mut self, number: u32) -> Option<(&[u8], &mut T)> {
        let slot = self.slots.get_mut(number as usize)?;
        // The device may be filling the memory of a read.
        let (buffer, tag) = slot.request.as_mut().filter(|_| slot.direction == Direction::Write)?;
        Some((buffer.stable(), tag))
    }

    fn start_piece(&mut self, number: u32, index: u32) {
        let slot = &self.slots[number as usize];
        let Piece { device, offset, .. } = &slot.pieces[index as usize];
        let (offset, bytes) = (*offset, slot.memory(index));
        let target = self.ring.as_ref().and_then(|_| {
            let target =
                RingTarget { direction: slot.direction, offset, address: bytes.0.addr(), length: bytes.1 };
            device.ring_file(&target)
        });
        if let (Some(ring), Some((file, offset))) = (&mut self.ring, target)
            && bytes.1 <= MAX_TRANSFER
        {
            let data = u64::from(number) << 32 | u64::from(index);
            // SAFETY: the slot owns the buffer, whose bytes stay in place, and the device, which
            // keeps its file open, until the piece has completed. The driver is not dropped before.
            if unsafe { ring.push_transfer(slot.direction, file, bytes, offset.get(), data) } {
                return;
            }
        }
        let device = Arc::clone(device);
        let op = self.started_op(number, index);
        device.start(op);
    }

    /// Returns a piece as an operation of its device.
    fn started_op(&mut self, number: u32, index: u32) -> StartedOp {
        let slot = &self.slots[number as usize];
        let (offset, bytes) = (slot.pieces[index as usize].offset, slot.memory(index));
        self.started += 1;
        let inbox = Arc::clone(&self.inbox);
        // SAFETY: the slot keeps the buffer until the outcome is in the inbox. `write_in_flight`
        // only reads, and gives no access to the memory of a read; pieces of a read do not overlap.
        unsafe { StartedOp::new(slot.direction, offset, bytes, inbox, (number, index)) }
    }

    /// Hands everything that was started to the devices.
    pub fn submit(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.submit(0);
        }
        self.rescue();
    }

    /// Carries out what a broken ring did not take.
    fn rescue(&mut self) {
        while let Some(data) = self.ring.as_mut().and_then(Ring::take_unsubmitted) {
            if data == INBOX {
                self.polls_inbox = false;
            } else {
                self.run_plainly(data);
            }
        }
    }

    fn run_plainly(&mut self, data: u64) {
        let (number, index) = ((data >> 32) as u32, data as u32);
        let device = Arc::clone(&self.slots[number as usize].pieces[index as usize].device);
        self.started_op(number, index).run(&*device);
    }

    /// Submits, and passes every request that has completed to `each`. Waits for at least one if
    /// `wait` is set and any is in flight. Returns their number, with that of the jobs that ended.
    pub fn collect(&mut self, wait: bool, mut each: impl FnMut(Completed<B, T>)) -> usize {
        let mut collected = 0;
        loop {
            self.submit();
            collected += self.reap();
            while let Some(number) = self.ended.pop() {
                each(self.end(number));
                collected += 1;
            }
            if !wait || collected > 0 || self.in_flight() == 0 {
                return collected;
            }
            if !self.advance_devices() {
                self.wait();
            }
        }
    }

    /// Lets devices go on that have no thread of their own. Returns whether one completed anything.
    pub fn advance_devices(&mut self) -> bool {
        if self.started == 0 {
            return false;
        }
        let mut pieces =
            self.slots.iter().filter(|slot| slot.request.is_some()).flat_map(|slot| &slot.pieces);
        pieces.any(|piece| piece.device.advance())
    }

    /// Waits for a completion. May return early.
    fn wait(&mut self) {
        DEVICE_IO.might_wait(&DEVICE_IO);
        match &mut self.ring {
            Some(ring) if ring.in_flight() > usize::from(self.polls_inbox) => {
                if self.started > 0 && !self.polls_inbox {
                    self.polls_inbox = ring.push_poll(self.inbox.wake_fd(), INBOX);
                }
                ring.submit(1);
            }
            _ => self.inbox.wait(),
        }
    }

    /// Notes the pieces that have completed. Returns the number of jobs that have ended.
    fn reap(&mut self) -> usize {
        while let Some((data, outcome)) = self.ring.as_mut().and_then(Ring::next) {
            if data == INBOX {
                self.polls_inbox = false;
                continue;
            }
            let (number, index) = ((data >> 32) as usize, data as u32 as usize);
            let expected = self.slots[number].pieces[index].range.len();
            match usize::try_from(outcome) {
                Ok(count) if count == expected => self.finish(number, index, Ok(())),
                // A short transfer: a plain call does it anew or reports the reason.
                Ok(_) => self.run_plainly(data),
                Err(_) => match Errno::from_raw_os_error(outcome.saturating_neg()) {
                    // These errors come from the ring, not the device.
                    Errno::AGAIN | Errno::INTR | Errno::CANCELED | Errno::INVAL | Errno::OPNOTSUPP => {
                        self.run_plainly(data);
                    }
                    errno => self.finish(number, index, Err(errno.into())),
                },
            }
        }
        if self.started == 0 {
            return 0;
        }
        let jobs = self.jobs;
        let mut finished = std::mem::take(&mut self.finished);
        self.inbox.take(&mut finished);
        for Finished { slot, piece, result } in finished.drain(..) {
            self.started -= 1;
            if slot == JOB {
                self.jobs -= 1;
            } else {
                self.finish(slot as usize, piece as usize, result);
            }
        }
        self.finished = finished;
        jobs - self.jobs
    }

    fn finish(&mut self, number: usize, index: usize, result: io::Result<()>) {
        let slot = &mut self.slots[number];
        if let Err(error) = result
            && slot.failed.as_ref().is_none_or(|&(first, _)| index < first)
        {
            slot.failed = Some((index, error));
        }
        slot.left -= 1;
        if slot.left == 0 {
            self.ended.push(number as u32);
        }
    }

    fn end(&mut self, number: u32) -> Completed<B, T> {
        let slot = &mut self.slots[number as usize];
        let (buffer, tag) = slot.request.take().expect("a request ends once");
        let failed = slot.failed.take().map(|(piece, error)| (slot.pieces[piece].clone(), error));
        slot.pieces.clear();
        self.free.push(number);
        Completed { buffer, tag, failed }
    }
}

impl<B: StableBuffer, T> Drop for Driver<B, T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Inherited by fork: the parent has the requests, and the ring's memory is not mapped.
            std::mem::forget(self.ring.take());
            std::mem::take(&mut self.slots).into_iter().for_each(std::mem::forget);
            self.free.clear();
            self.jobs = 0;
            return;
        }
        while self.in_flight() > 0 {
            self.collect(true, drop);
        }
    }
}

#[cfg(test)]
mod tests;

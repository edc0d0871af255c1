//! `Ring`: the io_uring of one driver.
//!
//! **Invariants**
//! - `unsubmitted` lists the entries that the kernel has not taken, in their order.
//! - A ring whose submission failed is *broken*: it takes no more entries, and its driver carries
//!   out the unsubmitted ones. The entries that the kernel has taken still complete.
//!
//! **Locks**: none; a ring belongs to its driver.

use crate::started::Direction;
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The fewest and the most entries of a ring. A request may have many pieces.
const ENTRIES: (usize, usize) = (128, 4096);
/// Completions for each entry that find room in the ring. The kernel keeps the others until it is
/// asked.
const COMPLETIONS: u32 = 4;

pub(super) struct Ring {
    ring: IoUring,
    unsubmitted: VecDeque<u64>,
    /// Entries that the kernel has taken and whose completions were not reaped.
    in_kernel: usize,
    broken: bool,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("in_kernel", &self.in_kernel).finish_non_exhaustive()
    }
}

impl Ring {
    /// Creates a ring for `depth` requests.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        let entries = (depth + 1).next_power_of_two().clamp(ENTRIES.0, ENTRIES.1) as u32;
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(entries * COMPLETIONS);
        // Since Linux 5.19; saves interrupts. Another thread may submit, so not SINGLE_ISSUER.
        let ring = builder.clone().setup_coop_taskrun().build(entries).or_else(|_| builder.build(entries))?;
        Ok(Self { ring, unsubmitted: VecDeque::with_capacity(entries as usize), in_kernel: 0, broken: false })
    }

    /// Signals `fd` at each completion.
    pub(super) fn register_eventfd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd.as_raw_fd())
    }

    /// Returns the number of entries that the kernel has or will get.
    pub(super) fn in_flight(&self) -> usize {
        self.in_kernel + self.unsubmitted.len()
    }

    /// Adds a read or write of `memory`, at most 4 GiB, and returns whether there was room.
    ///
    /// # Safety
    /// The memory and the descriptor stay valid until the completion is reaped, or until
    /// [`Ring::take_unsubmitted`] returns `data`.
    pub(super) unsafe fn push_transfer(
        &mut self,
        direction: Direction,
        file: BorrowedFd<'_>,
        (bytes, length): (*mut u8, usize),
        offset: u64,
        data: u64,
    ) -> bool {
        let (fd, length) = (types::Fd(file.as_raw_fd()), length as u32);
        let entry = match direction {
            Direction::Read => opcode::Read::new(fd, bytes, length).offset(offset).build(),
            Direction::Write => opcode::Write::new(fd, bytes.cast_const(), length).offset(offset).build(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.push(&entry.user_data(data)) }
    }

    /// Adds an entry, and returns whether there was room.
    ///
    /// # Safety
    /// The memory and the descriptor of `entry` stay valid until its completion is reaped, or until
    /// [`Ring::take_unsubmitted`] returns it.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        if self.broken {
            return false;
        }
        // SAFETY: the caller's promise.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit(0);
            // SAFETY: as above.
            if self.broken || unsafe { self.ring.submission().push(entry) }.is_err() {
                return false;
            }
        }
        self.unsubmitted.push_back(entry.get_user_data());
        true
    }

    /// Adds the entry that completes when `fd` is readable, with `data` as its user data.
    pub(super) fn push_poll(&mut self, fd: BorrowedFd<'_>, data: u64) -> bool {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), 1).build().user_data(data);
        // SAFETY: the entry has no memory. The driver keeps its inbox as long as its ring.
        unsafe { self.push(&entry) }
    }

    /// Submits what was added, and waits for `wait` completions, or fewer after a signal.
    pub(super) fn submit(&mut self, wait: usize) {
        if wait == 0 && self.unsubmitted.is_empty() {
            return;
        }
        if self.broken {
            return self.wait_only();
        }
        let submitted = self.ring.submit_and_wait(wait);
        let left = self.ring.submission().len();
        while self.unsubmitted.len() > left {
            self.unsubmitted.pop_front();
            self.in_kernel += 1;
        }
        let Err(error) = submitted else { return };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => {}
            // Out of memory, or a full completion queue: reaping completions helps, if any are due.
            Some(Errno::AGAIN | Errno::BUSY) if self.in_kernel > 0 => self.wait_only(),
            _ => self.broken = true,
        }
    }

    /// Waits for a completion without submitting. May return early.
    fn wait_only(&mut self) {
        self.enter(1);
    }

    /// Waits for `count` completions, and lets the kernel move those that had no room to the ring.
    fn enter(&self, count: u32) {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: submits nothing and passes no argument, so the kernel gets no memory of ours.
        let entered = unsafe { self.ring.submitter().enter::<()>(0, count, flags, None) };
        if entered.is_err() {
            // Completions still arrive in the shared memory.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the next completion: user data, and a count or a negative errno.
    pub(super) fn next(&mut self) -> Option<(u64, i32)> {
        let mut next = self.ring.completion().next();
        if next.is_none() && self.in_kernel > 0 && self.ring.submission().cq_overflow() {
            self.enter(0);
            next = self.ring.completion().next();
        }
        let completion = next?;
        self.in_kernel -= 1;
        Some((completion.user_data(), completion.result()))
    }

    /// Returns the user data of an entry that a broken ring will never submit.
    pub(super) fn take_unsubmitted(&mut self) -> Option<u64> {
        if self.broken { self.unsubmitted.pop_front() } else { None }
    }
}

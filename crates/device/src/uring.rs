//! io_uring: many reads or writes of one file in flight at once.
//!
//! Each thread owns one ring, created at its first batch and closed when it ends. If the host has
//! no io_uring (ENOSYS, or EPERM under a seccomp filter or `kernel.io_uring_disabled`), the thread
//! uses the caller's plain path from then on.
//!
//! **Invariants**
//! - No request outlives the call. [`Batch`] waits for every submitted request before it is
//!   dropped, on errors and panics too, because the kernel writes into borrowed buffers.
//! - A ring that failed may hold entries that the kernel did not take. It is closed, which discards
//!   them, and its thread does without a ring from then on.
//! - Only the process that made a ring uses it. A child of `fork` leaks its parent's ring and makes
//!   its own.
//!
//! **Locks**: none; a ring belongs to its thread.
//!
//! Kernel counterpart: io_uring/rw.c.

use crate::device::{ReadRequest, WriteRequest};
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The maximum number of requests in flight.
const DEPTH: u32 = 128;

/// The maximum bytes per entry. The kernel's limit is MAX_RW_COUNT, just under 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

thread_local! {
    static RING: RefCell<RingSlot> = const { RefCell::new(RingSlot::Unmade) };
}

enum RingSlot {
    Unmade,
    Ready {
        ring: Box<IoUring>,
        process: u32,
    },
    /// The host has no io_uring, or this thread's ring failed.
    Unavailable,
}

impl RingSlot {
    /// Takes this thread's ring out, creating it if necessary.
    ///
    /// The caller puts the ring back once it is empty. If it does not, as on a panic, the ring is
    /// closed and the next batch makes another.
    fn take(&mut self) -> Option<Box<IoUring>> {
        match std::mem::replace(self, RingSlot::Unmade) {
            RingSlot::Ready { ring, process } if process == std::process::id() => return Some(ring),
            // Inherited by fork: its memory is not mapped here (MADV_DONTFORK), so it cannot be
            // closed normally. Other mappings may use its addresses by now.
            RingSlot::Ready { ring, .. } => std::mem::forget(ring),
            RingSlot::Unmade => {}
            RingSlot::Unavailable => {
                *self = RingSlot::Unavailable;
                return None;
            }
        }
        let made = make_ring();
        if made.is_err() {
            *self = RingSlot::Unavailable;
        }
        made.ok().map(Box::new)
    }
}

fn make_ring() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork();
    // Since Linux 6.1 a thread that waits for several completions wakes once, for the last of them.
    // The ring works without these flags.
    builder.clone().setup_defer_taskrun().setup_single_issuer().build(DEPTH).or_else(|_| builder.build(DEPTH))
}

/// Checks whether this process may use io_uring, by creating a ring and closing it.
///
/// # Errors
/// The host's error: ENOSYS without io_uring, EPERM where a seccomp filter or
/// `kernel.io_uring_disabled` forbids it.
pub fn io_uring_available() -> io::Result<()> {
    make_ring().map(drop)
}

/// A request that the ring can carry.
pub(crate) trait Transfer {
    /// Builds the ring entry, which holds a raw pointer into the request's buffer.
    fn entry(&mut self, file: types::Fd) -> squeue::Entry;
    fn length(&self) -> usize;
    fn set_result(&mut self, result: io::Result<()>);
}

impl Transfer for ReadRequest<'_> {
    fn entry(&mut self, file: types::Fd) -> squeue::Entry {
        let length = self.buffer.len().min(MAX_TRANSFER) as u32;
        opcode::Read::new(file, self.buffer.as_mut_ptr(), length).offset(self.offset.get()).build()
    }

    fn length(&self) -> usize {
        self.buffer.len()
    }

    fn set_result(&mut self, result: io::Result<()>) {
        self.result = result;
    }
}

impl Transfer for WriteRequest<'_> {
    fn entry(&mut self, file: types::Fd) -> squeue::Entry {
        let length = self.buffer.len().min(MAX_TRANSFER) as u32;
        opcode::Write::new(file, self.buffer.as_ptr(), length).offset(self.offset.get()).build()
    }

    fn length(&self) -> usize {
        self.buffer.len()
    }

    fn set_result(&mut self, result: io::Result<()>) {
        self.result = result;
    }
}

/// Runs all `requests`: eligible ones through the ring if there is one, the others through `plain`.
/// `plain` also redoes requests that the ring completed only in part.
pub(crate) fn run<R: Transfer>(
    file: &File,
    requests: &mut [R],
    eligible: impl Fn(&R) -> bool,
    mut plain: impl FnMut(&mut R),
) {
    // The slot is not borrowed during the batch, so `plain` may use it. A thread that is ending no
    // longer has a ring.
    let ring = RING.try_with(|slot| slot.borrow_mut().take()).ok().flatten();
    let done = ring.map_or(0, |mut ring| {
        let outcome = run_on(&mut ring, file, requests, &eligible, &mut plain);
        let after = match outcome {
            Ok(_) => RingSlot::Ready { ring, process: std::process::id() },
            Err(_) => RingSlot::Unavailable,
        };
        // After a failed `try_with` the ring is closed.
        let _ = RING.try_with(|slot| slot.replace(after));
        outcome.unwrap_or_else(|done| done)
    });
    // Nothing is in flight any more. `done` is the first request that did not run; running a later
    // ineligible request again is harmless.
    requests[done..].iter_mut().for_each(plain);
}

/// Runs requests through the ring.
///
/// Returns `Ok` with the number of requests when all are done. Returns `Err` with the first
/// unfinished request if the ring failed; the ring must not be used again.
fn run_on<R: Transfer>(
    ring: &mut IoUring,
    file: &File,
    requests: &mut [R],
    eligible: &impl Fn(&R) -> bool,
    plain: &mut impl FnMut(&mut R),
) -> Result<usize, usize> {
    let target = types::Fd(file.as_raw_fd());
    let mut batch = Batch { ring, pushed: 0, reaped: 0 };
    let mut next = 0;
    loop {
        while next < requests.len() && batch.pushed - batch.reaped < DEPTH as usize {
            let request = &mut requests[next];
            if eligible(request) {
                let entry = request.entry(target).user_data(next as u64);
                // SAFETY: `requests` borrows the buffer for the whole call, and nothing here
                // touches it until its completion is reaped. `batch` does not let this function
                // end, by return or by panic, before the kernel is done with the buffer. `file`
                // stays open as long.
                if unsafe { batch.ring.submission().push(&entry) }.is_err() {
                    break;
                }
                batch.pushed += 1;
            } else {
                plain(request);
            }
            next += 1;
        }
        if batch.pushed == batch.reaped && next == requests.len() {
            return Ok(next);
        }
        // With requests left to push, any completion makes room; without, only the last one
        // matters.
        let awaited = if next < requests.len() { 1 } else { batch.pushed - batch.reaped };
        let submitted = batch.submit_and_wait(awaited);
        while let Some((index, outcome)) = batch.reap() {
            finish(&mut requests[index], outcome, plain);
        }
        if submitted.is_err() {
            let queued = batch.queued();
            while batch.in_kernel() > 0 {
                batch.wait();
                while let Some((index, outcome)) = batch.reap() {
                    finish(&mut requests[index], outcome, plain);
                }
            }
            return Err(first_of_last(&requests[..next], queued, eligible));
        }
    }
}

/// Returns the index at which the last `count` eligible requests begin. The ring takes entries in
/// order, so these are the ones it did not take.
fn first_of_last<R>(requests: &[R], count: usize, eligible: &impl Fn(&R) -> bool) -> usize {
    let mut left = count;
    let mut index = requests.len();
    while left > 0 && index > 0 {
        index -= 1;
        left -= usize::from(eligible(&requests[index]));
    }
    index
}

/// Stores the outcome of one entry, or redoes the request with plain calls.
fn finish<R: Transfer>(request: &mut R, outcome: i32, plain: &mut impl FnMut(&mut R)) {
    match usize::try_from(outcome) {
        Ok(count) if count == request.length() => request.set_result(Ok(())),
        // A short transfer: a plain call continues it or reports the reason.
        Ok(_) => plain(request),
        Err(_) => match Errno::from_raw_os_error(outcome.saturating_neg()) {
            // These errors come from the ring, not the device: an interrupted operation, or one
            // that this kernel or file system does not support (before Linux 5.6).
            Errno::AGAIN | Errno::INTR | Errno::CANCELED | Errno::INVAL | Errno::OPNOTSUPP => plain(request),
            errno => request.set_result(Err(errno.into())),
        },
    }
}

/// The entries of one call. Dropping it waits until the kernel holds none of them.
struct Batch<'a> {
    ring: &'a mut IoUring,
    pushed: usize,
    reaped: usize,
}

impl Batch<'_> {
    /// Returns the number of entries that the kernel has not taken yet.
    fn queued(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Returns the number of entries the kernel is working on or whose completion is not reaped.
    fn in_kernel(&mut self) -> usize {
        self.pushed - self.reaped - self.queued()
    }

    /// Submits the queued entries and waits for `count` completions, or fewer after a signal.
    fn submit_and_wait(&mut self, count: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(count) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            // Out of memory, or a full completion queue: reaping completions helps, if any are due.
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::AGAIN | Errno::BUSY) if self.in_kernel() > 0 => {
                    self.wait();
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Waits for a completion without submitting. May return early.
    fn wait(&mut self) {
        // SAFETY: submits nothing (the count is 0) and passes no argument, so the kernel is given
        // no memory beyond the ring's own.
        let entered = unsafe { self.ring.submitter().enter::<()>(0, 1, EnterFlags::GETEVENTS.bits(), None) };
        if entered.is_err() {
            // The next call may succeed. Nothing else shows that the kernel is done with the
            // buffers.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reaps one completion: the request's index and its outcome, a count or a negative errno.
    fn reap(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        self.reaped += 1;
        Some((completion.user_data() as usize, completion.result()))
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        while self.in_kernel() > 0 {
            if self.reap().is_none() {
                self.wait();
            }
        }
    }
}

/// Returns whether this thread can use a ring.
#[cfg(test)]
pub(crate) fn available() -> bool {
    RING.with_borrow_mut(|slot| {
        let ring = slot.take();
        let available = ring.is_some();
        if let Some(ring) = ring {
            *slot = RingSlot::Ready { ring, process: std::process::id() };
        }
        available
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, AlignedBuffer, Device, FileDevice, OpenOptions, PhysicalAddress};
    use std::os::unix::fs::FileExt;

    const SIZE: usize = 4 << 20;

    /// Creates an image in which every 8 bytes hold their own offset.
    fn image() -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..SIZE as u64).step_by(8).flat_map(u64::to_le_bytes).collect();
        image.as_file().write_all_at(&content, 0).unwrap();
        image
    }

    /// Returns whether there is a ring. Prints a message if not, and fails if one is required.
    fn ring_or_skip() -> bool {
        if available() {
            return true;
        }
        let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!required, "PAPILIO_REQUIRE_ALL=1, but the host has no io_uring");
        eprintln!("SKIPPED io_uring: the host has none");
        false
    }

    /// Opens the image buffered and, if the temporary folder's file system supports it, direct.
    fn devices(path: &std::path::Path) -> Vec<FileDevice> {
        let open = |direct| OpenOptions::new(Access::ReadWrite).lock(false).direct(direct).open(path);
        let mut devices = vec![open(false).unwrap()];
        devices.extend(open(true).inspect_err(|error| eprintln!("SKIPPED direct I/O: {error}")));
        devices
    }

    #[test]
    fn batches_read_the_same_as_plain_calls() {
        ring_or_skip();
        let image = image();
        for device in devices(image.path()) {
            // Aligned, unaligned, empty and past-the-end requests, more than the ring is deep.
            let offset = |at: usize| match at {
                _ if at % 25 == 3 => SIZE - 4096,
                _ if at.is_multiple_of(5) => (at * 7919 * 512) % (SIZE - 65536) + 100,
                _ => (at * 7919 * 512) % (SIZE - 65536),
            };
            let length = |at: usize| [4096, 512, 0, 65536, 777][at % 5];
            let mut buffers: Vec<_> = (0..700).map(|at| AlignedBuffer::new(length(at), 4096)).collect();
            let mut requests: Vec<_> = buffers
                .iter_mut()
                .enumerate()
                .map(|(at, buffer)| ReadRequest::new(PhysicalAddress(offset(at) as u64), buffer))
                .collect();
            device.read_many(&mut requests);
            let mut failed = 0;
            for request in &requests {
                let mut expected = vec![0; request.buffer.len()];
                let plain = device.read_at(&mut expected, request.offset);
                assert_eq!(
                    request.result.as_ref().map_err(|e| e.kind()),
                    plain.as_ref().map_err(|e| e.kind())
                );
                match plain {
                    Ok(()) => assert!(*request.buffer == expected[..]),
                    Err(_) => failed += 1,
                }
            }
            assert_eq!(failed, 28);
        }
    }

    #[test]
    fn batches_write_their_buffers() {
        ring_or_skip();
        for round in 0..2 {
            let image = image();
            let Some(device) = devices(image.path()).into_iter().nth(round) else { continue };
            let blocks: Vec<_> = (0..512usize)
                .map(|at| {
                    let mut block = AlignedBuffer::new(4096, 4096);
                    block.fill((at * 3 + round) as u8);
                    block
                })
                .collect();
            let mut requests: Vec<_> = blocks
                .iter()
                .enumerate()
                .map(|(at, block)| WriteRequest::new(PhysicalAddress((at * 8192) as u64), block))
                .collect();
            device.write_many(&mut requests);
            assert!(requests.iter().all(|request| request.result.is_ok()));
            for (at, block) in blocks.iter().enumerate() {
                let mut found = vec![0; 8192];
                device.read_at(&mut found, PhysicalAddress((at * 8192) as u64)).unwrap();
                assert!(found[..4096] == **block, "block {at}");
                let beside = (at as u64 * 8192 + 4096).to_le_bytes();
                assert_eq!(found[4096..4104], beside, "beside block {at}");
            }
            // Only the request past the end fails.
            let mut requests: Vec<_> = (0..8)
                .map(|at| WriteRequest::new(PhysicalAddress(at * (SIZE as u64 / 7)), &blocks[0]))
                .collect();
            requests.iter_mut().for_each(|request| request.offset.0 -= request.offset.0 % 4096);
            requests[7].offset = PhysicalAddress(SIZE as u64);
            device.write_many(&mut requests);
            let outcomes: Vec<_> = requests.iter().map(|request| request.result.is_ok()).collect();
            assert_eq!(outcomes, [true, true, true, true, true, true, true, false]);
        }
    }

    #[test]
    fn ring_carries_every_request() {
        if !ring_or_skip() {
            return;
        }
        let image = image();
        let mut buffers = vec![[0u8; 4096]; 300];
        let mut requests: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(at, buffer)| ReadRequest::new(PhysicalAddress(at as u64 * 4096), buffer))
            .collect();
        let mut redone = 0;
        run(image.as_file(), &mut requests, |_| true, |_| redone += 1);
        assert_eq!(redone, 0);
        assert!(requests.iter().all(|request| request.result.is_ok()));
        for (at, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer[..8], (at as u64 * 4096).to_le_bytes());
        }
    }

    #[test]
    fn panic_leaves_nothing_in_flight() {
        if !ring_or_skip() {
            return;
        }
        let image = image();
        let mut buffers = vec![[0u8; 4096]; 100];
        let mut requests: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(at, buffer)| ReadRequest::new(PhysicalAddress(at as u64 * 4096), buffer))
            .collect();
        // The last request takes the plain path and panics while the others are queued or in
        // flight.
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(
                image.as_file(),
                &mut requests,
                |request| request.offset.0 < 99 * 4096,
                |_| panic!("planted"),
            );
        }));
        assert!(caught.is_err());
        // Queued entries point into buffers that may be gone: no later batch may submit them.
        let inherited = RING.with_borrow(|slot| matches!(slot, RingSlot::Ready { .. }));
        assert!(!inherited);
        // Leftovers of this batch do not disturb the thread's next one.
        batches_read_the_same_as_plain_calls();
    }

    #[test]
    fn file_error_becomes_the_request_result() {
        if !ring_or_skip() {
            return;
        }
        let image = image();
        let read_only = File::open(image.path()).unwrap();
        let mut requests: Vec<_> =
            (0..10).map(|at| WriteRequest::new(PhysicalAddress(at * 512), &[1; 512])).collect();
        run(&read_only, &mut requests, |_| true, |_| unreachable!("EBADF is final"));
        for request in requests {
            assert_eq!(request.result.unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
        }
    }
}

//! The `Device` trait: a fixed number of bytes that can be read, written and made durable.
//!
//! **Invariants** of every implementation
//! - A read or write transfers the whole buffer or fails; there are no short counts.
//! - Nothing is written past the end, and no write changes the size.
//! - Writes may reach the medium in any order until [`Device::flush`] returns. A write that ended
//!   before a successful flush survives a power loss.
//! - Concurrent requests to overlapping ranges have no defined order.
//!
//! Kernel counterpart: `struct block_device` and the bio layer (block/blk-core.c, block/bdev.c).

use crate::started::{Direction, StartedOp};
use papilio_format::PhysicalAddress;
use papilio_locks::Class;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Waiting for a device, for the checks of the order of locks.
pub(crate) static DEVICE_IO: Class = Class::several("device-io", "a device waits for none of its callers");

/// The bytes of zeros that one write carries.
const ZEROS: u64 = 256 << 10;

/// The access that a device was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads only; every write, flush and discard is an error.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// A hint about how a range will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// The range will be read in address order: read further ahead.
    Sequential,
    /// The range will be read in random order: do not read ahead.
    Random,
    /// The range will be read soon: start reading it in the background.
    WillNeed,
    /// The range will not be read again soon: the host may drop it from its cache.
    DontNeed,
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Byte offset on the device.
    pub offset: PhysicalAddress,
    /// Filled completely when `result` is `Ok`; undefined otherwise.
    pub buffer: &'a mut [u8],
    /// The outcome; an error until the request has run.
    pub result: io::Result<()>,
}

impl<'a> ReadRequest<'a> {
    /// Creates a request that has not run yet.
    pub fn new(offset: PhysicalAddress, buffer: &'a mut [u8]) -> Self {
        Self { offset, buffer, result: Err(not_run()) }
    }
}

/// One write of a batch.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// Byte offset on the device.
    pub offset: PhysicalAddress,
    /// The bytes to write.
    pub buffer: &'a [u8],
    /// The outcome; an error until the request has run. After an error the range on the device
    /// holds any mix of old and new bytes.
    pub result: io::Result<()>,
}

impl<'a> WriteRequest<'a> {
    /// Creates a request that has not run yet.
    pub fn new(offset: PhysicalAddress, buffer: &'a [u8]) -> Self {
        Self { offset, buffer, result: Err(not_run()) }
    }
}

/// Returns the result of a request before it runs. Does not allocate.
fn not_run() -> io::Error {
    io::Error::from(io::ErrorKind::Other)
}

/// A request as an io_uring would carry it.
#[derive(Clone, Copy, Debug)]
pub struct RingTarget {
    /// Whether it reads or writes.
    pub direction: Direction,
    /// Byte offset on the device.
    pub offset: PhysicalAddress,
    /// The memory's address.
    pub address: usize,
    /// Bytes.
    pub length: usize,
}

/// A random-access block device, held as `Arc<dyn Device>`.
///
/// Any thread may call any method at any time.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Returns the path, or a description, for messages.
    fn name(&self) -> &str;

    /// Returns the current size in bytes. Other programs may resize a file or block device.
    fn size(&self) -> u64;

    /// Returns the access that the device was opened with.
    fn access(&self) -> Access;

    /// Returns the alignment, in bytes, of offset, length and memory address that avoids a copy. It
    /// is a power of two. Unaligned requests work too, through a copy.
    fn alignment(&self) -> usize {
        1
    }

    /// Returns whether requests wait for something slower than memory, so that it pays to have
    /// several in flight.
    fn waits(&self) -> bool {
        self.alignment() > 1
    }

    /// Returns whether a read that was started may complete later, so that a queue of them pays.
    fn answers_later(&self) -> bool {
        self.waits()
    }

    /// Reads `buffer.len()` bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range reaches past the end, otherwise the host's error. After an
    /// error the buffer's content is undefined.
    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()>;

    /// Runs all requests, in any order or concurrently, and stores each outcome in its request.
    /// Returns when all have ended.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.result = self.read_at(request.buffer, request.offset);
        }
    }

    /// Writes `buffer` at `offset`. The write is durable only after a [`flush`](Self::flush).
    ///
    /// # Errors
    /// `ReadOnlyFilesystem` on a read-only device; `InvalidInput` if the range reaches past the
    /// end. Neither writes anything. Otherwise the host's error; any part may have been written.
    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()>;

    /// Runs all requests, in any order or concurrently, and stores each outcome in its request.
    /// Returns when all have ended.
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.result = self.write_at(request.buffer, request.offset);
        }
    }

    /// Writes `buffer` and returns when it is durable (forced unit access).
    ///
    /// Earlier writes are not covered. If they must be durable first, as for a superblock, the
    /// caller has to [`flush`](Self::flush) first.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`flush`](Self::flush).
    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.write_at(buffer, offset)?;
        self.flush()
    }

    /// Returns when every write that ended before the call is durable.
    ///
    /// # Errors
    /// The host's error. The host forgets pages that it failed to write, so writes since the last
    /// good flush may be lost even if a later flush succeeds. After an error the caller must not
    /// rely on those writes.
    fn flush(&self) -> io::Result<()>;

    /// Tells the device that a range's content is no longer needed. Later reads of the range return
    /// arbitrary bytes.
    ///
    /// # Errors
    /// `Unsupported` if the device cannot discard, which a caller may ignore. Otherwise as
    /// [`write_at`](Self::write_at).
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()>;

    /// Makes a range of the device share the blocks of a host file, `length` bytes from `from` on
    /// (`FICLONERANGE`). All are multiples of the host's block size.
    ///
    /// # Errors
    /// `Unsupported` if this is no regular file; `CrossesDevices` if the two are in different file
    /// systems; `EOPNOTSUPP` or `EINVAL` if the file system cannot share blocks. Otherwise as
    /// [`write_at`](Self::write_at).
    fn clone_from_file(
        &self,
        _source: BorrowedFd<'_>,
        _from: u64,
        _length: u64,
        _offset: PhysicalAddress,
    ) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// Makes a range read as zeros. With `keep_space` its space stays allocated, where the device
    /// can promise that; without, the device may free it. Durable only after a
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, _keep_space: bool) -> io::Result<()> {
        check_write(self.access(), self.size(), offset, length)?;
        fill_with_zeros(self, offset, length)
    }

    /// Returns the file that an io_uring can carry `request` on, with no check or copy left to do,
    /// and the offset in it. `None` where there is none: the driver then calls [`Device::start`].
    fn ring_file(&self, _request: &RingTarget) -> Option<(BorrowedFd<'_>, PhysicalAddress)> {
        None
    }

    /// Starts a request, which the device completes at once or later, in any thread and any order.
    /// This one carries it out before it returns, as suits memory.
    fn start(self: Arc<Self>, op: StartedOp) {
        op.run(&*self);
    }

    /// Carries out some of what was started, on a device without a thread of its own. A driver that
    /// has nothing else to do calls it. Returns whether a request completed.
    fn advance(&self) -> bool {
        false
    }

    /// Returns the first offset from `offset` on that may not be zero: everything before it reads
    /// as zeros. `None` if only zeros follow. A device that does not know returns `offset`.
    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        Some(offset)
    }

    /// Passes a hint about `length` bytes. Never changes the data; failures are not reported.
    fn advise(&self, _offset: PhysicalAddress, _length: u64, _advice: Advice) {}
}

impl StartedOp {
    /// Carries the operation out with the calls of `device` that wait, and completes it.
    pub fn run<D: Device + ?Sized>(mut self, device: &D) {
        let offset = self.offset();
        let result = match self.direction() {
            Direction::Read => device.read_at(self.bytes_mut(), offset),
            Direction::Write => device.write_at(self.bytes(), offset),
        };
        self.complete(result);
    }
}

/// Writes zeros to a range that was checked.
pub(crate) fn fill_with_zeros<D: Device + ?Sized>(
    device: &D,
    offset: PhysicalAddress,
    length: u64,
) -> io::Result<()> {
    let zeros = vec![0; length.min(ZEROS) as usize];
    let mut done = 0;
    while done < length {
        let count = (length - done).min(ZEROS);
        device.write_at(&zeros[..count as usize], PhysicalAddress(offset.get() + done))?;
        done += count;
    }
    Ok(())
}

/// Checks that a read lies within a device of `size` bytes. For implementors of [`Device`].
///
/// # Errors
/// A range past the end.
pub fn check_read(size: u64, offset: PhysicalAddress, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end.get() <= size => Ok(()),
        _ => Err(past_end(io::ErrorKind::UnexpectedEof, "read", size, offset, length as u64)),
    }
}

/// Checks that a write or discard is permitted and lies within a device of `size` bytes. For
/// implementors of [`Device`].
///
/// # Errors
/// A device that is open read-only; a range past the end.
pub fn check_write(access: Access, size: u64, offset: PhysicalAddress, length: u64) -> io::Result<()> {
    if access == Access::ReadOnly {
        return Err(read_only());
    }
    match offset.checked_add(length) {
        Some(end) if end.get() <= size => Ok(()),
        _ => Err(past_end(io::ErrorKind::InvalidInput, "write", size, offset, length)),
    }
}

/// Returns the error for changing a read-only device.
pub fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is open read-only")
}

/// Returns the error for a range past the end.
pub(crate) fn past_end(
    kind: io::ErrorKind,
    verb: &str,
    size: u64,
    offset: PhysicalAddress,
    length: u64,
) -> io::Error {
    io::Error::new(
        kind,
        format!("{verb} of {length} bytes at {offset} reaches past the end of the device at {size}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_checks_do_not_overflow() {
        assert!(check_read(8, PhysicalAddress(0), 8).is_ok());
        assert!(check_read(8, PhysicalAddress(8), 0).is_ok());
        let error = check_read(8, PhysicalAddress(1), 8).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(check_read(u64::MAX, PhysicalAddress(u64::MAX), 1).is_err());

        assert!(check_write(Access::ReadWrite, 8, PhysicalAddress(4), 4).is_ok());
        let error = check_write(Access::ReadWrite, 8, PhysicalAddress(4), 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(check_write(Access::ReadWrite, u64::MAX, PhysicalAddress(2), u64::MAX).is_err());
        let error = check_write(Access::ReadOnly, 8, PhysicalAddress(0), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    }

    #[test]
    fn request_that_never_ran_is_an_error() {
        assert!(ReadRequest::new(PhysicalAddress(0), &mut [0]).result.is_err());
        assert!(WriteRequest::new(PhysicalAddress(0), &[0]).result.is_err());
    }
}

//! The `Device` trait: a fixed number of bytes that are read, written and made durable.
//!
//! Invariants of every implementation:
//! - A read or write is whole or an error; there are no short counts.
//! - Nothing is written past the end, and no write changes the size.
//! - Writes may reach the medium in any order until [`Device::flush`] returns; what was written
//!   before a flush that succeeded survives a loss of power.
//! - Requests that overlap in time and place have no defined order between them.
//!
//! Kernel counterpart: `struct block_device` and the bio layer (block/blk-core.c, block/bdev.c).

use papilio_format::PhysicalAddress;
use std::io;

/// What a device was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads only; every write, flush and discard is an error.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// How a range is about to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Read in order of address: read ahead further.
    Sequential,
    /// Read in no order: reading ahead is waste.
    Random,
    /// Read soon: begin now, in the background.
    WillNeed,
    /// Not read again soon: may be dropped from the host's cache.
    DontNeed,
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Where on the device.
    pub offset: PhysicalAddress,
    /// Filled whole when `result` is `Ok`; of undefined content otherwise.
    pub buffer: &'a mut [u8],
    /// The outcome. An error until the request has been carried out.
    pub result: io::Result<()>,
}

impl<'a> ReadRequest<'a> {
    /// A request that has not run yet.
    pub fn new(offset: PhysicalAddress, buffer: &'a mut [u8]) -> Self {
        Self { offset, buffer, result: Err(not_run()) }
    }
}

/// One write of a batch.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// Where on the device.
    pub offset: PhysicalAddress,
    /// What to write.
    pub buffer: &'a [u8],
    /// The outcome. An error until the request has been carried out; after an error the device holds
    /// any mix of old and new bytes in the range.
    pub result: io::Result<()>,
}

impl<'a> WriteRequest<'a> {
    /// A request that has not run yet.
    pub fn new(offset: PhysicalAddress, buffer: &'a [u8]) -> Self {
        Self { offset, buffer, result: Err(not_run()) }
    }
}

/// The result of a request before it ran. Costs no allocation.
fn not_run() -> io::Error {
    io::Error::from(io::ErrorKind::Other)
}

/// A random-access block device. Held as `Arc<dyn Device>`; every method may be called from any
/// thread at any time.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// The path, or a description, for messages.
    fn name(&self) -> &str;

    /// Bytes, as of now (a file or a block device may be resized by others).
    fn size(&self) -> u64;

    /// What the device was opened for.
    fn access(&self) -> Access;

    /// The multiple of bytes that offset, length and memory address should have for a request to
    /// go straight through; a power of two. Other requests work too, by way of a copy.
    fn alignment(&self) -> usize {
        1
    }

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` where the range reaches past the end; else what the host says. The buffer's
    /// content is undefined then.
    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()>;

    /// Carries out all requests, in any order or at once, and stores each one's outcome in it.
    /// Returns when all have ended.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.result = self.read_at(request.buffer, request.offset);
        }
    }

    /// Writes `buffer` at `offset`. Durable only after a [`flush`](Self::flush).
    ///
    /// # Errors
    /// `ReadOnlyFilesystem` on a read-only device, `InvalidInput` where the range reaches past the
    /// end (nothing is written then), else what the host says (any part may have been written).
    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()>;

    /// Carries out all requests, in any order or at once, and stores each one's outcome in it.
    /// Returns when all have ended.
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.result = self.write_at(request.buffer, request.offset);
        }
    }

    /// Writes `buffer` and returns when it is durable. Says nothing of earlier writes: what must be
    /// durable before needs a [`flush`](Self::flush) before (the superblock's rule).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`flush`](Self::flush).
    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.write_at(buffer, offset)?;
        self.flush()
    }

    /// Returns when every write that had ended before the call is durable.
    ///
    /// # Errors
    /// What the host says. After an error, writes since the last good flush may be lost even though
    /// a later flush succeeds (the host forgets the pages that it could not write), so the caller
    /// must not carry on as if they were there.
    fn flush(&self) -> io::Result<()>;

    /// Says that the content of a range is not needed any more. It reads as anything afterwards.
    ///
    /// # Errors
    /// `Unsupported` where the device has no such thing, which a caller may ignore; ranges and
    /// access as for [`write_at`](Self::write_at).
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()>;

    /// A hint on a range of `length` bytes. Never changes what is read; failures are not told.
    fn advise(&self, _offset: PhysicalAddress, _length: u64, _advice: Advice) {}
}

/// The error of a range that reaches past the end of a device, on reading.
pub(crate) fn check_read(size: u64, offset: PhysicalAddress, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end.get() <= size => Ok(()),
        _ => Err(past_end(io::ErrorKind::UnexpectedEof, "read", size, offset, length as u64)),
    }
}

/// The error of a write or discard to a read-only device or past the end.
pub(crate) fn check_write(access: Access, size: u64, offset: PhysicalAddress, length: u64) -> io::Result<()> {
    if access == Access::ReadOnly {
        return Err(read_only());
    }
    match offset.checked_add(length) {
        Some(end) if end.get() <= size => Ok(()),
        _ => Err(past_end(io::ErrorKind::InvalidInput, "write", size, offset, length)),
    }
}

/// The error of changing a read-only device.
pub(crate) fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is open for reading only")
}

/// The error of a range past the end.
pub(crate) fn past_end(
    kind: io::ErrorKind,
    verb: &str,
    size: u64,
    offset: PhysicalAddress,
    length: u64,
) -> io::Error {
    io::Error::new(
        kind,
        format!("{verb} of {length} bytes at {offset} reaches past the device's end at {size}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
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
    fn a_request_that_never_ran_is_an_error() {
        assert!(ReadRequest::new(PhysicalAddress(0), &mut [0]).result.is_err());
        assert!(WriteRequest::new(PhysicalAddress(0), &[0]).result.is_err());
    }
}

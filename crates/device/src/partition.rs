//! `PartitionDevice`: a range of another device as a device of its own.
//!
//! It owns the place of the range. The inner device keeps the lock and the open file.
//!
//! **Invariants**
//! - The range lies within the inner device when the partition is created.
//! - No request leaves the range: each is checked against it before the inner device sees it.
//! - A request that an io_uring can carry is one with a shifted offset, so it costs no copy.
//!
//! Kernel counterpart: block/partitions/core.c, `blk_partition_remap` (block/blk-core.c).

use crate::device::{
    Access, Advice, Device, ReadRequest, RingTarget, WriteRequest, check_read, check_write, past_end,
};
use crate::started::StartedOp;
use papilio_format::PhysicalAddress;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A range of another device, for example a partition of a disk image.
///
/// ```
/// use papilio_device::{Device, MemoryDevice, PartitionDevice, PhysicalAddress};
/// use std::sync::Arc;
///
/// let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(8 << 20));
/// let name = "disk.img@1".to_owned();
/// let start = PhysicalAddress(1 << 20);
/// let partition = PartitionDevice::new(disk.clone(), name, start, 4 << 20).unwrap();
/// partition.write_at(b"kept", PhysicalAddress(512)).unwrap();
/// let mut buffer = [0; 4];
/// disk.read_at(&mut buffer, PhysicalAddress((1 << 20) + 512)).unwrap();
/// assert_eq!(&buffer, b"kept");
/// ```
#[derive(Debug)]
pub struct PartitionDevice {
    inner: Arc<dyn Device>,
    name: String,
    start: PhysicalAddress,
    length: u64,
}

impl PartitionDevice {
    /// Creates a device of the `length` bytes from `start` on.
    ///
    /// # Errors
    /// `InvalidInput` if the range reaches past the end of the inner device.
    pub fn new(
        inner: Arc<dyn Device>,
        name: String,
        start: PhysicalAddress,
        length: u64,
    ) -> io::Result<Self> {
        let size = inner.size();
        match start.checked_add(length) {
            Some(end) if end.get() <= size => Ok(Self { inner, name, start, length }),
            _ => Err(past_end(io::ErrorKind::InvalidInput, "partition", size, start, length)),
        }
    }

    /// Returns the offset on the inner device of a range that was checked.
    fn shifted(&self, offset: PhysicalAddress) -> PhysicalAddress {
        PhysicalAddress(self.start.get() + offset.get())
    }

    /// Returns the bytes of a range that lie within the partition.
    fn clamped(&self, offset: PhysicalAddress, length: u64) -> u64 {
        length.min(self.length.saturating_sub(offset.get()))
    }
}

impl Device for PartitionDevice {
    fn name(&self) -> &str {
        &self.name
    }

    /// The partition table gives the size: it does not change with that of the inner device.
    fn size(&self) -> u64 {
        self.length
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn answers_later(&self) -> bool {
        self.inner.answers_later()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.length, offset, buffer.len())?;
        self.inner.read_at(buffer, self.shifted(offset))
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let outside = requests
            .iter()
            .any(|request| check_read(self.length, request.offset, request.buffer.len()).is_err());
        if outside {
            for request in requests {
                request.result = self.read_at(request.buffer, request.offset);
            }
            return;
        }
        requests.iter_mut().for_each(|request| request.offset = self.shifted(request.offset));
        self.inner.read_many(requests);
        requests.iter_mut().for_each(|request| request.offset.0 -= self.start.get());
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access(), self.length, offset, buffer.len() as u64)?;
        self.inner.write_at(buffer, self.shifted(offset))
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        let access = self.access();
        let outside = requests.iter().any(|request| {
            check_write(access, self.length, request.offset, request.buffer.len() as u64).is_err()
        });
        if outside {
            for request in requests {
                request.result = self.write_at(request.buffer, request.offset);
            }
            return;
        }
        requests.iter_mut().for_each(|request| request.offset = self.shifted(request.offset));
        self.inner.write_many(requests);
        requests.iter_mut().for_each(|request| request.offset.0 -= self.start.get());
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access(), self.length, offset, buffer.len() as u64)?;
        self.inner.write_fua(buffer, self.shifted(offset))
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access(), self.length, offset, length)?;
        self.inner.discard(self.shifted(offset), length)
    }

    fn clone_from_file(
        &self,
        source: BorrowedFd<'_>,
        from: u64,
        length: u64,
        offset: PhysicalAddress,
    ) -> io::Result<()> {
        check_write(self.access(), self.length, offset, length)?;
        self.inner.clone_from_file(source, from, length, self.shifted(offset))
    }

    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, keep_space: bool) -> io::Result<()> {
        check_write(self.access(), self.length, offset, length)?;
        self.inner.write_zeroes(self.shifted(offset), length, keep_space)
    }

    fn ring_file(&self, request: &RingTarget) -> Option<(BorrowedFd<'_>, PhysicalAddress)> {
        check_read(self.length, request.offset, request.length).ok()?;
        self.inner.ring_file(&RingTarget { offset: self.shifted(request.offset), ..*request })
    }

    fn start(self: Arc<Self>, op: StartedOp) {
        match check_read(self.length, op.offset(), op.bytes().len()) {
            Ok(()) => Arc::clone(&self.inner).start(op.shifted(self.start.get())),
            // Completes it with the error of its own kind.
            Err(_) => op.run(&*self),
        }
    }

    fn advance(&self) -> bool {
        self.inner.advance()
    }

    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        if offset.get() >= self.length {
            return None;
        }
        let found = self.inner.next_data(self.shifted(offset))?.get() - self.start.get();
        (found < self.length).then_some(PhysicalAddress(found))
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        // A length of 0 means "to the end" to the host.
        let length = self.clamped(offset, if length == 0 { self.length } else { length });
        if length > 0 {
            self.inner.advise(self.shifted(offset), length, advice);
        }
    }
}

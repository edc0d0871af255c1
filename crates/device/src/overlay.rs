//! `OverlayDevice`: a decorator that keeps all writes in memory (copy on write).
//!
//! It owns the blocks that were written. The inner device is only read.
//!
//! **Invariants**
//! - No call reaches the inner device but reads and advice.
//! - The blocks take at most `limit` bytes. A write past it fails with [`OverlayFull`] and changes
//!   nothing.
//!
//! **Locks**
//! - `blocks`: shared while a read patches its buffer, exclusive during a write. A write of a part
//!   of a block reads the rest from the inner device under it, so that two such writes cannot lose
//!   one another.

use crate::device::{Access, Advice, Device, ReadRequest, check_read, check_write};
use papilio_format::PhysicalAddress;
use papilio_locks::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Bytes of a block, the unit in which the overlay keeps writes.
const BLOCK: u64 = 4096;

/// The cause of a write that fails because the overlay's memory is used up. It is the source of an
/// [`io::Error`] of the kind `StorageFull`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayFull {
    /// Bytes that the overlay may keep.
    pub limit: u64,
}

impl fmt::Display for OverlayFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the changes kept in memory would take more than {} bytes", self.limit)
    }
}

impl std::error::Error for OverlayFull {}

/// A decorator that keeps all writes in memory.
///
/// ```
/// use papilio_device::{Device, MemoryDevice, OverlayDevice, PhysicalAddress};
/// use std::sync::Arc;
///
/// let inner: Arc<dyn Device> = Arc::new(MemoryDevice::new(8192));
/// let overlay = OverlayDevice::new(inner.clone(), 1 << 20);
/// overlay.write_at(b"kept", PhysicalAddress(4094)).unwrap();
/// let mut buffer = [0; 4];
/// overlay.read_at(&mut buffer, PhysicalAddress(4094)).unwrap();
/// assert_eq!(&buffer, b"kept");
/// inner.read_at(&mut buffer, PhysicalAddress(4094)).unwrap();
/// assert_eq!(buffer, [0; 4]);
/// ```
#[derive(Debug)]
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    limit: u64,
    /// By block number.
    blocks: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl OverlayDevice {
    /// Puts an overlay of at most `limit` bytes on a device, which may be open for reading only.
    pub fn new(inner: Arc<dyn Device>, limit: u64) -> Self {
        Self { inner, limit, blocks: RwLock::new(BTreeMap::new()) }
    }

    /// Returns the bytes that the overlay keeps.
    pub fn kept_bytes(&self) -> u64 {
        self.blocks.read().len() as u64 * BLOCK
    }

    /// Copies the written parts of a range over `buffer`, which was read from the inner device.
    fn patch(&self, buffer: &mut [u8], offset: u64) {
        let end = offset + buffer.len() as u64;
        for (number, bytes) in self.blocks.read().range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = number * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            buffer[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
    }

    /// Returns the inner device's bytes of a block; the part past the device's end is zero.
    fn base(&self, number: u64) -> io::Result<Box<[u8]>> {
        let mut bytes = vec![0; BLOCK as usize].into_boxed_slice();
        let start = number * BLOCK;
        let length = BLOCK.min(self.inner.size().saturating_sub(start)) as usize;
        self.inner.read_at(&mut bytes[..length], PhysicalAddress(start))?;
        Ok(bytes)
    }
}

impl Device for OverlayDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size(), offset, buffer.len())?;
        self.inner.read_at(buffer, offset)?;
        self.patch(buffer, offset.0);
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.inner.read_many(requests);
        for request in requests.iter_mut().filter(|request| request.result.is_ok()) {
            self.patch(request.buffer, request.offset.0);
        }
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(Access::ReadWrite, self.size(), offset, buffer.len() as u64)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let (start, end) = (offset.0, offset.0 + buffer.len() as u64);
        let numbers = start / BLOCK..end.div_ceil(BLOCK);
        let mut blocks = self.blocks.write();
        let new = (numbers.end - numbers.start) - blocks.range(numbers.clone()).count() as u64;
        if (blocks.len() as u64 + new).saturating_mul(BLOCK) > self.limit {
            return Err(io::Error::new(io::ErrorKind::StorageFull, OverlayFull { limit: self.limit }));
        }
        // The bases are read before anything changes: a failed read leaves the overlay as it was.
        let mut bases = Vec::new();
        for number in numbers.clone().filter(|number| !blocks.contains_key(number)) {
            let whole = number * BLOCK >= start && (number + 1) * BLOCK <= end;
            let bytes = if whole { vec![0; BLOCK as usize].into_boxed_slice() } else { self.base(number)? };
            bases.push((number, bytes));
        }
        blocks.extend(bases);
        for (number, bytes) in blocks.range_mut(numbers) {
            let first = number * BLOCK;
            let (from, to) = (first.max(start), (first + BLOCK).min(end));
            bytes[(from - first) as usize..(to - first) as usize]
                .copy_from_slice(&buffer[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    /// Does nothing: the overlay is gone with the process.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDevice;

    const SIZE: u64 = 5 * BLOCK + 100;

    fn content(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        bytes
    }

    #[test]
    fn reads_show_writes_that_the_inner_device_does_not_have() {
        let inner = Arc::new(MemoryDevice::new(SIZE));
        inner.write_at(&[9; SIZE as usize], PhysicalAddress(0)).unwrap();
        let overlay = OverlayDevice::new(inner.clone(), 1 << 20);
        let mut expected = vec![9; SIZE as usize];
        for (step, (at, length)) in
            [(0, 4096), (4000, 200), (100, 3), (8192, 8192), (5 * 4096 + 90, 10)].into_iter().enumerate()
        {
            let bytes = vec![step as u8; length];
            overlay.write_at(&bytes, PhysicalAddress(at as u64)).unwrap();
            expected[at..at + length].copy_from_slice(&bytes);
            assert!(content(&overlay) == expected, "after step {step}");
        }
        let mut buffers = [[0; 5000], [0; 5000]];
        let [first, second] = &mut buffers;
        let mut requests = [
            ReadRequest::new(PhysicalAddress(3000), first),
            ReadRequest::new(PhysicalAddress(SIZE - 5000), second),
        ];
        overlay.read_many(&mut requests);
        assert!(requests.iter().all(|request| request.result.is_ok()));
        assert!(buffers[0] == expected[3000..8000] && buffers[1] == expected[SIZE as usize - 5000..]);
        assert!(content(&*inner).iter().all(|byte| *byte == 9));
        assert!(overlay.write_at(&[0; 2], PhysicalAddress(SIZE - 1)).is_err());
        assert!(overlay.discard(PhysicalAddress(0), 4096).is_err());
    }

    #[test]
    fn a_write_past_the_limit_changes_nothing() {
        let overlay = OverlayDevice::new(Arc::new(MemoryDevice::new(SIZE)), 2 * BLOCK);
        overlay.write_at(&[1; 2], PhysicalAddress(4095)).unwrap();
        assert_eq!(overlay.kept_bytes(), 2 * BLOCK);
        let before = content(&overlay);
        let error = overlay.write_at(&[2; 2], PhysicalAddress(8191)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<OverlayFull>());
        assert_eq!(cause, Some(&OverlayFull { limit: 2 * BLOCK }));
        assert!(content(&overlay) == before);
        overlay.write_at(&[3; 100], PhysicalAddress(10)).unwrap();
    }
}

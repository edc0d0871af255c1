//! A device that keeps writes of superblocks in memory, and refuses those that would hit the
//! source.
//!
//! Owns [`WithheldDevice`]. The engine writes the new file system through it, commit by commit,
//! while the source on the device stays whole. At the end the conversion takes the superblocks and
//! writes them itself.
//!
//! **Invariants**
//! - No write reaches a block that the source uses, nor a range that Btrfs keeps for superblocks.
//! - Reads show what was written.
//!
//! **Locks**: `kept`, a leaf; it is not held across I/O.

use crate::block_set::BlockSet;
use papilio_device::{Access, Advice, Device, ReadRequest, WriteRequest, check_read, check_write};
use papilio_format::PhysicalAddress;
use papilio_format::superblock::SUPERBLOCK_SIZE;
use papilio_locks::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = SUPERBLOCK_SIZE as u64;

/// The decorator.
#[derive(Debug)]
pub(crate) struct WithheldDevice {
    inner: Arc<dyn Device>,
    used: Arc<BlockSet>,
    block_size: u64,
    /// In order.
    reserved: Vec<Range<u64>>,
    /// The blocks of 4 KiB that were written in reserved ranges, by their places.
    kept: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl WithheldDevice {
    pub(crate) fn new(
        inner: Arc<dyn Device>,
        used: Arc<BlockSet>,
        block_size: u64,
        reserved: Vec<Range<u64>>,
    ) -> Self {
        Self { inner, used, block_size, reserved, kept: Mutex::default() }
    }

    /// Returns the blocks that were written in reserved ranges.
    pub(crate) fn kept(&self) -> BTreeMap<u64, Box<[u8]>> {
        self.kept.lock().clone()
    }

    /// Lets reads of a block in a reserved range show these bytes.
    pub(crate) fn keep(&self, place: u64, block: &[u8]) {
        self.kept.lock().insert(place, block.into());
    }

    fn patch(&self, buffer: &mut [u8], offset: u64) {
        let end = offset + buffer.len() as u64;
        let first = offset / BLOCK * BLOCK;
        for (start, bytes) in self.kept.lock().range(first..end) {
            let (from, to) = ((*start).max(offset), (start + BLOCK).min(end));
            if from < to {
                let source = &bytes[(from - start) as usize..(to - start) as usize];
                buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
    }

    /// Returns whether a write stays in memory, or the error if it may not happen.
    fn is_withheld(&self, offset: u64, length: u64) -> io::Result<bool> {
        let end = offset + length;
        if let Some(range) = self.reserved.iter().find(|range| range.end > offset && range.start < end) {
            let is_inside = range.start <= offset && end <= range.end;
            if is_inside && offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK) {
                return Ok(true);
            }
            return Err(io::Error::other("a write reaches into a range for superblocks"));
        }
        let blocks = offset / self.block_size..end.div_ceil(self.block_size);
        match self.used.intersects(&blocks) {
            true => Err(io::Error::other("a write would hit a block of the source")),
            false => Ok(false),
        }
    }
}

impl Device for WithheldDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
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
        check_write(self.access(), self.size(), offset, buffer.len() as u64)?;
        if !self.is_withheld(offset.0, buffer.len() as u64)? {
            return self.inner.write_at(buffer, offset);
        }
        let mut kept = self.kept.lock();
        for (at, block) in buffer.chunks_exact(BLOCK as usize).enumerate() {
            kept.insert(offset.0 + at as u64 * BLOCK, block.into());
        }
        Ok(())
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        let may_pass = |request: &WriteRequest<'_>| {
            check_write(self.access(), self.size(), request.offset, request.buffer.len() as u64).is_ok()
                && matches!(self.is_withheld(request.offset.0, request.buffer.len() as u64), Ok(false))
        };
        if requests.iter().all(may_pass) {
            return self.inner.write_many(requests);
        }
        for request in requests {
            request.result = self.write_at(request.buffer, request.offset);
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
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
    use papilio_device::MemoryDevice;

    #[test]
    fn superblocks_stay_in_memory_and_the_source_is_kept() {
        let inner = Arc::new(MemoryDevice::new(1 << 20));
        let mut used = BlockSet::new(256);
        used.insert(100..110);
        let reserved = vec![0..65536, 0x4_0000..0x5_0000];
        let device = WithheldDevice::new(inner.clone(), Arc::new(used), 4096, reserved);
        device.write_at(&[1; 4096], PhysicalAddress(4096)).unwrap();
        device.write_at(&[2; 4096], PhysicalAddress(65536)).unwrap();
        for (offset, length) in [(65536 - 4096, 8192), (100 * 4096, 4096), (99 * 4096, 8192), (4096, 100)] {
            let refused = device.write_at(&vec![3; length], PhysicalAddress(offset));
            assert!(refused.is_err(), "{offset}");
        }
        let mut bytes = vec![0; 131072];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        assert!(bytes[4096..8192].iter().all(|byte| *byte == 1) && bytes[65536] == 2);
        inner.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        assert!(bytes[4096..8192].iter().all(|byte| *byte == 0) && bytes[65536] == 2);
        assert_eq!(device.kept().keys().copied().collect::<Vec<_>>(), [4096]);
        let buffer = [4; 4096];
        let places = [PhysicalAddress(8192), PhysicalAddress(0x6_0000)];
        let mut requests = places.map(|place| WriteRequest::new(place, &buffer));
        device.write_many(&mut requests);
        assert!(requests.iter().all(|request| request.result.is_ok()));
        assert_eq!(device.kept().len(), 2);
    }
}

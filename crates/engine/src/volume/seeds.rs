//! Seed devices: the read-only devices of another file system that this one builds on.
//!
//! Owns [`SeedDevice`], which keeps all writes away from such a device.
//!
//! **Invariants**
//! - No byte of a seed changes, because other file systems may build on it, too.
//! - A tree block on a seed names the seed's file system. It is read as a block of this one, so
//!   that its copies elsewhere name this one.
//!
//! **Locks**: none.
//!
//! Kernel counterparts: `open_seed_devices`, `check_tree_block_fsid` (`fs/btrfs/volumes.c`,
//! `fs/btrfs/disk-io.c`).

use super::devices::DeviceTable;
use papilio_device::{Access, Advice, Device, Direction, ReadRequest, RingTarget, StartedOp};
use papilio_format::{DeviceId, PhysicalAddress, Uuid};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device that is only read.
#[derive(Debug)]
pub(super) struct SeedDevice {
    inner: Arc<dyn Device>,
}

impl SeedDevice {
    /// Returns the device, protected from writes.
    pub(super) fn protect(inner: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Self { inner })
    }

    fn refused(&self) -> io::Error {
        let text = format!("{} is a seed device, which is never written", self.inner.name());
        io::Error::new(io::ErrorKind::ReadOnlyFilesystem, text)
    }
}

impl Device for SeedDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        Access::ReadOnly
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
        self.inner.read_at(buffer, offset)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.inner.read_many(requests);
    }

    fn write_at(&self, _buffer: &[u8], _offset: PhysicalAddress) -> io::Result<()> {
        Err(self.refused())
    }

    /// Does nothing: nothing was written.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Does nothing: a discard is a hint.
    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn ring_file(&self, request: &RingTarget) -> Option<(BorrowedFd<'_>, PhysicalAddress)> {
        match request.direction {
            Direction::Read => self.inner.ring_file(request),
            Direction::Write => None,
        }
    }

    fn start(self: Arc<Self>, op: StartedOp) {
        match op.direction() {
            Direction::Read => Arc::clone(&self.inner).start(op),
            Direction::Write => op.complete(Err(self.refused())),
        }
    }

    fn advance(&self) -> bool {
        self.inner.advance()
    }

    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        self.inner.next_data(offset)
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

impl DeviceTable {
    /// Whether a device belongs to file system `fsid`: this one or a seed.
    pub(crate) fn has_member_of(&self, fsid: Uuid) -> bool {
        self.iter().any(|slot| slot.item.fsid == fsid)
    }

    /// Whether a device belongs to another file system than `own`, as seeds do.
    pub(crate) fn is_seed(&self, devid: DeviceId, own: Uuid) -> bool {
        self.iter().any(|slot| slot.in_chunk_tree && slot.devid() == devid && slot.item.fsid != own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::{FaultDevice, MemoryDevice};

    #[test]
    fn a_seed_is_read_and_never_written() {
        let memory = Arc::new(MemoryDevice::new(1 << 20).with_name("seed"));
        memory.write_at(&[7; 4096], PhysicalAddress(8192)).unwrap();
        let counted = Arc::new(FaultDevice::new(memory.clone()));
        let seed = SeedDevice::protect(counted.clone());
        assert_eq!((seed.name(), seed.size(), seed.access()), ("seed", 1 << 20, Access::ReadOnly));
        assert_eq!((seed.alignment(), seed.waits()), (memory.alignment(), memory.waits()));
        assert!(!seed.advance(), "nothing is under way");
        let mut bytes = [0; 4096];
        seed.read_at(&mut bytes, PhysicalAddress(8192)).unwrap();
        assert_eq!(bytes, [7; 4096]);
        let mut more = [0; 4096];
        let mut requests = [ReadRequest::new(PhysicalAddress(8192), &mut more)];
        seed.read_many(&mut requests);
        assert!(requests[0].result.is_ok());
        assert_eq!(more, [7; 4096]);
        assert_eq!(seed.next_data(PhysicalAddress(0)), memory.next_data(PhysicalAddress(0)));
        let error = seed.write_at(&[1; 4096], PhysicalAddress(8192)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        assert!(error.to_string().starts_with("seed is a seed device"), "{error}");
        seed.flush().unwrap();
        seed.discard(PhysicalAddress(8192), 4096).unwrap();
        let counts = counted.counts();
        assert_eq!((counts.writes, counts.flushes, counts.discards), (0, 0, 0));
    }
}

//! A device and its copy, while the device is being replaced.
//!
//! Owns [`DevReplace`]: the device in the table while all that it holds is copied to the target of
//! a replacement. Reads go to the source, writes to both.
//!
//! **Invariants**
//! - What is written here is on the target, too, unless the target failed. Its failure is noted
//!   ([`DevReplace::check`]), and fails no request of the file system.
//! - The places of superblocks are written on the source only. The target keeps the superblocks of
//!   a target until it takes the source's place.
//! - No write goes to a range that the copier holds, and the copier waits for writes under way, so
//!   that a copy never goes over newer bytes.
//! - A target without a source is never read: nothing says which of its bytes are copied.
//!
//! **Lock:** one for the ranges, a leaf that is not held across I/O. A range is held across I/O, by
//! the copier's threads only, and each byte by one of them. A writer waits for it, and holds no
//! range while it waits.
//!
//! Kernel counterpart: `handle_ops_on_dev_replace` (`fs/btrfs/volumes.c`).

use super::device_writes::device_error;
use crate::errors::Result;
use papilio_device::{Access, Device, Direction, ReadRequest, RingTarget, StartedOp, WriteRequest};
use papilio_format::PhysicalAddress;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_locks::{Condvar, Mutex};
use smallvec::{SmallVec, smallvec};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

type Ranges = SmallVec<[Range<u64>; 4]>;

#[derive(Debug, Default)]
struct ReplaceRanges {
    /// The ranges that threads of the copier hold; disjoint.
    held: Vec<Range<u64>>,
    /// The ranges of writes under way.
    writing: Vec<Range<u64>>,
    /// The first failure of the target.
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    operation: &'static str,
    offset: PhysicalAddress,
    kind: io::ErrorKind,
    message: String,
}

/// A device and the target of its replacement.
#[derive(Debug)]
pub(crate) struct DevReplace {
    /// The device that is replaced; `None` if it is missing.
    source: Option<Arc<dyn Device>>,
    target: Arc<dyn Device>,
    state: Mutex<ReplaceRanges>,
    changed: Condvar,
}

/// Ranges that nothing writes to until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldRanges<'a> {
    dev_replace: &'a DevReplace,
    ranges: Ranges,
}

/// Writes under way.
struct Writing<'a> {
    dev_replace: &'a DevReplace,
    ranges: Ranges,
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn range_of(offset: PhysicalAddress, length: u64) -> Range<u64> {
    offset.0..offset.0.saturating_add(length)
}

/// Returns whether a range has a part of a superblock copy's place.
fn is_superblock(range: &Range<u64>) -> bool {
    let mut places = (0..SUPERBLOCK_MIRRORS).map(superblock_offset);
    places.any(|place| overlaps(range, &range_of(place, SUPERBLOCK_SIZE as u64)))
}

impl DevReplace {
    pub(crate) fn new(source: Option<Arc<dyn Device>>, target: Arc<dyn Device>) -> Self {
        Self { source, target, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Returns the target.
    pub(crate) fn target(&self) -> &Arc<dyn Device> {
        &self.target
    }

    /// Returns the source, if it is there.
    pub(crate) fn source(&self) -> Option<&Arc<dyn Device>> {
        self.source.as_ref()
    }

    /// Keeps writers out of `ranges`, and waits for writes under way in them. The calling thread
    /// holds no other range of this device, and no other thread holds a part of these.
    pub(crate) fn hold(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> HeldRanges<'_> {
        let ranges: Ranges = ranges.into_iter().collect();
        let mut state = self.state.lock();
        let is_ours = |range: &Range<u64>| ranges.iter().any(|own| overlaps(range, own));
        debug_assert!(!state.held.iter().any(is_ours), "a range has one copier");
        state.held.extend(ranges.iter().cloned());
        while state.writing.iter().any(is_ours) {
            self.changed.wait(&mut state);
        }
        HeldRanges { dev_replace: self, ranges }
    }

    /// Fails if the target has failed, so that it is no copy of the source.
    ///
    /// # Errors
    /// [`Error::Device`] with the first failure.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(failure) = &self.state.lock().failure else { return Ok(()) };
        let source = io::Error::new(failure.kind, failure.message.clone());
        Err(device_error(&*self.target, failure.operation, failure.offset, 0, source))
    }

    /// Gives the target the source's bytes in a range that nothing uses. Where the source cannot be
    /// read, both get zeros.
    pub(super) fn copy_unused(&self, offset: PhysicalAddress, length: usize) {
        let Some(source) = &self.source else { return };
        // The copier may still hold the range for a chunk that is gone.
        let _writing = self.begin(smallvec![range_of(offset, length as u64)]);
        let mut bytes = vec![0; length];
        if source.read_at(&mut bytes, offset).is_err() {
            bytes.fill(0);
            if let Err(error) = source.write_at(&bytes, offset) {
                tracing::warn!(device = source.name(), %offset, %error, "unused space cannot be zeroed");
            }
        }
        self.note(self.target.write_at(&bytes, offset), "write", offset);
    }

    fn begin(&self, ranges: Ranges) -> Writing<'_> {
        let mut state = self.state.lock();
        while state.held.iter().any(|held| ranges.iter().any(|range| overlaps(range, held))) {
            self.changed.wait(&mut state);
        }
        state.writing.extend(ranges.iter().cloned());
        Writing { dev_replace: self, ranges }
    }

    fn note(&self, result: io::Result<()>, operation: &'static str, offset: PhysicalAddress) {
        let Err(error) = result else { return };
        let mut state = self.state.lock();
        if state.failure.is_none() {
            let device = self.target.name();
            tracing::warn!(device, %offset, %error, "the target of the replacement failed");
            let (kind, message) = (error.kind(), error.to_string());
            state.failure = Some(Failure { operation, offset, kind, message });
        }
    }

    /// Returns whether the target is written too.
    fn is_copied(&self, range: &Range<u64>) -> bool {
        !is_superblock(range) && self.state.lock().failure.is_none()
    }

    /// Writes a range to both.
    fn both(&self, range: Range<u64>, write: impl Fn(&dyn Device) -> io::Result<()>) -> io::Result<()> {
        let copied = self.is_copied(&range);
        let offset = PhysicalAddress(range.start);
        let _writing = self.begin(smallvec![range]);
        if let Some(source) = &self.source {
            write(&**source)?;
        }
        if copied {
            self.note(write(&*self.target), "write", offset);
        }
        Ok(())
    }

    fn missing() -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, "the device is missing, and its copy not complete")
    }
}

impl Drop for HeldRanges<'_> {
    fn drop(&mut self) {
        let mut state = self.dev_replace.state.lock();
        for range in &self.ranges {
            let at = state.held.iter().position(|other| other == range);
            state.held.swap_remove(at.expect("a held range is listed"));
        }
        drop(state);
        self.dev_replace.changed.notify_all();
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.dev_replace.state.lock();
        for range in &self.ranges {
            let at = state.writing.iter().position(|other| other == range);
            state.writing.swap_remove(at.expect("a write under way is listed"));
        }
        let waited_for = !state.held.is_empty();
        drop(state);
        if waited_for {
            self.dev_replace.changed.notify_all();
        }
    }
}

impl Device for DevReplace {
    fn name(&self) -> &str {
        self.source.as_ref().map_or(self.target.name(), |source| source.name())
    }

    fn size(&self) -> u64 {
        self.source.as_ref().map_or(self.target.size(), |source| source.size())
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn alignment(&self) -> usize {
        let source = self.source.as_ref().map_or(1, |source| source.alignment());
        source.max(self.target.alignment())
    }

    fn waits(&self) -> bool {
        self.target.waits() || self.source.as_ref().is_some_and(|source| source.waits())
    }

    fn answers_later(&self) -> bool {
        self.waits() || self.source.as_ref().is_some_and(|source| source.answers_later())
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        match &self.source {
            Some(source) => source.read_at(buffer, offset),
            None => Err(Self::missing()),
        }
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        match &self.source {
            Some(source) => source.read_many(requests),
            None => requests.iter_mut().for_each(|request| request.result = Err(Self::missing())),
        }
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.both(range_of(offset, buffer.len() as u64), |device| device.write_at(buffer, offset))
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        let range = |request: &WriteRequest<'_>| range_of(request.offset, request.buffer.len() as u64);
        let ranges: Ranges = requests.iter().map(range).collect();
        let copied: SmallVec<[bool; 4]> = ranges.iter().map(|range| self.is_copied(range)).collect();
        let _writing = self.begin(ranges);
        let mut copies: Vec<_> = requests
            .iter()
            .zip(copied)
            .filter(|(_, copied)| *copied)
            .map(|(request, _)| WriteRequest::new(request.offset, request.buffer))
            .collect();
        match &self.source {
            Some(source) => source.write_many(requests),
            None => requests.iter_mut().for_each(|request| request.result = Ok(())),
        }
        self.target.write_many(&mut copies);
        for copy in copies {
            self.note(copy.result, "write", copy.offset);
        }
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.both(range_of(offset, buffer.len() as u64), |device| device.write_fua(buffer, offset))
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(source) = &self.source {
            source.flush()?;
        }
        self.note(self.target.flush(), "flush", PhysicalAddress(0));
        Ok(())
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        let range = range_of(offset, length);
        let copied = self.is_copied(&range);
        let _writing = self.begin(smallvec![range]);
        if copied {
            // The target may be of another kind. Old bytes in its unused space do no harm.
            let _ = self.target.discard(offset, length);
        }
        self.source.as_ref().map_or(Ok(()), |source| source.discard(offset, length))
    }

    fn ring_file(&self, request: &RingTarget) -> Option<(BorrowedFd<'_>, PhysicalAddress)> {
        match request.direction {
            Direction::Read => self.source.as_ref()?.ring_file(request),
            Direction::Write => None,
        }
    }

    /// Reads are the source's. A write is carried out before this returns, on both devices.
    fn start(self: Arc<Self>, op: StartedOp) {
        match &self.source {
            Some(source) if op.direction() == Direction::Read => Arc::clone(source).start(op),
            _ => op.run(&*self),
        }
    }

    fn advance(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.advance())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::{FaultDevice, MemoryDevice};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    fn byte(device: &dyn Device, offset: u64) -> u8 {
        let mut bytes = [0];
        device.read_at(&mut bytes, PhysicalAddress(offset)).unwrap();
        bytes[0]
    }

    #[test]
    fn writes_reach_both_but_superblocks_only_the_source() {
        let devices: [Arc<MemoryDevice>; 2] = std::array::from_fn(|_| Arc::new(MemoryDevice::new(MIB)));
        let dev_replace = DevReplace::new(Some(devices[0].clone()), devices[1].clone());
        dev_replace.write_at(&[1; 4096], PhysicalAddress(4096)).unwrap();
        dev_replace.write_fua(&[2; 4096], superblock_offset(0)).unwrap();
        dev_replace.write_fua(&[5; 4096], PhysicalAddress(12_288)).unwrap();
        assert_eq!(byte(&*devices[0], superblock_offset(0).0), 2);
        assert_eq!(devices.each_ref().map(|device| byte(&**device, 12_288)), [5, 5]);
        let mut batch = [
            WriteRequest::new(PhysicalAddress(8192), &[3; 4096]),
            WriteRequest::new(superblock_offset(0), &[4; 4096]),
        ];
        dev_replace.write_many(&mut batch);
        assert!(batch.iter().all(|request| request.result.is_ok()));
        let at = |device: &MemoryDevice| [4096, 8192, superblock_offset(0).0].map(|at| byte(device, at));
        assert_eq!((at(&devices[0]), at(&devices[1])), ([1, 3, 4], [1, 3, 0]));
        assert!(dev_replace.check().is_ok() && dev_replace.state.lock().writing.is_empty());
    }

    #[test]
    fn a_writer_waits_for_the_copier() {
        let devices: [Arc<MemoryDevice>; 2] = std::array::from_fn(|_| Arc::new(MemoryDevice::new(MIB)));
        let dev_replace = DevReplace::new(Some(devices[0].clone()), devices[1].clone());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let held = dev_replace.hold([0..4096, 16384..20480]);
            dev_replace.write_at(&[1; 4096], PhysicalAddress(4096)).unwrap();
            scope.spawn(|| {
                dev_replace.write_at(&[2; 8192], PhysicalAddress(12288)).unwrap();
                done.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!done.load(Ordering::SeqCst));
            assert_eq!(byte(&*devices[0], 12288), 0);
            drop(held);
        });
        assert_eq!((byte(&*devices[0], 12288), byte(&*devices[1], 16384)), (2, 2));
    }

    #[test]
    fn flushes_and_discards_reach_both() {
        let devices: [Arc<FaultDevice>; 2] = ["source", "target"].map(|name| {
            let device = Arc::new(MemoryDevice::new(MIB).with_name(name));
            device.write_at(&[9; 8192], PhysicalAddress(4096)).unwrap();
            Arc::new(FaultDevice::new(device))
        });
        let [source, target] = &devices;
        let dev_replace = DevReplace::new(Some(source.clone()), target.clone());
        assert_eq!(
            (dev_replace.name(), dev_replace.size(), dev_replace.access()),
            ("source", MIB, Access::ReadWrite)
        );
        dev_replace.flush().unwrap();
        dev_replace.discard(PhysicalAddress(4096), 4096).unwrap();
        for device in &devices {
            let counts = device.counts();
            assert_eq!((counts.flushes, counts.discards), (1, 1));
            assert_eq!([4096, 8192].map(|at| byte(&**device, at)), [0, 9]);
        }
        // An error of the source is the writer's, one of the target the copier's.
        target.fail_all();
        dev_replace.flush().unwrap();
        dev_replace.discard(PhysicalAddress(8192), 4096).unwrap();
        assert!(dev_replace.check().is_err());
        source.fail_all();
        assert!(dev_replace.flush().is_err());
        assert!(dev_replace.discard(PhysicalAddress(8192), 4096).is_err());
        assert!(dev_replace.state.lock().writing.is_empty());
        let alone = DevReplace::new(None, target.clone());
        assert_eq!(alone.name(), "target");
        assert!(!alone.advance());
    }

    #[test]
    fn a_target_that_fails_does_not_fail_the_writer() {
        let target = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(MIB))));
        let source = Arc::new(MemoryDevice::new(MIB));
        target.fail_all();
        let dev_replace = DevReplace::new(Some(source.clone()), target);
        dev_replace.write_at(&[1; 4096], PhysicalAddress(0)).unwrap();
        assert_eq!(byte(&*source, 0), 1);
        assert!(dev_replace.check().is_err());
    }

    #[test]
    fn a_copy_without_a_source_is_not_read() {
        let target = Arc::new(MemoryDevice::new(MIB));
        let dev_replace = DevReplace::new(None, target.clone());
        dev_replace.write_at(&[1; 4096], PhysicalAddress(0)).unwrap();
        assert_eq!(byte(&*target, 0), 1);
        assert!(dev_replace.read_at(&mut [0], PhysicalAddress(0)).is_err());
    }
}

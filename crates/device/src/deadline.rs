//! `DeadlineDevice`: a decorator with a bound for a device that stops answering.
//!
//! It owns threads that call the inner device with memory of their own. So a caller returns at its
//! deadline, although the host never interrupts a read or write of a dead disk.
//!
//! **Invariants**
//! - A call that takes longer than the bound fails with `TimedOut`. The inner device may still
//!   carry it out.
//! - While such a *late* call is under way, all others fail at once. So nothing is written after
//!   it that it could overwrite.
//!
//! The copies and threads cost time, and io_uring is not used: the decorator is for devices whose
//! owner asks for it.
//!
//! **Locks**
//! - `Call::state`: a leaf, held for a moment.
//!
//! Kernel counterpart: `blk_mq_timeout_work` (block/blk-mq.c).

use crate::aligned::AlignedBuffer;
use crate::device::{Access, Advice, Device, ReadRequest, WriteRequest};
use crate::started::StartedOp;
use crate::workers::{self, Workers};
use papilio_format::PhysicalAddress;
use papilio_locks::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The alignment of the memory that the inner device gets, at least.
const ALIGNMENT: usize = 4096;

/// A decorator whose calls fail if the inner device does not answer in time.
#[derive(Debug)]
pub struct DeadlineDevice {
    inner: Arc<dyn Device>,
    bound: Duration,
    workers: Arc<Workers>,
    /// Calls that their callers have given up, and that have not ended.
    late: Arc<AtomicUsize>,
}

/// A call to the inner device.
struct Call<R> {
    state: Mutex<CallState<R>>,
    ended: Condvar,
}

enum CallState<R> {
    Running,
    Ended(R),
    /// The caller does not wait any more.
    GivenUp,
}

impl DeadlineDevice {
    /// Bounds the time of each call to `inner`.
    pub fn new(inner: Arc<dyn Device>, bound: Duration) -> Self {
        Self { inner, bound, workers: Arc::default(), late: Arc::default() }
    }

    fn timed_out(&self) -> io::Error {
        let message = format!("the device does not answer within {:?}", self.bound);
        io::Error::new(io::ErrorKind::TimedOut, message)
    }

    /// Runs `job` in a thread, and returns its result if it ends in time.
    fn call<R: Send + 'static>(&self, job: impl FnOnce(&dyn Device) -> R + Send + 'static) -> io::Result<R> {
        if self.late.load(Ordering::Acquire) > 0 {
            return Err(self.timed_out());
        }
        let deadline = Instant::now() + self.bound;
        let call = Arc::new(Call { state: Mutex::new(CallState::Running), ended: Condvar::new() });
        let (theirs, inner, late) = (Arc::clone(&call), Arc::clone(&self.inner), Arc::clone(&self.late));
        self.workers.run(Box::new(move || {
            let result = job(&*inner);
            let mut state = theirs.state.lock();
            match &*state {
                CallState::GivenUp => _ = late.fetch_sub(1, Ordering::AcqRel),
                _ => *state = CallState::Ended(result),
            }
            theirs.ended.notify_one();
        }));
        let mut state = call.state.lock();
        loop {
            match std::mem::replace(&mut *state, CallState::Running) {
                CallState::Ended(result) => return Ok(result),
                CallState::Running => {}
                CallState::GivenUp => unreachable!("only the caller gives up, and then returns"),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.late.fetch_add(1, Ordering::AcqRel);
                *state = CallState::GivenUp;
                return Err(self.timed_out());
            }
            call.ended.wait_for(&mut state, left);
        }
    }

    fn memory(&self, length: usize) -> AlignedBuffer {
        AlignedBuffer::new(length, self.inner.alignment().max(ALIGNMENT))
    }

    fn copied(&self, bytes: &[u8]) -> AlignedBuffer {
        let mut copy = self.memory(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Device for DeadlineDevice {
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
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        let mut memory = self.memory(buffer.len());
        let read = self.call(move |inner| inner.read_at(&mut memory, offset).map(|()| memory))?;
        buffer.copy_from_slice(&read?);
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let mut wanted: Vec<_> =
            requests.iter().map(|request| (request.offset, self.memory(request.buffer.len()))).collect();
        let read = self.call(move |inner| {
            let mut batch: Vec<_> =
                wanted.iter_mut().map(|(offset, memory)| ReadRequest::new(*offset, memory)).collect();
            inner.read_many(&mut batch);
            let results: Vec<_> = batch.into_iter().map(|request| request.result).collect();
            (wanted, results)
        });
        let Ok((read, results)) = read else {
            return requests.iter_mut().for_each(|request| request.result = Err(self.timed_out()));
        };
        for ((request, (_, memory)), result) in requests.iter_mut().zip(read).zip(results) {
            request.buffer.copy_from_slice(&memory);
            request.result = result;
        }
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        let memory = self.copied(buffer);
        self.call(move |inner| inner.write_at(&memory, offset))?
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        let copies: Vec<_> =
            requests.iter().map(|request| (request.offset, self.copied(request.buffer))).collect();
        let written = self.call(move |inner| {
            let mut batch: Vec<_> =
                copies.iter().map(|(offset, memory)| WriteRequest::new(*offset, memory)).collect();
            inner.write_many(&mut batch);
            batch.into_iter().map(|request| request.result).collect::<Vec<_>>()
        });
        let Ok(results) = written else {
            return requests.iter_mut().for_each(|request| request.result = Err(self.timed_out()));
        };
        for (request, result) in requests.iter_mut().zip(results) {
            request.result = result;
        }
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        let memory = self.copied(buffer);
        self.call(move |inner| inner.write_fua(&memory, offset))?
    }

    fn flush(&self) -> io::Result<()> {
        self.call(move |inner| inner.flush())?
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.call(move |inner| inner.discard(offset, length))?
    }

    /// The request waits in a thread of its own, apart from the one that calls the inner device.
    fn start(self: Arc<Self>, op: StartedOp) {
        workers::run(Box::new(move || op.run(&*self)));
    }

    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        self.inner.next_data(offset)
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, MemoryDevice, Piece};
    use std::sync::atomic::AtomicBool;

    const SIZE: u64 = 1 << 20;
    const LONG: Duration = Duration::from_secs(600);

    /// A device whose reads and writes hang while `hangs` is set.
    #[derive(Debug)]
    struct Hanging {
        memory: MemoryDevice,
        hangs: AtomicBool,
    }

    impl Hanging {
        fn new(hangs: bool) -> Arc<Self> {
            Arc::new(Self { memory: MemoryDevice::new(SIZE), hangs: AtomicBool::new(hangs) })
        }

        fn hang(&self) {
            while self.hangs.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Device for Hanging {
        fn name(&self) -> &str {
            "hanging"
        }

        fn size(&self) -> u64 {
            SIZE
        }

        fn access(&self) -> Access {
            Access::ReadWrite
        }

        fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
            self.hang();
            self.memory.read_at(buffer, offset)
        }

        fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
            self.hang();
            self.memory.write_at(buffer, offset)
        }

        fn flush(&self) -> io::Result<()> {
            self.hang();
            self.memory.flush()
        }

        fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
            self.memory.discard(offset, length)
        }
    }

    #[test]
    fn a_device_that_answers_is_passed_through() {
        let device = DeadlineDevice::new(Hanging::new(false), LONG);
        device.write_at(&[1; 4096], PhysicalAddress(0)).unwrap();
        let (two, three) = ([2; 512], [3; 100]);
        let mut writes = [
            WriteRequest::new(PhysicalAddress(4096), &two),
            WriteRequest::new(PhysicalAddress(SIZE), &two),
            WriteRequest::new(PhysicalAddress(4608), &three),
        ];
        device.write_many(&mut writes);
        assert_eq!(writes.map(|write| write.result.is_ok()), [true, false, true]);
        device.write_fua(&[4; 8], PhysicalAddress(4708)).unwrap();
        device.flush().unwrap();
        let mut found = [0; 616];
        device.read_at(&mut found, PhysicalAddress(4100)).unwrap();
        assert!(found[..508] == two[..508] && found[508..608] == three && found[608..] == [4; 8]);
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        let mut reads = [
            ReadRequest::new(PhysicalAddress(0), &mut one),
            ReadRequest::new(PhysicalAddress(SIZE - 1), &mut other),
        ];
        device.read_many(&mut reads);
        assert_eq!(reads.map(|read| read.result.is_ok()), [true, false]);
        assert_eq!(one, [1; 4096]);
        device.discard(PhysicalAddress(0), 4096).unwrap();
    }

    #[test]
    fn calls_end_although_the_device_does_not() {
        let inner = Hanging::new(true);
        let device =
            Arc::new(DeadlineDevice::new(Arc::clone(&inner) as Arc<dyn Device>, Duration::from_millis(50)));
        let error = device.write_at(&[1; 512], PhysicalAddress(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert_eq!(error.to_string(), "the device does not answer within 50ms");
        // The others do not wait at all.
        let slow = Arc::new(DeadlineDevice {
            bound: LONG,
            late: Arc::clone(&device.late),
            ..DeadlineDevice::new(Arc::clone(&inner) as Arc<dyn Device>, LONG)
        });
        assert!(slow.flush().is_err());
        let mut byte = [0];
        let mut reads = [ReadRequest::new(PhysicalAddress(0), &mut byte)];
        slow.read_many(&mut reads);
        assert_eq!(reads[0].result.as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
        // Requests in flight end, too, and their memory is the driver's again.
        let mut driver: Driver<Vec<u8>, ()> = Driver::new(4).unwrap();
        let piece = Piece {
            device: Arc::clone(&slow) as Arc<dyn Device>,
            offset: PhysicalAddress(0),
            range: 0..512,
            busy: None,
        };
        driver.start(crate::Direction::Read, vec![0; 512], (), [piece]);
        driver.collect(true, |completed| {
            assert_eq!(completed.failed.unwrap().1.kind(), io::ErrorKind::TimedOut);
        });
        // The late write ends, and the device is used again.
        inner.hangs.store(false, Ordering::SeqCst);
        while slow.flush().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut found = [0; 512];
        slow.read_at(&mut found, PhysicalAddress(0)).unwrap();
        assert_eq!(found, [1; 512], "the inner device carried the late write out");
        assert_eq!(device.late.load(Ordering::SeqCst), 0);
    }
}

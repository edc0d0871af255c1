//! `FaultDevice`: a decorator that fails, corrupts or truncates on demand, repeatably.
//!
//! It owns the rules and the counters.
//!
//! **Invariants**
//! - Calls are counted in order of arrival, and each request of a batch counts as one call, in the
//!   batch's order. A single-threaded run is therefore the same every time.
//! - A call that fails by a rule does not reach the inner device.
//!
//! **Locks**
//! - `state`: held only to count and decide, never across a call to the inner device.

use crate::device::{Access, Advice, Device, check_read, check_write};
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The kind of a call to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// `read_at`, or a request of `read_many`.
    Read,
    /// `write_at`, `write_fua`, or a request of `write_many`.
    Write,
    /// `flush`.
    Flush,
    /// `discard`.
    Discard,
}

/// Numbers of calls so far, including failed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// See [`CallKind::Read`].
    pub reads: u64,
    /// See [`CallKind::Write`].
    pub writes: u64,
    /// See [`CallKind::Flush`].
    pub flushes: u64,
    /// See [`CallKind::Discard`].
    pub discards: u64,
    /// The calls of any kind that failed by a rule.
    pub failed: u64,
}

impl CallCounts {
    /// Returns the number of calls of one kind.
    pub fn of(&self, kind: CallKind) -> u64 {
        match kind {
            CallKind::Read => self.reads,
            CallKind::Write => self.writes,
            CallKind::Flush => self.flushes,
            CallKind::Discard => self.discards,
        }
    }

    /// Returns the number of calls of all kinds.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }

    fn count(&mut self, kind: CallKind) {
        match kind {
            CallKind::Read => self.reads += 1,
            CallKind::Write => self.writes += 1,
            CallKind::Flush => self.flushes += 1,
            CallKind::Discard => self.discards += 1,
        }
    }
}

#[derive(Debug)]
enum Rule {
    /// Fails the call with this number (from 0) among its kind, or among all calls.
    Call { kind: Option<CallKind>, number: u64 },
    /// Fails every call from this number on, counted among all calls.
    From { number: u64 },
    /// Fails calls of a kind that touch a range of bytes.
    Range { kind: CallKind, range: Range<u64> },
}

#[derive(Debug, Default)]
struct FaultState {
    counts: CallCounts,
    rules: Vec<Rule>,
    /// Ranges whose bytes are XORed with a mask when read.
    flips: Vec<(Range<u64>, u8)>,
    size: Option<u64>,
}

/// A device that fails on demand. All faults last until [`repair`](Self::repair).
///
/// ```
/// use papilio_device::{CallKind, Device, FaultDevice, MemoryDevice, PhysicalAddress};
/// use std::sync::Arc;
///
/// let work = |device: &dyn Device| {
///     device.write_at(&[1; 16], PhysicalAddress(0))?;
///     device.flush()
/// };
/// // Fail each call once: a run without faults counts them.
/// let counted = FaultDevice::new(Arc::new(MemoryDevice::new(4096)));
/// work(&counted).unwrap();
/// for number in 0..counted.counts().total() {
///     let device = FaultDevice::new(Arc::new(MemoryDevice::new(4096)));
///     device.fail_any_call(number);
///     assert!(work(&device).is_err());
/// }
/// ```
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    state: Mutex<FaultState>,
}

impl FaultDevice {
    /// Creates a decorator without faults.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Returns the inner device.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Fails the call with this number among its kind. Counting starts at 0 when the device is made
    /// and at [`reset_counts`](Self::reset_counts).
    pub fn fail_call(&self, kind: CallKind, number: u64) {
        self.add(Rule::Call { kind: Some(kind), number });
    }

    /// Fails the call with this number among all calls, counted likewise.
    pub fn fail_any_call(&self, number: u64) {
        self.add(Rule::Call { kind: None, number });
    }

    /// Fails every call from this number on among all calls, as if the device disappeared.
    pub fn fail_all_from(&self, number: u64) {
        self.add(Rule::From { number });
    }

    /// Fails every call from now on.
    pub fn fail_all(&self) {
        self.add(Rule::From { number: 0 });
    }

    /// Fails every read that touches the range.
    pub fn fail_reads(&self, range: Range<PhysicalAddress>) {
        self.add(Rule::Range { kind: CallKind::Read, range: bytes(range) });
    }

    /// Fails every write that touches the range.
    pub fn fail_writes(&self, range: Range<PhysicalAddress>) {
        self.add(Rule::Range { kind: CallKind::Write, range: bytes(range) });
    }

    /// Corrupts silently: bytes in the range read as themselves XOR `mask`, and reads succeed.
    pub fn corrupt_reads(&self, range: Range<PhysicalAddress>, mask: u8) {
        self.state.lock().flips.push((bytes(range), mask));
    }

    /// Makes the device end early, at `size` bytes, unless it is already shorter.
    pub fn truncate(&self, size: u64) {
        self.state.lock().size = Some(size);
    }

    /// Removes all faults; the counters keep their values.
    pub fn repair(&self) {
        let mut state = self.state.lock();
        *state = FaultState { counts: state.counts, ..FaultState::default() };
    }

    /// Resets all call counters to 0.
    pub fn reset_counts(&self) {
        self.state.lock().counts = CallCounts::default();
    }

    /// Returns the numbers of calls so far.
    pub fn counts(&self) -> CallCounts {
        self.state.lock().counts
    }

    fn add(&self, rule: Rule) {
        self.state.lock().rules.push(rule);
    }

    /// Counts a call and decides whether it fails.
    fn enter(&self, kind: CallKind, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let (all, own) = (state.counts.total(), state.counts.of(kind));
        state.counts.count(kind);
        let touched = offset.get()..offset.get().saturating_add(length);
        let hit = state.rules.iter().any(|rule| match rule {
            Rule::Call { kind: None, number } => *number == all,
            Rule::Call { kind: Some(wanted), number } => *wanted == kind && *number == own,
            Rule::From { number } => all >= *number,
            Rule::Range { kind: wanted, range } => *wanted == kind && overlap(range, &touched).is_some(),
        });
        if hit {
            state.counts.failed += 1;
            return Err(rustix::io::Errno::IO.into());
        }
        Ok(())
    }
}

fn bytes(range: Range<PhysicalAddress>) -> Range<u64> {
    range.start.get()..range.end.get()
}

/// Returns the bytes that two ranges share, if any.
fn overlap(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let shared = one.start.max(other.start)..one.end.min(other.end);
    (!shared.is_empty()).then_some(shared)
}

impl Device for FaultDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        let size = self.inner.size();
        self.state.lock().size.map_or(size, |cut| cut.min(size))
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
        self.enter(CallKind::Read, offset, buffer.len() as u64)?;
        check_read(self.size(), offset, buffer.len())?;
        self.inner.read_at(buffer, offset)?;
        let touched = offset.get()..offset.get() + buffer.len() as u64;
        for (range, mask) in &self.state.lock().flips {
            if let Some(shared) = overlap(range, &touched) {
                let shared = (shared.start - touched.start) as usize..(shared.end - touched.start) as usize;
                buffer[shared].iter_mut().for_each(|byte| *byte ^= mask);
            }
        }
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.enter(CallKind::Write, offset, buffer.len() as u64)?;
        check_write(self.access(), self.size(), offset, buffer.len() as u64)?;
        self.inner.write_at(buffer, offset)
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.enter(CallKind::Write, offset, buffer.len() as u64)?;
        check_write(self.access(), self.size(), offset, buffer.len() as u64)?;
        self.inner.write_fua(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.enter(CallKind::Flush, PhysicalAddress(0), 0)?;
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.enter(CallKind::Discard, offset, length)?;
        check_write(self.access(), self.size(), offset, length)?;
        self.inner.discard(offset, length)
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, ReadRequest};

    const fn at(offset: u64) -> PhysicalAddress {
        PhysicalAddress(offset)
    }

    fn device() -> FaultDevice {
        FaultDevice::new(Arc::new(MemoryDevice::new(4096)))
    }

    /// Runs a fixed sequence of calls and returns which failed.
    fn run(device: &FaultDevice) -> Vec<bool> {
        let mut buffers = [[0; 8]; 3];
        let mut outcomes = vec![
            device.write_at(&[1; 100], at(0)).is_err(),
            device.read_at(&mut [0; 100], at(50)).is_err(),
            device.flush().is_err(),
            device.write_fua(&[2; 10], at(1000)).is_err(),
        ];
        let mut requests: Vec<_> = buffers
            .iter_mut()
            .zip([0, 200, 1000])
            .map(|(buffer, offset)| ReadRequest::new(at(offset), buffer))
            .collect();
        device.read_many(&mut requests);
        outcomes.extend(requests.iter().map(|request| request.result.is_err()));
        outcomes.push(device.discard(at(0), 10).is_err());
        outcomes
    }

    #[test]
    fn each_numbered_call_fails_alone() {
        let clean = device();
        assert_eq!(run(&clean), [false; 8]);
        let total = clean.counts().total();
        assert_eq!(clean.counts(), CallCounts { reads: 4, writes: 2, flushes: 1, discards: 1, failed: 0 });
        assert_eq!(total, 8);
        for number in 0..total {
            let device = device();
            device.fail_any_call(number);
            let expected: Vec<_> = (0..total).map(|call| call == number).collect();
            assert_eq!(run(&device), expected);
            assert_eq!(device.counts().failed, 1);
            assert_eq!(run(&device), [false; 8]);
        }
    }

    #[test]
    fn kinds_are_counted_separately_and_repair_ends_faults() {
        let device = device();
        device.fail_call(CallKind::Read, 2);
        device.fail_call(CallKind::Flush, 0);
        assert_eq!(run(&device), [false, false, true, false, false, true, false, false]);
        device.reset_counts();
        device.fail_all_from(5);
        assert_eq!(run(&device), [false, false, true, false, false, true, true, true]);
        device.fail_all();
        assert_eq!(run(&device), [true; 8]);
        device.repair();
        assert_eq!(run(&device), [false; 8]);
    }

    #[test]
    fn calls_touching_a_failing_range_fail() {
        let device = device();
        device.fail_reads(at(100)..at(200));
        device.fail_writes(at(4095)..at(4096));
        assert!(device.read_at(&mut [0; 100], at(0)).is_ok());
        assert!(device.read_at(&mut [0; 101], at(0)).is_err());
        assert!(device.read_at(&mut [0; 1], at(199)).is_err());
        assert!(device.read_at(&mut [0; 1], at(200)).is_ok());
        assert!(device.write_at(&[0; 200], at(50)).is_ok());
        assert!(device.write_at(&[0; 4096], at(0)).is_err());
        // The failed write did not reach the device.
        device.write_at(&[7], at(0)).unwrap();
        assert!(device.write_at(&[0; 4096], at(0)).is_err());
        let mut byte = [0];
        device.read_at(&mut byte, at(0)).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn corruption_is_silent_and_confined_to_its_range() {
        let device = device();
        device.corrupt_reads(at(10)..at(12), 0x80);
        let mut buffer = [0; 20];
        device.read_at(&mut buffer, at(5)).unwrap();
        let mut expected = [0; 20];
        expected[5..7].fill(0x80);
        assert_eq!(buffer, expected);
        let mut buffer = [0; 2];
        device.inner().read_at(&mut buffer, at(10)).unwrap();
        assert_eq!(buffer, [0; 2]);
    }

    #[test]
    fn truncated_device_ends_early() {
        let device = device();
        device.truncate(1000);
        assert_eq!(device.size(), 1000);
        let error = device.read_at(&mut [0; 2], at(999)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(device.write_at(&[0; 2], at(999)).is_err());
        device.truncate(1 << 20);
        assert_eq!(device.size(), 4096);
    }
}

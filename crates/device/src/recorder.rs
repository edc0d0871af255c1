//! `Recording` and `RecorderDevice`: the changes to devices, in order, and every state that a power
//! loss could have left behind.
//!
//! A [`Recording`] owns the events of one or more devices in one order, and each device's initial
//! content. A [`Replay`] walks the events and builds the devices as of any moment.
//!
//! The device model:
//! - A write that ended lies in a volatile cache.
//! - A flush makes the earlier writes to its device durable. A FUA write makes itself durable.
//! - Of all other writes, any subset survives, sector by sector; a sector of 512 bytes is never
//!   torn.
//! - If two surviving writes overlap, the later one wins.
//!
//! **Locks**
//! - `state`: held across the call to the inner device, so the recorded order is the order in which
//!   calls took effect.

use crate::device::{Access, Advice, Device};
use crate::memory::MemoryDevice;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io;
use std::sync::Arc;

/// Bytes per sector, which a device writes completely or not at all.
pub const SECTOR_SIZE: u64 = 512;

/// One change to a device.
#[derive(Clone, Debug)]
pub struct Event {
    /// The device's number, in the order of [`Recording::attach`].
    pub device: usize,
    /// The change.
    pub action: Action,
}

/// The change that an [`Event`] made.
#[derive(Clone, Debug)]
pub enum Action {
    /// `write_at`, or `write_fua` if `fua` is set.
    Write {
        /// Byte offset on the device.
        offset: PhysicalAddress,
        /// The bytes written.
        data: Arc<[u8]>,
        /// Whether the write was durable on return.
        fua: bool,
    },
    /// `discard`; the range reads as zeros afterwards.
    Discard {
        /// Byte offset on the device.
        offset: PhysicalAddress,
        /// In bytes.
        length: u64,
    },
    /// A `flush` that succeeded.
    Flush,
}

#[derive(Debug, Default)]
struct Recorded {
    bases: Vec<MemoryDevice>,
    events: Vec<Event>,
}

/// The events of one or more devices, in one order.
///
/// ```
/// use papilio_device::{Device, MemoryDevice, PhysicalAddress, Recording};
/// use std::sync::Arc;
///
/// let recording = Recording::new();
/// let device = recording.attach(Arc::new(MemoryDevice::new(4096)));
/// device.write_at(b"durable", PhysicalAddress(0)).unwrap();
/// device.flush().unwrap();
/// device.write_at(b"maybe", PhysicalAddress(512)).unwrap();
///
/// let mut replay = recording.replay();
/// replay.advance(recording.len());
/// for seed in 0..20 {
///     let crashed = &replay.crash(seed)[0];
///     let mut buffer = [0; 7];
///     crashed.read_at(&mut buffer, PhysicalAddress(0)).unwrap();
///     assert_eq!(&buffer, b"durable");
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Recording {
    state: Arc<Mutex<Recorded>>,
}

impl Recording {
    /// Creates an empty recording.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts recording a device from its present content. From now on the device must be written
    /// only through the decorator.
    pub fn attach(&self, inner: Arc<MemoryDevice>) -> RecorderDevice {
        let mut state = self.state.lock();
        let number = state.bases.len();
        state.bases.push(inner.snapshot());
        RecorderDevice { inner, number, recording: self.clone() }
    }

    /// Returns the number of events so far, a moment that [`Replay::advance`] can return to.
    pub fn len(&self) -> usize {
        self.state.lock().events.len()
    }

    /// Returns whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the events so far.
    pub fn events(&self) -> Vec<Event> {
        self.state.lock().events.clone()
    }

    /// Returns a replay of the events so far, positioned before the first.
    pub fn replay(&self) -> Replay {
        let state = self.state.lock();
        Replay {
            events: state.events.clone(),
            position: 0,
            durable: state.bases.iter().map(MemoryDevice::snapshot).collect(),
            pending: vec![Vec::new(); state.bases.len()],
        }
    }

    /// Runs one call on a device and records it, as one step.
    fn step(&self, device: usize, action: Action, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let result = call();
        // The inner device is memory: a failed call changed nothing.
        if result.is_ok() {
            state.events.push(Event { device, action });
        }
        result
    }
}

/// A decorator that records changes, made by [`Recording::attach`].
#[derive(Debug)]
pub struct RecorderDevice {
    inner: Arc<MemoryDevice>,
    number: usize,
    recording: Recording,
}

impl RecorderDevice {
    /// Returns the recording that this device belongs to.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    fn write(&self, buffer: &[u8], offset: PhysicalAddress, fua: bool) -> io::Result<()> {
        let action = Action::Write { offset, data: Arc::from(buffer), fua };
        self.recording.step(self.number, action, || self.inner.write_at(buffer, offset))
    }
}

impl Device for RecorderDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.write(buffer, offset, false)
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.write(buffer, offset, true)
    }

    fn flush(&self) -> io::Result<()> {
        self.recording.step(self.number, Action::Flush, || self.inner.flush())
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        let action = Action::Discard { offset, length };
        self.recording.step(self.number, action, || self.inner.discard(offset, length))
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

/// A forward walk over a recording. Visiting every moment costs as much as the recorded writes,
/// plus a snapshot per state taken.
#[derive(Debug)]
pub struct Replay {
    events: Vec<Event>,
    position: usize,
    /// The device states that any power loss preserves.
    durable: Vec<MemoryDevice>,
    /// For each device, the indices of the events since its last flush.
    pending: Vec<Vec<usize>>,
}

impl Replay {
    /// Returns the number of events replayed so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the total number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Advances to the moment after the first `position` events.
    ///
    /// # Panics
    /// If `position` is behind the current one or past the last event.
    pub fn advance(&mut self, position: usize) {
        assert!(
            (self.position..=self.events.len()).contains(&position),
            "cannot advance to event {position}"
        );
        for index in self.position..position {
            let event = &self.events[index];
            match event.action {
                Action::Flush => {
                    for index in std::mem::take(&mut self.pending[event.device]) {
                        apply(&self.durable[event.device], &self.events[index].action, |_| true);
                    }
                }
                Action::Write { .. } | Action::Discard { .. } => self.pending[event.device].push(index),
            }
        }
        self.position = position;
    }

    /// Returns the indices of the events that a power loss now may undo, wholly or in part.
    pub fn at_risk(&self) -> Vec<usize> {
        let mut indices: Vec<_> =
            self.pending.iter().flatten().copied().filter(|index| !self.is_fua(*index)).collect();
        indices.sort_unstable();
        indices
    }

    /// Returns the devices with every write applied: the result of a crash of the program alone.
    pub fn everything(&self) -> Vec<MemoryDevice> {
        self.choose(|_, _| true)
    }

    /// Returns the devices with only the durable writes: the worst power loss.
    pub fn durable(&self) -> Vec<MemoryDevice> {
        self.choose(|_, _| false)
    }

    /// Returns the devices after a power loss that keeps the sectors `survives` selects.
    ///
    /// `survives` takes an event's index and a sector number on its device. It is called in order,
    /// for events at risk only, and may be called twice for one sector.
    pub fn choose(&self, mut survives: impl FnMut(usize, u64) -> bool) -> Vec<MemoryDevice> {
        let devices: Vec<_> = self.durable.iter().map(MemoryDevice::snapshot).collect();
        for (device, pending) in devices.iter().zip(&self.pending) {
            for &index in pending {
                let fua = self.is_fua(index);
                apply(device, &self.events[index].action, |sector| fua || survives(index, sector));
            }
        }
        devices
    }

    /// Returns the devices after a power loss chosen by `seed`: some writes whole, some missing,
    /// some torn. The same seed gives the same state.
    pub fn crash(&self, seed: u64) -> Vec<MemoryDevice> {
        // The shares of surviving and of torn writes vary with the seed too: "all but one" and
        // "only one" expose other faults than "half of them".
        let (survival, tearing) = (mix(seed) % 9, mix(seed ^ 0x7465_6172) % 5);
        self.choose(|index, sector| {
            let own = mix(seed ^ mix(index as u64 + 1));
            let draw = if (own >> 32) % 8 < tearing { mix(own ^ mix(sector)) } else { own };
            draw % 8 < survival
        })
    }

    fn is_fua(&self, index: usize) -> bool {
        matches!(self.events[index].action, Action::Write { fua: true, .. })
    }
}

/// Applies the sectors of an action that `survives` selects.
fn apply(device: &MemoryDevice, action: &Action, mut survives: impl FnMut(u64) -> bool) {
    let (offset, length) = match action {
        Action::Write { offset, data, .. } => (offset.get(), data.len() as u64),
        Action::Discard { offset, length } => (offset.get(), *length),
        Action::Flush => return,
    };
    let end = offset + length;
    let mut at = offset;
    while at < end {
        // A run of sectors with the same fate becomes one write.
        let fate = survives(at / SECTOR_SIZE);
        let mut stop = (at / SECTOR_SIZE + 1) * SECTOR_SIZE;
        while stop < end && survives(stop / SECTOR_SIZE) == fate {
            stop += SECTOR_SIZE;
        }
        let stop = stop.min(end);
        if fate {
            let done = match action {
                Action::Write { data, .. } => device
                    .write_at(&data[(at - offset) as usize..(stop - offset) as usize], PhysicalAddress(at)),
                _ => device.discard(PhysicalAddress(at), stop - at),
            };
            done.expect("failed to replay onto a snapshot an action that the device accepted");
        }
        at = stop;
    }
}

/// Mixes 64 bits (splitmix64's finaliser).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const fn at(offset: u64) -> PhysicalAddress {
        PhysicalAddress(offset)
    }

    fn content(device: &MemoryDevice) -> Vec<u8> {
        let mut buffer = vec![0; device.size() as usize];
        device.read_at(&mut buffer, at(0)).unwrap();
        buffer
    }

    fn recorded() -> (Recording, RecorderDevice, Arc<MemoryDevice>) {
        let inner = Arc::new(MemoryDevice::new(8192));
        inner.write_at(&[9; 8192], at(0)).unwrap();
        let recording = Recording::new();
        let device = recording.attach(inner.clone());
        (recording, device, inner)
    }

    #[test]
    fn every_prefix_restores_the_device_of_its_moment() {
        let (recording, device, inner) = recorded();
        let mut moments = vec![content(&inner)];
        for round in 0..40u64 {
            match round % 5 {
                0 => device.flush().unwrap(),
                1 => device.discard(at(round * 100), 700).unwrap(),
                2 => device.write_fua(&[round as u8; 50], at(round * 90)).unwrap(),
                _ => device.write_at(&[round as u8; 1500], at(round * 150)).unwrap(),
            }
            moments.push(content(&inner));
        }
        assert!(device.write_at(&[0; 2], at(8191)).is_err());
        assert_eq!(recording.len(), 40);
        let mut replay = recording.replay();
        for (position, expected) in moments.iter().enumerate() {
            replay.advance(position);
            assert!(content(&replay.everything()[0]) == *expected, "after {position} events");
            if position % 5 == 1 {
                assert!(content(&replay.durable()[0]) == *expected);
                assert!(replay.at_risk().is_empty());
            }
        }
    }

    #[test]
    fn crash_keeps_durable_writes_and_tears_only_at_sectors() {
        let (recording, device, _) = recorded();
        device.write_at(&[1; 1024], at(0)).unwrap();
        device.flush().unwrap();
        device.write_at(&[2; 2048], at(100)).unwrap();
        device.write_fua(&[3; 512], at(4096)).unwrap();
        device.write_at(&[4; 512], at(6144)).unwrap();
        let mut replay = recording.replay();
        replay.advance(recording.len());
        assert_eq!(replay.at_risk(), [2, 4]);
        let mut states = HashSet::new();
        for seed in 0..300 {
            let state = content(&replay.crash(seed)[0]);
            assert!(state == content(&replay.crash(seed)[0]), "seed {seed} is not repeatable");
            assert!(state[..100].iter().all(|byte| *byte == 1));
            assert!(state[4096..4608].iter().all(|byte| *byte == 3));
            for (sector, bytes) in state.chunks(512).enumerate() {
                let mine = bytes.iter().filter(|byte| **byte == 2).count();
                let whole =
                    (sector as u64 * 512 + 512).min(2148).saturating_sub((sector as u64 * 512).max(100));
                assert!(mine == 0 || mine as u64 == whole, "sector {sector} is torn inside");
            }
            states.insert(state);
        }
        // Six sectors at risk give 64 states; many of them are seen, including none and all.
        assert!(states.len() > 20, "{} states", states.len());
        assert!(states.contains(&content(&replay.durable()[0])));
        assert!(states.contains(&content(&replay.everything()[0])));
    }

    #[test]
    fn flush_covers_its_device_only() {
        let recording = Recording::new();
        let devices: Vec<_> = (0..2).map(|_| recording.attach(Arc::new(MemoryDevice::new(512)))).collect();
        devices[0].write_at(&[1; 512], at(0)).unwrap();
        devices[1].write_at(&[2; 512], at(0)).unwrap();
        devices[1].flush().unwrap();
        let mut replay = recording.replay();
        replay.advance(3);
        assert_eq!(replay.at_risk(), [0]);
        let survivors = replay.durable();
        assert_eq!(content(&survivors[0]), [0; 512]);
        assert_eq!(content(&survivors[1]), [2; 512]);
    }

    #[test]
    fn durable_write_is_not_undone_by_an_older_one() {
        let (recording, device, _) = recorded();
        device.write_at(&[1; 512], at(0)).unwrap();
        device.write_fua(&[2; 512], at(0)).unwrap();
        let mut replay = recording.replay();
        replay.advance(2);
        for seed in 0..50 {
            assert_eq!(content(&replay.crash(seed)[0])[..512], [2; 512]);
        }
    }

    #[test]
    #[should_panic(expected = "cannot advance")]
    fn replay_cannot_go_backwards() {
        let (recording, device, _) = recorded();
        device.flush().unwrap();
        let mut replay = recording.replay();
        replay.advance(1);
        replay.advance(0);
    }
}

//! The moments of a run at which power may fail: [`Moments`], and the device's state at each.
//!
//! Owns the walk over the recording.
//!
//! **Invariant:** the walk only goes forwards.

use fastrand::Rng;
use papilio_device::{Action, Device, Event, MemoryDevice, PhysicalAddress, Recording, Replay};
use papilio_format::Superblock;
use papilio_format::superblock::superblock_offset;
use std::ops::Range;

/// Bytes that a device writes atomically.
const SECTOR: usize = 512;

/// How much of the write in progress reached the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Nothing.
    Nothing,
    /// Some of its sectors: the first ones, the last ones or any.
    Torn,
}

/// Which writes since the last flush survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All writes: only the program crashed.
    Everything,
    /// Only FUA writes.
    Durable,
    /// Some writes, chosen by the seed, possibly in part.
    Some(u64),
}

/// A recording and a position in it.
#[derive(Debug)]
pub(crate) struct Moments {
    replay: Replay,
    events: Vec<Event>,
    random: Rng,
}

impl Moments {
    /// Creates a walk over the events recorded so far.
    pub(crate) fn new(recording: &Recording, seed: u64) -> Self {
        let random = Rng::with_seed(seed ^ 0x6372_6173);
        Self { replay: recording.replay(), events: recording.events(), random }
    }

    /// Returns the number of events; a crash can come before each and after the last.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether nothing happened.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns whether the last first superblock written among these events has a log; `None` if
    /// none was written.
    pub(crate) fn last_superblock(&self, events: Range<usize>) -> Option<bool> {
        let first = superblock_offset(0);
        self.events[events].iter().rev().find_map(|event| match &event.action {
            Action::Write { offset, data, .. } if *offset == first => {
                Superblock::parse(data, *offset).ok().map(|superblock| superblock.log_root().is_some())
            }
            _ => None,
        })
    }

    /// Returns the number of events before this moment.
    pub(crate) fn position(&self) -> usize {
        self.replay.position()
    }

    /// Advances to the moment before event `position`; never goes backwards.
    pub(crate) fn advance(&mut self, position: usize) {
        self.replay.advance(position);
    }

    /// Returns whether the first superblock is being written at this moment.
    pub(crate) fn writes_superblock(&self) -> bool {
        matches!(self.events.get(self.replay.position()).map(|event| &event.action),
            Some(Action::Write { offset, .. }) if *offset == superblock_offset(0))
    }

    /// Returns the device after a power loss at this moment.
    pub(crate) fn device(&mut self, survival: Survival, in_flight: InFlight) -> MemoryDevice {
        let mut devices = match survival {
            Survival::Everything => self.replay.everything(),
            Survival::Durable => self.replay.durable(),
            Survival::Some(seed) => self.replay.crash(seed),
        };
        let device = devices.pop().expect("a run has one device");
        if in_flight == InFlight::Torn
            && let Some(Action::Write { offset, data, .. }) =
                self.events.get(self.replay.position()).map(|event| &event.action)
        {
            let sectors = data.len().div_ceil(SECTOR);
            let (from, to) = match self.random.u8(..3) {
                0 => (0, self.random.usize(..sectors)),
                1 => (self.random.usize(..sectors), sectors),
                _ => (0, sectors),
            };
            for sector in from..to {
                if sectors > 1 && to - from == sectors && self.random.bool() {
                    continue;
                }
                let piece = &data[sector * SECTOR..((sector + 1) * SECTOR).min(data.len())];
                let at = PhysicalAddress(offset.0 + (sector * SECTOR) as u64);
                device.write_at(piece, at).expect("the snapshot accepts a write that the device accepted");
            }
        }
        device
    }
}

//! The moments of a run at which the power may go: [`Moments`], and what is on the device then.
//!
//! Owns the walk over what was recorded. Invariant: it only walks forwards.

use fastrand::Rng;
use papilio_device::{Action, Device, Event, MemoryDevice, PhysicalAddress, Recording, Replay};
use papilio_format::Superblock;
use papilio_format::superblock::superblock_offset;
use std::ops::Range;

/// Bytes that a device writes wholly or not at all.
const SECTOR: usize = 512;

/// What of the write that was on its way reached the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Nothing.
    Nothing,
    /// Some sectors of it, the first ones or any.
    Torn,
}

/// What survives of the writes since the last flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All: the program crashed alone.
    Everything,
    /// None but those with FUA.
    Durable,
    /// Some, by seed, also in part.
    Some(u64),
}

/// Everything that reached a device, and a place in it.
#[derive(Debug)]
pub(crate) struct Moments {
    replay: Replay,
    events: Vec<Event>,
    random: Rng,
}

impl Moments {
    /// Of what was recorded so far.
    pub(crate) fn new(recording: &Recording, seed: u64) -> Self {
        let random = Rng::with_seed(seed ^ 0x6372_6173);
        Self { replay: recording.replay(), events: recording.events(), random }
    }

    /// Events in all: a crash can come before each and behind the last.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether the last superblock that was written among these events has a log, if there is one.
    pub(crate) fn last_superblock(&self, events: Range<usize>) -> Option<bool> {
        let first = superblock_offset(0);
        self.events[events].iter().rev().find_map(|event| match &event.action {
            Action::Write { offset, data, .. } if *offset == first => {
                Superblock::parse(data, *offset).ok().map(|superblock| superblock.log_root().is_some())
            }
            _ => None,
        })
    }

    /// Events before this moment.
    pub(crate) fn position(&self) -> usize {
        self.replay.position()
    }

    /// Walks on to the moment before event `position`; never backwards.
    pub(crate) fn advance(&mut self, position: usize) {
        self.replay.advance(position);
    }

    /// Whether the first superblock is being written at this moment.
    pub(crate) fn writes_superblock(&self) -> bool {
        matches!(self.events.get(self.replay.position()).map(|event| &event.action),
            Some(Action::Write { offset, .. }) if *offset == superblock_offset(0))
    }

    /// The device after a loss of power at this moment.
    pub(crate) fn device(&mut self, survival: Survival, in_flight: InFlight) -> MemoryDevice {
        let mut devices = match survival {
            Survival::Everything => self.replay.everything(),
            Survival::Durable => self.replay.durable(),
            Survival::Some(seed) => self.replay.crash(seed),
        };
        let device = devices.pop().expect("there is one");
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
                device.write_at(piece, at).expect("what the device took once, its snapshot takes");
            }
        }
        device
    }
}

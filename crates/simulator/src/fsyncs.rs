//! Power losses among fsyncs: [`FsyncRun`], a recorded run that can return to every moment.
//!
//! Owns the operations of each thread and the moments of their acknowledgements; `promise` derives
//! the guarantees. Device states are as in [`crash`](crate::crash), except that a write of the
//! first superblock is never torn. The other copies belong to the last commit and know no log, and
//! the kernel too assumes that this block is written atomically.
//!
//! **Invariant:** commits happen only where a run requests a sync or an fsync.

use crate::configuration::Configuration;
use crate::crash::{InFlight, Survival};
pub use crate::crew::Shape;
use crate::crew::{Crew, Run};
use crate::model::NodeKind;
use crate::moments::Moments;
use crate::promise::{Durable, ThreadHistory, judge};
use crate::random::{Generator, Scope};
use crate::shrink::{self, Failure};
use crate::source::Source;
use crate::turns::{self, Order, Turn};
use crate::verify;
use fastrand::Rng;
use papilio::{FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice, Recording};
use std::sync::Arc;
use std::time::Duration;

/// A run with fsyncs and everything that reached its device.
#[derive(Debug)]
pub struct FsyncRun {
    label: String,
    shape: Shape,
    seed: u64,
    /// The operations of all threads, in the order in which they began.
    turns: Vec<Turn>,
    moments: Moments,
    /// Whether the last device returned may hold a part of the next write.
    torn: bool,
    histories: Vec<ThreadHistory>,
}

/// The kind of a failure of a replay that lost power itself.
const IN_REPLAY: &str = "a power loss in the replay";

/// Counts of the states that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedStates {
    /// States of the device.
    pub states: u64,
    /// States with a log to replay.
    pub logs: u64,
    /// States left by a crash during a replay.
    pub in_replay: u64,
}

impl std::ops::AddAssign for CheckedStates {
    fn add_assign(&mut self, other: Self) {
        self.states += other.states;
        self.logs += other.logs;
        self.in_replay += other.in_replay;
    }
}

/// Returns a small set of files whose names change often, with frequent fsyncs.
pub fn scope() -> Scope {
    Scope {
        inodes: 30,
        file_bytes: 120_000,
        slots: 8,
        names: 7,
        sync_every: 45,
        fsync_every: 4,
        remount_every: 150,
        capabilities: false,
        wide_links: false,
        ..Scope::default()
    }
}

impl FsyncRun {
    /// Runs and records `operations` operations on each thread, on a new file system.
    ///
    /// # Errors
    /// A failure that occurs even without a crash.
    pub fn new(shape: Shape, seed: u64, operations: u64) -> Result<Self, String> {
        let scope = shape.scope;
        let drawn = |thread: u8| {
            let generator = Generator::new(seed.wrapping_mul(31) + u64::from(thread), scope);
            Source::drawn(generator, operations + 1)
        };
        Self::record(shape, seed, |crew| crew.at_once(&drawn))
    }

    /// Runs and records these turns in an order, and a sync of each thread.
    ///
    /// # Errors
    /// A failure that occurs even without a crash.
    pub fn of(shape: Shape, seed: u64, turns: &[Turn], order: Order) -> Result<Self, String> {
        Self::record(shape, seed, |crew| match order {
            Order::OneByOne => crew.one_by_one(turns),
            Order::AtOnce => crew.at_once(&|thread| {
                let own = turns.iter().filter(|turn| turn.thread == thread);
                Source::given(own.map(|turn| turn.operation.clone()).collect())
            }),
        })
    }

    fn record(
        shape: Shape,
        seed: u64,
        run: impl FnOnce(&Crew<'_>) -> Result<Run, String>,
    ) -> Result<Self, String> {
        let Shape { configuration, threads, .. } = &shape;
        let label = format!("{}, seed {seed}, {threads} threads", configuration.name);
        let device = prepared(configuration, *threads).map_err(|error| error.to_string())?;
        let recording = Recording::new();
        let recorder: Arc<dyn Device> = Arc::new(recording.attach(device));
        let crew = Crew::new(&recording, recorder, &shape, seed);
        let (histories, moments, turns) = run(&crew).map_err(|what| format!("{label}: {what}"))?;
        drop(crew);
        Ok(Self { label, shape, seed, turns, moments, torn: false, histories })
    }

    /// Returns the operations of all threads, in the order in which they began.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Returns the number of events; a crash can come before each and after the last.
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Returns whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Returns the number of successful fsyncs.
    pub fn fsyncs(&self) -> usize {
        let steps = self.histories.iter().flat_map(|history| &history.steps);
        steps.filter(|step| matches!(step.durable, Some(Durable::Inode(_)))).count()
    }

    /// Returns how many fsyncs of a single-threaded run wrote a log, and how many committed.
    pub fn logs_and_commits(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for history in self.histories.iter().filter(|history| history.exact) {
            for step in history.steps.iter().filter(|step| matches!(step.durable, Some(Durable::Inode(_)))) {
                match self.moments.last_superblock(step.started..step.ended) {
                    Some(true) => counts.0 += 1,
                    Some(false) => counts.1 += 1,
                    None => {}
                }
            }
        }
        counts
    }

    /// Advances to the moment before event `position`; never goes backwards.
    pub fn advance(&mut self, position: usize) {
        self.moments.advance(position);
    }

    /// Returns the device after a power loss at this moment.
    pub fn device(&mut self, survival: Survival, in_flight: InFlight) -> MemoryDevice {
        self.torn = in_flight == InFlight::Torn && !self.moments.writes_superblock();
        self.moments.device(survival, if self.torn { InFlight::Torn } else { InFlight::Nothing })
    }

    /// Checks that an open file system on the last returned device fulfils the guarantees of this
    /// moment.
    ///
    /// # Errors
    /// The violated guarantee, with the position to reproduce it.
    pub fn judge(&self, fs: &FileSystem) -> Result<(), String> {
        let position = self.moments.position();
        judge(&self.histories, fs, position, self.torn)
            .map_err(|what| format!("{}, before event {position} of {}: {what}", self.label, self.len()))
    }

    /// Opens the result of a power loss for writing, which replays the log, then checks it. Repeats
    /// this for `cuts` states of a replay that itself lost power.
    ///
    /// # Errors
    /// As [`FsyncRun::judge`], or the findings of the check.
    pub fn verify(
        &self,
        device: &MemoryDevice,
        cuts: usize,
        random: &mut Rng,
    ) -> Result<CheckedStates, Failure> {
        let recording = Recording::new();
        let copy = Arc::new(device.snapshot());
        let logs = u64::from(self.replayed(Arc::new(recording.attach(copy)))?);
        let mut seen = CheckedStates { states: 1, logs, in_replay: 0 };
        if logs > 0 && cuts > 0 {
            let mut replay = Moments::new(&recording, random.u64(..));
            let mut positions: Vec<usize> = (0..cuts).map(|_| random.usize(..=replay.len())).collect();
            positions.sort_unstable();
            for position in positions {
                replay.advance(position);
                let torn = !replay.writes_superblock() && random.bool();
                let in_flight = if torn { InFlight::Torn } else { InFlight::Nothing };
                let cut = replay.device(Survival::Some(random.u64(..)), in_flight);
                self.replayed(Arc::new(cut)).map_err(|failure| {
                    Failure::new(IN_REPLAY, format!("event {position} of the replay: {failure}"))
                })?;
                seen.in_replay += 1;
            }
        }
        Ok(seen)
    }

    /// Replays and checks a device; returns whether it had a log.
    fn replayed(&self, device: Arc<dyn Device>) -> Result<bool, Failure> {
        let position = self.moments.position();
        let failed = |kind: &str, what: String| {
            Failure::new(kind, format!("{}, before event {position} of {}: {what}", self.label, self.len()))
        };
        let devices = vec![device];
        let before = FileSystem::from_devices(devices.clone(), &OpenOptions::new().replay_log(false));
        let logged = before.map_err(|error| failed("opening", error.to_string()))?.has_log();
        let fs = FileSystem::from_devices(devices.clone(), &self.shape.configuration.open)
            .map_err(|error| failed("opening for writing", error.to_string()))?;
        self.judge(&fs).map_err(|what| Failure::new("state", what))?;
        fs.close().map_err(|error| failed("closing", error.to_string()))?;
        verify::check_interrupted(&devices, &OpenOptions::new()).map_err(|what| failed("check", what))?;
        Ok(logged)
    }

    /// Describes a failure with the fewest operations found that lead to such a failure, at any
    /// moment of theirs.
    pub fn report(&self, failure: &Failure, time: Duration) -> String {
        if self.shape.threads == 1 {
            let repeat = |turns: &[Turn]| self.again(turns, Order::OneByOne, failure);
            return shrink::report(failure, &self.turns, time, repeat);
        }
        turns::report(failure, &self.turns, time, |turns, order| self.again(turns, order, failure))
    }

    /// Repeats turns and returns a failure like `failure`, if a moment has one.
    fn again(&self, turns: &[Turn], order: Order, failure: &Failure) -> Option<Failure> {
        let mut run = Self::of(self.shape.clone(), self.seed, turns, order).ok()?;
        let mut random = Rng::with_seed(self.seed);
        let cuts = if failure.kind == IN_REPLAY { 4 } else { 0 };
        for position in 0..=run.len() {
            run.advance(position);
            for survival in [Survival::Everything, Survival::Durable, Survival::Some(random.u64(..))] {
                let in_flight = if random.bool() { InFlight::Torn } else { InFlight::Nothing };
                let device = run.device(survival, in_flight);
                match run.verify(&device, cuts, &mut random) {
                    Err(found) if found.kind == failure.kind => return Some(found),
                    _ => {}
                }
            }
        }
        None
    }

    /// Returns the number of files that are overwritten in place at the end of the run.
    pub fn in_place_files(&self) -> usize {
        let last = self.histories.iter().filter_map(|history| history.steps.last());
        last.flat_map(|step| step.model.nodes())
            .filter(|(_, node)| node.nodatacow && matches!(node.kind, NodeKind::File(_)))
            .count()
    }
}

/// Makes a device with chunks, because a log cannot record them, and each thread's directory.
fn prepared(configuration: &Configuration, threads: u8) -> papilio::Result<Arc<MemoryDevice>> {
    let device = configuration.make()?;
    let plain: Vec<Arc<dyn Device>> = vec![device.clone()];
    let fs = FileSystem::from_devices(plain, &configuration.open)?;
    let filler = fs.create_file("/filler")?;
    filler.write_all_at(&vec![1; 1 << 20], 0)?;
    drop(filler);
    fs.remove_file("/filler")?;
    for thread in 0..threads {
        fs.create_dir(format!("/t{thread}"))?;
    }
    if threads == 1 {
        fs.remove_dir("/t0")?;
    }
    fs.close()?;
    Ok(device)
}

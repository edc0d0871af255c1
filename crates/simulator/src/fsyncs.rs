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
use crate::model::{Model, NodeKind, Place};
use crate::moments::Moments;
use crate::operation::{NewFile, Operation};
use crate::promise::{Durable, History, Step, judge};
use crate::random::{Generator, Scope};
use crate::session::{Outcome, Session};
use crate::shrink::{Failure, report};
use crate::source::Source;
use crate::verify;
use fastrand::Rng;
use papilio::{FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice, Recording};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A run with fsyncs and everything that reached its device.
#[derive(Debug)]
pub struct FsyncRun {
    label: String,
    shape: Shape,
    seed: u64,
    /// The operations of a run of one thread.
    operations: Vec<Operation>,
    moments: Moments,
    /// Whether the last device returned may hold a part of the next write.
    torn: bool,
    histories: Vec<History>,
}

/// How a run works.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The file system.
    pub configuration: Configuration,
    /// The operations to draw.
    pub scope: Scope,
    /// The number of threads, each of which has a directory of its own if there are several.
    pub threads: u8,
    /// Whether the configuration has a page cache.
    pub cached: bool,
}

/// The kind of a failure of a replay that lost power itself.
const IN_REPLAY: &str = "a power loss in the replay";

/// Counts of the states that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// States of the device.
    pub states: u64,
    /// States with a log to replay.
    pub logs: u64,
    /// States left by a crash during a replay.
    pub in_replay: u64,
}

impl std::ops::AddAssign for Seen {
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

/// The state of one thread.
struct Worker<'a> {
    recording: &'a Recording,
    clock: &'a AtomicU64,
    source: Source<'a>,
    /// Operations to run before drawing new ones.
    next: VecDeque<Operation>,
    random: Rng,
    ran: Vec<Operation>,
}

impl Worker<'_> {
    /// Runs the operations of the source, and records the state after each.
    fn run(&mut self, session: &mut Session, history: &mut History) -> Result<(), String> {
        while let Some(operation) = self.source.next_after(&mut self.next, session.model()) {
            self.ran.push(operation.clone());
            // A file without a name will not exist afterwards.
            let named = |place: &Place| session.model().node(*place).nlink > 0;
            let fsynced = match &operation {
                Operation::Fsync { file } => session.model().file(file).ok().filter(named),
                Operation::FsyncInode { path } => session.model().resolve(path, false).ok(),
                _ => None,
            };
            let (began, started) = (self.tick(), self.recording.len());
            let outcome = session.step(&operation)?;
            let (ended, finished) = (self.recording.len(), self.tick());
            let done = match outcome {
                Outcome::Done => true,
                Outcome::Refused => false,
                Outcome::NoSpace => return Err(format!("{operation:?}: no space, which forces a commit")),
                Outcome::Failed(error) => return Err(format!("{operation:?}: {error}")),
            };
            if done {
                if let Some((place, number)) =
                    session.created_inode(&operation).map_err(|error| error.to_string())?
                {
                    history.numbers.entry(number).or_default().push(place);
                }
                self.follow(&operation, session.model());
            }
            let durable = match operation {
                Operation::Sync => Some(Durable::All),
                Operation::Remount if history.exact => Some(Durable::All),
                Operation::Fsync { .. } | Operation::FsyncInode { .. } => fsynced.map(Durable::Inode),
                _ => None,
            };
            let durable = durable.filter(|_| done);
            let may_commit = matches!(
                operation,
                Operation::Sync | Operation::Remount | Operation::Fsync { .. } | Operation::FsyncInode { .. }
            );
            let mut label = format!("{operation:?}");
            label.truncate(label.char_indices().nth(110).map_or(label.len(), |(cut, _)| cut));
            if !done {
                label += " (refused)";
            }
            let model = session.model().clone();
            history.steps.push(Step { started, ended, began, finished, durable, may_commit, model, label });
        }
        Ok(())
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Often keeps a new file open, because only for open files does an fsync know what changed.
    /// Marks some files for overwriting in place.
    fn follow(&mut self, operation: &Operation, model: &Model) {
        let Operation::Create { path, new: NewFile::Regular, .. } = operation else { return };
        if self.random.u8(..4) == 0 {
            let path = path.clone();
            self.next.push_back(Operation::SetFlags { path, nodatacow: true, compress: false });
        }
        let free = (0..8).find(|slot| !model.slots().any(|(open, _)| open == *slot));
        if let Some(slot) = free
            && self.random.u8(..3) > 0
        {
            self.next.push_back(Operation::Open { slot, path: path.clone() });
        }
    }
}

impl FsyncRun {
    /// Runs and records `operations` operations on each thread, on a new file system.
    ///
    /// # Errors
    /// A failure that occurs even without a crash.
    pub fn new(shape: Shape, seed: u64, operations: u64) -> Result<Self, String> {
        Self::record(shape, seed, &|thread, scope| {
            let generator = Generator::new(seed.wrapping_mul(31) + u64::from(thread), scope);
            Source::drawn(generator, operations + 1)
        })
    }

    /// Runs and records these operations on one thread, and a sync.
    ///
    /// # Errors
    /// A failure that occurs even without a crash.
    pub fn of(shape: Shape, seed: u64, operations: &[Operation]) -> Result<Self, String> {
        assert_eq!(shape.threads, 1, "a run of several threads cannot be repeated");
        Self::record(shape, seed, &|_, _| Source::given(operations))
    }

    fn record<'a>(shape: Shape, seed: u64, source: &dyn Fn(u8, Scope) -> Source<'a>) -> Result<Self, String> {
        let Shape { configuration, scope, threads, cached } = shape.clone();
        let label = format!("{}, seed {seed}, {threads} threads", configuration.name);
        let say = |error: papilio::Error| error.to_string();
        let device = configuration.make().map_err(say)?;
        let open = configuration.open.clone();
        let plain: Vec<Arc<dyn Device>> = vec![device.clone()];
        // Allocate chunks in advance, because a log cannot record them, and create each thread's
        // directory.
        let fs = FileSystem::from_devices(plain, &open).map_err(say)?;
        let filler = fs.create_file("/filler").map_err(say)?;
        filler.write_all_at(&vec![1; 1 << 20], 0).map_err(say)?;
        drop(filler);
        fs.remove_file("/filler").map_err(say)?;
        for thread in 0..threads {
            fs.create_dir(format!("/t{thread}")).map_err(say)?;
        }
        if threads == 1 {
            fs.remove_dir("/t0").map_err(say)?;
        }
        fs.close().map_err(say)?;

        let recording = Recording::new();
        let recorder: Arc<dyn Device> = Arc::new(recording.attach(device));
        let clock = AtomicU64::new(1);
        let worker = |thread: u8| Worker {
            recording: &recording,
            clock: &clock,
            source: source(thread, scope),
            next: VecDeque::new(),
            random: Rng::with_seed(seed ^ u64::from(thread) << 32),
            ran: Vec::new(),
        };
        let (mut histories, mut ran) = (Vec::new(), Vec::new());
        let moments;
        if threads == 1 {
            let mut session = Session::open(vec![recorder], open.clone()).map_err(say)?;
            let mut history = History::begin(b"", true, cached, session.model());
            let mut worker = worker(0);
            worker.run(&mut session, &mut history).map_err(|what| format!("{label}: {what}"))?;
            histories.push(history);
            ran = worker.ran;
            // Taken before the file system is closed, which writes more.
            moments = Moments::new(&recording, seed);
            session.abandon();
        } else {
            let fs = FileSystem::from_devices(vec![recorder], &open).map_err(say)?;
            let ran: Vec<Result<History, String>> = std::thread::scope(|thread_scope| {
                let begin = |thread| {
                    let (fs, mut worker) = (fs.clone(), worker(thread));
                    thread_scope.spawn(move || {
                        let base = format!("/t{thread}").into_bytes();
                        let mut session = Session::shared(fs, &base);
                        let mut history = History::begin(&base, false, cached, session.model());
                        worker.run(&mut session, &mut history)?;
                        Ok(history)
                    })
                };
                let running: Vec<_> = (0..threads).map(begin).collect();
                running.into_iter().map(|thread| thread.join().expect("a worker thread panicked")).collect()
            });
            for history in ran {
                histories.push(history.map_err(|what| format!("{label}: {what}"))?);
            }
            moments = Moments::new(&recording, seed);
        }
        Ok(Self { label, shape, seed, operations: ran, moments, torn: false, histories })
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
    pub fn verify(&self, device: &MemoryDevice, cuts: usize, random: &mut Rng) -> Result<Seen, Failure> {
        let recording = Recording::new();
        let copy = Arc::new(device.snapshot());
        let logs = u64::from(self.replayed(Arc::new(recording.attach(copy)))?);
        let mut seen = Seen { states: 1, logs, in_replay: 0 };
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
    /// moment of theirs. A run of several threads is not shortened, because it does not repeat.
    pub fn report(&self, failure: &Failure, time: Duration) -> String {
        if self.shape.threads > 1 {
            return failure.to_string();
        }
        report(failure, &self.operations, time, |operations| self.again(operations, failure))
    }

    /// Repeats operations and returns a failure like `failure`, if a moment has one.
    fn again(&self, operations: &[Operation], failure: &Failure) -> Option<Failure> {
        let mut run = Self::of(self.shape.clone(), self.seed, operations).ok()?;
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

impl History {
    fn begin(base: &[u8], exact: bool, cached: bool, model: &Model) -> Self {
        let first = Step {
            started: 0,
            ended: 0,
            began: 0,
            finished: 0,
            durable: Some(Durable::All),
            may_commit: true,
            model: model.clone(),
            label: "start".to_owned(),
        };
        Self { base: base.to_vec(), steps: vec![first], numbers: HashMap::new(), exact, cached }
    }
}

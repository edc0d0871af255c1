//! Losses of power among fsyncs: [`FsyncRun`], a recorded run of which every moment can be returned to.
//!
//! Owns what was asked of the file system by each thread, and what it acknowledged when; what that promises is
//! `promise`'s to say. The states of a device are those of [`crash`](crate::crash), but that the write of the first
//! superblock is not torn: the copies of the last commit know no log, and the kernel, too, takes it that
//! this block is written wholly or not at all. Invariant: commits happen only where a run asks for a sync
//! or an fsync.

use crate::configuration::Configuration;
use crate::crash::{InFlight, Survival};
use crate::model::{Model, NodeKind, Place};
use crate::moments::Moments;
use crate::operation::{NewFile, Operation};
use crate::promise::{Durable, History, Step, judge};
use crate::random::{Generator, Scope};
use crate::session::{Outcome, Session};
use crate::verify;
use fastrand::Rng;
use papilio::{FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice, Recording};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A run with fsyncs, and everything that reached its device.
#[derive(Debug)]
pub struct FsyncRun {
    told: String,
    open: OpenOptions,
    moments: Moments,
    /// The last device may have a part of the write that comes next.
    torn: bool,
    histories: Vec<History>,
}

/// What looking at one state showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// States of the device.
    pub states: u64,
    /// Those with a log to replay.
    pub logs: u64,
    /// Those that a cut in the midst of a replay left.
    pub in_replay: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.states += other.states;
        self.logs += other.logs;
        self.in_replay += other.in_replay;
    }
}

/// A small set of files, of which names come and go, fsynced again and again.
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

/// What a thread needs to do its part.
struct Worker<'a> {
    recording: &'a Recording,
    clock: &'a AtomicU64,
    generator: Generator,
    /// What is to follow what was drawn.
    next: VecDeque<Operation>,
    random: Rng,
}

impl Worker<'_> {
    /// Does so many operations and a sync, and says what was there after each.
    fn run(&mut self, session: &mut Session, history: &mut History, operations: u64) -> Result<(), String> {
        for number in 0..=operations {
            let operation = match self.next.pop_front() {
                _ if number == operations => Operation::Sync,
                Some(next) => next,
                None => self.generator.next(session.model()),
            };
            // Of a file without a name, nothing will be there.
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
                Outcome::NoSpace => return Err(format!("{operation:?}: no space, which commits")),
                Outcome::Failed(error) => return Err(format!("{operation:?}: {error}")),
            };
            if done {
                if let Some((place, number)) = session.made(&operation).map_err(|error| error.to_string())? {
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
            let mut told = format!("{operation:?}");
            told.truncate(told.char_indices().nth(110).map_or(told.len(), |(cut, _)| cut));
            if !done {
                told += " (refused)";
            }
            let model = session.model().clone();
            history.steps.push(Step { started, ended, began, finished, durable, may_commit, model, told });
        }
        Ok(())
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// New files are often kept open, as only of those an fsync knows what changed; some are overwritten in place.
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
    /// Does `operations` operations on each of `threads` threads on a new file system and records.
    ///
    /// # Errors
    /// What goes wrong even without a crash.
    pub fn new(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        operations: u64,
        threads: u8,
        cached: bool,
    ) -> Result<Self, String> {
        let told = format!("{}, seed {seed}, {threads} threads", configuration.name);
        let say = |error: papilio::Error| error.to_string();
        let device = configuration.make().map_err(say)?;
        let open = configuration.open.clone();
        let plain: Vec<Arc<dyn Device>> = vec![device.clone()];
        // Chunks are made before, as a log cannot tell of them; and each thread's directory.
        let fs = FileSystem::from_devices(plain, &open).map_err(say)?;
        let room = fs.create_file("/room").map_err(say)?;
        room.write_at(&vec![1; 1 << 20], 0).map_err(say)?;
        drop(room);
        fs.remove_file("/room").map_err(say)?;
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
            generator: Generator::new(seed.wrapping_mul(31) + u64::from(thread), scope),
            next: VecDeque::new(),
            random: Rng::with_seed(seed ^ u64::from(thread) << 32),
        };
        let mut histories = Vec::new();
        let moments;
        if threads == 1 {
            let mut session = Session::open(vec![recorder], open.clone()).map_err(say)?;
            let mut history = History::begin(b"", true, cached, session.model());
            worker(0)
                .run(&mut session, &mut history, operations)
                .map_err(|what| format!("{told}: {what}"))?;
            histories.push(history);
            // Before it is closed, which changes more.
            moments = Moments::new(&recording, seed);
            session.abandon();
        } else {
            let fs = FileSystem::from_devices(vec![recorder], &open).map_err(say)?;
            let ran: Vec<Result<History, String>> = std::thread::scope(|threads_of| {
                let begin = |thread| {
                    let (fs, mut worker) = (fs.clone(), worker(thread));
                    threads_of.spawn(move || {
                        let base = format!("/t{thread}").into_bytes();
                        let mut session = Session::shared(fs, &base);
                        let mut history = History::begin(&base, false, cached, session.model());
                        worker.run(&mut session, &mut history, operations)?;
                        Ok(history)
                    })
                };
                let running: Vec<_> = (0..threads).map(begin).collect();
                running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
            });
            for history in ran {
                histories.push(history.map_err(|what| format!("{told}: {what}"))?);
            }
            moments = Moments::new(&recording, seed);
        }
        Ok(Self { told, open: configuration.open.clone(), moments, torn: false, histories })
    }

    /// Events in all: a crash can come before each and behind the last.
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Fsyncs that succeeded.
    pub fn fsyncs(&self) -> usize {
        let steps = self.histories.iter().flat_map(|history| &history.steps);
        steps.filter(|step| matches!(step.durable, Some(Durable::Inode(_)))).count()
    }

    /// Of the fsyncs that one thread did with nobody beside it, those that wrote a log, and those that were commits.
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

    /// Walks on to the moment before event `position`; never backwards.
    pub fn advance(&mut self, position: usize) {
        self.moments.advance(position);
    }

    /// The device after a loss of power at this moment.
    pub fn device(&mut self, survival: Survival, in_flight: InFlight) -> MemoryDevice {
        self.torn = in_flight == InFlight::Torn && !self.moments.writes_superblock();
        self.moments.device(survival, if self.torn { InFlight::Torn } else { InFlight::Nothing })
    }

    /// Whether an open file system keeps what was promised at this moment; it is of the last device.
    ///
    /// # Errors
    /// What it does not, and how to get there again.
    pub fn judge(&self, fs: &FileSystem) -> Result<(), String> {
        let position = self.moments.position();
        judge(&self.histories, fs, position, self.torn)
            .map_err(|what| format!("{}, before event {position} of {}: {what}", self.told, self.len()))
    }

    /// Opens what a loss of power left for writing, which replays the log, and judges and checks it; then does so
    /// with `cuts` states of a replay that is cut short itself.
    ///
    /// # Errors
    /// As [`FsyncRun::judge`], or what the check found.
    pub fn verify(&self, device: &MemoryDevice, cuts: usize, random: &mut Rng) -> Result<Seen, String> {
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
                self.replayed(Arc::new(cut))
                    .map_err(|what| format!("event {position} of the replay: {what}"))?;
                seen.in_replay += 1;
            }
        }
        Ok(seen)
    }

    /// Replays, judges and checks; says whether there was a log.
    fn replayed(&self, device: Arc<dyn Device>) -> Result<bool, String> {
        let position = self.moments.position();
        let say = |what: String| format!("{}, before event {position} of {}: {what}", self.told, self.len());
        let devices = vec![device];
        let before = FileSystem::from_devices(devices.clone(), &OpenOptions::new());
        let logged = before.map_err(|error| say(error.to_string()))?.has_log();
        let fs = FileSystem::from_devices(devices.clone(), &self.open)
            .map_err(|error| say(format!("opening for writing: {error}")))?;
        self.judge(&fs)?;
        fs.close().map_err(|error| say(error.to_string()))?;
        verify::check_interrupted(&devices, &OpenOptions::new()).map_err(say)?;
        Ok(logged)
    }

    /// Files that are overwritten in place, at the end of the run.
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
            told: "nothing".to_owned(),
        };
        Self { base: base.to_vec(), steps: vec![first], numbers: HashMap::new(), exact, cached }
    }
}

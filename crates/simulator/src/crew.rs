//! The threads of a run with fsyncs: [`Crew`], which runs their operations and records the state
//! after each.
//!
//! Owns the file system of a run and the turns of all threads, in the order in which they began.
//!
//! **Lock:** the list of turns is locked while a turn is added, never during an operation.

use crate::configuration::Configuration;
use crate::model::{Model, Place};
use crate::moments::Moments;
use crate::operation::{NewFile, Operation};
use crate::promise::{Durable, ThreadHistory, ThreadStep};
use crate::random::Scope;
use crate::session::{Outcome, Session};
use crate::source::{Source, makes_sense};
use crate::turns::Turn;
use fastrand::Rng;
use papilio::FileSystem;
use papilio_device::{Device, Recording};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
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

/// The threads of a run.
pub(crate) struct Crew<'r> {
    recording: &'r Recording,
    recorder: Arc<dyn Device>,
    shape: &'r Shape,
    seed: u64,
    clock: AtomicU64,
    turns: Mutex<Vec<Turn>>,
}

/// The result of a run: the history of each thread, the writes, and the turns.
pub(crate) type Run = (Vec<ThreadHistory>, Moments, Vec<Turn>);

/// The state of one thread.
struct Worker<'c> {
    crew: &'c Crew<'c>,
    thread: u8,
    session: Session,
    history: ThreadHistory,
    /// Operations to run before drawing new ones.
    next: VecDeque<Operation>,
    random: Rng,
}

impl<'r> Crew<'r> {
    /// Prepares a run on a device that is recorded.
    pub(crate) fn new(
        recording: &'r Recording,
        recorder: Arc<dyn Device>,
        shape: &'r Shape,
        seed: u64,
    ) -> Self {
        Self { recording, recorder, shape, seed, clock: AtomicU64::new(1), turns: Mutex::default() }
    }

    /// Runs the operations of a source on each thread.
    pub(crate) fn at_once(&self, source: &dyn Fn(u8) -> Source) -> Result<Run, String> {
        let fs = self.open()?;
        let mut workers = self.workers(fs.as_ref())?;
        let results: Vec<Result<(), String>> = match &mut workers[..] {
            [worker] => vec![worker.run(source(0))],
            workers => std::thread::scope(|scope| {
                let mut running = Vec::new();
                for worker in workers {
                    let source = source(worker.thread);
                    running.push(scope.spawn(move || worker.run(source)));
                }
                running.into_iter().map(|thread| thread.join().expect("a worker panicked")).collect()
            }),
        };
        results.into_iter().collect::<Result<(), String>>()?;
        Ok(self.end(workers))
    }

    /// Runs turns in their order, and a sync of each thread.
    pub(crate) fn one_by_one(&self, turns: &[Turn]) -> Result<Run, String> {
        let fs = self.open()?;
        let mut workers = self.workers(fs.as_ref())?;
        for turn in turns {
            let worker = &mut workers[usize::from(turn.thread)];
            if makes_sense(&turn.operation, worker.session.model()) {
                worker.take(&turn.operation)?;
            }
        }
        for worker in &mut workers {
            worker.take(&Operation::Sync)?;
        }
        Ok(self.end(workers))
    }

    /// Opens the file system that several threads share. A lone thread opens its own, because it
    /// also closes it.
    fn open(&self) -> Result<Option<FileSystem>, String> {
        if self.shape.threads == 1 {
            return Ok(None);
        }
        let fs = FileSystem::from_devices(vec![self.recorder.clone()], &self.shape.configuration.open);
        fs.map(Some).map_err(|error| error.to_string())
    }

    fn workers(&self, fs: Option<&FileSystem>) -> Result<Vec<Worker<'_>>, String> {
        let worker = |thread: u8| {
            let (session, base) = match fs {
                Some(fs) => {
                    let base = format!("/t{thread}").into_bytes();
                    (Session::shared(fs.clone(), &base), base)
                }
                None => {
                    let open = self.shape.configuration.open.clone();
                    let session = Session::open(vec![self.recorder.clone()], open);
                    (session.map_err(|error| error.to_string())?, Vec::new())
                }
            };
            let history = ThreadHistory::begin(&base, fs.is_none(), self.shape.cached, session.model());
            let random = Rng::with_seed(self.seed ^ u64::from(thread) << 32);
            Ok(Worker { crew: self, thread, session, history, next: VecDeque::new(), random })
        };
        (0..self.shape.threads).map(worker).collect()
    }

    fn end(&self, workers: Vec<Worker<'_>>) -> Run {
        // Taken before the file system is closed, which writes more.
        let moments = Moments::new(self.recording, self.seed);
        let histories = workers.into_iter().map(|mut worker| {
            worker.session.abandon();
            worker.history
        });
        (histories.collect(), moments, std::mem::take(&mut *self.locked()))
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.turns.lock().expect("no thread panics with the lock")
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

impl Worker<'_> {
    /// Runs the operations of a source.
    fn run(&mut self, mut source: Source) -> Result<(), String> {
        while let Some(operation) = source.next_after(&mut self.next, self.session.model()) {
            self.take(&operation)?;
        }
        Ok(())
    }

    /// Runs an operation, and records the state after it.
    fn take(&mut self, operation: &Operation) -> Result<(), String> {
        self.crew.locked().push(Turn { thread: self.thread, operation: operation.clone() });
        let session = &mut self.session;
        // A file without a name will not exist afterwards.
        let named = |place: &Place| session.model().node(*place).nlink > 0;
        let fsynced = match operation {
            Operation::Fsync { file } => session.model().file(file).ok().filter(named),
            Operation::FsyncInode { path } => session.model().resolve(path, false).ok(),
            _ => None,
        };
        let (began, started) = (self.crew.tick(), self.crew.recording.len());
        let outcome = session.step(operation)?;
        let (ended, finished) = (self.crew.recording.len(), self.crew.tick());
        let done = match outcome {
            Outcome::Done => true,
            Outcome::Refused => false,
            Outcome::NoSpace | Outcome::OverLimit => {
                return Err(format!("{operation:?}: no space, which forces a commit"));
            }
            Outcome::Failed(error) => return Err(format!("{operation:?}: {error}")),
        };
        if done {
            let created = session.created_inode(operation).map_err(|error| error.to_string())?;
            if let Some((place, number)) = created {
                self.history.numbers.entry(number).or_default().push(place);
            }
            self.follow(operation);
        }
        let durable = match operation {
            Operation::Sync => Some(Durable::All),
            Operation::Remount if self.history.exact => Some(Durable::All),
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
        let model = self.session.model().clone();
        let step = ThreadStep { started, ended, began, finished, durable, may_commit, model, label };
        self.history.steps.push(step);
        Ok(())
    }

    /// Often keeps a new file open, because only for open files does an fsync know what changed.
    /// Marks some files for overwriting in place.
    fn follow(&mut self, operation: &Operation) {
        let Operation::Create { path, new: NewFile::Regular, .. } = operation else { return };
        if self.random.u8(..4) == 0 {
            let path = path.clone();
            self.next.push_back(Operation::SetFlags { path, nodatacow: true, compress: false });
        }
        let model = self.session.model();
        let free = (0..8).find(|slot| !model.slots().any(|(open, _)| open == *slot));
        if let Some(slot) = free
            && self.random.u8(..3) > 0
        {
            self.next.push_back(Operation::Open { slot, path: path.clone() });
        }
    }
}

impl ThreadHistory {
    fn begin(base: &[u8], exact: bool, cached: bool, model: &Model) -> Self {
        let first = ThreadStep {
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

//! Power losses: [`Recorded`], a run that can return to every moment, and what must be found there.
//!
//! Owns the caller's guarantees at each moment: the state of the last sync or snapshot that
//! returned, or of the one in progress. Nothing between the two, and nothing older, is allowed.
//!
//! **Invariant:** commits happen only where the run requests one, so each generation has exactly
//! one model.

use crate::configuration::Configuration;
use crate::model::{Content, Model, Place};
use crate::moments::Moments;
pub use crate::moments::{InFlight, Survival};
use crate::operation::Operation;
use crate::random::{Generator, Scope};
use crate::session::{Outcome, Session};
use crate::shrink::{Failure, report};
use crate::source::Source;
use crate::verify;
use papilio::{FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice, Recording};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Number of operations run after a crash, to check that the file system still works.
const AFTERWARDS: u64 = 25;

/// The kind of a failure of the operations after a crash.
const AFTER: &str = "operations afterwards";

/// Returns the kinds of power loss to try at a moment.
pub fn states_at(seed: u64, position: usize) -> [(Survival, InFlight); 3] {
    let mix = seed.wrapping_mul(0x9e37_79b9).wrapping_add(position as u64);
    let even = position.is_multiple_of(2);
    [
        (Survival::Everything, if even { InFlight::Torn } else { InFlight::Nothing }),
        (Survival::Some(mix), InFlight::Torn),
        (if even { Survival::Durable } else { Survival::Some(mix ^ 0xabcd) }, InFlight::Nothing),
    ]
}

/// A sync or a snapshot, and the state it made durable.
#[derive(Clone, Debug)]
struct Point {
    /// Number of events when it was requested.
    started: usize,
    /// Number of events when it returned.
    ended: usize,
    /// The generations of its transactions: one of a sync, several of a balance.
    generations: RangeInclusive<u64>,
    model: Model,
    /// A write that was under way at a commit that it did not ask for: its file, and the content
    /// that it was to have. The commit may have a part of it.
    partial: Option<(Place, Content)>,
}

/// A run and everything that reached its device.
#[derive(Debug)]
pub struct Recorded {
    configuration: Configuration,
    scope: Scope,
    seed: u64,
    operations: Vec<Operation>,
    moments: Moments,
    points: Vec<Point>,
}

/// Returns the file whose data an operation changes in steps, and the content that it gets.
pub(crate) fn partial_change(operation: &Operation, model: &Model) -> Option<(Place, Content)> {
    let place = model.file(operation.data_target()?).ok()?;
    let mut after = model.clone();
    operation.apply(&mut after).ok()?;
    Some((place, after.content(place).clone()))
}

impl Point {
    /// Returns the model of a commit that has a part of the write that was under way, if `fs` holds
    /// that.
    fn with_partial(&self, fs: &FileSystem) -> Option<Model> {
        let (place, after) = self.partial.as_ref()?;
        verify::partial_state(fs, &self.model, *place, after)
    }
}

fn only(generation: u64) -> RangeInclusive<u64> {
    generation..=generation
}

impl Recorded {
    /// Runs and records `operations` operations on a new file system.
    ///
    /// # Errors
    /// A failure that occurs even without a crash.
    pub fn new(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        operations: u64,
    ) -> Result<Self, String> {
        Self::record(configuration, scope, seed, Source::drawn(Generator::new(seed, scope), operations))
    }

    /// Runs and records these operations, and a sync, on a new file system.
    ///
    /// # Errors
    /// A failure that occurs even without a crash.
    pub fn of(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        operations: &[Operation],
    ) -> Result<Self, String> {
        Self::record(configuration, scope, seed, Source::given(operations.to_vec()))
    }

    fn record(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        mut source: Source,
    ) -> Result<Self, String> {
        let device = configuration.make().map_err(|error| error.to_string())?;
        let recording = Recording::new();
        let recorder: Arc<dyn Device> = Arc::new(recording.attach(device));
        let open = configuration.open.clone();
        let mut session = Session::open(vec![recorder], open).map_err(|error| error.to_string())?;
        let generation = |session: &Session| session.fs().superblock().raw.generation.0;
        let mut points = vec![Point {
            started: 0,
            ended: 0,
            generations: only(generation(&session)),
            model: Model::new(),
            partial: None,
        }];
        let mut operations = Vec::new();
        while let Some(operation) = source.next(session.model()) {
            operations.push(operation.clone());
            let (started, before) = (recording.len(), generation(&session));
            let earlier = session.model().clone();
            let partial = partial_change(&operation, &earlier);
            if let Outcome::Failed(error) = session.step(&operation)? {
                return Err(format!("{operation:?}: {error}"));
            }
            let (ended, last) = (recording.len(), generation(&session));
            let generations = match operation {
                Operation::Sync | Operation::Remount => only(last),
                Operation::Balance { .. } | Operation::DefragmentShared { .. } | Operation::Dedupe => {
                    (before + 1).min(last)..=last
                }
                // One that was refused may have committed, to find space or exact quotas.
                Operation::Snapshot { .. } if last > before => {
                    let generations = before + 1..=last - 1;
                    if !generations.is_empty() {
                        points.push(Point { started, ended, generations, model: earlier, partial });
                    }
                    only(last)
                }
                // Quotas are changed after a commit. Where a limit seems to be reached, a commit
                // makes the numbers exact.
                _ if last > before => {
                    let generations = before + 1..=last;
                    points.push(Point { started, ended, generations, model: earlier, partial });
                    continue;
                }
                _ => continue,
            };
            let model = session.model().clone();
            points.push(Point { started, ended, generations, model, partial: None });
        }
        // Taken before the file system is closed, which writes more.
        let moments = Moments::new(&recording, seed);
        session.abandon();
        let configuration = configuration.clone();
        Ok(Self { configuration, scope, seed, operations, moments, points })
    }

    /// Returns the number of events; a crash can come before each and after the last.
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Returns whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Returns the operations, the last of which is a sync.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Returns the number of syncs, including the creation of the file system.
    pub fn syncs(&self) -> usize {
        self.points.len()
    }

    /// Advances to the moment before event `position`; never goes backwards.
    pub fn advance(&mut self, position: usize) {
        self.moments.advance(position);
    }

    /// Returns the device after a power loss at this moment.
    pub fn device(&mut self, survival: Survival, in_flight: InFlight) -> MemoryDevice {
        self.moments.device(survival, in_flight)
    }

    /// Returns the allowed states at this moment: the last sync or snapshot that returned, and
    /// those of one in progress.
    fn promised(&self) -> &[Point] {
        let position = self.moments.position();
        let last = self
            .points
            .iter()
            .rposition(|point| point.ended <= position)
            .expect("the first sync ended at event 0");
        let more = self.points[last + 1..].iter().take_while(|point| point.started <= position).count();
        &self.points[last..=last + more]
    }

    /// Whether a write of a superblock is in flight at this moment. If it is torn, the file system
    /// opens by another copy only.
    pub fn writes_superblock(&self) -> bool {
        self.moments.writes_superblock()
    }

    /// Returns the model of the commit found on a device of this moment.
    ///
    /// # Errors
    /// The device cannot be opened, or holds a state that is not allowed.
    pub fn found(&self, device: &MemoryDevice) -> Result<&Model, String> {
        let device: Arc<dyn Device> = Arc::new(device.snapshot());
        let fs =
            FileSystem::from_devices(vec![device], &OpenOptions::new()).map_err(|error| error.to_string())?;
        let generation = fs.superblock().raw.generation.0;
        let point = self.promised().iter().find(|point| point.generations.contains(&generation));
        point
            .map(|point| &point.model)
            .ok_or_else(|| format!("generation {generation} is not an allowed state"))
    }

    /// Opens the result of a power loss and compares it with the allowed states. With `writing`, it
    /// also continues the run on it.
    ///
    /// # Errors
    /// The violated guarantee, with the position to reproduce it.
    pub fn verify(&self, device: MemoryDevice, in_flight: InFlight, writing: bool) -> Result<(), Failure> {
        let position = self.moments.position();
        self.state(device, in_flight, writing).map_err(|(kind, reason)| {
            let Configuration { name, .. } = &self.configuration;
            let (seed, events) = (self.seed, self.len());
            let place = format!("{name}, seed {seed}, {in_flight:?} at event {position} of {events}");
            Failure::new(kind, format!("{place}: {reason}"))
        })
    }

    /// Describes a failure with the fewest operations found that lead to such a failure, at any
    /// moment of theirs.
    pub fn report(&self, failure: &Failure, time: Duration) -> String {
        report(failure, &self.operations, time, |operations| self.again(operations, failure))
    }

    /// Repeats operations and returns a failure like `failure`, if a moment has one.
    fn again(&self, operations: &[Operation], failure: &Failure) -> Option<Failure> {
        let mut run = Self::of(&self.configuration, self.scope, self.seed, operations).ok()?;
        for position in 0..=run.len() {
            run.advance(position);
            for (survival, in_flight) in states_at(run.seed, position) {
                let device = run.device(survival, in_flight);
                match run.verify(device, in_flight, failure.kind == AFTER) {
                    Err(found) if found.kind == failure.kind => return Some(found),
                    _ => {}
                }
            }
        }
        None
    }

    fn state(
        &self,
        device: MemoryDevice,
        in_flight: InFlight,
        writing: bool,
    ) -> Result<(), (&'static str, String)> {
        let unopened = |error: papilio::Error| ("opening", error.to_string());
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let mut options = OpenOptions::new();
        let (mut promised, mut open) = (self.promised(), self.configuration.open.clone());
        let fs = match FileSystem::from_devices(devices.clone(), &options) {
            Ok(fs) => fs,
            Err(papilio::Error::Superblock { .. })
                if in_flight == InFlight::Torn && self.moments.writes_superblock() =>
            {
                // The other copies belong to the preceding commit, maybe one of the balance.
                if promised.last().is_some_and(|point| point.generations.clone().count() == 1) {
                    promised = &promised[..(promised.len() - 1).max(1)];
                }
                (options, open) = (options.superblock_mirror(1), open.superblock_mirror(1));
                FileSystem::from_devices(devices.clone(), &options).map_err(unopened)?
            }
            Err(error) => return Err(unopened(error)),
        };
        let generation = fs.superblock().raw.generation.0;
        let Some(point) = promised.iter().rev().find(|point| point.generations.contains(&generation)) else {
            let promised: Vec<_> = promised.iter().map(|point| &point.generations).collect();
            return Err(("generation", format!("found {generation}, expected one of {promised:?}")));
        };
        let model = match verify::compare(&fs, b"", &point.model) {
            Ok(()) => point.model.clone(),
            Err(reason) => point.with_partial(&fs).ok_or(("content", reason))?,
        };
        drop(fs);
        verify::check_interrupted(&devices, &options).map_err(|reason| ("check", reason))?;
        if writing {
            let mut session = Session::resume(devices, open, model).map_err(unopened)?;
            session
                .run(&mut Generator::new(self.seed ^ generation, self.scope), AFTERWARDS)
                .and_then(|()| session.close())
                .map_err(|reason| (AFTER, reason))?;
        }
        Ok(())
    }
}

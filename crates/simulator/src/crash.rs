//! Losses of power: [`Recorded`], a run whose every moment can be returned to, and what must be found there.
//!
//! Owns what a caller was promised at each moment: the state of the last sync that returned, or that of the
//! one that is going on. Nothing between the two, and nothing older. Invariant: commits happen only where the
//! run asks for one, so that each generation has one model.

use crate::configuration::Configuration;
use crate::model::Model;
use crate::moments::Moments;
pub use crate::moments::{InFlight, Survival};
use crate::operation::Operation;
use crate::random::{Generator, Scope};
use crate::session::{Outcome, Session};
use crate::verify;
use papilio::{FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice, Recording};
use std::sync::Arc;

/// Operations done after a crash, to see that the file system still works.
const AFTERWARDS: u64 = 25;

/// A sync, and what it made durable.
#[derive(Clone, Debug)]
struct Point {
    /// Events when it was asked for.
    started: usize,
    /// Events when it returned.
    ended: usize,
    /// The number of its transaction.
    generation: u64,
    model: Model,
}

/// A run, and everything that reached its device.
#[derive(Debug)]
pub struct Recorded {
    configuration: Configuration,
    scope: Scope,
    seed: u64,
    moments: Moments,
    points: Vec<Point>,
}

impl Recorded {
    /// Does `operations` operations on a new file system and records.
    ///
    /// # Errors
    /// What goes wrong even without a crash.
    pub fn new(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        operations: u64,
    ) -> Result<Self, String> {
        let device = configuration.make().map_err(|error| error.to_string())?;
        let recording = Recording::new();
        let recorder: Arc<dyn Device> = Arc::new(recording.attach(device));
        let open = configuration.open.clone();
        let mut session = Session::open(vec![recorder], open).map_err(|error| error.to_string())?;
        let generation = |session: &Session| session.fs().superblock().raw.generation.0;
        let mut points =
            vec![Point { started: 0, ended: 0, generation: generation(&session), model: Model::new() }];
        let mut generator = Generator::new(seed, scope);
        for number in 0..operations {
            let mut operation = generator.next(session.model());
            if number + 1 == operations {
                operation = Operation::Sync;
            }
            let started = recording.len();
            if let Outcome::Failed(error) = session.step(&operation)? {
                return Err(format!("{operation:?}: {error}"));
            }
            if matches!(operation, Operation::Sync | Operation::Remount) {
                let (ended, model) = (recording.len(), session.model().clone());
                points.push(Point { started, ended, generation: generation(&session), model });
            }
        }
        // Before it is closed, which changes more.
        let moments = Moments::new(&recording, seed);
        session.abandon();
        Ok(Self { configuration: configuration.clone(), scope, seed, moments, points })
    }

    /// Events in all: a crash can come before each and behind the last.
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Syncs, the making of the file system among them.
    pub fn syncs(&self) -> usize {
        self.points.len()
    }

    /// Walks on to the moment before event `position`; never backwards.
    pub fn advance(&mut self, position: usize) {
        self.moments.advance(position);
    }

    /// The device after a loss of power at this moment.
    pub fn device(&mut self, survival: Survival, in_flight: InFlight) -> MemoryDevice {
        self.moments.device(survival, in_flight)
    }

    /// What may be found at this moment: the last sync that returned, and the one that is going on.
    fn promised(&self) -> &[Point] {
        let position = self.moments.position();
        let last = self.points.iter().rposition(|point| point.ended <= position).expect("the first is");
        let more = usize::from(self.points.get(last + 1).is_some_and(|point| point.started <= position));
        &self.points[last..=last + more]
    }

    /// The model of the commit that is found on a device of this moment.
    ///
    /// # Errors
    /// It cannot be opened, or holds what was not promised.
    pub fn found(&self, device: &MemoryDevice) -> Result<&Model, String> {
        let device: Arc<dyn Device> = Arc::new(device.snapshot());
        let fs =
            FileSystem::from_devices(vec![device], &OpenOptions::new()).map_err(|error| error.to_string())?;
        let generation = fs.superblock().raw.generation.0;
        let point = self.promised().iter().find(|point| point.generation == generation);
        point.map(|point| &point.model).ok_or_else(|| format!("generation {generation} was not promised"))
    }

    /// Opens what a loss of power left and compares it with what was promised; `writing` says to go on
    /// with it, too.
    ///
    /// # Errors
    /// What is not as promised, and how to get there again.
    pub fn verify(&self, device: MemoryDevice, in_flight: InFlight, writing: bool) -> Result<(), String> {
        let position = self.moments.position();
        self.state(device, in_flight, writing).map_err(|reason| {
            let Configuration { name, .. } = &self.configuration;
            format!(
                "{name}, seed {}, {in_flight:?} at event {position} of {}: {reason}",
                self.seed,
                self.len()
            )
        })
    }

    fn state(&self, device: MemoryDevice, in_flight: InFlight, writing: bool) -> Result<(), String> {
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let mut options = OpenOptions::new();
        let (mut promised, mut open) = (self.promised(), self.configuration.open.clone());
        let fs = match FileSystem::from_devices(devices.clone(), &options) {
            Ok(fs) => fs,
            Err(papilio::Error::Superblock { .. })
                if in_flight == InFlight::Torn && self.moments.writes_superblock() =>
            {
                // The other copies are of the commit before.
                promised = &promised[..1];
                (options, open) = (options.superblock_mirror(1), open.superblock_mirror(1));
                FileSystem::from_devices(devices.clone(), &options).map_err(|error| error.to_string())?
            }
            Err(error) => return Err(error.to_string()),
        };
        let generation = fs.superblock().raw.generation.0;
        let Some(point) = promised.iter().rev().find(|point| point.generation == generation) else {
            let promised: Vec<_> = promised.iter().map(|point| point.generation).collect();
            return Err(format!("generation {generation} is there, {promised:?} were promised"));
        };
        verify::compare(&fs, b"", &point.model)?;
        drop(fs);
        verify::check_interrupted(&devices, &options)?;
        if writing {
            let mut session =
                Session::resume(devices, open, point.model.clone()).map_err(|error| error.to_string())?;
            session.run(&mut Generator::new(self.seed ^ generation, self.scope), AFTERWARDS)?;
            session.close().map_err(|reason| format!("afterwards: {reason}"))?;
        }
        Ok(())
    }
}

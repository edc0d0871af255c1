//! Devices that fail during a run: [`FaultRun`], and what must hold afterwards.
//!
//! Owns the checks of a run in which a device call failed:
//! - A failed operation has no effect, or, if it changes data, a partial one.
//! - A failed commit, or a change that stopped half-way, makes the file system read-only and keeps
//!   its first cause.
//! - Everything committed earlier is there once the device works again.

use crate::configuration::Configuration;
use crate::crash::partial_change;
use crate::model::{Content, Model, Place};
use crate::operation::Operation;
use crate::random::{Generator, Scope};
use crate::session::{Outcome, Session};
use crate::shrink::{Failure, report};
use crate::source::Source;
use crate::verify;
use papilio::{ErrorKind, FileSystem, OpenOptions};
use papilio_device::{Device, FaultDevice, MemoryDevice};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time to shorten the history of a failure.
const SHRINK: Duration = Duration::from_secs(300);

/// A run that is repeated, each time with another fault.
#[derive(Debug)]
pub struct FaultRun {
    configuration: Configuration,
    scope: Scope,
    seed: u64,
    operations: u64,
    device: Arc<MemoryDevice>,
}

/// Which calls of a device fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No call.
    Never,
    /// The call with this number.
    Once(u64),
    /// All calls from this number on.
    From(u64),
}

/// The outcome of a run with a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultOutcome {
    /// Number of device calls.
    pub calls: u64,
    /// Number of operations that returned a device error.
    pub failed: u64,
    /// Whether the file system became read-only.
    pub latched: bool,
}

impl FaultRun {
    /// Prepares a run of operations on a new file system.
    ///
    /// # Errors
    /// The error of making the file system.
    pub fn new(
        configuration: &Configuration,
        scope: Scope,
        seed: u64,
        operations: u64,
    ) -> papilio::Result<Self> {
        let device = configuration.make()?;
        Ok(Self { configuration: configuration.clone(), scope, seed, operations, device })
    }

    /// Runs with a fault.
    ///
    /// # Errors
    /// The first violation, with the operations that it needs.
    pub fn run(&self, fault: Fault) -> Result<FaultOutcome, String> {
        let mut ran = Vec::new();
        let source = Source::drawn(Generator::new(self.seed, self.scope), self.operations);
        self.run_source(source, fault, &mut ran)
            .map_err(|failure| report(&failure, &ran, SHRINK, |part| self.again(part, fault, &failure)))
    }

    /// Runs these operations, and a sync, with a fault.
    ///
    /// # Errors
    /// As [`FaultRun::run`].
    pub fn run_operations(&self, operations: &[Operation], fault: Fault) -> Result<FaultOutcome, String> {
        let mut ran = Vec::new();
        self.run_source(Source::given(operations.to_vec()), fault, &mut ran)
            .map_err(|failure| report(&failure, &ran, SHRINK, |part| self.again(part, fault, &failure)))
    }

    /// Repeats operations with such a fault at each of their device calls. Returns a failure like
    /// `failure`.
    fn again(&self, operations: &[Operation], fault: Fault, failure: &Failure) -> Option<Failure> {
        let run = |fault| self.run_source(Source::given(operations.to_vec()), fault, &mut Vec::new());
        let calls = match run(Fault::Never) {
            Ok(outcome) => outcome.calls,
            Err(found) => return Some(found),
        };
        let alike = |number| match fault {
            Fault::From(_) => Fault::From(number),
            _ => Fault::Once(number),
        };
        let failures = (0..calls).filter_map(|number| run(alike(number)).err());
        failures.into_iter().find(|found| found.kind == failure.kind)
    }

    fn run_source(
        &self,
        source: Source,
        fault: Fault,
        ran: &mut Vec<Operation>,
    ) -> Result<FaultOutcome, Failure> {
        let inner: Arc<dyn Device> = Arc::new(self.device.snapshot());
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&inner)));
        match fault {
            Fault::Never => {}
            Fault::Once(number) => faulty.fail_any_call(number),
            Fault::From(number) => faulty.fail_all_from(number),
        }
        let mut result = FaultOutcome::default();
        // The model that each generation may hold.
        let mut models = BTreeMap::new();
        let describe = |kind: &str, reason: String| {
            let Configuration { name, .. } = &self.configuration;
            Failure::new(kind, format!("{name}, seed {}, {fault:?}: {reason}", self.seed))
        };
        match Session::open(vec![faulty.clone()], self.configuration.open.clone()) {
            Ok(session) => run_session(session, source, ran, &mut models, &mut result)
                .map_err(|reason| describe("an operation", reason))?,
            Err(_) if faulty.counts().failed > 0 => {}
            Err(error) => return Err(describe("opening", error.to_string())),
        }
        result.calls = faulty.counts().total();
        afterwards(&[inner], &models).map_err(|reason| describe("afterwards", reason))?;
        Ok(result)
    }
}

/// A state of a commit, and a change of one file of which the commit may have a part.
type State = (Model, Option<(Place, Content)>);

/// Commits that an operation may make without being asked, at most.
const UNASKED: u64 = 64;

/// Runs operations until they end or the file system becomes read-only.
fn run_session(
    mut session: Session,
    mut source: Source,
    ran: &mut Vec<Operation>,
    models: &mut BTreeMap<u64, Vec<State>>,
    result: &mut FaultOutcome,
) -> Result<(), String> {
    let generation = |session: &Session| session.fs().superblock().raw.generation.0;
    let mut last = generation(&session);
    models.insert(last, vec![(Model::new(), None)]);
    while let Some(operation) = source.next(session.model()) {
        ran.push(operation.clone());
        let commits = matches!(operation, Operation::Sync | Operation::Snapshot { .. });
        // Where quotas are on, an operation may commit what was before it.
        let partial = partial_change(&operation, session.model());
        let earlier = (session.model().clone(), partial);
        let counts = session.model().quotas().is_some() || operation.changes_quotas();
        if counts {
            models.extend((last + 1..=last + UNASKED).map(|generation| (generation, vec![earlier.clone()])));
        }
        if commits {
            let mut model = session.model().clone();
            // An operation that the model refuses commits nothing.
            if operation.apply(&mut model).is_ok() {
                models.entry(last + 1).or_default().push((model.clone(), None));
                // Snapshots are alone in their transaction where quotas count.
                models.entry(last + 2).or_default().push((model, None));
            }
        }
        match session.step(&operation)? {
            Outcome::Failed(error) => {
                result.failed += 1;
                if matches!(error.kind(), ErrorKind::Path(_) | ErrorKind::Invalid | ErrorKind::NoSpace) {
                    return Err(format!("{operation:?}: a device failure returned {error}"));
                }
                let latched = session.fs().failure();
                if operation == Operation::Sync && latched.is_none() {
                    return Err(format!("the sync failed ({error}), but the file system stayed writable"));
                }
                if let Some(cause) = latched {
                    result.latched = true;
                    read_only(&session, &cause)?;
                    break;
                }
            }
            Outcome::Done if commits => {
                let now = generation(&session);
                models.retain(|generation, _| *generation == now);
                models.insert(now, vec![(session.model().clone(), None)]);
                last = now;
            }
            _ if counts => {
                last = generation(&session);
                models.retain(|generation, _| *generation == last);
            }
            _ => {}
        }
    }
    // Unless it became read-only, dropping the file system commits once more.
    if !result.latched {
        for generation in [last + 1, last + 2] {
            models.insert(generation, vec![(session.model().clone(), None)]);
        }
    }
    session.abandon();
    Ok(())
}

/// Checks that after a failure every change is refused with the first cause.
fn read_only(session: &Session, cause: &str) -> Result<(), String> {
    let fs = session.fs();
    for result in [fs.sync(), fs.create_dir("/after").map(drop), fs.remove_file("/n1")] {
        match result {
            Err(error) if error.kind() == ErrorKind::ReadOnly && error.to_string().contains(cause) => {}
            // A missing name is detected first.
            Err(error) if matches!(error.kind(), ErrorKind::Path(_) | ErrorKind::Io) => {}
            other => return Err(format!("after {cause:?}, a change returned {other:?}")),
        }
    }
    if fs.failure().as_deref() != Some(cause) {
        return Err(format!("the first cause {cause:?} was replaced by {:?}", fs.failure()));
    }
    Ok(())
}

/// Checks, on a working device, that the last commit is intact.
fn afterwards(devices: &[Arc<dyn Device>], models: &BTreeMap<u64, Vec<State>>) -> Result<(), String> {
    let fs =
        FileSystem::from_devices(devices.to_vec(), &OpenOptions::new()).map_err(|error| error.to_string())?;
    let generation = fs.superblock().raw.generation.0;
    if !models.is_empty() {
        let states = models
            .get(&generation)
            .ok_or_else(|| format!("found generation {generation}, expected one of {:?}", models.keys()))?;
        let matches = |(model, partial): &State| {
            verify::compare(&fs, b"", model).or_else(|reason| {
                let (place, after) = partial.as_ref().ok_or_else(|| reason.clone())?;
                verify::partial_state(&fs, model, *place, after).map(drop).ok_or(reason)
            })
        };
        let mut results = states.iter().map(matches);
        let first = results.next().expect("a generation has a state");
        if first.is_err() && !results.any(|result| result.is_ok()) {
            first?;
        }
    }
    drop(fs);
    verify::check_interrupted(devices, &OpenOptions::new())
}

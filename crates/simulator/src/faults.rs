//! Devices that fail in the middle of work: [`Course`], and what must hold afterwards.
//!
//! Owns the judgement of a run in which a device call failed. An operation that an error hits has no effect,
//! or as a change of data has a part of its own; a failed commit, or a change that stopped half-way, makes the
//! file system read-only with its first cause; and what was committed before is there when the device works
//! again.

use crate::configuration::Configuration;
use crate::model::Model;
use crate::operation::Operation;
use crate::random::{Generator, Scope};
use crate::session::{Outcome, Session};
use crate::verify;
use papilio::{ErrorKind, FileSystem, OpenOptions};
use papilio_device::{Device, FaultDevice, MemoryDevice};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run that is done again and again, each time with another fault.
#[derive(Debug)]
pub struct Course {
    configuration: Configuration,
    scope: Scope,
    seed: u64,
    operations: u64,
    device: Arc<MemoryDevice>,
}

/// Which calls of a device fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    Never,
    /// The one of this number.
    Once(u64),
    /// All from this number on.
    From(u64),
}

/// How a run with a fault went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Device calls.
    pub calls: u64,
    /// Operations that gave an error of the device.
    pub failed: u64,
    /// Whether the file system became read-only.
    pub latched: bool,
}

impl Course {
    /// A run of operations on a new file system.
    ///
    /// # Errors
    /// What making it says.
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
    /// What is not as it must be.
    pub fn run(&self, fault: Fault) -> Result<Ending, String> {
        let inner: Arc<dyn Device> = Arc::new(self.device.snapshot());
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&inner)));
        match fault {
            Fault::Never => {}
            Fault::Once(number) => faulty.fail_any_call(number),
            Fault::From(number) => faulty.fail_all_from(number),
        }
        let mut result = Ending::default();
        // What each generation may be found to hold.
        let mut models = BTreeMap::new();
        let told =
            |what: String| format!("{}, seed {}, {fault:?}: {what}", self.configuration.name, self.seed);
        match Session::open(vec![faulty.clone()], self.configuration.open.clone()) {
            Ok(session) => self.course(session, &mut models, &mut result).map_err(told)?,
            Err(_) if faulty.counts().failed > 0 => {}
            Err(error) => return Err(told(error.to_string())),
        }
        result.calls = faulty.counts().total();
        afterwards(&[inner], &models).map_err(|reason| told(format!("afterwards: {reason}")))?;
        Ok(result)
    }

    fn course(
        &self,
        mut session: Session,
        models: &mut BTreeMap<u64, Model>,
        result: &mut Ending,
    ) -> Result<(), String> {
        let generation = |session: &Session| session.fs().superblock().raw.generation.0;
        let mut last = generation(&session);
        models.insert(last, Model::new());
        let mut generator = Generator::new(self.seed, self.scope);
        for number in 0..self.operations {
            let mut operation = generator.next(session.model());
            if number + 1 == self.operations {
                operation = Operation::Sync;
            }
            if operation == Operation::Sync {
                models.insert(last + 1, session.model().clone());
            }
            match session.step(&operation)? {
                Outcome::Failed(error) => {
                    result.failed += 1;
                    if matches!(error.kind(), ErrorKind::Path(_) | ErrorKind::Invalid | ErrorKind::NoSpace) {
                        return Err(format!("{operation:?}: a failing device gave {error}"));
                    }
                    let latched = session.fs().failure();
                    if operation == Operation::Sync && latched.is_none() {
                        return Err(format!("the sync failed ({error}), and changes go on"));
                    }
                    if let Some(cause) = latched {
                        result.latched = true;
                        read_only(&session, &cause)?;
                        break;
                    }
                }
                _ if operation == Operation::Sync => {
                    let now = generation(&session);
                    models.retain(|generation, _| *generation == now);
                    models.insert(now, session.model().clone());
                    last = now;
                }
                _ => {}
            }
        }
        // What is not latched commits once more when it goes.
        if !result.latched {
            models.insert(last + 1, session.model().clone());
            models.insert(last + 2, session.model().clone());
        }
        session.abandon();
        Ok(())
    }
}

/// After a failure: all changes are refused with the first cause, and what is there can be read.
fn read_only(session: &Session, cause: &str) -> Result<(), String> {
    let fs = session.fs();
    for result in [fs.sync(), fs.create_dir("/after").map(drop), fs.remove_file("/n1")] {
        match result {
            Err(error) if error.kind() == ErrorKind::ReadOnly && error.to_string().contains(cause) => {}
            // A name that is not there is seen first.
            Err(error) if matches!(error.kind(), ErrorKind::Path(_) | ErrorKind::Io) => {}
            other => return Err(format!("after {cause:?}, a change gave {other:?}")),
        }
    }
    if fs.failure().as_deref() != Some(cause) {
        return Err(format!("the first cause {cause:?} was replaced by {:?}", fs.failure()));
    }
    Ok(())
}

/// The device works again: what the last commit wrote is there.
fn afterwards(devices: &[Arc<dyn Device>], models: &BTreeMap<u64, Model>) -> Result<(), String> {
    let fs =
        FileSystem::from_devices(devices.to_vec(), &OpenOptions::new()).map_err(|error| error.to_string())?;
    let generation = fs.superblock().raw.generation.0;
    if !models.is_empty() {
        let model = models.get(&generation).ok_or_else(|| {
            format!("generation {generation} is there, expected one of {:?}", models.keys())
        })?;
        verify::compare(&fs, b"", model)?;
    }
    drop(fs);
    verify::check_interrupted(devices, &OpenOptions::new())
}

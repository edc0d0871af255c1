//! Histories: the steps of a run, which can be repeated without its generator.
//!
//! Owns [`History`], which records a run, and [`Step`]. A history that failed is shortened to the
//! operations that the failure needs, with [`History::minimised`].
//!
//! **Invariant:** a replay runs each step that makes sense in its state. A step that needs an open
//! file is left out where a shorter history did not open it.

use crate::configuration::Configuration;
use crate::model::Model;
use crate::operation::Operation;
use crate::random::Generator;
use crate::session::{Counts, Outcome, Session};
pub use crate::shrink::Failure;
use crate::shrink::{minimise, report};
use crate::source::makes_sense;
use papilio_device::Device;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operation on both sides.
    Run(Operation),
    /// A comparison of everything.
    Verify,
    /// The file system is closed, checked, compared and opened again.
    Reopen,
}

/// A run that notes its steps.
#[derive(Debug)]
pub struct History {
    configuration: Configuration,
    session: Session,
    steps: Vec<Step>,
}

impl History {
    /// Begins a run on a new file system.
    ///
    /// # Errors
    /// It cannot be made or opened.
    pub fn begin(configuration: &Configuration) -> papilio::Result<Self> {
        let devices: Vec<Arc<dyn Device>> = vec![configuration.make()?];
        let session = Session::open(devices, configuration.open.clone())?;
        Ok(Self { configuration: configuration.clone(), session, steps: Vec::new() })
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.session.counts()
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        self.session.model()
    }

    /// Returns the steps so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Draws and runs operations.
    ///
    /// # Errors
    /// The first failure.
    pub fn draw(&mut self, generator: &mut Generator, operations: u64) -> Result<(), Failure> {
        for _ in 0..operations {
            let operation = generator.next(self.session.model());
            self.take(Step::Run(operation))?;
        }
        Ok(())
    }

    /// Notes and runs a step.
    ///
    /// # Errors
    /// Its failure. A panic of the library is one too.
    pub fn take(&mut self, step: Step) -> Result<(), Failure> {
        self.steps.push(step.clone());
        attempt(&mut self.session, &step)
    }

    /// Repeats steps on a new file system.
    ///
    /// # Errors
    /// The first failure.
    pub fn replay(configuration: &Configuration, steps: &[Step]) -> Result<Self, Failure> {
        let begun = Self::begin(configuration);
        let mut history = begun.map_err(|error| Failure::new("begin", error.to_string()))?;
        for step in steps {
            let possible = match step {
                Step::Run(operation) => makes_sense(operation, history.model()),
                Step::Verify | Step::Reopen => true,
            };
            if possible {
                history.take(step.clone())?;
            }
        }
        Ok(history)
    }

    /// Returns the fewest steps found that fail like `failure` did, within `time`. Returns `None`
    /// if the history does not fail again, which a race of threads may cause.
    pub fn minimised(&self, failure: &Failure, time: Duration) -> Option<Vec<Step>> {
        let fails = |steps: &[Step]| {
            Self::replay(&self.configuration, steps).is_err_and(|found| found.kind == failure.kind)
        };
        fails(&self.steps).then(|| minimise(&self.steps, time, fails))
    }

    /// Describes a failure with a minimised history.
    pub fn report(&self, failure: &Failure, time: Duration) -> String {
        report(failure, &self.steps, time, |steps| Self::replay(&self.configuration, steps).err())
    }
}

/// Runs a step. A panic of the library is a failure, too.
pub(crate) fn attempt(session: &mut Session, step: &Step) -> Result<(), Failure> {
    let caught = catch_unwind(AssertUnwindSafe(|| run(session, step)));
    let result = caught.unwrap_or_else(|panic| {
        // Nothing is known about the state of a library that panicked.
        Err(format!("panicked: {}", message(&*panic)))
    });
    result.map_err(|text| Failure::new(kind(step), text))
}

fn run(session: &mut Session, step: &Step) -> Result<(), String> {
    match step {
        Step::Run(operation) => match session.step(operation)? {
            Outcome::Failed(error) => Err(format!("failed: {error}")),
            _ => Ok(()),
        },
        Step::Verify => session.verify(),
        Step::Reopen => {
            session.close()?;
            session.reopen().map_err(|error| error.to_string())
        }
    }
}

fn kind(step: &Step) -> String {
    match step {
        Step::Run(operation) => {
            let text = format!("{operation:?}");
            text.chars().take_while(char::is_ascii_alphabetic).collect()
        }
        other => format!("{other:?}"),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKind;
    use crate::operation::{FileAt, NewFile, Text};
    use crate::random::Scope;

    fn has_a_moved_link(steps: &[Step]) -> bool {
        let Ok(history) = History::replay(&Configuration::new("default"), steps) else { return false };
        let model = history.model();
        let root = model.node(Model::root());
        let NodeKind::Directory(entries) = &root.kind else { return false };
        entries.values().filter_map(|entry| model.target(Model::root(), *entry)).any(|place| {
            let node = model.node(place);
            node.content().is_some_and(|content| content.size() > 100) && node.nlink > 1
        })
    }

    #[test]
    fn a_history_is_minimised_to_the_operations_that_it_needs() {
        let configuration = Configuration::new("default");
        let mut history = History::begin(&configuration).unwrap();
        let scope = Scope { remount_every: 20, subvolumes: true, ..Scope::default() };
        let mut generator = Generator::new(5, scope);
        while !has_a_moved_link(history.steps()) {
            history.draw(&mut generator, 40).unwrap();
            assert!(history.steps().len() < 4000, "no file has two names");
        }
        let steps = minimise(history.steps(), Duration::from_secs(60), has_a_moved_link);
        // A file, its bytes, its second name, and perhaps directories or a file opened for it.
        assert!((3..=6).contains(&steps.len()), "{steps:#?}");
        assert!(has_a_moved_link(&steps));
    }

    #[test]
    fn a_failure_is_reported_with_the_steps_that_it_needs() {
        let configuration = Configuration::new("default");
        let mut history = History::begin(&configuration).unwrap();
        let mut generator = Generator::new(9, Scope::default());
        history.draw(&mut generator, 40).unwrap();
        let path = Text(b"/too long".to_vec());
        let new = NewFile::Regular;
        let create = Step::Run(Operation::Create { path: path.clone(), mode: 0o600, owner: (0, 0), new });
        history.take(create.clone()).unwrap();
        history.draw(&mut generator, 40).unwrap();
        let mut failure = Failure { kind: "Verify".to_owned(), text: String::new() };
        assert!(history.report(&failure, Duration::from_secs(60)).contains("does not repeat"));
        // The model knows no largest file, so that the two sides disagree.
        let truncate = Step::Run(Operation::Truncate { file: FileAt::Path(path.to_vec()), size: u64::MAX });
        failure = history.take(truncate.clone()).unwrap_err();
        assert_eq!(failure.kind, "Truncate");
        let steps = history.minimised(&failure, Duration::from_secs(60)).unwrap();
        assert_eq!(steps, [create, truncate]);
        let report = history.report(&failure, Duration::from_secs(60));
        assert!(report.contains("2 of 82 steps are needed"), "{report}");
    }
}

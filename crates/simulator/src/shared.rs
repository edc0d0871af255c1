//! Several threads on one file system, each beside a model of its own directory: [`SharedRun`].
//!
//! Owns the turns of all threads, in the order in which they began. A run that failed is shortened
//! with [`SharedRun::report`].
//!
//! **Lock:** the list of turns is locked while a turn is added, never during an operation.

use crate::configuration::Configuration;
use crate::history::{Step, attempt};
use crate::model::Model;
use crate::random::{Generator, Scope};
use crate::session::{Counts, Session};
use crate::shrink::Failure;
use crate::source::makes_sense;
use crate::turns::{self, Order, Turn};
use crate::verify;
use papilio::{FileSystem, OpenOptions};
use papilio_device::Device;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A run of several threads.
#[derive(Debug)]
pub struct SharedRun {
    configuration: Configuration,
    threads: u8,
    turns: Mutex<Vec<Turn>>,
}

/// The end of a thread: the model of its directory.
type Ended = Result<(Counts, Model), Failure>;

fn base(thread: u8) -> Vec<u8> {
    format!("/thread {thread}").into_bytes()
}

impl SharedRun {
    /// Prepares a run.
    pub fn new(configuration: Configuration, threads: u8) -> Self {
        Self { configuration, threads, turns: Mutex::default() }
    }

    /// Returns the turns so far.
    pub fn turns(&self) -> Vec<Turn> {
        self.turns.lock().expect("no thread panics with the lock").clone()
    }

    /// Draws and runs `operations` operations on each thread, and compares everything.
    ///
    /// # Errors
    /// The first failure of the thread with the least number.
    pub fn draw(&self, seed: u64, scope: Scope, operations: u64) -> Result<Counts, Failure> {
        self.run(&|thread, session| {
            let mut generator = Generator::new(seed + u64::from(thread), scope);
            for _ in 0..operations {
                let operation = generator.next(session.model());
                self.take(session, Turn { thread, operation })?;
            }
            Ok(())
        })
    }

    /// Runs turns in an order, and compares everything.
    ///
    /// # Errors
    /// The first failure.
    pub fn repeat(&self, turns: &[Turn], order: Order) -> Result<Counts, Failure> {
        match order {
            Order::AtOnce => self.run(&|thread, session| {
                for turn in turns.iter().filter(|turn| turn.thread == thread) {
                    self.take_if_possible(session, turn)?;
                }
                Ok(())
            }),
            Order::OneByOne => {
                let (devices, fs) = self.begin()?;
                let mut sessions: Vec<_> =
                    (0..self.threads).map(|thread| Session::shared(fs.clone(), &base(thread))).collect();
                for turn in turns {
                    self.take_if_possible(&mut sessions[usize::from(turn.thread)], turn)?;
                }
                let ended = sessions.iter_mut().map(Self::end).collect();
                Self::compare(devices, fs, ended)
            }
        }
    }

    /// Describes a failure with the fewest turns found that fail so.
    pub fn report(&self, failure: &Failure, time: Duration) -> String {
        turns::report(failure, &self.turns(), time, |turns, order| {
            Self::new(self.configuration.clone(), self.threads).repeat(turns, order).err()
        })
    }

    /// Makes the file system and the directories of the threads.
    fn begin(&self) -> Result<(Vec<Arc<dyn Device>>, FileSystem), Failure> {
        let say = |error: papilio::Error| Failure::new("begin", error.to_string());
        let device: Arc<dyn Device> = self.configuration.make().map_err(say)?;
        let devices = vec![device];
        let fs = FileSystem::from_devices(devices.clone(), &self.configuration.open).map_err(say)?;
        for thread in 0..self.threads {
            fs.create_dir(base(thread)).map_err(say)?;
        }
        Ok((devices, fs))
    }

    /// Runs work on each thread with its session.
    fn run(
        &self,
        work: &(impl Fn(u8, &mut Session) -> Result<(), Failure> + Sync),
    ) -> Result<Counts, Failure> {
        let (devices, fs) = self.begin()?;
        let ended = std::thread::scope(|scope| {
            let begin = |thread| {
                let fs = fs.clone();
                scope.spawn(move || {
                    let mut session = Session::shared(fs, &base(thread));
                    work(thread, &mut session)?;
                    Self::end(&mut session)
                })
            };
            let running: Vec<_> = (0..self.threads).map(begin).collect();
            running.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
        });
        Self::compare(devices, fs, ended)
    }

    fn take_if_possible(&self, session: &mut Session, turn: &Turn) -> Result<(), Failure> {
        match makes_sense(&turn.operation, session.model()) {
            true => self.take(session, turn.clone()),
            false => Ok(()),
        }
    }

    /// Notes and takes a turn.
    fn take(&self, session: &mut Session, turn: Turn) -> Result<(), Failure> {
        self.turns.lock().expect("no thread panics with the lock").push(turn.clone());
        attempt(session, &Step::Run(turn.operation)).map_err(|failure| {
            Failure::new(failure.kind, format!("thread {}: {}", turn.thread, failure.text))
        })
    }

    /// Compares a thread's directory with its model, and closes its files.
    fn end(session: &mut Session) -> Ended {
        session.verify().map_err(|text| Failure::new("open", text))?;
        session.abandon();
        session.model_mut().close_all();
        Ok((session.counts(), session.model().clone()))
    }

    /// Closes the file system, checks it, and compares it with the models.
    fn compare(devices: Vec<Arc<dyn Device>>, fs: FileSystem, ended: Vec<Ended>) -> Result<Counts, Failure> {
        let ended = ended.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        fs.close().map_err(|error| Failure::new("close", error.to_string()))?;
        verify::check(&devices).map_err(|text| Failure::new("check", text))?;
        let fs = FileSystem::from_devices(devices, &OpenOptions::new())
            .map_err(|error| Failure::new("reopen", error.to_string()))?;
        let mut total = Counts::default();
        for (thread, (counts, model)) in (0..).zip(ended) {
            verify::compare(&fs, &base(thread), &model)
                .map_err(|text| Failure::new("reopened", format!("thread {thread}: {text}")))?;
            total += counts;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{FileAt, NewFile, Operation, Text};

    #[test]
    fn a_failure_of_threads_is_reported_with_the_turns_that_it_needs() {
        let run = SharedRun::new(Configuration::new("default"), 3);
        let scope = Scope { wide_links: false, remount_every: 0, ..Scope::default() };
        run.draw(7, scope, 30).unwrap();
        let mut turns = run.turns();
        assert_eq!(turns.len(), 90);
        assert!((0..3).all(|thread| turns.iter().filter(|turn| turn.thread == thread).count() == 30));
        // The model knows no largest file, so that the two sides disagree.
        let path = b"/large".to_vec();
        let new = NewFile::Regular;
        let create = Operation::Create { path: Text(path.clone()), mode: 0o600, owner: (0, 0), new };
        let truncate = Operation::Truncate { file: FileAt::Path(path), size: u64::MAX };
        turns.insert(40, Turn { thread: 1, operation: create });
        turns.insert(70, Turn { thread: 1, operation: truncate });
        for order in [Order::OneByOne, Order::AtOnce] {
            let again = SharedRun::new(Configuration::new("default"), 3);
            let failure = again.repeat(&turns, order).unwrap_err();
            assert_eq!(failure.kind, "Truncate");
            let report = again.report(&failure, Duration::from_secs(60));
            assert!(report.contains("one thread fails, too: 2 of "), "{report}");
        }
    }
}

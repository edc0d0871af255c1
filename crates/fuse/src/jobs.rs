//! Work on a mounted file system that takes long: it runs in a thread of its own, and commands look
//! at its progress, pause or cancel it.
//!
//! Owns [`Jobs`].
//!
//! **Invariants**
//! - One job runs at a time. Its status is kept until the next one starts.
//! - Scrubs of single devices wait for one another in the order of their calls ([`ScrubTurn`]), as
//!   one caller starts them for all devices at once.
//! - [`Jobs::stop`] returns after the thread has ended, so that the file system can be closed. A
//!   balance, or the replacement of a device, is then paused, and the next mount resumes it.
//!
//! **Lock:** one leaf, with a condition variable that tells of the end of a job.

use papilio::format::DeviceId;
use papilio::{BalanceControl, BalanceReport, FileSystem, ReplaceReport, ScrubLimit, ScrubReport};
use papilio_ioctl::job::{JobKind, JobState, JobStatus};
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug, Default)]
struct RunningJobs {
    status: Option<JobStatus>,
    begun: Option<Instant>,
    wanted: Option<BalanceControl>,
    thread: Option<JoinHandle<()>>,
    closed: bool,
    /// The scrubs of single devices: the first runs or is next.
    scrubs: VecDeque<(u64, DeviceId)>,
    /// The number of the last scrub in `scrubs` that was there when scrubs were cancelled.
    cancelled_scrubs: u64,
    last_scrub: u64,
}

/// The job of a mount.
#[derive(Debug, Default)]
pub struct Jobs {
    state: Mutex<RunningJobs>,
    ended: Condvar,
    scrub_limit: ScrubLimit,
}

/// The place of a scrub of one device among those that wait. It ends with this value.
#[derive(Debug)]
pub struct ScrubTurn<'a> {
    jobs: &'a Jobs,
    number: u64,
}

impl ScrubTurn<'_> {
    /// Waits for at most `most` until the scrubs before this one have ended. Returns whether they
    /// have.
    ///
    /// # Errors
    /// `Interrupted`: scrubs were cancelled meanwhile.
    pub fn wait(&self, most: Duration) -> io::Result<bool> {
        let is_first = |state: &RunningJobs| state.scrubs.front().is_some_and(|first| first.0 == self.number);
        let waits = |state: &mut RunningJobs| !is_first(state) && state.cancelled_scrubs < self.number;
        let waited = self.jobs.ended.wait_timeout_while(self.jobs.lock(), most, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.cancelled_scrubs < self.number {
            true => Ok(is_first(&state)),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

impl Drop for ScrubTurn<'_> {
    fn drop(&mut self) {
        self.jobs.lock().scrubs.retain(|scrub| scrub.0 != self.number);
        self.jobs.ended.notify_all();
    }
}

/// The side of [`Jobs`] that a job's thread sees.
#[derive(Debug)]
pub struct Report<'a>(&'a Jobs);

impl Report<'_> {
    /// Notes the progress, and returns how to go on.
    pub fn moved(&self, report: &BalanceReport) -> BalanceControl {
        let mut state = self.0.lock();
        if let Some(status) = &mut state.status {
            status.moved = *report;
        }
        state.wanted.unwrap_or(BalanceControl::Continue)
    }

    /// As [`Report::moved`], for a replacement.
    pub fn copied(&self, report: &ReplaceReport) -> BalanceControl {
        let (bytes, expected_bytes) = (report.bytes_done, report.bytes_total);
        self.moved(&BalanceReport { bytes, expected_bytes, ..BalanceReport::default() })
    }

    /// As [`Report::moved`], for a scrub.
    pub fn scrubbed(&self, report: &ScrubReport) -> BalanceControl {
        let mut state = self.0.lock();
        if let Some(status) = &mut state.status {
            status.scrub.clone_from(report);
        }
        state.wanted.unwrap_or(BalanceControl::Continue)
    }
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, RunningJobs> {
        // A job that panics leaves its state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit of the scrub that runs and of later ones.
    pub fn scrub_limit(&self) -> &ScrubLimit {
        &self.scrub_limit
    }

    /// Starts a job, and returns its number.
    ///
    /// # Errors
    /// `ResourceBusy` while another job runs, or after [`Jobs::stop`]; the thread cannot be
    /// started.
    pub fn start(
        self: &std::sync::Arc<Self>,
        kind: JobKind,
        fs: FileSystem,
        work: impl FnOnce(&FileSystem, &Report<'_>) -> papilio::Result<()> + Send + 'static,
    ) -> io::Result<u64> {
        let mut state = self.lock();
        if state.closed || state.status.as_ref().is_some_and(|status| status.state == JobState::Running) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let number = state.status.as_ref().map_or(1, |status| status.number + 1);
        let jobs = std::sync::Arc::clone(self);
        let run = move || {
            let work = std::panic::AssertUnwindSafe(|| work(&fs, &Report(&jobs)));
            let outcome = std::panic::catch_unwind(work);
            // Before the end is told: the file system may then be closed.
            drop(fs);
            jobs.end(outcome.unwrap_or_else(|_| Err(papilio::Error::Invalid("the job panicked".to_owned()))));
        };
        let thread = std::thread::Builder::new().name("papilio-job".to_owned()).spawn(run)?;
        state.status = Some(JobStatus {
            number,
            kind,
            state: JobState::Running,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            duration: Duration::ZERO,
            moved: BalanceReport::default(),
            scrub: ScrubReport::default(),
            errno: 0,
            error: String::new(),
        });
        (state.begun, state.wanted, state.thread) = (Some(Instant::now()), None, Some(thread));
        Ok(number)
    }

    /// Notes the end of the job. Its thread may be here before [`Jobs::start`] has noted it, but
    /// not past the lock.
    fn end(&self, outcome: papilio::Result<()>) {
        let mut state = self.lock();
        let (wanted, begun) = (state.wanted, state.begun);
        if let Some(status) = &mut state.status {
            status.duration = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
            status.state = match (&outcome, wanted) {
                (Err(_), _) => JobState::Failed,
                (Ok(()), Some(BalanceControl::Pause))
                    if matches!(status.kind, JobKind::Balance | JobKind::ReplaceDevice) =>
                {
                    JobState::Paused
                }
                (Ok(()), Some(BalanceControl::Pause | BalanceControl::Cancel)) => JobState::Cancelled,
                (Ok(()), _) => JobState::Done,
            };
            if let Err(error) = outcome {
                tracing::warn!("{} ended: {error}", status.kind.name());
                (status.errno, status.error) = (error.errno(), error.to_string());
            }
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Queues a scrub of one device.
    ///
    /// # Errors
    /// `ResourceBusy`: one of that device is queued already, or another job runs.
    pub fn queue_scrub(&self, devid: DeviceId) -> io::Result<ScrubTurn<'_>> {
        let mut state = self.lock();
        let runs = state.status.as_ref().is_some_and(|status| status.state == JobState::Running);
        let is_queued = state.scrubs.iter().any(|scrub| scrub.1 == devid);
        if is_queued || runs && state.scrubs.is_empty() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        state.last_scrub += 1;
        let number = state.last_scrub;
        state.scrubs.push_back((number, devid));
        Ok(ScrubTurn { jobs: self, number })
    }

    /// Cancels all scrubs that [`Jobs::queue_scrub`] queued. Returns whether there were any.
    pub fn cancel_scrubs(&self) -> bool {
        let mut state = self.lock();
        state.cancelled_scrubs = state.last_scrub;
        let found = !state.scrubs.is_empty();
        drop(state);
        self.ended.notify_all();
        found
    }

    /// Returns the progress of the scrub of one device: nothing while it waits for others. `None`
    /// if no scrub concerns the device.
    pub fn scrub_of(&self, devid: DeviceId) -> Option<ScrubReport> {
        let state = self.lock();
        let running = state.status.as_ref();
        let running =
            running.filter(|status| (status.kind, status.state) == (JobKind::Scrub, JobState::Running));
        let place = state.scrubs.iter().position(|scrub| scrub.1 == devid);
        match place {
            Some(place) if place > 0 => Some(ScrubReport::default()),
            Some(_) => Some(running.map(|status| status.scrub.clone()).unwrap_or_default()),
            None if state.scrubs.is_empty() => running.map(|status| status.scrub.clone()),
            None => None,
        }
    }

    /// Returns the job that runs, or the last one.
    pub fn status(&self) -> Option<JobStatus> {
        let state = self.lock();
        let mut status = state.status.clone()?;
        if status.state == JobState::Running {
            status.duration = state.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        }
        Some(status)
    }

    /// Returns the running job of a kind.
    pub fn running(&self, kind: JobKind) -> Option<JobStatus> {
        self.status().filter(|status| (status.kind, status.state) == (kind, JobState::Running))
    }

    /// Returns whether a job runs or scrubs wait.
    pub fn is_busy(&self) -> bool {
        let state = self.lock();
        !state.scrubs.is_empty()
            || state.status.as_ref().is_some_and(|status| status.state == JobState::Running)
    }

    /// Asks the running job of this kind to stop. Returns whether there is one.
    pub fn ask(&self, kind: JobKind, control: BalanceControl) -> bool {
        let mut state = self.lock();
        let status = state.status.as_ref();
        let found = status.is_some_and(|status| (status.kind, status.state) == (kind, JobState::Running));
        if found {
            state.wanted = Some(control);
        }
        found
    }

    /// Waits for at most `most` for the end of a job. Returns its status, or `None` if it runs.
    pub fn wait(&self, number: u64, most: Duration) -> Option<JobStatus> {
        let runs = |state: &mut RunningJobs| {
            let status = state.status.as_ref();
            status.is_some_and(|status| status.number == number && status.state == JobState::Running)
        };
        let (state, timeout) =
            self.ended.wait_timeout_while(self.lock(), most, runs).unwrap_or_else(PoisonError::into_inner);
        state.status.clone().filter(|_| !timeout.timed_out())
    }

    /// Ends the running job: a balance or a replacement is paused. No job can be started
    /// afterwards.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wanted = Some(BalanceControl::Pause);
        let thread = state.thread.take();
        drop(state);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a job panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::{MkfsOptions, OpenOptions};
    use std::sync::Arc;

    fn file_system(folder: &tempfile::TempDir) -> FileSystem {
        let image = folder.path().join("jobs.img");
        papilio::mkfs(&image, &MkfsOptions::new().size(128 << 20)).unwrap();
        FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap()
    }

    /// A job that runs until it is told to stop.
    fn endless(jobs: &Arc<Jobs>, fs: &FileSystem) -> io::Result<u64> {
        jobs.start(JobKind::Balance, fs.clone(), |_, report| {
            while report.moved(&BalanceReport { bytes: 7, ..BalanceReport::default() })
                == BalanceControl::Continue
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    }

    #[test]
    fn one_job_runs_at_a_time_and_can_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (fs, jobs) = (file_system(&folder), Arc::new(Jobs::default()));
        assert!(jobs.status().is_none() && !jobs.ask(JobKind::Balance, BalanceControl::Cancel));
        let first = endless(&jobs, &fs).unwrap();
        assert!(endless(&jobs, &fs).is_err() && !jobs.ask(JobKind::Scrub, BalanceControl::Cancel));
        assert!(jobs.wait(first, Duration::from_millis(5)).is_none());
        assert_eq!(jobs.running(JobKind::Balance).unwrap().number, first);
        assert!(jobs.ask(JobKind::Balance, BalanceControl::Cancel));
        let ended = jobs.wait(first, Duration::from_secs(60)).unwrap();
        assert_eq!((ended.state, ended.moved.bytes), (JobState::Cancelled, 7));

        let fails = |_: &FileSystem, _: &Report<'_>| Err(papilio::Error::NoSpace { what: "a test" });
        let second = jobs.start(JobKind::Resize, fs.clone(), fails).unwrap();
        let ended = jobs.wait(second, Duration::from_secs(60)).unwrap();
        assert_eq!((ended.state, ended.errno), (JobState::Failed, libc::ENOSPC));
        assert!(second > first && ended.error.contains("no space"), "{}", ended.error);

        endless(&jobs, &fs).unwrap();
        jobs.stop();
        assert_eq!(jobs.status().unwrap().state, JobState::Paused);
        assert!(endless(&jobs, &fs).is_err(), "after the end of the mount");
        fs.close().unwrap();
    }

    #[test]
    fn scrubs_of_single_devices_wait_for_one_another() {
        let folder = tempfile::tempdir().unwrap();
        let (fs, jobs) = (file_system(&folder), Arc::new(Jobs::default()));
        let short = Duration::from_millis(5);
        let (one, two, three) = (DeviceId(1), DeviceId(2), DeviceId(3));
        let first = jobs.queue_scrub(one).unwrap();
        let second = jobs.queue_scrub(two).unwrap();
        assert!(jobs.queue_scrub(two).is_err(), "twice the same device");
        assert!(first.wait(short).unwrap() && !second.wait(short).unwrap());
        let waits = |devid| jobs.scrub_of(devid).map(|report| report.finished);
        assert_eq!((waits(one), waits(two), waits(three)), (Some(false), Some(false), None));
        drop(first);
        assert!(second.wait(short).unwrap());
        assert_eq!(waits(one), None);
        assert!(jobs.cancel_scrubs());
        assert_eq!(second.wait(short).unwrap_err().kind(), io::ErrorKind::Interrupted);
        drop(second);
        assert!(!jobs.cancel_scrubs());
        // One that comes after the cancellation runs.
        assert!(jobs.queue_scrub(two).unwrap().wait(short).unwrap());

        endless(&jobs, &fs).unwrap();
        assert!(jobs.queue_scrub(one).is_err(), "beside another job");
        jobs.stop();
        fs.close().unwrap();
    }
}

//! The run: one job after another, and for each job all sides in turn, round by round.
//!
//! - The order of the sides rotates by one with every round, so that no side always runs first.
//! - A side that fails is left out of the rest of its job. The report drops its results and says
//!   why.

use crate::against::Against;
use crate::backing::{Backing, Place};
use crate::environment::Environment;
use crate::interrupt;
use crate::job::{CHECKSUMMED_WRITE, Files, Job, Scale, ScaledJob};
use crate::machine::Machine;
use crate::model::Model;
use crate::progress::Progress;
use crate::report::{JobReport, LeftOut, Report, SideReport};
use crate::side::Side;
use crate::sides::Bench;
use anyhow::bail;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The jobs, sides and parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The jobs, in order.
    pub jobs: Vec<&'static Job>,
    /// The sides, in order.
    pub sides: Vec<Side>,
    /// Size and duration of each run.
    pub scale: Scale,
    /// Number of times each side runs each job.
    pub rounds: usize,
    /// Whether Papilio's sides run each job once more under perf.
    pub profile: bool,
    /// Where to put the backing.
    pub place: Place,
    /// Whether a block device may be overwritten.
    pub overwrite: bool,
    /// Delay of each of Papilio's requests to the backing.
    pub delay: Option<Duration>,
    /// Path of Papilio's fio engine, if the user gave one.
    pub engine: Option<PathBuf>,
    /// The other build, if the user gave one.
    pub against: Against,
    /// Whether to suppress progress messages.
    pub quiet: bool,
}

/// The sides that `--profile` covers.
const PROFILED: [Side; 3] = [Side::Papilio, Side::Mount, Side::MountRing];

/// The runs of one side in the current job.
struct Contender {
    side: Side,
    report: SideReport,
    failed: bool,
}

impl Plan {
    /// Runs the jobs. `output` is a directory for fio's own files.
    ///
    /// The report names every side that fails. After an interrupt, it has the results up to then.
    ///
    /// # Errors
    /// No side can run, or the backing cannot be created.
    pub fn run(&self, output: &Path) -> anyhow::Result<Report> {
        interrupt::watch();
        let environment = Environment::find(self.engine.as_deref(), &self.against)?;
        let (sides, left_out) = self.available(&environment)?;
        let jobs: Vec<ScaledJob> =
            self.jobs.iter().map(|job| job.scaled(self.scale)).collect::<anyhow::Result<_>>()?;
        let bytes = jobs.iter().map(ScaledJob::image_bytes).max().unwrap_or_default();
        let cache = jobs.iter().filter_map(|job| job.cache).max().unwrap_or_default();
        let mut progress = Progress::new(self.steps(&sides), self.quiet);
        for left in &left_out {
            progress.say(format_args!("{}: left out: {}", left.side, left.why));
        }
        progress.say(format_args!("backing of {} MiB", bytes >> 20));
        let backing = Backing::new(&self.place, bytes, cache, self.overwrite)?;
        let machine = Machine::here(Some(&environment.fio));
        let mut report = Report::new(machine, self.scale.size, self.rounds, (backing.kind(), bytes));
        report.left_out = left_out;
        let bench = Bench {
            environment: &environment,
            backing: &backing,
            output: output.to_owned(),
            delay: self.delay,
        };
        if jobs.iter().any(|job| job.job.id == CHECKSUMMED_WRITE) {
            progress.begin("bandwidths of memory, checksum and device");
            report.model = Some(Model::measure(backing.path(), backing.is_direct())?);
            progress.end();
        }
        let mut laid_out = None;
        for (number, job) in jobs.iter().enumerate() {
            if interrupt::seen() {
                break;
            }
            if !self.lay_out(&bench, job, &sides, &mut laid_out, &mut progress, &mut report.left_out) {
                progress.skip(sides.len() * self.rounds + self.profiles(&sides));
                continue;
            }
            let left_out = &mut report.left_out;
            let mut done = self.run_job(&bench, job, &sides, number, &mut progress, left_out);
            if self.profile {
                profile(&bench, job, &mut done, &mut progress, left_out);
            }
            report.jobs.push(done);
        }
        report.interrupted = interrupt::seen();
        Ok(report)
    }

    /// Returns the sides that can run on this machine, and why the others cannot.
    ///
    /// # Errors
    /// No side can run.
    pub(crate) fn available(&self, environment: &Environment) -> anyhow::Result<(Vec<Side>, Vec<LeftOut>)> {
        let mut left_out = Vec::new();
        let mut sides = self.sides.clone();
        sides.retain(|side| match environment.missing(*side) {
            Some(why) => {
                left_out.push(LeftOut { side: *side, job: None, why });
                false
            }
            None => true,
        });
        if sides.is_empty() {
            let why: Vec<String> =
                left_out.iter().map(|left| format!("{}: {}", left.side, left.why)).collect();
            bail!("no side can run on this machine: {}", why.join("; "));
        }
        Ok((sides, left_out))
    }

    /// Number of progress steps: all runs, layouts of shared files, and the model.
    fn steps(&self, sides: &[Side]) -> usize {
        let mut shared: Vec<Files> =
            self.jobs.iter().map(|job| job.files).filter(|files| *files != Files::New).collect();
        shared.dedup();
        let model = usize::from(self.jobs.iter().any(|job| job.id == CHECKSUMMED_WRITE));
        self.jobs.len() * (sides.len() * self.rounds + self.profiles(sides)) + shared.len() + model
    }

    /// Number of profiles of each job.
    fn profiles(&self, sides: &[Side]) -> usize {
        if self.profile { PROFILED.iter().filter(|side| sides.contains(side)).count() } else { 0 }
    }

    /// Creates the shared files of a job unless they exist; returns whether the job can run.
    fn lay_out(
        &self,
        bench: &Bench<'_>,
        job: &ScaledJob,
        sides: &[Side],
        laid_out: &mut Option<Files>,
        progress: &mut Progress,
        left_out: &mut Vec<LeftOut>,
    ) -> bool {
        if job.job.files == Files::New || *laid_out == Some(job.job.files) {
            *laid_out = (job.job.files != Files::New).then_some(job.job.files);
            return true;
        }
        *laid_out = None;
        progress.begin(format_args!("{} files of {} MiB", job.job.id, job.file_bytes >> 20));
        let result = bench.lay_out(job, sides);
        progress.end();
        match result {
            Ok(()) => {
                *laid_out = Some(job.job.files);
                true
            }
            Err(error) => {
                progress.say(format_args!("{}: left out: {error:#}", job.job.id));
                left_out.extend(sides.iter().map(|side| LeftOut {
                    side: *side,
                    job: Some(job.job.id.to_owned()),
                    why: format!("cannot write its files: {error:#}"),
                }));
                false
            }
        }
    }

    fn run_job(
        &self,
        bench: &Bench<'_>,
        job: &ScaledJob,
        sides: &[Side],
        number: usize,
        progress: &mut Progress,
        left_out: &mut Vec<LeftOut>,
    ) -> JobReport {
        let mut leave_out = |side: Side, why: String, progress: &Progress| {
            progress.say(format_args!("{} {side}: left out: {why}", job.job.id));
            left_out.push(LeftOut { side, job: Some(job.job.id.to_owned()), why });
        };
        let mut contenders: Vec<Contender> = Vec::new();
        for &side in sides {
            let why = Environment::missing_for(side, job);
            let failed = why.is_some();
            if let Some(why) = why {
                leave_out(side, why, progress);
            }
            contenders.push(Contender { side, report: SideReport { side, runs: Vec::new() }, failed });
        }
        for round in 0..self.rounds {
            for place in 0..contenders.len() {
                let next = (place + round + number) % contenders.len();
                let contender = &mut contenders[next];
                if contender.failed || interrupt::seen() {
                    progress.skip(1);
                    continue;
                }
                let side = contender.side;
                progress.begin(format_args!("{} round {} of {}: {side}", job.job.id, round + 1, self.rounds));
                let result = bench.measure(job, side, round);
                progress.end();
                match result {
                    Ok(run) => contender.report.runs.push(run),
                    Err(_) if interrupt::seen() => {}
                    Err(error) => {
                        contender.failed = true;
                        // A median over the other rounds would hide the error.
                        contender.report.runs.clear();
                        leave_out(side, format!("{error:#}").replace('\n', " "), progress);
                    }
                }
            }
        }
        let mut sides: Vec<SideReport> = contenders
            .into_iter()
            .map(|contender| contender.report)
            .filter(|report| !report.runs.is_empty())
            .collect();
        sides.sort_by_key(|report| report.side);
        let ours = sides.iter().any(|report| matches!(report.side, Side::Papilio | Side::PapilioSlow));
        let measured = job.cache.filter(|_| ours && !interrupt::seen());
        JobReport {
            id: job.job.id.to_owned(),
            file: job.file.to_string(),
            file_bytes: job.file_bytes,
            cache: job.cache,
            sides,
            fio_memory: measured.and_then(|_| bench.fio_memory(job).ok()),
            profiles: Vec::new(),
        }
    }
}

/// Runs each of Papilio's sides that has results once more under perf.
fn profile(
    bench: &Bench<'_>,
    job: &ScaledJob,
    report: &mut JobReport,
    progress: &mut Progress,
    left_out: &mut Vec<LeftOut>,
) {
    for side in PROFILED {
        if report.side(side).is_none() || interrupt::seen() {
            continue;
        }
        progress.begin(format_args!("{} profile of {side}", job.job.id));
        let result = bench.profile(job, side);
        progress.end();
        match result {
            Ok(profile) => report.profiles.push(profile),
            Err(_) if interrupt::seen() => {}
            Err(error) => {
                let why = format!("cannot profile: {error:#}").replace('\n', " ");
                progress.say(format_args!("{} {side}: left out: {why}", job.job.id));
                left_out.push(LeftOut { side, job: Some(job.job.id.to_owned()), why });
            }
        }
    }
}

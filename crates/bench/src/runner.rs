//! The run: jobs one after the other, and for each of them all sides in turn, round by round.
//!
//! The order of the sides moves by one with every round, so that none always runs first. A side that fails
//! is left out of the rest of its job and named; a job with an error is no figure.

use crate::backing::{Backing, Place};
use crate::environment::Environment;
use crate::interrupt;
use crate::job::{Files, Job, Scale, ScaledJob};
use crate::machine::Machine;
use crate::model::Model;
use crate::progress::Progress;
use crate::report::{JobReport, LeftOut, Report, SideReport};
use crate::side::Side;
use crate::sides::Bench;
use anyhow::bail;
use std::path::{Path, PathBuf};

/// What shall be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The jobs, in order.
    pub jobs: Vec<&'static Job>,
    /// By whom.
    pub sides: Vec<Side>,
    /// How large, how long.
    pub scale: Scale,
    /// How often.
    pub rounds: usize,
    /// Whether Papilio's sides run each job once more for a profile.
    pub profile: bool,
    /// On what.
    pub place: Place,
    /// Whether a block device may be overwritten.
    pub overwrite: bool,
    /// Papilio's engine, where the user says where it is.
    pub engine: Option<PathBuf>,
    /// Say nothing while it runs.
    pub quiet: bool,
}

/// The sides whose time is ours.
const PROFILED: [Side; 3] = [Side::Papilio, Side::Mount, Side::MountRing];

/// A side's runs of a job while they are collected.
struct Contender {
    side: Side,
    report: SideReport,
    failed: bool,
}

impl Plan {
    /// Runs it. `output` is a folder for fio's own files.
    ///
    /// # Errors
    /// What no side could run without is missing. A side that fails is named in the report; an interrupted
    /// run gives the report of what was done.
    pub fn run(&self, output: &Path) -> anyhow::Result<Report> {
        interrupt::watch();
        let environment = Environment::find(self.engine.as_deref())?;
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
        let bench = Bench { environment: &environment, backing: &backing, output: output.to_owned() };
        if jobs.iter().any(|job| job.job.id == "002") {
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

    /// The sides that can run here, and why the others cannot.
    ///
    /// # Errors
    /// None can.
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
            bail!("nothing can be run here: {}", why.join("; "));
        }
        Ok((sides, left_out))
    }

    /// Runs of all jobs, layouts of those that share files, and the model.
    fn steps(&self, sides: &[Side]) -> usize {
        let mut shared: Vec<Files> =
            self.jobs.iter().map(|job| job.files).filter(|files| *files != Files::New).collect();
        shared.dedup();
        let model = usize::from(self.jobs.iter().any(|job| job.id == "002"));
        self.jobs.len() * (sides.len() * self.rounds + self.profiles(sides)) + shared.len() + model
    }

    /// Profiles of a job.
    fn profiles(&self, sides: &[Side]) -> usize {
        if self.profile { PROFILED.iter().filter(|side| sides.contains(side)).count() } else { 0 }
    }

    /// Makes sure that the files of a job that reads are there; whether they are.
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
                    why: format!("its files: {error:#}"),
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
                        // Some rounds with figures and one with an error are no figure either.
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

/// Runs Papilio's sides, as far as they have figures, once more for their profiles.
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
                let why = format!("its profile: {error:#}").replace('\n', " ");
                progress.say(format_args!("{} {side}: left out: {why}", job.job.id));
                left_out.push(LeftOut { side, job: Some(job.job.id.to_owned()), why });
            }
        }
    }
}

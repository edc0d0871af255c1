//! Sweeps: the jobs with more threads, on files with more extents, or next to more snapshots.
//!
//! Owns [`SweepPlan`]. Papilio prepares extents and snapshots on one file system that all sides
//! use, so that every side meets the same trees. Jobs that write get a newly prepared file system
//! for each run; jobs that read the same files share one.

use crate::backing::Backing;
use crate::environment::Environment;
use crate::interrupt;
use crate::job::{Files, Job, ScaledJob};
use crate::job_file::{self, JobFile};
use crate::machine::Machine;
use crate::over::Over;
use crate::progress::Progress;
use crate::report::{JobReport, LeftOut, Point, Report, SideReport, Sweep};
use crate::runner::Plan;
use crate::side::Side;
use crate::sides::Bench;
use crate::sides::preparation::{Prepared, SECTOR, SHARED_BYTES, WINDOW};
use anyhow::{Context, bail};
use std::path::Path;

/// Usual size in bytes of the file in a sweep over extents.
///
/// The file is larger if the largest point needs it, and smaller if every extent has the maximum
/// size.
const EXTENTS_FILE: u64 = 1000 * WINDOW;
/// Page cache limit in bytes for that file; far smaller than the file.
const EXTENTS_CACHE: u64 = 512 << 20;
/// Assumed maximum write rate of a side in a sweep over extents, in bytes per second.
const WRITTEN_IN_A_SECOND: f64 = 2.0 * (1 << 30) as f64;

/// A sweep to run.
#[derive(Clone, Debug)]
pub struct SweepPlan {
    /// Jobs, sides, size and backing.
    pub plan: Plan,
    /// The quantities to vary, one after the other.
    pub over: Vec<Over>,
    /// The points, ascending; empty for the default points of each quantity.
    pub points: Vec<u64>,
}

/// A job at one point of a sweep.
struct Varied {
    job: ScaledJob,
    prepared: Option<Prepared>,
    /// Whether all runs use the files of one layout or preparation.
    shared: bool,
}

/// The files on the backing, if no run has changed them: whose they are, their bytes, and how they
/// were prepared.
type Ready = Option<(Files, u64, Prepared)>;

/// State of a running sweep.
struct State {
    ready: Ready,
    progress: Progress,
    left_out: Vec<LeftOut>,
}

impl SweepPlan {
    /// Runs the sweep. `output` is a directory for fio's own files.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run(&self, output: &Path) -> anyhow::Result<Report> {
        interrupt::watch();
        let plan = &self.plan;
        let environment = Environment::find(plan.engine.as_deref(), &plan.against)?;
        let (sides, left_out) = plan.available(&environment)?;
        let mut work: Vec<(Over, u64, Varied)> = Vec::new();
        for over in &self.over {
            let points = if self.points.is_empty() { over.points() } else { &self.points };
            // Keeps jobs that share files next to each other.
            for &point in points {
                for job in plan.jobs.iter().filter(|job| concerns(*over, job)) {
                    work.push((*over, point, vary(job.scaled(plan.scale)?, *over, points, point)?));
                }
            }
        }
        if work.is_empty() {
            bail!("no selected job supports a sweep over extents; choose from {}", EXTENT_JOBS.join(", "));
        }
        let bytes = work.iter().map(|(.., varied)| varied.image_bytes()).max().unwrap_or_default();
        let cache = work.iter().filter_map(|(.., varied)| varied.job.cache).max().unwrap_or_default();
        let progress = Progress::new(work.len() * sides.len() * plan.rounds, plan.quiet);
        for left in &left_out {
            progress.say(format_args!("{}: left out: {}", left.side, left.why));
        }
        progress.say(format_args!("backing of {} MiB", bytes >> 20));
        let backing = Backing::new(&plan.place, bytes, cache, plan.overwrite)?;
        let machine = Machine::here(Some(&environment.fio));
        let mut report = Report::new(machine, plan.scale.size, plan.rounds, (backing.kind(), bytes));
        let bench = Bench {
            environment: &environment,
            backing: &backing,
            output: output.to_owned(),
            delay: plan.delay,
        };
        let mut state = State { ready: None, progress, left_out };
        for (over, point, varied) in &work {
            if interrupt::seen() {
                break;
            }
            let label = format!("{} with {point} {}", varied.job.job.id, over.unit());
            let job = self.run_point(&bench, varied, &sides, &label, &mut state);
            report.sweep(*over).add(Point { value: *point, job });
        }
        report.left_out = state.left_out;
        report.interrupted = interrupt::seen();
        Ok(report)
    }

    fn run_point(
        &self,
        bench: &Bench<'_>,
        varied: &Varied,
        sides: &[Side],
        label: &str,
        state: &mut State,
    ) -> JobReport {
        let State { ready, progress, left_out } = state;
        let job = &varied.job;
        let mut reports: Vec<SideReport> =
            sides.iter().map(|side| SideReport { side: *side, runs: Vec::new() }).collect();
        let mut failed: Vec<Side> = Vec::new();
        let mut laid_out = false;
        for round in 0..self.plan.rounds {
            for place in 0..reports.len() {
                let next = (place + round) % reports.len();
                let side = reports[next].side;
                if failed.contains(&side) || interrupt::seen() {
                    progress.skip(1);
                    continue;
                }
                progress.begin(format_args!("{label}, round {}: {side}", round + 1));
                let result = varied.run(bench, sides, side, round, ready, &mut laid_out);
                progress.end();
                match result {
                    Ok(run) => reports[next].runs.push(run),
                    Err(_) if interrupt::seen() => {}
                    Err(error) => {
                        let why = format!("{error:#}").replace('\n', " ");
                        progress.say(format_args!("{label}, {side}: left out: {why}"));
                        left_out.push(LeftOut { side, job: Some(label.to_owned()), why });
                        failed.push(side);
                        reports[next].runs.clear();
                    }
                }
            }
        }
        reports.retain(|report| !report.runs.is_empty());
        JobReport {
            id: job.job.id.to_owned(),
            file: job.file.to_string(),
            file_bytes: job.file_bytes,
            cache: job.cache,
            sides: reports,
            fio_memory: None,
            profiles: Vec::new(),
        }
    }
}

/// The jobs that a sweep over extents can vary: each works on one file.
const EXTENT_JOBS: [&str; 3] = ["prealloc-write", "direct-read-4k", "cached-read"];

/// Returns whether the quantity applies to a job.
fn concerns(over: Over, job: &Job) -> bool {
    over != Over::Extents || EXTENT_JOBS.contains(&job.id)
}

impl Varied {
    /// Size of the backing in bytes, including the metadata of extents and snapshots.
    fn image_bytes(&self) -> u64 {
        match self.prepared {
            Some(Prepared { extents: Some(per_window), .. }) => {
                let extents = self.job.file_bytes / WINDOW * per_window;
                let seconds = if self.shared { 0.0 } else { self.job.seconds.unwrap_or(1.0) };
                let written = (WRITTEN_IN_A_SECOND * seconds) as u64;
                // Each extent's file item, twice (DUP), in half-full leaves, before and after a
                // commit.
                (SHARED_BYTES + written + extents * 400 + (1 << 30)).next_multiple_of(1 << 20)
            }
            // Each snapshot's root block, and the blocks that its commit replaces.
            Some(Prepared { snapshots, .. }) => self.job.image_bytes() + (snapshots << 20),
            None => self.job.image_bytes(),
        }
    }

    /// Prepares the files if necessary and runs the job once.
    ///
    /// `ready` describes the prepared files on the backing, perhaps of another job. `laid_out`
    /// tells whether this point's unprepared shared files exist.
    fn run(
        &self,
        bench: &Bench<'_>,
        sides: &[Side],
        side: Side,
        round: usize,
        ready: &mut Ready,
        laid_out: &mut bool,
    ) -> anyhow::Result<crate::fio::run::Measurement> {
        if let Some(why) = Environment::missing_for(side, &self.job) {
            bail!(why);
        }
        match self.prepared {
            // The raw side needs no particular contents.
            Some(_) if side == Side::Raw => {}
            Some(prepared) => {
                let wanted = (self.job.job.files, self.job.file_bytes, prepared);
                // In a sweep over extents, all jobs use the same file.
                let same = |there: &(Files, u64, Prepared)| match prepared.extents {
                    Some(_) => (there.1, there.2) == (wanted.1, wanted.2),
                    None => *there == wanted && self.shared,
                };
                if !ready.as_ref().is_some_and(same) {
                    *ready = None;
                    bench.prepare(&self.job, &prepared)?;
                    *ready = Some(wanted);
                }
            }
            None if self.shared && !*laid_out => {
                bench.lay_out(&self.job, sides)?;
                *laid_out = true;
            }
            None => {}
        }
        let fresh = self.prepared.is_none() && !self.shared;
        if !self.shared || self.prepared.is_none() {
            *ready = None;
        }
        bench.measure_on(&self.job, side, round, fresh)
    }
}

/// Changes a job for one point of a sweep.
fn vary(mut job: ScaledJob, over: Over, points: &[u64], point: u64) -> anyhow::Result<Varied> {
    let shared = job.job.files != Files::New;
    let prepared = match over {
        Over::Threads => {
            with_threads(&mut job, point)?;
            None
        }
        Over::Extents => {
            let bytes = extents_file(points, point)
                .with_context(|| format!("a file of {point} extents is too large"))?;
            in_one_file(&mut job, bytes);
            // Every window has the same number: rounding up gives at least `point` extents.
            let per_window = point.max(1).div_ceil(bytes / WINDOW);
            Some(Prepared { extents: Some(per_window), snapshots: 0 })
        }
        Over::Snapshots => Some(Prepared { extents: None, snapshots: point }),
    };
    Ok(Varied { job, prepared, shared })
}

/// Sets the number of concurrent jobs; the total size of the files stays the same.
fn with_threads(job: &mut ScaledJob, threads: u64) -> anyhow::Result<()> {
    let file = &mut job.file;
    let before: u64 = file.value("numjobs").map(str::parse).transpose()?.unwrap_or(1);
    // Each sequential writer gets a file of its own.
    if file.value("rw") == Some("write") {
        file.remove("filename");
    }
    if !file.has("filename") {
        let share = |value: &str, unit: u64| -> anyhow::Result<String> {
            let all = job_file::parse_size(value)? * before;
            Ok((all / threads.max(1)).next_multiple_of(unit).to_string())
        };
        let small_files = file.has("nrfiles");
        let unit = if small_files { 4 << 20 } else { 1 << 20 };
        file.change("size", |value| share(value, unit))?;
        file.change("filesize", |value| share(value, unit))?;
        if small_files {
            let bytes: u64 = file.value("size").unwrap_or_default().parse()?;
            file.set("nrfiles", bytes / (4 << 20));
        }
        let one: u64 = file.value("size").or(file.value("filesize")).unwrap_or_default().parse()?;
        job.file_bytes = one * threads;
    }
    file.set("numjobs", threads);
    Ok(())
}

/// Size in bytes of the file with `point` extents; the same for all points that fit it.
fn extents_file(points: &[u64], point: u64) -> Option<u64> {
    let least = points.iter().copied().min().unwrap_or(point).max(1);
    let usual = least.saturating_mul(WINDOW).min(EXTENTS_FILE);
    Some(point.checked_mul(SECTOR)?.max(usual).next_multiple_of(WINDOW))
}

/// Makes all jobs work on one file of `bytes`, in units of a sector.
fn in_one_file(job: &mut ScaledJob, bytes: u64) {
    let file: &mut JobFile = &mut job.file;
    for key in ["filename_format", "nrfiles", "openfiles", "file_service_type", "bssplit", "fallocate"] {
        file.remove(key);
    }
    file.set("filename", "extents");
    file.set("size", bytes);
    file.set("bs", SECTOR);
    file.set("fallocate", "none");
    job.file_bytes = bytes;
    job.cache = job.cache.map(|_| (bytes / 2).min(EXTENTS_CACHE));
}

impl Report {
    /// Returns the sweep over a quantity; adds an empty one if there is none.
    fn sweep(&mut self, over: Over) -> &mut Sweep {
        if let Some(place) = self.sweeps.iter().position(|sweep| sweep.over == over) {
            return &mut self.sweeps[place];
        }
        self.sweeps.push(Sweep { over, points: Vec::new() });
        let last = self.sweeps.len() - 1;
        &mut self.sweeps[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Scale;

    fn varied(id: &str, over: Over, points: &[u64], point: u64) -> Varied {
        let job = Job::named(id)[0].scaled(Scale { size: 1.0 / 64.0, seconds: None }).unwrap();
        vary(job, over, points, point).unwrap()
    }

    #[test]
    fn threads_divide_the_files() {
        for threads in [1, 2, 4, 16] {
            let nocow = varied("prealloc-write", Over::Threads, &[], threads).job;
            assert_eq!(nocow.file.value("numjobs"), Some(threads.to_string().as_str()));
            assert_eq!(nocow.file.value("size"), Some("134217728"));
            let write = varied("checksummed-write", Over::Threads, &[], threads).job;
            assert!(!write.file.has("filename"));
            assert_eq!(write.file_bytes, 1 << 30);
            let read = varied("direct-read-4k", Over::Threads, &[], threads).job;
            let size: u64 = read.file.value("size").unwrap().parse().unwrap();
            assert_eq!(size * threads, 1280 << 20);
            assert_eq!(read.file.value("nrfiles").unwrap().parse::<u64>().unwrap() * (4 << 20), size);
        }
        let fsync = varied("fsync", Over::Threads, &[], 1).job;
        assert_eq!(fsync.file.value("filesize"), Some((128 << 20).to_string().as_str()));
    }

    #[test]
    fn extents_divide_a_file_of_fixed_size() {
        let points = Over::Extents.points();
        for &point in points {
            let read = varied("direct-read-4k", Over::Extents, points, point);
            let bytes = read.job.file_bytes;
            assert_eq!(bytes, if point > 1_000_000 { 4883 * WINDOW } else { EXTENTS_FILE });
            let made = bytes / WINDOW * read.prepared.as_ref().unwrap().extents.unwrap();
            assert!((point..point + point / 1000).contains(&made) || made == point, "{point}: {made}");
            assert!(read.shared && read.image_bytes() < 6 << 30);
            assert!(!read.job.file.has("nrfiles"));
            let cached = varied("cached-read", Over::Extents, points, point);
            assert_eq!((cached.job.cache, cached.job.file_bytes), (Some(EXTENTS_CACHE), bytes));
        }
        assert_eq!(extents_file(&[100, 2000], 2000), Some(100 * WINDOW));
        assert_eq!(extents_file(&[u64::MAX], u64::MAX), None);
        assert!(!varied("prealloc-write", Over::Extents, points, 1_000).shared);
        assert!(!concerns(Over::Extents, Job::named("fsync")[0]));
        assert!(concerns(Over::Snapshots, Job::named("fsync")[0]));
    }
}

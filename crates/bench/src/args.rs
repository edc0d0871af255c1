//! The arguments of `papilio bench`, and their conversion to a [`Plan`].

use crate::against::Against;
use crate::backing::Place;
use crate::job::{JOBS, Job, Scale};
use crate::over::Over;
use crate::runner::Plan;
use crate::side::Side;
use crate::sweep::SweepPlan;
use crate::{age, devices, image, latency, names, nocow_check, read, send};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Invalid arguments.
#[derive(Debug)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Compare Papilio with the kernel's Btrfs on the same workloads, in turn
///
/// Without a subcommand, fio jobs run on the kernel's Btrfs, on Papilio inside fio (with each job's
/// tuning switch in both positions), on Papilio's mount, and on the backing without a file system.
/// Sides that this machine cannot run are skipped, and the report says why. Needs fio, and root for
/// the kernel's side.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) comparison: Option<Comparison>,
    #[command(flatten)]
    pub(crate) jobs: JobArgs,
}

/// Comparisons without fio.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Comparison {
    /// Read one large file and many small ones, with cold and warm caches
    Read(read::Arguments),
    /// Create, list, snapshot and delete many files
    Names(names::Arguments),
    /// Send and receive a snapshot, and send what changed between two
    Send(send::Arguments),
    /// Scrub and balance a file system, replace its device, and remove one of two
    Devices(devices::Arguments),
    /// Time the checksum lookup that precedes a write in place, in both modes of nocow_check
    NocowCheck(nocow_check::Arguments),
    /// Make an image from a directory with Papilio, mkfs.btrfs, and cp -a to a kernel mount
    Image(image::Arguments),
    /// Work on one file system for a long time, and show how it ages
    Age(age::Arguments),
    /// Measure how much of a slow device's parallelism Papilio uses
    Latency(latency::Arguments),
    /// Run the jobs with increasing numbers of threads, extents or snapshots
    Sweep(Box<SweepArgs>),
}

/// Arguments of `sweep`.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Quantities to vary
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, required = true)]
    over: Vec<Over>,
    /// Values to run with [default: 1,2,4,16 threads; 1000 to 10000000 extents; 1 to 1000
    /// snapshots]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    points: Vec<u64>,
    #[command(flatten)]
    pub jobs: JobArgs,
}

impl SweepArgs {
    /// Converts the arguments to a plan.
    ///
    /// # Errors
    /// As [`JobArgs::plan`].
    pub(crate) fn plan(&self, quiet: bool) -> Result<SweepPlan, UsageError> {
        if !self.jobs.report.is_empty() {
            return Err(UsageError("--report shows a finished sweep; use it without `sweep`".into()));
        }
        if self.jobs.profile {
            return Err(UsageError("--profile does not work with `sweep`".into()));
        }
        let mut points = self.points.clone();
        points.sort_unstable();
        points.dedup();
        if let Some(point) = points.iter().find(|point| !(1..=100_000_000).contains(*point)) {
            return Err(UsageError(format!("--points {point}: must be from 1 to 100000000")));
        }
        let most_threads = points.last().copied().unwrap_or_default();
        if self.over.contains(&Over::Threads) && most_threads > 1024 {
            return Err(UsageError(format!("--points {most_threads}: must be at most 1024 for threads")));
        }
        Ok(SweepPlan { plan: self.jobs.plan(quiet)?, over: self.over.clone(), points })
    }
}

/// Arguments of the jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Jobs to run, by name, prefix (direct-read, disk) or seed number (000) [default: all; in
    /// memory all but those for a disk]
    #[arg(value_name = "JOB", value_delimiter = ',')]
    words: Vec<String>,
    /// The same as JOB, as a comma-separated list
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    jobs: Vec<String>,
    /// Sides to run: kernel, papilio, papilio-slow, mount, mount-ring, raw
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "kernel,papilio,papilio-slow,mount,mount-ring,raw")]
    sides: Vec<String>,
    /// Factor for all file sizes; at 1, the largest job has 80 GiB of files
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0 / 64.0)]
    scale: f64,
    /// Longest time of a run [default: 1 below --scale 1, otherwise the job's own]
    #[arg(long, value_name = "SECONDS")]
    runtime: Option<f64>,
    /// Number of times each side runs each job; the report compares medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Run each job once more on Papilio's sides under perf, and report where the time goes
    #[arg(long)]
    profile: bool,
    /// Where the file systems are kept: ram, a directory, or a block device to overwrite
    #[arg(long, value_name = "ram|DIR|DEVICE", default_value = "ram")]
    backing: Place,
    /// Delay each of Papilio's requests to the backing, as if it were far away (100us, 1ms). Only
    /// Papilio's engine can do that: other sides do not run
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// Overwrite the block device given with --backing
    #[arg(long)]
    force: bool,
    /// Papilio's fio engine [default: libpapilio_fio.so next to this program]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    engine: Option<PathBuf>,
    /// Also run another build in turn with this one: its fio engine (FILE.so, side papilio-other)
    /// or its papilio command (side mount-other); repeat the option for both
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    against: Vec<PathBuf>,
    /// Write report.json, report.html and fio's own files to this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Also write the report as Markdown, with its plots in a directory `plots` next to it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub markdown: Option<PathBuf>,
    /// Run nothing and show this report.json; repeat the option to merge several reports
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub report: Vec<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Converts a time such as `100us` or `1ms`, from one microsecond to ten seconds.
fn parse_delay(text: &str) -> Result<Duration, UsageError> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let parsed = units.iter().find_map(|&(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(factor).filter(|microseconds| (1..=10_000_000).contains(microseconds))
    });
    parsed
        .map(Duration::from_micros)
        .ok_or_else(|| UsageError(format!("--delay {text:?}: not a time from 1us to 10s, such as 1ms")))
}

impl JobArgs {
    /// Converts the arguments to a plan.
    ///
    /// # Errors
    /// [`UsageError`]: an unknown job or side, or a number out of range.
    pub(crate) fn plan(&self, quiet: bool) -> Result<Plan, UsageError> {
        let jobs = self.selected_jobs()?;
        let delay = self.delay.as_deref().map(parse_delay).transpose()?;
        let against = Against::of(&self.against).map_err(|path| {
            UsageError(format!("--against {}: only one engine and one command", path.display()))
        })?;
        let mut sides = self.selected_sides(&against)?;
        if delay.is_some() {
            sides.retain(|side| matches!(side, Side::Papilio | Side::PapilioSlow | Side::PapilioOther));
        }
        if !(self.scale > 0.0 && self.scale <= 16.0) {
            return Err(UsageError(format!("--scale {}: must be more than 0 and at most 16", self.scale)));
        }
        if let Some(seconds) = self.runtime.filter(|seconds| !(0.001..=86_400.0).contains(seconds)) {
            return Err(UsageError(format!("--runtime {seconds}: must be from 0.001 to 86400 seconds")));
        }
        if !(1..=1000).contains(&self.rounds) {
            return Err(UsageError(format!("--rounds {}: must be from 1 to 1000", self.rounds)));
        }
        Ok(Plan {
            jobs,
            sides,
            scale: Scale { size: self.scale, seconds: self.runtime },
            rounds: self.rounds,
            profile: self.profile,
            place: self.backing.clone(),
            overwrite: self.force,
            delay,
            engine: self.engine.clone(),
            against,
            quiet,
        })
    }

    /// Returns the selected jobs, each once, in the order of [`JOBS`]: jobs that share files are
    /// neighbours in it.
    fn selected_jobs(&self) -> Result<Vec<&'static Job>, UsageError> {
        let mut wanted: Vec<&str> = Vec::new();
        for word in self.words.iter().chain(&self.jobs) {
            let named = Job::named(word);
            if named.is_empty() {
                let all: Vec<&str> = Job::all().map(|job| job.id).collect();
                return Err(UsageError(format!("unknown job {word:?}; choose from {}", all.join(", "))));
            }
            wanted.extend(named.iter().map(|job| job.id));
        }
        let every = wanted.is_empty();
        // In memory nothing is waited for.
        let waits = self.backing != Place::Ram || self.delay.is_some();
        let usual = |job: &Job| waits || JOBS.iter().any(|usual| usual.id == job.id);
        Ok(Job::all().filter(|job| wanted.contains(&job.id) || every && usual(job)).collect())
    }

    /// Returns the selected sides, each once, in the order of [`Side::ALL`].
    fn selected_sides(&self, against: &Against) -> Result<Vec<Side>, UsageError> {
        let mut sides = Vec::new();
        for word in &self.sides {
            let Some(side) = Side::named(word) else {
                let all: Vec<&str> = Side::ALL.iter().map(|side| side.name()).collect();
                return Err(UsageError(format!("unknown side {word:?}; choose from {}", all.join(", "))));
            };
            sides.push(side);
        }
        sides.extend(against.sides());
        let absent = |side: &&Side| side.is_other_build() && !against.sides().any(|given| given == **side);
        if let Some(side) = sides.iter().find(absent) {
            return Err(UsageError(format!("--sides {side}: needs --against FILE")));
        }
        sides.sort();
        sides.dedup();
        Ok(sides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.bench.jobs.plan(true).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_run_every_job_and_side() {
        let plan = plan("").unwrap();
        assert_eq!(plan.jobs.len(), JOBS.len());
        let sides = Side::ALL.into_iter().filter(|side| !side.is_other_build());
        assert_eq!(plan.sides, sides.collect::<Vec<_>>());
        assert_eq!((plan.rounds, plan.place), (3, Place::Ram));
    }

    #[test]
    fn repeated_words_select_once_in_order() {
        for line in ["--jobs direct-read-1m,000,direct-read", "003 prealloc-write,nocow-overwrite"] {
            let plan = plan(&format!("{line} --sides raw,kernel,raw --rounds 5 --runtime 2")).unwrap();
            assert_eq!(
                plan.jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
                ["prealloc-write", "nocow-overwrite", "direct-read-4k", "direct-read-1m"]
            );
            assert_eq!(plan.sides, [Side::Kernel, Side::Raw]);
            assert_eq!(plan.scale.seconds, Some(2.0));
        }
    }

    #[test]
    fn against_adds_the_other_build() {
        let plan = plan("fsync --sides papilio --against old.so").unwrap();
        assert_eq!(plan.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), ["fsync"]);
        assert_eq!(plan.sides, [Side::Papilio, Side::PapilioOther]);
        assert_eq!(plan.against.engine, Some("old.so".into()));
        let plan = self::plan("fsync --sides mount --against old/papilio").unwrap();
        assert_eq!(plan.sides, [Side::Mount, Side::MountOther]);
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (line, word) in [
            ("--jobs 005", "\"005\""),
            ("no-such-job", "\"no-such-job\""),
            ("--sides papilio-other", "needs --against"),
            ("--sides mount-other --against x.so", "needs --against"),
            ("--against a --against b", "--against b"),
            ("--sides kernel,ext4", "\"ext4\""),
            ("--scale 0", "--scale 0"),
            ("--scale nan", "--scale NaN"),
            ("--runtime -1", "-1"),
            ("--rounds 0", "--rounds 0"),
            ("--rounds x", "x"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}

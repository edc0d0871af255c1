//! The arguments of `papilio bench`, and the plan that they make.

use crate::backing::Place;
use crate::job::{JOBS, Job, Scale};
use crate::runner::Plan;
use crate::side::Side;
use crate::sweep::{Over, SweepPlan};
use crate::{image, names, read, sums};
use std::fmt;
use std::path::PathBuf;

/// The arguments make no sense.
#[derive(Debug)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Run the same work by the kernel's Btrfs and by Papilio, in turn, and compare
///
/// Without a subcommand: five jobs of the real fio, by the kernel's Btrfs, by Papilio within fio (with each
/// job's switch in both positions), by Papilio's mount, and on the bare backing. What this machine lacks is
/// left out and named. Needs fio; root for the kernel's side.
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
    /// Read one big file and many small ones, cold and warm
    Read(read::Arguments),
    /// Create, list, snapshot and delete many files
    Names(names::Arguments),
    /// Ask whether ranges of a file have checksums, as before a write in place, both ways
    NocowCheck(sums::Arguments),
    /// Make an image of a directory: Papilio, mkfs.btrfs, and the kernel's mount with cp -a
    Image(image::Arguments),
    /// Run the jobs with more threads, extents or snapshots, and see how the figures move
    Sweep(Box<SweepArgs>),
}

/// Arguments of the sweep.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// What there is more of
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, required = true)]
    over: Vec<Over>,
    /// How many [default: 1,2,4,16 threads; 1000 to 10000000 extents; 1 to 1000 snapshots]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    points: Vec<u64>,
    #[command(flatten)]
    pub jobs: JobArgs,
}

impl SweepArgs {
    /// What shall be run.
    ///
    /// # Errors
    /// As [`JobArgs::plan`].
    pub(crate) fn plan(&self, quiet: bool) -> Result<SweepPlan, UsageError> {
        if !self.jobs.report.is_empty() {
            return Err(UsageError("--report shows a sweep that was run, without `sweep`".into()));
        }
        if self.jobs.profile {
            return Err(UsageError("--profile is of jobs as they are, without `sweep`".into()));
        }
        let mut points = self.points.clone();
        points.sort_unstable();
        points.dedup();
        if let Some(point) = points.iter().find(|point| !(1..=100_000_000).contains(*point)) {
            return Err(UsageError(format!("--points {point}: from 1 to 100000000")));
        }
        let most_threads = points.last().copied().unwrap_or_default();
        if self.over.contains(&Over::Threads) && most_threads > 1024 {
            return Err(UsageError(format!("--points {most_threads}: at most 1024 threads")));
        }
        Ok(SweepPlan { plan: self.jobs.plan(quiet)?, over: self.over.clone(), points })
    }
}

/// Arguments of the jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// The jobs: 000 to 004, or one run of a job such as 003-4k
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "000,001,002,003,004")]
    jobs: Vec<String>,
    /// By whom: kernel, papilio, papilio-slow, mount, mount-ring, raw
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "kernel,papilio,papilio-slow,mount,mount-ring,raw")]
    sides: Vec<String>,
    /// Sizes as a part of the originals', of which the largest is 80 GiB
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0 / 64.0)]
    scale: f64,
    /// How long a run takes at most [default: 1 below scale 1, there the original's]
    #[arg(long, value_name = "SECONDS")]
    runtime: Option<f64>,
    /// How often each side runs each job; medians are compared
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Run Papilio's sides once more for each job, under perf: where their time goes
    #[arg(long)]
    profile: bool,
    /// Where the bytes are: ram, a folder, or a block device, all of which is overwritten
    #[arg(long, value_name = "ram|DIR|DEVICE", default_value = "ram")]
    backing: Place,
    /// Overwrite the block device
    #[arg(long)]
    force: bool,
    /// Papilio's engine for fio, where it does not lie beside this program
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    engine: Option<PathBuf>,
    /// Write report.json, report.html and fio's own files here
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Write the report as Markdown too, its plots into a folder `plots` beside it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub markdown: Option<PathBuf>,
    /// Run nothing: show this report.json again; of several (once for each), what the first lacks is added
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub report: Vec<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

impl JobArgs {
    /// What shall be run.
    ///
    /// # Errors
    /// [`UsageError`]: a word or a number that makes no sense.
    pub(crate) fn plan(&self, quiet: bool) -> Result<Plan, UsageError> {
        let mut jobs: Vec<&'static Job> = Vec::new();
        for word in &self.jobs {
            let named = Job::named(word);
            if named.is_empty() {
                let all: Vec<&str> = JOBS.iter().map(|job| job.id).collect();
                return Err(UsageError(format!("no job {word:?}; there are {}", all.join(", "))));
            }
            jobs.extend(named);
        }
        // Each once, those that share files after one another.
        let mut ordered: Vec<&'static Job> = JOBS.iter().collect();
        ordered.retain(|job| jobs.iter().any(|wanted| wanted.id == job.id));
        let mut sides = Vec::new();
        for word in &self.sides {
            let Some(side) = Side::named(word) else {
                let all: Vec<&str> = Side::ALL.iter().map(|side| side.name()).collect();
                return Err(UsageError(format!("no side {word:?}; there are {}", all.join(", "))));
            };
            if !sides.contains(&side) {
                sides.push(side);
            }
        }
        sides.sort();
        if !(self.scale > 0.0 && self.scale <= 16.0) {
            return Err(UsageError(format!("--scale {}: more than 0 and at most 16", self.scale)));
        }
        if let Some(seconds) = self.runtime.filter(|seconds| !(0.001..=86_400.0).contains(seconds)) {
            return Err(UsageError(format!("--runtime {seconds}: from 0.001 to 86400 seconds")));
        }
        if !(1..=1000).contains(&self.rounds) {
            return Err(UsageError(format!("--rounds {}: from 1 to 1000", self.rounds)));
        }
        Ok(Plan {
            jobs: ordered,
            sides,
            scale: Scale { size: self.scale, seconds: self.runtime },
            rounds: self.rounds,
            profile: self.profile,
            place: self.backing.clone(),
            overwrite: self.force,
            engine: self.engine.clone(),
            quiet,
        })
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
    fn defaults_are_all() {
        let plan = plan("").unwrap();
        assert_eq!(plan.jobs.len(), JOBS.len());
        assert_eq!(plan.sides, Side::ALL);
        assert_eq!((plan.rounds, plan.place), (3, Place::Ram));
    }

    #[test]
    fn each_is_run_once_in_order() {
        let plan = plan("--jobs 003-1m,000,003 --sides raw,kernel,raw --rounds 5 --runtime 2").unwrap();
        assert_eq!(
            plan.jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
            ["000", "000-nodatacow", "003-4k", "003-1m"]
        );
        assert_eq!(plan.sides, [Side::Kernel, Side::Raw]);
        assert_eq!(plan.scale.seconds, Some(2.0));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (line, word) in [
            ("--jobs 005", "\"005\""),
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

//! `cargo xtask campaign`: hours of seeded tests and fuzzing, which can be stopped and continued.
//!
//! Owns the choice of the next slice. Each processor runs one slice at a time. The next slice is
//! one of the job with the least time so far, relative to its weight. Slices that ended are in the
//! ledger, `results/campaign.tsv`, so that no seed runs twice.
//!
//! **Locks**: `Shared::state`, to choose a slice or to note its end. It is not held while a slice
//! runs.

mod corpus;
mod jobs;
mod ledger;
mod slices;

use anyhow::{Context, bail};
use jobs::{JOBS, Job, Kind};
use ledger::{Entry, Ledger};
use slices::{Ended, Programs, Slice, repeat_command};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The options of a campaign.
struct CampaignOptions {
    minutes: u64,
    profile: String,
    parallel: usize,
    jobs: Vec<&'static Job>,
}

/// The ledger's path below the root.
const LEDGER: &str = "results/campaign.tsv";

/// Usage of this command, a part of xtask's.
pub const USAGE: &str = "  campaign [--minutes N] [--jobs A,B] [--parallel N] [--profile P]
                  run seeded tests and fuzz targets for N minutes (60), and note each slice in
                  results/campaign.tsv. Continues where the last campaign stopped
  campaign --list     list the jobs
  campaign --summary  print the ledger's totals as a table";

/// Runs a campaign. Returns whether every slice passed.
///
/// # Errors
/// Wrong options; a build that fails; a ledger that cannot be read or written.
pub fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<bool> {
    let ledger = Ledger::read(&root.join(LEDGER))?;
    match arguments {
        ["--list"] => {
            for job in JOBS {
                println!("{:20} {}", job.name, job.unit);
            }
            return Ok(true);
        }
        ["--summary"] => {
            print!("{}", ledger.summary(|name| jobs::find(name).map_or("", |job| job.unit)));
            return Ok(true);
        }
        _ => {}
    }
    let mut options = parse(arguments)?;
    leave_out_the_impossible(&mut options.jobs);
    if options.jobs.is_empty() {
        bail!("this machine can run none of the jobs");
    }
    println!("campaign: building {} jobs", options.jobs.len());
    let programs = Programs::build(root, &options.jobs, &options.profile)?;
    let end = Instant::now() + Duration::from_secs(options.minutes * 60);
    let shared = Shared {
        build: build_of(root)?,
        end,
        programs,
        state: Mutex::new(State {
            ledger,
            spent: BTreeMap::new(),
            next_seeds: BTreeMap::new(),
            kernel: false,
            failures: Vec::new(),
        }),
        options,
    };
    let work = || {
        // Noted at once: the other workers go on, for hours.
        shared.work().inspect_err(|error| println!("campaign: a worker ended: {error:#}"))
    };
    let results: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..shared.options.parallel).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    results.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    for failure in &state.failures {
        println!("campaign: failed: {failure}");
    }
    println!("campaign: {} failures", state.failures.len());
    Ok(state.failures.is_empty())
}

fn parse(arguments: &[&str]) -> anyhow::Result<CampaignOptions> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = CampaignOptions {
        minutes: 60,
        profile: "release".to_owned(),
        parallel: processors,
        jobs: JOBS.iter().collect(),
    };
    let mut words = arguments.iter();
    while let Some(option) = words.next() {
        let value = words.next().with_context(|| format!("the option {option} has no value"))?;
        let number = || value.parse::<u64>().with_context(|| format!("{option} {value}: not a number"));
        match *option {
            "--minutes" => options.minutes = number()?,
            "--parallel" => options.parallel = usize::try_from(number()?)?.max(1),
            "--profile" => (*value).clone_into(&mut options.profile),
            "--jobs" => {
                let find = |name| jobs::find(name).with_context(|| format!("there is no job {name}"));
                options.jobs = value.split(',').map(find).collect::<anyhow::Result<_>>()?;
            }
            _ => bail!("unknown option {option}"),
        }
    }
    Ok(options)
}

/// Leaves out jobs that this machine cannot run, and says so.
fn leave_out_the_impossible(jobs: &mut Vec<&'static Job>) {
    let succeeds = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let can_fuzz = succeeds(Command::new("cargo").args(["+nightly", "fuzz", "--version"]));
    let id = Command::new("id").arg("-u").output();
    let is_root = id.is_ok_and(|output| output.stdout == b"0\n");
    jobs.retain(|job| {
        let why = match job.kind {
            Kind::Fuzz { .. } if !can_fuzz => "it needs cargo-fuzz and a nightly toolchain",
            _ if job.kernel && !is_root => "it needs root",
            _ => return true,
        };
        println!("campaign: without {}: {why}", job.name);
        false
    });
}

/// Returns the commit of the sources.
fn build_of(root: &Path) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

struct Shared {
    options: CampaignOptions,
    build: String,
    end: Instant,
    programs: Programs,
    state: Mutex<State>,
}

struct State {
    ledger: Ledger,
    /// Seconds of each job in this campaign.
    spent: BTreeMap<&'static str, u64>,
    /// First seed of the next slice of each job that ran in this campaign.
    next_seeds: BTreeMap<&'static str, u64>,
    /// Whether a job that the kernel judges runs.
    kernel: bool,
    failures: Vec<String>,
}

impl Shared {
    /// Runs slices until the time is over.
    fn work(&self) -> anyhow::Result<()> {
        while Instant::now() < self.end {
            let Some(slice) = self.lock().choose(&self.options.jobs) else {
                // All jobs need the kernel, and another thread has it.
                std::thread::sleep(Duration::from_secs(1));
                continue;
            };
            let ended = self.programs.run(&slice);
            // Given back before an error ends this thread.
            if slice.job.kernel {
                self.lock().kernel = false;
            }
            self.note(&slice, &ended?)?;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the end of a slice into the ledger, and narrows it if it failed.
    fn note(&self, slice: &Slice, ended: &Ended) -> anyhow::Result<()> {
        let seconds = ended.took.as_secs().max(1);
        let left = self.end.saturating_duration_since(Instant::now()).as_secs() / 60;
        println!(
            "campaign: {left} min left: {} from seed {}: {} {} in {seconds} s: {}",
            slice.job.name,
            slice.first_seed,
            ended.amount,
            slice.job.unit,
            if ended.passed { "passed" } else { "FAILED" },
        );
        let entry = Entry {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            build: self.build.clone(),
            job: slice.job.name.to_owned(),
            first_seed: slice.first_seed,
            amount: ended.amount,
            seconds,
            passed: ended.passed,
        };
        let mut state = self.lock();
        *state.spent.entry(slice.job.name).or_default() += seconds;
        state.ledger.append(entry)?;
        drop(state);
        if let Some(output) = &ended.output {
            let kept = output.with_extension("failed");
            std::fs::rename(output, &kept).with_context(|| format!("cannot keep {}", output.display()))?;
            let smallest = self.programs.narrow(*slice)?;
            let command = repeat_command(&smallest, &self.options.profile);
            let failure =
                format!("{}\n    output: {}\n    repeat: {command}", slice.job.name, kept.display());
            println!("campaign: FAILED: {failure}");
            self.lock().failures.push(failure);
        }
        Ok(())
    }
}

impl State {
    /// Takes the next slice: of the job with the least time for its weight.
    fn choose(&mut self, jobs: &[&'static Job]) -> Option<Slice> {
        let spent = |job: &Job| self.spent.get(job.name).copied().unwrap_or(0);
        let free = jobs.iter().filter(|job| !(job.kernel && self.kernel));
        let job = *free.min_by_key(|job| spent(job) * 1000 / job.weight)?;
        // Threads that choose at once choose different jobs.
        *self.spent.entry(job.name).or_default() += 1;
        let known = self.ledger.next_seed(job.name, job.stride);
        let next = self.next_seeds.entry(job.name).or_insert(known);
        let first_seed = *next;
        *next += job.stride;
        self.kernel |= job.kernel;
        Some(Slice { job, first_seed, amount: job.slice })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let folder = tempfile::tempdir().unwrap();
        State {
            ledger: Ledger::read(&folder.path().join("none")).unwrap(),
            spent: BTreeMap::new(),
            next_seeds: BTreeMap::new(),
            kernel: false,
            failures: Vec::new(),
        }
    }

    #[test]
    fn slices_take_turns_and_share_no_seed() {
        let jobs: Vec<_> = ["faults", "mutations"].map(|name| jobs::find(name).unwrap()).into();
        let mut state = state();
        let slices: Vec<_> = (0..6).map(|_| state.choose(&jobs).unwrap()).collect();
        for job in &jobs {
            let mut seeds: Vec<_> = slices
                .iter()
                .filter(|slice| slice.job.name == job.name)
                .map(|slice| slice.first_seed)
                .collect();
            assert_eq!(seeds.len(), 3, "{}", job.name);
            seeds.dedup();
            assert_eq!(seeds, [1, 1 + job.stride, 1 + 2 * job.stride], "{}", job.name);
        }
    }

    #[test]
    fn one_job_at_a_time_is_the_kernels() {
        let jobs = [jobs::find("kernel-turns").unwrap()];
        let mut state = state();
        assert!(state.choose(&jobs).is_some());
        assert!(state.choose(&jobs).is_none());
        state.kernel = false;
        assert!(state.choose(&jobs).is_some());
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |words: &[&str]| parse(words).err().unwrap().to_string();
        assert_eq!(error(&["--jobs", "faults,none"]), "there is no job none");
        assert_eq!(error(&["--minutes"]), "the option --minutes has no value");
        assert_eq!(error(&["--minutes", "x"]), "--minutes x: not a number");
        assert_eq!(error(&["--other", "x"]), "unknown option --other");
        assert_eq!(parse(&["--jobs", "faults", "--minutes", "3"]).unwrap().jobs[0].name, "faults");
    }
}

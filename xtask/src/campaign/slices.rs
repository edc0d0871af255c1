//! Running one slice of a job.
//!
//! Owns [`Programs`], the built tests and fuzz targets, and [`Programs::run`]. That runs a slice in
//! a process of its own and keeps its output if it fails.
//!
//! Invariant: programs are built once, before the first slice, and copied. So a campaign runs one
//! build, even if the sources change meanwhile and are built again.

use super::corpus::Corpora;
use super::jobs::{Job, Kind};
use crate::nested_cargo::nested_cargo;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A slice that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// Time between two looks at a running slice.
const POLL: Duration = Duration::from_millis(100);
/// libFuzzer's line with the number of executions.
const EXECUTIONS: &str = "stat::number_of_executed_units:";

/// A part of a job.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub job: &'static Job,
    pub first_seed: u64,
    pub amount: u64,
}

/// The end of a slice.
#[derive(Debug)]
pub struct Ended {
    pub passed: bool,
    /// Amount in the job's unit: executions for a fuzz target, whose slices count seconds.
    pub amount: u64,
    pub took: Duration,
    /// The kept output of a failed slice.
    pub output: Option<PathBuf>,
}

/// The built programs.
#[derive(Debug)]
pub struct Programs {
    root: PathBuf,
    /// Executables of tests, by package and test.
    tests: BTreeMap<(String, String), PathBuf>,
    /// Folder of the fuzz targets.
    targets: PathBuf,
    corpora: Corpora,
}

impl Programs {
    /// Builds the programs of `jobs`.
    ///
    /// # Errors
    /// A build that fails.
    pub fn build(root: &Path, jobs: &[&'static Job], profile: &str) -> anyhow::Result<Self> {
        let programs = root.join("target/campaign/programs");
        std::fs::create_dir_all(&programs)
            .with_context(|| format!("cannot make the folder {}", programs.display()))?;
        let mut wanted = BTreeSet::new();
        for job in jobs {
            match job.kind {
                Kind::Test { package, test, .. } => drop(wanted.insert((package, test))),
                Kind::Fuzz { target } => build_target(root, target)?,
            }
        }
        let mut tests = BTreeMap::new();
        for (package, test) in wanted {
            let built = build_test(root, package, test, profile)?;
            let path = copy_program(&built, &programs, &format!("{package}-{test}"))?;
            tests.insert((package.to_owned(), test.to_owned()), path);
        }
        let built = root.join("fuzz/target").join(host()?).join("release");
        for job in jobs {
            if let Kind::Fuzz { target } = job.kind {
                copy_program(&built.join(target), &programs, target)?;
            }
        }
        Ok(Self { root: root.to_owned(), tests, targets: programs, corpora: Corpora::default() })
    }

    /// Folder of a fuzz target's inputs.
    fn corpus(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/corpus").join(target)
    }

    /// Returns the command that runs a slice.
    fn command(&self, slice: &Slice) -> Command {
        match slice.job.kind {
            Kind::Test { package, test, function, amount, seed } => {
                let program = &self.tests[&(package.to_owned(), test.to_owned())];
                let mut command = Command::new(program);
                let folder = package.strip_prefix("papilio-").unwrap_or(package);
                command.current_dir(self.root.join("crates").join(folder)).arg("--nocapture");
                command.args(filter(function));
                command.env("PAPILIO_REQUIRE_ALL", "1").env(amount, slice.amount.to_string());
                if let Some(seed) = seed {
                    command.env(seed, slice.first_seed.to_string());
                }
                command
            }
            Kind::Fuzz { target } => {
                let corpus = self.corpus(target);
                let artifacts = self.root.join("fuzz/artifacts").join(target);
                for folder in [&corpus, &artifacts] {
                    // If this fails, the target says so.
                    let _ = std::fs::create_dir_all(folder);
                }
                let mut command = Command::new(self.targets.join(target));
                command.arg(corpus).current_dir(&self.root);
                command.arg(format!("-artifact_prefix={}/", artifacts.display()));
                command.arg(format!("-seed={}", slice.first_seed));
                command.arg(format!("-max_total_time={}", slice.amount));
                command.args(["-rss_limit_mb=2048", "-timeout=10", "-len_control=0"]);
                command.arg(format!("-max_len={}", max_length(target)));
                // Its statistics of each feature take half of the time of a whole mount.
                command.arg("-entropic=0");
                command.arg("-print_final_stats=1");
                command
            }
        }
    }

    /// Runs a slice. A failed one leaves its output in `target/campaign`.
    ///
    /// # Errors
    /// A program that cannot be run.
    pub fn run(&self, slice: &Slice) -> anyhow::Result<Ended> {
        if let Kind::Fuzz { target } = slice.job.kind {
            let corpus = self.corpus(target);
            if corpus.exists() {
                self.corpora.keep_small(&self.targets.join(target), &corpus)?;
            }
        }
        let folder = self.root.join("target/campaign");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let output = folder.join(format!("{}-{}.log", slice.job.name, slice.first_seed));
        let file = File::create(&output).with_context(|| format!("cannot create {}", output.display()))?;
        let started = Instant::now();
        let mut child = self
            .command(slice)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share the output's file")?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot run the job {}", slice.job.name))?;
        let status = loop {
            if let Some(status) = child.try_wait().context("cannot wait for a slice")? {
                break Some(status);
            }
            if started.elapsed() > LIMIT {
                child.kill().context("cannot end a slice that hangs")?;
                child.wait().context("cannot wait for a slice")?;
                break None;
            }
            std::thread::sleep(POLL);
        };
        let passed = status.is_some_and(|status| status.success());
        let text = std::fs::read(&output).unwrap_or_default();
        let amount = match slice.job.kind {
            Kind::Test { .. } => slice.amount,
            Kind::Fuzz { .. } => executions(&String::from_utf8_lossy(&text)),
        };
        if passed {
            std::fs::remove_file(&output).with_context(|| format!("cannot remove {}", output.display()))?;
        }
        let output = (!passed).then_some(output);
        Ok(Ended { passed, amount, took: started.elapsed(), output })
    }

    /// Narrows a failed slice of a job whose seeds are runs of their own, or whose amount can be
    /// less. Returns the smallest slice found that fails.
    ///
    /// # Errors
    /// As [`Programs::run`].
    pub fn narrow(&self, failed: Slice) -> anyhow::Result<Slice> {
        let Kind::Test { seed, .. } = failed.job.kind else { return Ok(failed) };
        let seed_each = seed.is_some() && failed.job.stride == failed.job.slice;
        let mut smallest = failed;
        while smallest.amount > 1 {
            let half = smallest.amount / 2;
            let first = Slice { amount: half, ..smallest };
            let second =
                Slice { first_seed: smallest.first_seed + half, amount: smallest.amount - half, ..smallest };
            if !self.run(&first)?.passed {
                smallest = first;
            } else if seed_each && !self.run(&second)?.passed {
                smallest = second;
            } else {
                break;
            }
        }
        Ok(smallest)
    }
}

/// Returns the arguments by which a test program runs one test, or all tests of a module.
fn filter(function: &str) -> Vec<&str> {
    if function.ends_with("::") { vec![function] } else { vec!["--exact", function] }
}

/// Returns the command that repeats a slice from a shell.
pub fn repeat_command(slice: &Slice, profile: &str) -> String {
    match slice.job.kind {
        Kind::Test { package, test, function, amount, seed } => {
            let seed = seed.map_or_else(String::new, |seed| format!("{seed}={} ", slice.first_seed));
            let filter = filter(function).join(" ");
            format!(
                "{seed}{amount}={} cargo test --profile {profile} -p {package} --test {test} -- {filter}",
                slice.amount
            )
        }
        Kind::Fuzz { target } => format!("cargo +nightly fuzz run {target} fuzz/artifacts/{target}/FILE"),
    }
}

/// Returns the executions that libFuzzer printed at its end.
fn executions(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(EXECUTIONS));
    lines.filter_map(|number| number.trim().parse::<u64>().ok()).sum()
}

/// Builds a test and returns its executable.
fn build_test(root: &Path, package: &str, test: &str, profile: &str) -> anyhow::Result<PathBuf> {
    let output = nested_cargo()
        .args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .args(["--profile", profile, "-p", package, "--test", test])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo cannot build the test {test} of {package}");
    }
    let built =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| executable(line, test)).next();
    built.with_context(|| format!("cargo names no executable of the test {test} of {package}"))
}

/// Returns the executable that one of cargo's messages names, if it is the test's.
fn executable(message: &str, test: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_test = message["target"]["name"] == test && message["target"]["kind"][0] == "test";
    is_test.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
}

/// Copies a program into `folder` and returns the copy's path.
fn copy_program(program: &Path, folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let copy = folder.join(name);
    let context = || format!("cannot copy {} to {}", program.display(), copy.display());
    // Not overwritten: another campaign may run the old one.
    match std::fs::remove_file(&copy) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(context);
        }
        _ => {}
    }
    std::fs::copy(program, &copy).with_context(context)?;
    Ok(copy)
}

/// Returns the sanitizer of a target. Code without `unsafe` needs none, and runs several times as
/// fast.
fn sanitizer(target: &str) -> &'static str {
    if target == "xarray" { "address" } else { "none" }
}

/// Returns the most bytes of an input of a target. Those of a history of the XArray are its
/// operations, and short histories find as much in less time.
fn max_length(target: &str) -> usize {
    if target == "xarray" { 512 } else { 8192 }
}

fn build_target(root: &Path, target: &str) -> anyhow::Result<()> {
    let status = nested_cargo()
        .args(["+nightly", "fuzz", "build", target])
        .args(["--sanitizer", sanitizer(target), "--no-trace-compares"])
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("cargo fuzz cannot build the target {target}");
    }
    Ok(())
}

/// Returns the triple of this machine, which names the folder of built fuzz targets.
fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::jobs::{self, JOBS};

    #[test]
    fn executions_are_those_that_libfuzzer_printed() {
        let text = "#1 INITED\nstat::number_of_executed_units: 1234\nstat::average_exec_per_sec: 5\n";
        assert_eq!(executions(text), 1234);
        assert_eq!(executions("no statistics"), 0);
    }

    #[test]
    fn cargo_names_the_executable() {
        let message = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"faults"},"executable":"/x/faults-1"}"#;
        assert_eq!(executable(message, "faults"), Some(PathBuf::from("/x/faults-1")));
        assert_eq!(executable(message, "kernel"), None);
        assert_eq!(executable("not JSON", "faults"), None);
    }

    #[test]
    fn the_repeating_command_names_seed_and_amount() {
        let slice = Slice { job: jobs::find("faults").unwrap(), first_seed: 7, amount: 3 };
        assert_eq!(
            repeat_command(&slice, "release"),
            "PAPILIO_SEED=7 PAPILIO_FAULTS=3 cargo test --profile release -p papilio-simulator --test simulator \
             -- --exact faults::failed_device_call_returns_an_error"
        );
        for job in JOBS {
            assert!(repeat_command(&Slice { job, first_seed: 1, amount: 1 }, "release").contains("cargo"));
        }
    }

    /// Programs of which each test is the shell script `body`.
    fn scripts(root: &Path, body: &str) -> Programs {
        use std::os::unix::fs::PermissionsExt as _;
        let script = root.join("script");
        std::fs::write(&script, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir_all(root.join("crates/simulator")).unwrap();
        let tests = [(("papilio-simulator".to_owned(), "simulator".to_owned()), script)];
        Programs {
            root: root.to_owned(),
            tests: tests.into(),
            targets: root.to_owned(),
            corpora: Corpora::default(),
        }
    }

    #[test]
    fn a_failed_slice_keeps_its_output_and_is_narrowed_to_its_seed() {
        let folder = tempfile::tempdir().unwrap();
        let body = "echo from $PAPILIO_MUTATIONS_FROM
            [ $PAPILIO_MUTATIONS_FROM -gt 13 ] || [ $((PAPILIO_MUTATIONS_FROM + PAPILIO_MUTATIONS)) -le 13 ]";
        let programs = scripts(folder.path(), body);
        let job = jobs::find("mutations").unwrap();
        let slice = Slice { job, first_seed: 1, amount: 100 };
        let ended = programs.run(&slice).unwrap();
        assert!(!ended.passed);
        assert_eq!(std::fs::read_to_string(ended.output.unwrap()).unwrap(), "from 1\n");
        let narrowed = programs.narrow(slice).unwrap();
        assert_eq!((narrowed.first_seed, narrowed.amount), (13, 1));
        let passing = programs.run(&Slice { first_seed: 14, ..slice }).unwrap();
        assert!(passing.passed && passing.output.is_none() && passing.amount == 100);
    }
}

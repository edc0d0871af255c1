//! The tests that mutants must fail: which there are, how long each takes, and the mutants it
//! reaches.

use super::tree::Program;
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Tests that take longer are not run.
const LONGEST: Duration = Duration::from_secs(120);
/// A test with a mutant may use this many processor seconds, by the seconds without: a factor, and
/// seconds.
const TIMEOUT: (f64, f64) = (10.0, 10.0);
/// A test may take this many times as long as it may use a processor: other programs may have them.
const WALL: f64 = 3.0;
/// The most memory of a test, in bytes: a mutant may allocate for ever.
const MEMORY: u64 = 8 << 30;

/// One test.
pub struct Test {
    /// Program and test.
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    function: String,
    pub seconds: f64,
    pub reached: BTreeSet<u32>,
}

impl Test {
    /// Runs it with a mutant. Returns whether it passed in time.
    ///
    /// # Errors
    /// The test cannot be started.
    pub fn passes(&self, mutant: u32) -> anyhow::Result<bool> {
        let limit = self.seconds.mul_add(TIMEOUT.0, TIMEOUT.1).ceil();
        let number = mutant.to_string();
        Ok(self.run(limit, ("PAPILIO_MUTANT", Path::new(&number)))?.success())
    }

    /// Runs it for at most `limit` seconds of a processor.
    fn run(&self, limit: f64, (variable, value): (&str, &Path)) -> anyhow::Result<ExitStatus> {
        // A test that hangs is killed with the programs that it started.
        Command::new("timeout")
            .args(["-s", "KILL", &(limit * WALL).to_string()])
            .args(["prlimit", &format!("--as={MEMORY}"), &format!("--cpu={}", limit.ceil())])
            .arg(&self.program)
            .args(["--exact", &self.function])
            .current_dir(&self.folder)
            .env(variable, value)
            // Mounts take too long, and the kernel may not survive what a mutant writes.
            .env("PAPILIO_WITHOUT_KERNEL", "1")
            .env_remove("PAPILIO_REQUIRE_ALL")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("cannot run timeout and prlimit (Debian: coreutils, util-linux)")
    }
}

/// Runs `work` on each item, on all processors. Stops at the first error.
pub fn each<T: Sync>(items: &[T], work: impl Fn(&T) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(item) {
                        next.store(items.len(), Ordering::Relaxed);
                        failure.lock().expect("no worker panics").get_or_insert(error);
                    }
                }
            });
        }
    });
    failure.into_inner().expect("no worker panics").map_or(Ok(()), Err)
}

/// Runs all tests of the programs without a mutant. Returns those that pass and reach mutants.
/// `folder` holds temporary files, and the result for the next run.
///
/// # Errors
/// A program cannot be run; no test is left.
pub fn measured(programs: &[Program], folder: &Path, version: &str) -> anyhow::Result<Vec<Test>> {
    let known = folder.join(format!("tests-{version}"));
    let mut tests = all(programs)?;
    if known.is_file() {
        recall(&mut tests, &std::fs::read_to_string(&known).context("target/mutation")?);
    } else {
        println!("mutants: measuring {} tests", tests.len());
        let measured = Mutex::new(Vec::new());
        let numbered: Vec<_> = (0..tests.len()).collect();
        each(&numbered, |number| {
            let found = measure(&tests[*number], &folder.join(format!("reach-{number}")))?;
            measured.lock().expect("no worker panics").push((*number, found));
            Ok(())
        })?;
        for (number, found) in measured.into_inner().expect("no worker panics") {
            if let Some((seconds, reached)) = found {
                (tests[number].seconds, tests[number].reached) = (seconds, reached);
            }
        }
        std::fs::write(&known, remembered(&tests)).context("target/mutation")?;
    }
    tests.retain(|test| !test.reached.is_empty());
    if tests.is_empty() {
        bail!("no test reaches a mutant");
    }
    Ok(tests)
}

/// Lists the tests of the programs.
fn all(programs: &[Program]) -> anyhow::Result<Vec<Test>> {
    let mut tests = Vec::new();
    for program in programs {
        let output = Command::new(&program.path)
            .args(["--list", "--format", "terse"])
            .current_dir(&program.folder)
            .output()
            .with_context(|| program.name.clone())?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some(function) = line.strip_suffix(": test") else { continue };
            tests.push(Test {
                name: format!("{} {function}", program.name),
                program: program.path.clone(),
                folder: program.folder.clone(),
                function: function.to_owned(),
                seconds: 0.0,
                reached: BTreeSet::new(),
            });
        }
    }
    Ok(tests)
}

/// Returns the seconds that a test takes and the mutants that it reaches; `None` if it fails.
fn measure(test: &Test, reach: &Path) -> anyhow::Result<Option<(f64, BTreeSet<u32>)>> {
    let began = Instant::now();
    let status = test.run(LONGEST.as_secs_f64(), ("PAPILIO_MUTANT_REACH", reach))?;
    let seconds = began.elapsed().as_secs_f64();
    let text = std::fs::read_to_string(reach).unwrap_or_default();
    let _ = std::fs::remove_file(reach);
    if !status.success() {
        println!("mutants: {} is not used: {status} after {seconds:.0} s", test.name);
        return Ok(None);
    }
    Ok(Some((seconds, text.lines().filter_map(|line| line.parse().ok()).collect())))
}

/// The result of measuring: name, seconds, mutants.
fn remembered(tests: &[Test]) -> String {
    let line = |test: &Test| {
        let reached: Vec<_> = test.reached.iter().map(u32::to_string).collect();
        format!("{}\t{:.3}\t{}\n", test.name, test.seconds, reached.join(" "))
    };
    tests.iter().map(line).collect()
}

fn recall(tests: &mut [Test], text: &str) {
    for line in text.lines() {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_default();
        let (name, seconds, reached) = (next(), next(), next());
        if let Some(test) = tests.iter_mut().find(|test| test.name == name) {
            test.seconds = seconds.parse().unwrap_or_default();
            test.reached = reached.split(' ').filter_map(|number| number.parse().ok()).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test {
            name: name.to_owned(),
            program: "/bin/true".into(),
            folder: "/".into(),
            function: String::new(),
            seconds: 0.0,
            reached: BTreeSet::new(),
        }
    }

    #[test]
    fn measured_tests_are_remembered() {
        let mut first = test("a b");
        (first.seconds, first.reached) = (1.5, BTreeSet::from([3, 7]));
        let text = remembered(&[first, test("c d")]);
        let mut again = [test("a b"), test("e f")];
        recall(&mut again, &text);
        assert!((again[0].seconds - 1.5).abs() < 1e-9);
        assert_eq!(again[0].reached, BTreeSet::from([3, 7]));
        assert!(again[1].reached.is_empty());
    }

    #[test]
    fn a_test_that_hangs_is_killed() {
        let mut hangs = test("hangs");
        (hangs.program, hangs.function) = ("/bin/sh".into(), "exit 0".to_owned());
        assert!(!hangs.run(5.0, ("A", Path::new("b"))).unwrap().success(), "sh knows no --exact");
        assert!(test("passes").passes(1).unwrap());
        hangs.program = "/usr/bin/yes".into();
        let began = Instant::now();
        assert!(!hangs.run(0.1, ("A", Path::new("b"))).unwrap().success());
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn work_stops_at_the_first_error() {
        let count = AtomicUsize::new(0);
        each(&[1; 100], |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(count.into_inner(), 100);
        assert!(each(&[1, 2], |_| bail!("no")).is_err());
    }
}

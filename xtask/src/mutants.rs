//! `cargo xtask mutants`: mutation testing of the write path, which can be stopped and continued.
//!
//! cargo-mutants lists the changes of one expression or function. This file tests them: it changes
//! a copy of the sources, builds and runs the tests of [`STAGES`] until one fails. Each mutant
//! that was tested is a line of `docs/mutants.tsv`. cargo-mutants itself builds every test and
//! example for each mutant, which takes minutes.
//!
//! The order of the mutants is that of a hash of their names, so that the first thousand are a fair
//! sample of all. The tests are those that need no kernel: a mutant that only the kernel would
//! notice counts as missed.

use anyhow::{Context, bail};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Usage of this command, a part of xtask's.
pub const USAGE: &str = "  mutants [--minutes N]
                  test mutants of the write path for N minutes (60), and note each in
                  docs/mutants.tsv. Continues where the last run stopped. Needs cargo-mutants
  mutants --summary
                  print the ledger's totals as a table, and the mutants that were missed";

const LEDGER: &str = "docs/mutants.tsv";
const MODULES: [&str; 4] = ["transaction", "fsync_log", "space", "volume"];
/// Packages with their tests, in stages. A stage is built when those before it have passed, so
/// that most mutants cost one build of the library and a few programs. Without a name it is the
/// library's own tests.
const STAGES: [(&str, &[&str]); 3] = [
    ("papilio-simulator", &["random_operations", "crash_states", "faults", "fsync_states"]),
    ("papilio", &[""]),
    (
        "papilio",
        &[
            "log_items",
            "fsync",
            "write_hole",
            "memory_mixed",
            "mirrors",
            "full",
            "moving_fails",
            "balance",
            "moved_crashes",
        ],
    ),
];
/// A test that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(240);
/// The most memory of a test, in bytes: a mutant may allocate for ever.
const MEMORY: u64 = 12 << 30;

/// A change of the sources.
struct Mutant {
    name: String,
    file: String,
    /// Lines and columns of the first character and of the one after the last, from 1.
    span: [(usize, usize); 2],
    replacement: String,
}

impl Mutant {
    fn parse(value: &serde_json::Value) -> Option<Self> {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let place = |value: &serde_json::Value| {
            Some((value["line"].as_u64()? as usize, value["column"].as_u64()? as usize))
        };
        Some(Self {
            name: text(&value["name"])?,
            file: text(&value["file"])?,
            span: [place(&value["span"]["start"])?, place(&value["span"]["end"])?],
            replacement: text(&value["replacement"])?,
        })
    }

    /// Returns the changed text of its file.
    fn apply(&self, text: &str) -> Option<String> {
        let offset = |(line, column): (usize, usize)| {
            let start = text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
            let (at, _) =
                text.get(start..)?.char_indices().chain([(text.len() - start, ' ')]).nth(column - 1)?;
            Some(start + at)
        };
        let [start, end] = self.span.map(offset);
        Some(format!("{}{}{}", text.get(..start?)?, self.replacement, text.get(end?..)?))
    }
}

/// FNV-1a, which stays the same in each build.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Tests mutants, or prints the ledger's totals. Returns whether that was possible.
///
/// # Errors
/// Wrong options; no cargo-mutants; sources that do not build or fail without a change.
pub fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<bool> {
    let minutes = match arguments {
        [] => 60,
        ["--minutes", minutes] => minutes.parse().with_context(|| format!("{minutes}: not a number"))?,
        ["--summary"] => {
            print!("{}", summary(&ledger(root)?));
            return Ok(true);
        }
        _ => bail!("usage:\n{USAGE}"),
    };
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let tree = Tree::new(root)?;
    let known: HashSet<String> = ledger(root)?.into_iter().map(|line| line.name).collect();
    let mut mutants = list(&tree.sources)?;
    mutants.sort_by_key(|mutant| hash(&mutant.name));
    println!("mutants: {} in all, {} tested before", mutants.len(), known.len());
    match tree.test()? {
        Outcome::Missed => {}
        other => bail!("the tests fail without a mutant: {other:?}"),
    }
    for mutant in mutants.iter().filter(|mutant| !known.contains(&mutant.name)) {
        if Instant::now() > end {
            break;
        }
        let path = tree.sources.join(&mutant.file);
        let original = std::fs::read_to_string(&path).with_context(|| mutant.file.clone())?;
        let changed = mutant.apply(&original).with_context(|| format!("cannot apply {}", mutant.name))?;
        std::fs::write(&path, changed).with_context(|| mutant.file.clone())?;
        let began = Instant::now();
        let outcome = tree.test();
        std::fs::write(&path, original).with_context(|| mutant.file.clone())?;
        let (outcome, seconds) = (outcome?, began.elapsed().as_secs());
        let line = format!("{}\t{seconds}\t{}\t{}", outcome.name(), tree.commit, mutant.name);
        println!("mutants: {line}");
        let mut file =
            OpenOptions::new().append(true).create(true).open(root.join(LEDGER)).context(LEDGER)?;
        writeln!(file, "{line}").context(LEDGER)?;
    }
    Ok(true)
}

fn list(sources: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--list", "--json", "--package", "papilio"]).current_dir(sources);
    for module in MODULES {
        command.arg("--file").arg(format!("crates/papilio/src/{module}/**"));
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo mutants")?;
    if !output.status.success() {
        bail!("cargo mutants cannot list the mutants; install it with: cargo install cargo-mutants");
    }
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).context("cargo mutants")?;
    listed.iter().map(|value| Mutant::parse(value).context("cargo mutants lists a mutant oddly")).collect()
}

/// The end of a mutant.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// A test failed, or took too long.
    Caught(String),
    /// It does not build.
    Unviable,
    Missed,
}

impl Outcome {
    fn name(&self) -> String {
        match self {
            Self::Caught(test) => format!("caught by {test}"),
            Self::Unviable => "unviable".to_owned(),
            Self::Missed => "missed".to_owned(),
        }
    }
}

/// A copy of the sources, and its build.
struct Tree {
    sources: PathBuf,
    target: PathBuf,
    commit: String,
}

impl Tree {
    fn new(root: &Path) -> anyhow::Result<Self> {
        let folder = root.join("target/mutation");
        let (sources, target) = (folder.join("sources"), folder.join("target"));
        let git = |words: &[&str], folder: &Path| -> anyhow::Result<String> {
            let output = Command::new("git").args(words).current_dir(folder).output().context("git")?;
            if !output.status.success() {
                bail!("git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let commit = git(&["rev-parse", "--short", "HEAD"], root)?;
        if !sources.is_dir() {
            std::fs::create_dir_all(&folder).context("target/mutation")?;
            git(&["clone", "--quiet", &root.display().to_string(), "sources"], &folder)?;
        }
        git(&["fetch", "--quiet", "origin"], &sources)?;
        // A run that was stopped may have left a mutant.
        git(&["checkout", "--quiet", "--force", "--detach", &commit], &sources)?;
        Ok(Self { sources, target, commit })
    }

    /// Builds and runs tests until one fails.
    fn test(&self) -> anyhow::Result<Outcome> {
        for (package, tests) in STAGES {
            let Some(programs) = self.build(package, tests)? else { return Ok(Outcome::Unviable) };
            for (test, program) in tests.iter().zip(programs) {
                if !self.passes(package, &program)? {
                    let name = if test.is_empty() { "unit tests" } else { test };
                    return Ok(Outcome::Caught(name.to_owned()));
                }
            }
        }
        Ok(Outcome::Missed)
    }

    /// Runs the program of a test. Returns whether it passed in time.
    fn passes(&self, package: &str, program: &Path) -> anyhow::Result<bool> {
        let folder = package.strip_prefix("papilio-").unwrap_or(package);
        let mut child = Command::new("prlimit")
            .arg(format!("--as={MEMORY}"))
            .arg(program)
            .current_dir(self.sources.join("crates").join(folder))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run prlimit (Debian: util-linux)")?;
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait().context("cannot wait for a test")? {
                return Ok(status.success());
            }
            if began.elapsed() > LIMIT {
                child.kill().context("cannot end a test that hangs")?;
                child.wait().context("cannot wait for a test")?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Builds tests of a package, and returns their programs in the order of `tests`; `None` if the
    /// mutant does not build.
    fn build(&self, package: &str, tests: &[&str]) -> anyhow::Result<Option<Vec<PathBuf>>> {
        let mut command = Command::new("cargo");
        command.args(["test", "--locked", "--no-run", "--quiet", "--message-format=json"]);
        command.args(["--profile", "mutants", "--package", package]);
        for test in tests {
            match *test {
                "" => command.arg("--lib"),
                test => command.args(["--test", test]),
            };
        }
        command.current_dir(&self.sources).env("CARGO_TARGET_DIR", &self.target);
        let output = command.stderr(Stdio::null()).output().context("cannot run cargo")?;
        if !output.status.success() {
            return Ok(None);
        }
        let mut found = vec![None; tests.len()];
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            let Some(program) = message["executable"].as_str() else { continue };
            let kind = message["target"]["kind"][0].as_str();
            let name = message["target"]["name"].as_str().unwrap_or_default();
            let name = if kind == Some("lib") { "" } else { name };
            if let Some(place) = tests.iter().position(|test| *test == name) {
                found[place] = Some(PathBuf::from(program));
            }
        }
        let all: Option<Vec<PathBuf>> = found.into_iter().collect();
        all.map(Some).context("cargo names no program of a test")
    }
}

/// A line of the ledger.
struct Line {
    outcome: String,
    name: String,
}

fn ledger(root: &Path) -> anyhow::Result<Vec<Line>> {
    let text = match std::fs::read_to_string(root.join(LEDGER)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.context(LEDGER)?,
    };
    let line = |line: &str| {
        let mut fields = line.splitn(4, '\t');
        let (outcome, name) = (fields.next()?.to_owned(), fields.nth(2)?.to_owned());
        Some(Line { outcome, name })
    };
    text.lines().map(|text| line(text).with_context(|| format!("{LEDGER}: {text:?}"))).collect()
}

/// Returns a table of modules, and the mutants that were missed.
fn summary(lines: &[Line]) -> String {
    let mut text = "| module | caught | missed | unviable | score |\n|---|---|---|---|---|\n".to_owned();
    let row = |name: &str, of: &dyn Fn(&Line) -> bool| {
        let count =
            |outcome: &str| lines.iter().filter(|line| of(line) && line.outcome.starts_with(outcome)).count();
        let (caught, missed) = (count("caught"), count("missed"));
        let score = 100 * caught / (caught + missed).max(1);
        format!("| {name} | {caught} | {missed} | {} | {score} % |\n", count("unviable"))
    };
    for module in MODULES {
        text += &row(module, &|line| line.name.contains(&format!("/src/{module}/")));
    }
    text += &row("all", &|_| true);
    text.push('\n');
    for line in lines.iter().filter(|line| line.outcome == "missed") {
        text += &format!("{}\n", line.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_replaces_its_span() {
        let value = serde_json::json!({
            "name": "replace", "file": "a.rs", "replacement": "5",
            "span": { "start": { "line": 2, "column": 7 }, "end": { "line": 3, "column": 3 } },
        });
        let mutant = Mutant::parse(&value).unwrap();
        assert_eq!(mutant.apply("one\n\u{e4} two three\nfour\n").unwrap(), "one\n\u{e4} two 5ur\n");
        assert_eq!(mutant.apply("one"), None);
        assert!(Mutant::parse(&serde_json::json!({})).is_none());
    }

    #[test]
    fn the_summary_counts_by_module() {
        let line = |outcome: &str, module: &str| Line {
            outcome: outcome.to_owned(),
            name: format!("crates/papilio/src/{module}/a.rs:1:2: replace a"),
        };
        let lines = [
            line("caught by fsync", "space"),
            line("caught by unit tests", "space"),
            line("missed", "space"),
            line("unviable", "volume"),
        ];
        let text = summary(&lines);
        assert!(text.contains("| space | 2 | 1 | 0 | 66 % |\n"), "{text}");
        assert!(text.contains("| volume | 0 | 0 | 1 | 0 % |\n"), "{text}");
        assert!(text.ends_with("crates/papilio/src/space/a.rs:1:2: replace a\n"), "{text}");
    }

    #[test]
    fn each_test_exists() {
        for (package, test) in
            STAGES.iter().flat_map(|(package, tests)| tests.iter().map(move |test| (package, test)))
        {
            let folder = package.strip_prefix("papilio-").unwrap_or(package);
            let path = crate::workspace_root().join("crates").join(folder).join("tests");
            assert!(test.is_empty() || path.join(format!("{test}.rs")).is_file(), "{test}");
        }
    }
}

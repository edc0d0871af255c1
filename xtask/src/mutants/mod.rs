//! `cargo xtask mutants`: mutation testing of the write path, which can be stopped and continued.
//!
//! cargo-mutants lists the changes of one expression or function ([`listed`]), but builds each
//! alone, which takes minutes. This command builds once: a copy of the sources holds all mutants,
//! each behind a switch ([`embed`], [`tree`]). It measures each test without a mutant, and notes
//! the mutants that the test reaches ([`suite`]). Then it runs those tests for each mutant until
//! one fails: first those that caught many mutants of the file in little time ([`record`]).
//!
//! Each mutant that was tested is a line of `results/mutants.tsv`. The order of the mutants is that
//! of a hash of their names, so that the first thousand are a fair sample of all. The tests are
//! those that mount nothing: a mutant that only the kernel would notice counts as missed.

mod embed;
mod listed;
mod reasons;
mod record;
mod suite;
mod tree;

use anyhow::{Context, bail};
use listed::MODULES;
use reasons::Reasons;
use record::Record;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use suite::Test;
use tree::Tree;

/// Usage of this command, a part of xtask's.
pub const USAGE: &str = "  mutants [--minutes N] [--seconds N] [--missed]
                  test mutants of the write path for N minutes (60), each by tests that take at
                  most N seconds (60), and note each in results/mutants.tsv. Continues where the last
                  run stopped; --missed tests those again, too, that were missed without a
                  reason in results/survivors.tsv. Needs cargo-mutants
  mutants --summary
                  print the ledger's totals as a table, the reasons of results/survivors.tsv why
                  mutants are missed, and the missed ones that none of them explains";

const LEDGER: &str = "results/mutants.tsv";
/// No further test of a mutant is begun that would take its tests past this many seconds, unless
/// an option says otherwise.
const BUDGET: f64 = 60.0;

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
    let (mut minutes, mut budget, mut missed_again) = (60, BUDGET, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--summary" => {
                print!("{}", summary(&ledger(root)?, &Reasons::read(root)?));
                return Ok(true);
            }
            "--missed" => missed_again = true,
            "--minutes" | "--seconds" => {
                let value = arguments.next().with_context(|| format!("{argument} needs a number"))?;
                let number: u32 = value.parse().with_context(|| format!("{value}: not a number"))?;
                match *argument {
                    "--minutes" => minutes = number,
                    _ => budget = number.into(),
                }
            }
            _ => bail!("usage:\n{USAGE}"),
        }
    }
    let end = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    let folder = root.join("target/mutation");
    let tree = Tree::new(root, &folder)?;
    let programs = tree.build()?;
    let tests = suite::measured(&programs, &folder, &tree.version)?;
    // The lines of sources that changed since.
    let names: HashSet<&str> = tree.mutants.iter().map(|mutant| &*mutant.name).collect();
    let lines = keep(root, |line| names.contains(&*line.name))?;
    let record = Mutex::new(recorded(&lines));
    let reasons = Reasons::read(root)?;
    let again =
        |line: &Line| missed_again && line.outcome.starts_with("missed") && reasons.of(&line.name).is_none();
    let known = lines.into_iter().filter(|line| !again(line)).map(|line| line.name);
    let known: HashSet<String> = known.collect();
    println!(
        "mutants: {}, of which {} do not build and {} cannot be switched; {} tests; {} tested before",
        tree.mutants.len(),
        tree.unviable.len(),
        tree.left_out.len(),
        tests.len(),
        known.len(),
    );
    let mut numbers: Vec<u32> = (1..).take(tree.mutants.len()).collect();
    let name = |number: u32| &tree.mutants[number as usize - 1].name;
    numbers.retain(|number| !known.contains(name(*number)) && !tree.left_out.contains(number));
    numbers.sort_by_key(|number| hash(name(*number)));
    let ledger = Mutex::new(());
    suite::each(&numbers, |number| {
        if Instant::now() > end {
            return Ok(());
        }
        let began = Instant::now();
        let outcome = match tree.unviable.contains(number) {
            true => "unviable".to_owned(),
            false => outcome(*number, &tree, &tests, &record, budget)?,
        };
        let line = format!("{outcome}\t{}\t{}\t{}", began.elapsed().as_secs(), tree.commit, name(*number));
        let _one_at_a_time = ledger.lock().expect("no worker panics");
        println!("mutants: {line}");
        let mut file =
            OpenOptions::new().append(true).create(true).open(root.join(LEDGER)).context(LEDGER)?;
        writeln!(file, "{line}").context(LEDGER)
    })?;
    Ok(true)
}

/// Runs the tests that reach a mutant until one fails or `budget` seconds are used. Returns the
/// ledger's words for the end.
fn outcome(
    mutant: u32,
    tree: &Tree,
    tests: &[Test],
    record: &Mutex<Record>,
    budget: f64,
) -> anyhow::Result<String> {
    let file = &tree.mutants[mutant as usize - 1].file;
    let mut reaching: Vec<_> = {
        let record = record.lock().expect("no worker panics");
        let reaching = tests.iter().filter(|test| test.reached.contains(&mutant));
        let cost = |test: &Test| record.cost(&test.name, file, test.seconds, test.reached.len());
        reaching.map(|test| (cost(test), test)).collect()
    };
    reaching.sort_by(|a, b| a.0.total_cmp(&b.0));
    if reaching.is_empty() {
        return Ok("missed: no test without the kernel reaches it".to_owned());
    }
    let (mut seconds, mut done) = (0.0, 0);
    for (_, test) in &reaching {
        if done > 0 && seconds + test.seconds > budget {
            // A shorter one may fit.
            continue;
        }
        (seconds, done) = (seconds + test.seconds, done + 1);
        let passes = test.passes(mutant)?;
        record.lock().expect("no worker panics").note(&test.name, file, !passes);
        if !passes {
            return Ok(format!("caught by {}", test.name));
        }
    }
    Ok(match reaching.len() {
        all if all == done => format!("missed by {all} tests"),
        all => format!("missed by {done} of {all} tests"),
    })
}

/// A line of the ledger.
struct Line {
    text: String,
    outcome: String,
    name: String,
}

/// Reads the ledger. Of a mutant that was tested again the last line counts.
fn ledger(root: &Path) -> anyhow::Result<Vec<Line>> {
    let text = match std::fs::read_to_string(root.join(LEDGER)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.context(LEDGER)?,
    };
    let line = |text: &str| {
        let mut fields = text.splitn(4, '\t');
        let (outcome, name) = (fields.next()?.to_owned(), fields.nth(2)?.to_owned());
        Some(Line { text: text.to_owned(), outcome, name })
    };
    let lines = text.lines().map(|text| line(text).with_context(|| format!("{LEDGER}: {text:?}")));
    Ok(last_of_each(lines.collect::<anyhow::Result<_>>()?))
}

/// Keeps the last line of each mutant.
fn last_of_each(mut lines: Vec<Line>) -> Vec<Line> {
    let mut seen = HashSet::new();
    lines.reverse();
    lines.retain(|line| seen.insert(line.name.clone()));
    lines.reverse();
    lines
}

/// Returns which tests caught mutants of which file, by the ledger.
fn recorded(lines: &[Line]) -> Record {
    let mut record = Record::default();
    for line in lines {
        if let Some(test) = line.outcome.strip_prefix("caught by ") {
            let file = line.name.split(':').next().unwrap_or_default();
            record.note(test, file, true);
        }
    }
    record
}

/// Removes the other lines of the ledger. Returns those that are wanted.
fn keep(root: &Path, wanted: impl Fn(&Line) -> bool) -> anyhow::Result<Vec<Line>> {
    let mut lines = ledger(root)?;
    lines.retain(wanted);
    let text: String = lines.iter().map(|line| line.text.clone() + "\n").collect();
    std::fs::write(root.join(LEDGER), text).context(LEDGER)?;
    Ok(lines)
}

/// Returns a table of modules, one of reasons, and the mutants that were missed without one.
fn summary(lines: &[Line], reasons: &Reasons) -> String {
    let missed = |line: &&Line| line.outcome.starts_with("missed");
    let explained = |line: &&Line| missed(line) && reasons.of(&line.name).is_some();
    let mut text =
        "| module | caught | missed | explained | unviable | score |\n|---|---|---|---|---|---|\n".to_owned();
    let row = |name: &str, of: &dyn Fn(&Line) -> bool| {
        let lines = || lines.iter().filter(|line| of(line));
        let count = |outcome: &str| lines().filter(|line| line.outcome.starts_with(outcome)).count();
        let (caught, missed) = (count("caught"), count("missed"));
        let score = 100 * caught / (caught + missed).max(1);
        let explained = lines().filter(explained).count();
        format!("| {name} | {caught} | {missed} | {explained} | {} | {score} % |\n", count("unviable"))
    };
    for module in MODULES {
        text += &row(module, &|line| line.name.contains(&format!("/src/{module}/")));
    }
    text += &row("all", &|_| true);
    text += "\n| missed | reason |\n|---|---|\n";
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines.iter().filter(missed) {
        if let Some(reason) = reasons.of(&line.name) {
            *counts.entry(reason).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    text.extend(counts.iter().map(|(reason, count)| format!("| {count} | {reason} |\n")));
    text.push('\n');
    for line in lines.iter().filter(|line| missed(line) && !explained(line)) {
        text += &format!("{}: {}\n", line.outcome, line.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_says_which_tests_come_early() {
        let line = Line {
            text: String::new(),
            outcome: "caught by papilio a".to_owned(),
            name: "b.rs:1:2: replace c".to_owned(),
        };
        let record = recorded(&[line]);
        let cost = |test, file| record.cost(test, file, 1.0, 1000);
        assert!(cost("papilio a", "b.rs") < cost("papilio a", "d.rs"));
        assert!(cost("papilio a", "d.rs") < cost("papilio e", "d.rs"));
    }

    #[test]
    fn the_last_line_of_a_mutant_counts() {
        let line = |outcome: &str, name: &str| Line {
            text: String::new(),
            outcome: outcome.to_owned(),
            name: name.to_owned(),
        };
        let lines = vec![line("missed by 1 tests", "a"), line("unviable", "b"), line("caught by c", "a")];
        let kept = last_of_each(lines);
        let kept: Vec<_> = kept.iter().map(|line| (&*line.outcome, &*line.name)).collect();
        assert_eq!(kept, [("unviable", "b"), ("caught by c", "a")]);
    }

    #[test]
    fn the_summary_counts_by_module() {
        let line = |outcome: &str, module: &str| Line {
            text: String::new(),
            outcome: outcome.to_owned(),
            name: format!("crates/engine/src/{module}/a.rs:1:2: replace a"),
        };
        let lines = [
            line("caught by fsync", "space"),
            line("caught by papilio space::tests::a", "space"),
            line("missed by 3 tests", "space"),
            line("unviable", "volume"),
        ];
        let text = summary(&lines, &Reasons::parse("").unwrap());
        assert!(text.contains("| space | 2 | 1 | 0 | 0 | 66 % |\n"), "{text}");
        assert!(text.contains("| volume | 0 | 0 | 0 | 1 | 0 % |\n"), "{text}");
        assert!(text.ends_with("missed by 3 tests: crates/engine/src/space/a.rs:1:2: replace a\n"), "{text}");
        let text = summary(&lines, &Reasons::parse("space/a.rs\treplace a\tit is only slower\n").unwrap());
        assert!(text.contains("| space | 2 | 1 | 1 | 0 | 66 % |\n"), "{text}");
        assert!(text.ends_with("| 1 | it is only slower |\n\n"), "{text}");
    }
}

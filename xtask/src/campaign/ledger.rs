//! The ledger of a campaign: each slice that ran, with its build and seeds.
//!
//! Owns `results/campaign.tsv`. Each line is a slice, appended when it ends; nothing rewrites one.
//! So a campaign that was stopped goes on where it was, and loses the running slices only.
//!
//! Locks: none; the caller appends from one thread at a time.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

const HEADER: &str = "date\tbuild\tjob\tfirst seed\tamount\tseconds\toutcome\n";

/// A slice that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Day in UTC, as YYYY-MM-DD.
    pub date: String,
    /// The commit, with `-dirty` if files differ from it.
    pub build: String,
    pub job: String,
    pub first_seed: u64,
    /// Amount in the job's unit.
    pub amount: u64,
    pub seconds: u64,
    pub passed: bool,
}

impl Entry {
    fn to_line(&self) -> String {
        let Self { date, build, job, first_seed, amount, seconds, passed } = self;
        let outcome = if *passed { "passed" } else { "failed" };
        format!("{date}\t{build}\t{job}\t{first_seed}\t{amount}\t{seconds}\t{outcome}\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[date, build, job, first_seed, amount, seconds, outcome] = fields.as_slice() else {
            return None;
        };
        let passed = match outcome {
            "passed" => true,
            "failed" => false,
            _ => return None,
        };
        Some(Self {
            date: date.to_owned(),
            build: build.to_owned(),
            job: job.to_owned(),
            first_seed: first_seed.parse().ok()?,
            amount: amount.parse().ok()?,
            seconds: seconds.parse().ok()?,
            passed,
        })
    }
}

/// The ledger and the file that holds it.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// Reads the ledger at `path`. A file that does not exist is an empty ledger.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is not an entry.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate().skip(1) {
            let Some(entry) = Entry::parse(line) else {
                bail!("{}:{}: not an entry of the ledger: {line}", path.display(), number + 1);
            };
            entries.push(entry);
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    /// Appends a slice, in memory and in the file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn append(&mut self, entry: Entry) -> anyhow::Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        let is_new = !self.path.exists();
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).with_context(context)?;
        let header = if is_new { HEADER } else { "" };
        file.write_all(format!("{header}{}", entry.to_line()).as_bytes()).with_context(context)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Returns the first seed that no slice of `job` used, if its slices use `stride` seeds each.
    pub fn next_seed(&self, job: &str, stride: u64) -> u64 {
        let used = self.entries.iter().filter(|entry| entry.job == job);
        used.map(|entry| entry.first_seed + stride).max().unwrap_or(1)
    }

    /// Returns a Markdown table of all jobs: slices, amounts, failures, and amounts an hour.
    pub fn summary(&self, unit: impl Fn(&str) -> &'static str) -> String {
        #[derive(Default)]
        struct Total {
            slices: u64,
            amount: u64,
            seconds: u64,
            failed: u64,
        }
        let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
        for entry in &self.entries {
            let total = totals.entry(&entry.job).or_default();
            total.slices += 1;
            total.amount += entry.amount;
            total.seconds += entry.seconds;
            total.failed += u64::from(!entry.passed);
        }
        let mut text = String::from(
            "| job | amount | unit | an hour, on one processor | slices | failed |\n|---|---|---|---|---|---|\n",
        );
        for (job, Total { slices, amount, seconds, failed }) in totals {
            let rate = amount * 3600 / seconds.max(1);
            let _ = writeln!(text, "| {job} | {amount} | {} | {rate} | {slices} | {failed} |", unit(job));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(job: &str, first_seed: u64, passed: bool) -> Entry {
        Entry {
            date: "2026-01-02".to_owned(),
            build: "abc".to_owned(),
            job: job.to_owned(),
            first_seed,
            amount: 10,
            seconds: 5,
            passed,
        }
    }

    #[test]
    fn a_campaign_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.tsv");
        let mut ledger = Ledger::read(&path).unwrap();
        assert_eq!(ledger.next_seed("a", 100), 1);
        ledger.append(entry("a", 1, true)).unwrap();
        ledger.append(entry("b", 1, false)).unwrap();
        let read = Ledger::read(&path).unwrap();
        assert_eq!(read.entries, ledger.entries);
        assert_eq!((read.next_seed("a", 100), read.next_seed("c", 100)), (101, 1));
        let summary = read.summary(|_| "units");
        assert!(summary.contains("| a | 10 | units | 7200 | 1 | 0 |"), "{summary}");
        assert!(summary.contains("| b | 10 | units | 7200 | 1 | 1 |"), "{summary}");
    }

    #[test]
    fn a_bad_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.tsv");
        std::fs::write(&path, format!("{HEADER}2026-01-02\tabc\ta\tx\t1\t1\tpassed\n")).unwrap();
        let error = Ledger::read(&path).unwrap_err().to_string();
        assert!(error.contains("ledger.tsv:2: not an entry"), "{error}");
    }
}

//! The results of the judges.
//!
//! Owns [`Verdict`], the results under one kernel, and [`Report`], a table of all.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// The results under one kernel.
pub struct Verdict {
    name: String,
    release: String,
    /// Test and result, as libtest prints it.
    tests: BTreeMap<String, String>,
    /// Presets that the kernel lacks.
    skipped: BTreeSet<String>,
    output: String,
    failure: Option<String>,
    time: Duration,
}

impl Verdict {
    /// Reads the output of a test program.
    pub fn new(name: &str, release: &str, output: &str, failure: Option<String>, time: Duration) -> Self {
        let mut tests = BTreeMap::new();
        for line in output.lines() {
            if let Some((test, result)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                tests.insert(test.to_owned(), result.split(',').next().unwrap_or_default().to_owned());
            }
        }
        let skipped = output.lines().filter_map(|line| line.strip_prefix("skipped: "));
        Self {
            name: name.to_owned(),
            release: release.to_owned(),
            skipped: skipped.map(str::to_owned).collect(),
            tests,
            output: output.to_owned(),
            failure,
            time,
        }
    }

    /// Returns whether at least one test ran, and none failed.
    fn is_good(&self) -> bool {
        self.failure.is_none() && self.tests.values().any(|result| result == "ok")
    }

    /// The results as text for a terminal: the output only where something failed.
    pub fn text(&self) -> String {
        let count = |wanted: &str| self.tests.values().filter(|result| *result == wanted).count();
        let mut text = String::new();
        if !self.is_good() {
            let _ = writeln!(text, "{}", self.output);
        }
        let _ = writeln!(
            text,
            "judges: {} ({}): {} tests passed, {} failed, {} not run, {} s",
            self.name,
            self.release,
            count("ok"),
            count("FAILED"),
            count("ignored"),
            self.time.as_secs()
        );
        for skipped in &self.skipped {
            let _ = writeln!(text, "judges: {}: skipped: {skipped}", self.name);
        }
        if let Some(failure) = &self.failure {
            let _ = writeln!(text, "judges: {}: {failure}", self.name);
        }
        text
    }
}

/// The results under all kernels.
#[derive(Default)]
pub struct Report {
    verdicts: Vec<Verdict>,
}

impl Report {
    /// Adds the results under a kernel.
    pub fn add(&mut self, verdict: Verdict) {
        self.verdicts.push(verdict);
    }

    /// Returns whether all kernels agree.
    pub fn is_good(&self) -> bool {
        !self.verdicts.is_empty() && self.verdicts.iter().all(Verdict::is_good)
    }

    /// The table: a row for each test, a column for each kernel.
    pub fn markdown(&self) -> String {
        let mut text = "| test |".to_owned();
        for verdict in &self.verdicts {
            let _ = write!(text, " {} |", verdict.release);
        }
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(self.verdicts.len()));
        text.push('\n');
        let names: BTreeSet<&String> =
            self.verdicts.iter().flat_map(|verdict| verdict.tests.keys()).collect();
        for name in names {
            let _ = write!(text, "| {name} |");
            for verdict in &self.verdicts {
                let _ = write!(text, " {} |", verdict.tests.get(name).map_or("-", String::as_str));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 3 tests\ntest a::b ... ok\ntest c ... ignored, takes minutes\n\
                          skipped: simple-quota: needs kernel 6.7\ntest d ... ok\n";

    fn verdict(output: &str, failure: Option<&str>) -> Verdict {
        Verdict::new("debian", "6.1.0", output, failure.map(str::to_owned), Duration::from_secs(3))
    }

    #[test]
    fn tests_and_skipped_presets_are_counted() {
        let text = verdict(OUTPUT, None).text();
        assert!(text.contains("2 tests passed, 0 failed, 1 not run"), "{text}");
        assert!(text.contains("skipped: simple-quota"), "{text}");
    }

    #[test]
    fn nothing_that_ran_is_no_success() {
        for (output, failure, good) in
            [(OUTPUT, None, true), ("", None, false), (OUTPUT, Some("no result after 3 s"), false)]
        {
            let mut report = Report::default();
            report.add(verdict(output, failure));
            assert_eq!(report.is_good(), good);
        }
        assert!(!Report::default().is_good());
    }

    #[test]
    fn the_table_has_a_column_for_each_kernel() {
        let mut report = Report::default();
        report.add(verdict(OUTPUT, None));
        report.add(verdict("test d ... FAILED\n", Some("the tests ended with 101")));
        let table = report.markdown();
        assert!(table.contains("| d | ok | FAILED |") && table.contains("| a::b | ok | - |"), "{table}");
    }
}

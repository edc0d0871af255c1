//! Times of repeated workloads, their medians, and the rows that compare them.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

/// Times of one side in one workload.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Runs `job` once and records its time.
    ///
    /// # Errors
    /// `job` fails, or its count of bytes or operations is not `expected`.
    pub fn take(&mut self, expected: u64, job: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<()> {
        let start = Instant::now();
        let count = job()?;
        self.0.push(start.elapsed());
        anyhow::ensure!(count == expected, "workload processed {count} units, expected {expected}");
        Ok(())
    }

    /// Returns the median; zero without times.
    pub fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// Returns the minimum and maximum.
    pub fn spread(&self) -> (Duration, Duration) {
        (self.0.iter().min().copied().unwrap_or_default(), self.0.iter().max().copied().unwrap_or_default())
    }
}

/// Prints a line on standard output.
///
/// # Errors
/// Standard output is closed or cannot be written.
pub fn print_line(text: fmt::Arguments<'_>) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Prints a row with both sides' median bandwidth and spread, and their ratio.
///
/// # Errors
/// As [`print_line`].
pub fn row(name: &str, bytes: u64, kernel: &Times, papilio: &Times) -> anyhow::Result<()> {
    let rate = |times: &Times| bytes as f64 / (1 << 20) as f64 / times.median().as_secs_f64().max(1e-9);
    let spread = |times: &Times| {
        let (low, high) = times.spread();
        format!("{:.2}-{:.2} s", low.as_secs_f64(), high.as_secs_f64())
    };
    print_line(format_args!(
        "{name:22} kernel {:8.0} MiB/s ({})  papilio {:8.0} MiB/s ({})  ratio {:.2}",
        rate(kernel),
        spread(kernel),
        rate(papilio),
        spread(papilio),
        kernel.median().as_secs_f64() / papilio.median().as_secs_f64().max(1e-9),
    ))
}

/// Prints a row with both sides' operations per second and spread, and their ratio.
///
/// # Errors
/// As [`print_line`].
pub fn row_of_operations(name: &str, operations: u64, kernel: &Times, papilio: &Times) -> anyhow::Result<()> {
    let side = |times: &Times| {
        let (low, high) = times.spread();
        format!(
            "{:9.0}/s ({:.3}-{:.3} s)",
            operations as f64 / times.median().as_secs_f64().max(1e-9),
            low.as_secs_f64(),
            high.as_secs_f64()
        )
    };
    print_line(format_args!(
        "{name:22} kernel {}  papilio {}  ratio {:.2}",
        side(kernel),
        side(papilio),
        kernel.median().as_secs_f64() / papilio.median().as_secs_f64().max(1e-9),
    ))
}

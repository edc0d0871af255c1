//! Rounds, medians and ratios.

use std::time::{Duration, Instant};

/// Times of one way of doing a job.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Runs `job` once and keeps how long it took; the bytes that it read must be the same each time.
    pub fn take(&mut self, expected: u64, job: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<()> {
        let start = Instant::now();
        let bytes = job()?;
        self.0.push(start.elapsed());
        anyhow::ensure!(bytes == expected, "read {bytes} bytes, expected {expected}");
        Ok(())
    }

    /// The median; zero without any time.
    pub fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// The shortest and the longest.
    pub fn spread(&self) -> (Duration, Duration) {
        (self.0.iter().min().copied().unwrap_or_default(), self.0.iter().max().copied().unwrap_or_default())
    }
}

/// Prints a row: both medians with their spreads, and how many times faster Papilio is.
pub fn row(name: &str, bytes: u64, kernel: &Times, papilio: &Times) {
    let rate = |times: &Times| bytes as f64 / (1 << 20) as f64 / times.median().as_secs_f64().max(1e-9);
    let spread = |times: &Times| {
        let (low, high) = times.spread();
        format!("{:.2}-{:.2} s", low.as_secs_f64(), high.as_secs_f64())
    };
    println!(
        "{name:22} kernel {:8.0} MiB/s ({})  papilio {:8.0} MiB/s ({})  ratio {:.2}",
        rate(kernel),
        spread(kernel),
        rate(papilio),
        spread(papilio),
        kernel.median().as_secs_f64() / papilio.median().as_secs_f64().max(1e-9),
    );
}

/// Prints a row of operations per second.
pub fn row_of_operations(name: &str, operations: u64, kernel: &Times, papilio: &Times) {
    let side = |times: &Times| {
        let (low, high) = times.spread();
        format!(
            "{:9.0}/s ({:.3}-{:.3} s)",
            operations as f64 / times.median().as_secs_f64().max(1e-9),
            low.as_secs_f64(),
            high.as_secs_f64()
        )
    };
    println!(
        "{name:22} kernel {}  papilio {}  ratio {:.2}",
        side(kernel),
        side(papilio),
        kernel.median().as_secs_f64() / papilio.median().as_secs_f64().max(1e-9),
    );
}

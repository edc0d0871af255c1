//! Processor time of the whole machine, from `/proc/stat`.
//!
//! Owns [`Samples`]. The unit of `/proc/stat` is a clock tick of 10 ms, so a run of one second on
//! two processors is accurate to about 1 %.

use anyhow::Context;
use std::time::{SystemTime, UNIX_EPOCH};

/// Clock ticks per second (`USER_HZ`), the same on all of Linux's architectures.
const TICKS: f64 = 100.0;
/// Minimum time between samples in seconds.
const STEP: f64 = 0.02;

/// Samples of the busy time of all processors during a run.
#[derive(Debug, Default)]
pub struct Samples {
    /// Pairs of seconds since 1970 and busy seconds since boot, both ascending.
    taken: Vec<(f64, f64)>,
}

impl Samples {
    /// Takes a sample unless the last one is too recent.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
    pub fn take(&mut self) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        if self.taken.last().is_some_and(|(last, _)| now - last < STEP) {
            return Ok(());
        }
        let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        self.taken.push((now, busy(&text).context("/proc/stat: no line 'cpu'")?));
        Ok(())
    }

    /// Returns the busy seconds between two times, given in seconds since 1970.
    pub fn busy_between(&self, start: f64, end: f64) -> f64 {
        (self.at(end) - self.at(start)).max(0.0)
    }

    /// Interpolates the busy seconds at a time from the samples around it.
    fn at(&self, moment: f64) -> f64 {
        let after = self.taken.partition_point(|(time, _)| *time < moment);
        match (after.checked_sub(1).map(|before| self.taken[before]), self.taken.get(after)) {
            (Some((t0, b0)), Some(&(t1, b1))) => b0 + (b1 - b0) * (moment - t0) / (t1 - t0).max(1e-9),
            (Some((_, busy)), None) => busy,
            (None, Some(&(_, busy))) => busy,
            (None, None) => 0.0,
        }
    }
}

/// Parses the busy seconds of all processors: time that is not idle, waiting for I/O, or stolen by
/// a hypervisor.
fn busy(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq; user already includes guests.
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else { return None };
    Some((user + nice + system + irq + softirq) as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_are_not_busy() {
        let text = "cpu  100 20 300 4000 500 6 7 8000 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(busy(text), Some(4.33));
        assert_eq!(busy("cpu0 1 2 3 4 5 6 7\n"), None);
    }

    #[test]
    fn busy_time_is_interpolated() {
        let samples = Samples { taken: vec![(10.0, 1.0), (11.0, 2.0), (12.0, 4.0)] };
        assert!((samples.busy_between(10.5, 11.5) - 1.5).abs() < 1e-9);
        assert!((samples.busy_between(0.0, 99.0) - 3.0).abs() < 1e-9);
        assert!(Samples::default().busy_between(0.0, 1.0).abs() < 1e-9);
    }

    #[test]
    fn this_machine_can_be_sampled() {
        let mut samples = Samples::default();
        samples.take().unwrap();
        assert!(samples.taken[0].1 > 0.0);
    }
}

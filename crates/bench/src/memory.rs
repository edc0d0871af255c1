//! Peak memory of a process, sampled while it runs.
//!
//! Owns [`Peak`]. Only anonymous memory counts: pages mapped from files or shared with other
//! processes belong to the system's page cache.
//!
//! Kernel counterpart: `task_statm` (`fs/proc/task_mmu.c`).

use std::time::{Duration, Instant};

/// Minimum interval between samples.
const STEP: Duration = Duration::from_millis(20);

/// The largest amount of anonymous memory in any sample of a process.
#[derive(Debug)]
pub struct Peak {
    statm: String,
    most: u64,
    last: Option<Instant>,
}

impl Peak {
    /// Starts with no sample of the process with this ID.
    pub fn of(process: u32) -> Self {
        Self { statm: format!("/proc/{process}/statm"), most: 0, last: None }
    }

    /// Takes a sample unless the last one is too recent.
    pub fn take(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() < STEP) {
            return;
        }
        self.last = Some(Instant::now());
        // A process that has exited has no memory.
        let text = std::fs::read_to_string(&self.statm).unwrap_or_default();
        self.most = self.most.max(anonymous_pages(&text).unwrap_or(0) * rustix::param::page_size() as u64);
    }

    /// Returns the peak of all samples in bytes.
    pub fn bytes(&self) -> u64 {
        self.most
    }
}

/// Parses the number of resident pages that are neither mapped from files nor shared.
fn anonymous_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next()?, fields.next()?);
    Some(resident.saturating_sub(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_pages_do_not_count() {
        assert_eq!(anonymous_pages("1000 300 120 5 0 90 0\n"), Some(180));
        assert_eq!(anonymous_pages("1000"), None);
    }

    #[test]
    fn the_peak_is_kept() {
        let mut peak = Peak::of(std::process::id());
        let large = vec![1_u8; 64 << 20];
        peak.take();
        assert!(peak.bytes() >= large.len() as u64, "{}", peak.bytes());
        let most = peak.bytes();
        drop(large);
        peak.last = None;
        peak.take();
        assert!(peak.bytes() >= most);
    }
}

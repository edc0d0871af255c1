//! Memory of a process, seen again and again while it runs.
//!
//! Owns [`Peak`]. Anonymous memory counts: what a process maps of files or shares with others belongs to the
//! system's page cache. Kernel counterpart: `task_statm` (`fs/proc/task_mmu.c`).

use std::time::{Duration, Instant};

/// How often a process is looked at.
const STEP: Duration = Duration::from_millis(20);

/// The most anonymous memory that a process was seen with.
#[derive(Debug)]
pub struct Peak {
    statm: String,
    most: u64,
    last: Option<Instant>,
}

impl Peak {
    /// Of the process of that number.
    pub fn of(process: u32) -> Self {
        Self { statm: format!("/proc/{process}/statm"), most: 0, last: None }
    }

    /// Looks, unless it has only just done so.
    pub fn take(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() < STEP) {
            return;
        }
        self.last = Some(Instant::now());
        // A process that has ended has none any more.
        let text = std::fs::read_to_string(&self.statm).unwrap_or_default();
        self.most = self.most.max(anonymous_pages(&text).unwrap_or(0) * rustix::param::page_size() as u64);
    }

    /// Bytes, of all looks.
    pub fn bytes(&self) -> u64 {
        self.most
    }
}

/// Pages that are resident and neither a file's nor shared.
fn anonymous_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next()?, fields.next()?);
    Some(resident.saturating_sub(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_files_does_not_count() {
        assert_eq!(anonymous_pages("1000 300 120 5 0 90 0\n"), Some(180));
        assert_eq!(anonymous_pages("1000"), None);
    }

    #[test]
    fn the_most_is_remembered() {
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

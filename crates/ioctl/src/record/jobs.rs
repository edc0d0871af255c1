//! The encoding of a job's status in a page.
//!
//! Owns both directions, as [`super::record`] does for other records.

use super::{Reader, Writer};
use crate::job::{JobKind, JobState, JobStatus};
use papilio_engine::jobs::balance::BalanceReport;
use papilio_engine::jobs::scrub::{ScrubCounts, ScrubDevice, ScrubReport};
use papilio_format::{DeviceId, LogicalAddress};
use std::time::Duration;

/// Calls `$with` with each counter of a scrub.
macro_rules! for_each_count {
    ($counts:expr, $with:expr) => {
        for count in [
            &mut $counts.data_extents_scrubbed,
            &mut $counts.tree_extents_scrubbed,
            &mut $counts.data_bytes_scrubbed,
            &mut $counts.tree_bytes_scrubbed,
            &mut $counts.read_errors,
            &mut $counts.csum_errors,
            &mut $counts.verify_errors,
            &mut $counts.generation_errors,
            &mut $counts.no_csum,
            &mut $counts.super_errors,
            &mut $counts.uncorrectable_errors,
            &mut $counts.corrected_errors,
            &mut $counts.parity_errors,
            &mut $counts.write_errors,
        ] {
            $with(count);
        }
    };
}

impl Writer {
    /// Appends a job.
    pub fn job(&mut self, status: &JobStatus) {
        let moved = &status.moved;
        self.number(status.number)
            .number(status.kind as u64)
            .number(status.state as u64)
            .number(status.started)
            .number(status.duration.as_millis() as u64)
            .number(moved.considered.into())
            .number(moved.expected.into())
            .number(moved.completed.into())
            .number(moved.bytes)
            .number(moved.expected_bytes)
            .number(status.errno as u64)
            .bytes(status.error.as_bytes());
        let scrub = &status.scrub;
        self.number(scrub.bytes_done)
            .number(scrub.bytes_total)
            .number(scrub.position.0)
            .number(scrub.skipped)
            .number(scrub.finished.into())
            .number(scrub.first_error.is_some().into())
            .bytes(scrub.first_error.as_deref().unwrap_or_default().as_bytes())
            .number(scrub.undecodable)
            .number(scrub.undecodable_extents.len() as u64);
        for line in &scrub.undecodable_extents {
            self.bytes(line.as_bytes());
        }
        self.number(scrub.lost_data.len() as u64);
        for line in &scrub.lost_data {
            self.bytes(line.as_bytes());
        }
        self.number(scrub.devices.len() as u64);
        for device in &scrub.devices {
            self.number(device.devid.0)
                .number(device.path.is_some().into())
                .bytes(device.path.as_deref().unwrap_or_default().as_bytes());
            let mut counts = device.counts;
            for_each_count!(counts, |count: &mut u64| {
                self.number(*count);
            });
        }
    }
}

impl Reader<'_> {
    fn text(&mut self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    fn optional_text(&mut self) -> Option<Option<String>> {
        let there = self.number()? != 0;
        self.text().map(|text| there.then_some(text))
    }

    fn narrow(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn job(&mut self) -> Option<JobStatus> {
        Some(JobStatus {
            number: self.number()?,
            kind: *JobKind::ALL.get(usize::try_from(self.number()?).ok()?)?,
            state: *JobState::ALL.get(usize::try_from(self.number()?).ok()?)?,
            started: self.number()?,
            duration: Duration::from_millis(self.number()?),
            moved: BalanceReport {
                considered: self.narrow()?,
                expected: self.narrow()?,
                completed: self.narrow()?,
                bytes: self.number()?,
                expected_bytes: self.number()?,
            },
            errno: i32::try_from(self.number()?).ok()?,
            error: self.text()?,
            scrub: self.scrub()?,
        })
    }

    fn scrub(&mut self) -> Option<ScrubReport> {
        let mut report = ScrubReport {
            bytes_done: self.number()?,
            bytes_total: self.number()?,
            position: LogicalAddress(self.number()?),
            skipped: self.number()?,
            finished: self.number()? != 0,
            first_error: self.optional_text()?,
            undecodable: self.number()?,
            undecodable_extents: Vec::new(),
            lost_data: Vec::new(),
            devices: Vec::new(),
        };
        for _ in 0..self.number()? {
            report.undecodable_extents.push(self.text()?);
        }
        for _ in 0..self.number()? {
            report.lost_data.push(self.text()?);
        }
        for _ in 0..self.number()? {
            let (devid, path) = (DeviceId(self.number()?), self.optional_text()?);
            let mut counts = ScrubCounts::default();
            let mut missing = false;
            for_each_count!(counts, |count: &mut u64| match self.number() {
                Some(number) => *count = number,
                None => missing = true,
            });
            if missing {
                return None;
            }
            report.devices.push(ScrubDevice { devid, path, counts });
        }
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_round_trips_and_a_truncated_one_fails() {
        let counts = ScrubCounts { csum_errors: 3, write_errors: 9, ..ScrubCounts::default() };
        let status = JobStatus {
            number: 4,
            kind: JobKind::Scrub,
            state: JobState::Failed,
            started: 1_800_000_000,
            duration: Duration::from_millis(1500),
            moved: BalanceReport { considered: 1, expected: 2, completed: 3, bytes: 4, expected_bytes: 5 },
            scrub: ScrubReport {
                devices: vec![ScrubDevice { devid: DeviceId(2), path: Some("/dev/x".to_owned()), counts }],
                bytes_done: 6,
                bytes_total: 7,
                position: LogicalAddress(8),
                skipped: 9,
                first_error: Some("no good copy".to_owned()),
                undecodable: 10,
                undecodable_extents: vec!["logical address 9".to_owned(), String::new()],
                lost_data: vec!["logical address 7: files: /a".to_owned()],
                finished: true,
            },
            errno: 28,
            error: "no space".to_owned(),
        };
        let mut writer = Writer::default();
        writer.job(&status);
        assert_eq!(Reader(&writer.0).job(), Some(status));
        for end in 0..writer.0.len() {
            assert!(Reader(&writer.0[..end]).job().is_none(), "{end}");
        }
    }
}

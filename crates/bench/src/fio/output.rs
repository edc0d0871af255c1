//! fio's JSON output (`--output-format=json+`).
//!
//! Owns [`Output`], the fields that the report needs, and [`Figures`], the results of one job.
//! Unknown fields are ignored, because every fio version adds some.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// fio's whole output.
#[derive(Debug, Deserialize)]
pub struct Output {
    /// Version, for example `fio-3.33`.
    #[serde(rename = "fio version")]
    pub version: String,
    /// End of the last job in milliseconds since 1970.
    pub timestamp_ms: u64,
    #[serde(default)]
    jobs: Vec<Group>,
}

/// A job, or several jobs under one `group_reporting`.
#[derive(Debug, Deserialize)]
struct Group {
    jobname: String,
    /// The first error number; 0 without an error.
    error: i32,
    #[serde(default)]
    total_err: u64,
    read: Direction,
    write: Direction,
    /// Sum of the group's run times in milliseconds.
    #[serde(default)]
    job_runtime: u64,
    /// User time in percent of `job_runtime`.
    usr_cpu: f64,
    /// System time in percent of `job_runtime`.
    sys_cpu: f64,
}

#[derive(Debug, Default, Deserialize)]
struct Direction {
    io_bytes: u64,
    /// Run time of the longest job in milliseconds.
    runtime: u64,
    total_ios: u64,
    #[serde(default)]
    short_ios: u64,
    #[serde(default)]
    drop_ios: u64,
    clat_ns: Latency,
}

#[derive(Debug, Default, Deserialize)]
struct Latency {
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, u64>,
}

/// The results of one run as fio reports them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bandwidth of reads and writes together in MiB/s.
    pub bandwidth_mib: f64,
    /// Operations per second.
    pub iops: f64,
    /// Number of operations.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Run time in seconds, without the ramp.
    pub seconds: f64,
    /// Mean time from submission to completion, in nanoseconds.
    pub latency_mean_ns: f64,
    /// Percentiles of that time: percent and nanoseconds, ascending.
    pub latency_ns: Vec<(f64, u64)>,
    /// User time in seconds as fio counts it: its own processes, without kernel workers or a FUSE
    /// server.
    pub user_seconds: f64,
    /// System time in seconds, counted the same way.
    pub system_seconds: f64,
}

impl Output {
    /// Parses fio's output. Warnings may precede and follow the JSON.
    ///
    /// # Errors
    /// There is no JSON, or a required field is missing.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let start = text.find('{').context("fio printed no JSON")?;
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Self>();
        values.next().context("fio printed no JSON")?.context("cannot parse fio's JSON")
    }

    /// Returns the results of a job.
    ///
    /// # Errors
    /// Not exactly one group has that name, any job failed, or the job completed no operation.
    pub fn figures(&self, job: &str) -> anyhow::Result<Figures> {
        for group in &self.jobs {
            if group.error != 0 || group.total_err != 0 {
                let error = std::io::Error::from_raw_os_error(group.error);
                bail!("fio job {} failed: {error}", group.jobname);
            }
        }
        let mut named = self.jobs.iter().filter(|group| group.jobname == job);
        let (Some(group), None) = (named.next(), named.next()) else {
            bail!("fio's output does not have exactly one job {job}");
        };
        group.figures().with_context(|| format!("fio job {job}"))
    }
}

impl Group {
    fn figures(&self) -> anyhow::Result<Figures> {
        let (read, write) = (&self.read, &self.write);
        if read.short_ios + read.drop_ios + write.short_ios + write.drop_ios > 0 {
            bail!("some operations were short or dropped");
        }
        let operations = read.total_ios + write.total_ios;
        let runtime_ms = read.runtime.max(write.runtime);
        if operations == 0 {
            bail!("no operation completed");
        }
        // fio reports 0 for a run of less than a millisecond.
        let seconds = runtime_ms.max(1) as f64 / 1000.0;
        let bytes = read.io_bytes + write.io_bytes;
        // Each job only reads or only writes.
        let latency = if read.total_ios > 0 { &read.clat_ns } else { &write.clat_ns };
        let mut latency_ns: Vec<(f64, u64)> = latency
            .percentile
            .iter()
            .filter_map(|(percent, nanoseconds)| Some((percent.parse().ok()?, *nanoseconds)))
            .collect();
        latency_ns.sort_by(|a, b| a.0.total_cmp(&b.0));
        let cpu_second = self.job_runtime as f64 / 1000.0 / 100.0;
        Ok(Figures {
            bandwidth_mib: bytes as f64 / f64::from(1 << 20) / seconds,
            iops: operations as f64 / seconds,
            operations,
            bytes,
            seconds,
            latency_mean_ns: latency.mean,
            latency_ns,
            user_seconds: self.usr_cpu * cpu_second,
            system_seconds: self.sys_cpu * cpu_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of fio 3.33 for 16 jobs of random writes under `group_reporting`, shortened.
    const WRITES: &str = include_str!("../../tests/samples/fio-3.33-randwrite.json");
    /// Output of fio 3.33 for a job on a full file system.
    const FAILED: &str = include_str!("../../tests/samples/fio-3.33-full.json");

    #[test]
    fn a_group_has_figures() {
        let output = Output::parse(WRITES).unwrap();
        assert_eq!(output.version, "fio-3.33");
        let figures = output.figures("file1").unwrap();
        assert_eq!((figures.operations, figures.bytes), (321_261, 5_356_482_560));
        assert!((figures.seconds - 1.011).abs() < 1e-9);
        assert!((figures.bandwidth_mib - 5_052.75).abs() < 0.1, "{}", figures.bandwidth_mib);
        assert!((figures.iops - 317_765.6).abs() < 1.0, "{}", figures.iops);
        assert_eq!(figures.latency_ns.first(), Some(&(1.0, 18_304)));
        assert!(figures.latency_ns.contains(&(99.9, 84_410_368)));
        // 1.213894 % of the jobs' 16.064 s.
        assert!((figures.user_seconds - 0.195).abs() < 0.001);
        assert!((figures.system_seconds - 0.482).abs() < 0.001);
    }

    #[test]
    fn warnings_around_the_json_are_ignored() {
        let text = format!("note: both iodepth >= 1 and synchronous I/O engine\n{WRITES}\nfio: bye\n");
        assert!(Output::parse(&text).is_ok());
        assert!(Output::parse("fio: no such engine\n").is_err());
        assert!(Output::parse("{}").is_err());
    }

    #[test]
    fn failed_jobs_have_no_figures() {
        let error = Output::parse(FAILED).unwrap().figures("write").unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(Output::parse(WRITES).unwrap().figures("other").is_err());
        let nothing = WRITES.replace("\"total_ios\" : 321261", "\"total_ios\" : 0");
        assert!(Output::parse(&nothing).unwrap().figures("file1").is_err());
        let short = WRITES.replacen("\"short_ios\" : 0", "\"short_ios\" : 3", 1);
        assert!(Output::parse(&short).unwrap().figures("file1").is_err());
    }
}

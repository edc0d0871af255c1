//! What fio says in JSON (`--output-format=json+`).
//!
//! Owns [`Output`], the part of it that the report needs, and [`Figures`], one job's figures made of it.
//! Unknown fields are passed over: fio adds some in each version.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// fio's whole answer.
#[derive(Debug, Deserialize)]
pub struct Output {
    /// For example `fio-3.33`.
    #[serde(rename = "fio version")]
    pub version: String,
    /// When the last job had ended, in milliseconds since 1970.
    pub timestamp_ms: u64,
    #[serde(default)]
    jobs: Vec<Group>,
}

/// A job, or all that ran under one `group_reporting`.
#[derive(Debug, Deserialize)]
struct Group {
    jobname: String,
    /// The first error's number; 0 without any.
    error: i32,
    #[serde(default)]
    total_err: u64,
    read: Direction,
    write: Direction,
    /// Milliseconds, summed up over the jobs of the group.
    #[serde(default)]
    job_runtime: u64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Debug, Default, Deserialize)]
struct Direction {
    io_bytes: u64,
    /// Milliseconds of the longest job.
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

/// One run's figures as fio has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// MiB a second, reads and writes together.
    pub bandwidth_mib: f64,
    /// Operations a second.
    pub iops: f64,
    /// Operations that the figures are made of.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Seconds of the run, ramp not included.
    pub seconds: f64,
    /// Mean time from submission to completion, in nanoseconds.
    pub latency_mean_ns: f64,
    /// The same by percentile: percent and nanoseconds, ascending.
    pub latency_ns: Vec<(f64, u64)>,
    /// Processor seconds in user mode, by fio's own count: its processes alone, without what kernel
    /// workers or a FUSE server do for it.
    pub user_seconds: f64,
    /// The same in the kernel.
    pub system_seconds: f64,
}

impl Output {
    /// Reads fio's answer; what stands before the first brace are its warnings.
    ///
    /// # Errors
    /// It is not JSON, or lacks what each version of fio says.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let start = text.find('{').context("fio printed no JSON")?;
        // Warnings may also follow.
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Self>();
        values.next().context("fio printed no JSON")?.context("fio's JSON")
    }

    /// The figures of the job of that name; of several with the name, which lack `group_reporting`, nothing.
    ///
    /// # Errors
    /// There is not exactly one such job, it met an error, or it did nothing.
    pub fn figures(&self, job: &str) -> anyhow::Result<Figures> {
        for group in &self.jobs {
            if group.error != 0 || group.total_err != 0 {
                let error = std::io::Error::from_raw_os_error(group.error);
                bail!("job {} met an error: {error}", group.jobname);
            }
        }
        let mut named = self.jobs.iter().filter(|group| group.jobname == job);
        let (Some(group), None) = (named.next(), named.next()) else {
            bail!("fio reports not exactly one job {job}");
        };
        group.figures().with_context(|| format!("job {job}"))
    }
}

impl Group {
    fn figures(&self) -> anyhow::Result<Figures> {
        let (read, write) = (&self.read, &self.write);
        if read.short_ios + read.drop_ios + write.short_ios + write.drop_ios > 0 {
            bail!("operations were short or dropped");
        }
        let operations = read.total_ios + write.total_ios;
        let runtime_ms = read.runtime.max(write.runtime);
        if operations == 0 {
            bail!("fio completed no operation");
        }
        // A run of less than a millisecond says 0.
        let seconds = runtime_ms.max(1) as f64 / 1000.0;
        let bytes = read.io_bytes + write.io_bytes;
        // The jobs only read or only write: the other direction has neither.
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

    /// Of fio 3.33: 16 jobs of random writes under group_reporting, shortened.
    const WRITES: &str = include_str!("../../tests/samples/fio-3.33-randwrite.json");
    /// Of fio 3.33: a job whose file system was full.
    const FAILED: &str = include_str!("../../tests/samples/fio-3.33-full.json");

    #[test]
    fn figures_of_a_group() {
        let output = Output::parse(WRITES).unwrap();
        assert_eq!(output.version, "fio-3.33");
        let figures = output.figures("file1").unwrap();
        assert_eq!((figures.operations, figures.bytes), (321_261, 5_356_482_560));
        assert!((figures.seconds - 1.011).abs() < 1e-9);
        assert!((figures.bandwidth_mib - 5_052.75).abs() < 0.1, "{}", figures.bandwidth_mib);
        assert!((figures.iops - 317_765.6).abs() < 1.0, "{}", figures.iops);
        assert_eq!(figures.latency_ns.first(), Some(&(1.0, 18_304)));
        assert!(figures.latency_ns.contains(&(99.9, 84_410_368)));
        // 1.213894 % of the 16.064 s of all jobs.
        assert!((figures.user_seconds - 0.195).abs() < 0.001);
        assert!((figures.system_seconds - 0.482).abs() < 0.001);
    }

    #[test]
    fn warnings_around_the_json_do_not_matter() {
        let text = format!("note: both iodepth >= 1 and synchronous I/O engine\n{WRITES}\nfio: bye\n");
        assert!(Output::parse(&text).is_ok());
        assert!(Output::parse("fio: no such engine\n").is_err());
        assert!(Output::parse("{}").is_err());
    }

    #[test]
    fn errors_are_no_figures() {
        let error = Output::parse(FAILED).unwrap().figures("write").unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(Output::parse(WRITES).unwrap().figures("other").is_err());
        let nothing = WRITES.replace("\"total_ios\" : 321261", "\"total_ios\" : 0");
        assert!(Output::parse(&nothing).unwrap().figures("file1").is_err());
        let short = WRITES.replacen("\"short_ios\" : 0", "\"short_ios\" : 3", 1);
        assert!(Output::parse(&short).unwrap().figures("file1").is_err());
    }
}

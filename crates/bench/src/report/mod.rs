//! The results of a run: stored as JSON, shown as tables, HTML or Markdown.
//!
//! Owns [`Report`], which holds the results of every run. Medians and ratios are computed for
//! display ([`statistics`]), so that a stored report shows the same values again.

mod escape;
pub mod html;
#[cfg(test)]
mod html_in_browser;
pub mod markdown;
pub mod overview;
pub mod plot;
pub mod plots;
pub mod statistics;
pub mod table;

use crate::backing::Kind;
use crate::fio::run::Measurement;
use crate::job::Job;
use crate::machine::Machine;
use crate::model::Model;
use crate::over::Over;
use crate::profile::Profile;
use crate::side::Side;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use statistics::Spread;
use std::path::Path;

/// Version of the JSON format.
const FORMAT: u32 = 1;

/// The results of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the JSON format, 1.
    pub format: u32,
    /// Start of the run in seconds since 1970.
    pub started: u64,
    /// Command line of the run.
    pub command: Vec<String>,
    /// Command lines of the reports merged into this one.
    #[serde(default)]
    pub added: Vec<Vec<String>>,
    /// The machine of the run.
    pub machine: Machine,
    /// Factor applied to all file sizes.
    pub scale: f64,
    /// Requested number of rounds.
    pub rounds: usize,
    /// Kind of the backing.
    pub backing: Kind,
    /// Size of the backing in bytes.
    pub backing_bytes: u64,
    /// Sides and jobs that were not run, with reasons.
    pub left_out: Vec<LeftOut>,
    /// Results of each job.
    pub jobs: Vec<JobReport>,
    /// Bandwidths for the model of the job `checksummed-write`.
    pub model: Option<Model>,
    /// Results of sweeps.
    #[serde(default)]
    pub sweeps: Vec<Sweep>,
    /// Whether the run was interrupted.
    pub interrupted: bool,
}

/// A side that was not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The side.
    pub side: Side,
    /// The job; `None` means all jobs.
    pub job: Option<String>,
    /// The reason, as one line.
    pub why: String,
}

/// The results of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Name of the job.
    pub id: String,
    /// The scaled job file.
    pub file: String,
    /// Total size of the job's files in bytes.
    pub file_bytes: u64,
    /// Page cache limit in bytes, if the job has one.
    pub cache: Option<u64>,
    /// Runs of each side, in the order of [`Side::ALL`].
    pub sides: Vec<SideReport>,
    /// Memory in bytes that fio itself uses, for jobs with a page cache limit.
    #[serde(default)]
    pub fio_memory: Option<u64>,
    /// Profiles of Papilio's sides.
    #[serde(default)]
    pub profiles: Vec<Profile>,
}

/// The runs of one side in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideReport {
    /// The side.
    pub side: Side,
    /// One run for each round, in order.
    pub runs: Vec<Measurement>,
}

/// The results of a sweep over one quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The quantity.
    pub over: Over,
    /// The points, grouped by job and ascending within each.
    pub points: Vec<Point>,
}

/// A job at one point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Value of the quantity.
    pub value: u64,
    /// The runs.
    pub job: JobReport,
}

impl Sweep {
    /// Inserts a point after the others of its job.
    pub fn add(&mut self, point: Point) {
        let last = self.points.iter().rposition(|other| other.job.id == point.job.id);
        self.points.insert(last.map_or(self.points.len(), |last| last + 1), point);
    }

    /// Returns the names of the jobs, each once, in order.
    pub fn jobs(&self) -> Vec<&str> {
        let mut ids: Vec<&str> = self.points.iter().map(|point| point.job.id.as_str()).collect();
        ids.dedup();
        ids
    }

    /// Returns the points of one job.
    pub fn of_job<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Point> + Clone {
        self.points.iter().filter(move |point| point.job.id == id)
    }
}

impl Report {
    /// Creates a report without results.
    pub fn new(machine: Machine, scale: f64, rounds: usize, backing: (Kind, u64)) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            format: FORMAT,
            started: now.unwrap_or_default().as_secs(),
            command: command_line(std::env::args_os()),
            added: Vec::new(),
            machine,
            scale,
            rounds,
            backing: backing.0,
            backing_bytes: backing.1,
            left_out: Vec::new(),
            jobs: Vec::new(),
            model: None,
            sweeps: Vec::new(),
            interrupted: false,
        }
    }

    /// Reads a report from JSON. Former job numbers become names.
    ///
    /// # Errors
    /// The file cannot be read, or is not a report of this format.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut report: Self = serde_json::from_str(&text)
            .with_context(|| format!("{}: not a report of papilio bench", path.display()))?;
        if report.format != FORMAT {
            bail!("{}: report has format {}, expected {FORMAT}", path.display(), report.format);
        }
        let points = report.sweeps.iter_mut().flat_map(|sweep| &mut sweep.points);
        for job in report.jobs.iter_mut().chain(points.map(|point| &mut point.job)) {
            let Some(known) = job.job() else {
                bail!("{}: unknown job {:?}", path.display(), job.id);
            };
            known.id.clone_into(&mut job.id);
        }
        Ok(report)
    }

    /// Merges the jobs and sweeps that another report has and this one lacks.
    ///
    /// Machine and scale remain those of this report.
    pub fn add(&mut self, other: Self) {
        for job in other.jobs {
            if self.job(&job.id).is_none() {
                self.jobs.push(job);
            }
        }
        for sweep in other.sweeps {
            if self.sweeps.iter().all(|own| own.over != sweep.over) {
                self.sweeps.push(sweep);
            }
        }
        for left in other.left_out {
            if !self.left_out.contains(&left) {
                self.left_out.push(left);
            }
        }
        for command in std::iter::once(other.command).chain(other.added) {
            if command != self.command && !self.added.contains(&command) {
                self.added.push(command);
            }
        }
        self.model = self.model.or(other.model);
        self.interrupted |= other.interrupted;
    }

    /// Returns whether the report has no result at all.
    pub fn is_empty(&self) -> bool {
        let points = self.sweeps.iter().flat_map(|sweep| &sweep.points).map(|point| &point.job);
        self.jobs.iter().chain(points).all(|job| job.sides.is_empty())
    }

    /// Converts the report to JSON with a final newline.
    pub fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Returns the command lines of the report and of those merged into it.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.command).chain(&self.added).map(|words| words.join(" "))
    }

    /// Returns the results of a job, if it was run.
    pub fn job(&self, id: &str) -> Option<&JobReport> {
        self.jobs.iter().find(|job| job.id == id)
    }

    /// Returns the sides that have a result anywhere.
    pub fn sides(&self) -> impl Iterator<Item = Side> {
        let points = || self.sweeps.iter().flat_map(|sweep| &sweep.points).map(|point| &point.job);
        let has = move |side| self.jobs.iter().chain(points()).any(|job| job.side(side).is_some());
        Side::ALL.into_iter().filter(move |side| has(*side))
    }
}

impl JobReport {
    /// Returns the job itself; `None` for an unknown name.
    pub fn job(&self) -> Option<&'static Job> {
        Job::by_id(&self.id)
    }

    /// Returns the runs of a side, if it has any.
    pub fn side(&self, side: Side) -> Option<&SideReport> {
        self.sides.iter().find(|report| report.side == side && !report.runs.is_empty())
    }

    /// Returns a side's bandwidth in MiB/s.
    pub fn bandwidth(&self, side: Side) -> Option<Spread> {
        self.side(side).map(|report| report.spread(|run| run.fio.bandwidth_mib))
    }

    /// Returns the peak memory of a Papilio side in bytes, without fio's own; for a mount, the
    /// server's.
    pub fn memory(&self, side: Side) -> Option<u64> {
        let seen = self.side(side)?.runs.iter().filter_map(|run| run.memory_bytes).max()?;
        let fio = if side.is_mount() { 0 } else { self.fio_memory? };
        Some(seen.saturating_sub(fio))
    }

    /// Returns the ratio of the sides' median bandwidths.
    pub fn ratio(&self, side: Side, other: Side) -> Option<f64> {
        let (ours, theirs) = (self.bandwidth(side)?, self.bandwidth(other)?);
        (side != other && theirs.median > 0.0).then(|| ours.median / theirs.median)
    }

    /// Returns the spread of the bandwidth ratios of both sides' runs in the same round.
    ///
    /// Such runs are close in time, so that slow changes of the machine's speed cancel out.
    pub fn paired_ratio(&self, side: Side, other: Side) -> Option<Spread> {
        let (ours, theirs) = (self.side(side)?, self.side(other)?);
        let ratio = |(ours, theirs): (&Measurement, &Measurement)| {
            (theirs.fio.bandwidth_mib > 0.0).then(|| ours.fio.bandwidth_mib / theirs.fio.bandwidth_mib)
        };
        let ratios: Vec<f64> = ours.runs.iter().zip(&theirs.runs).filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| Spread::of(ratios))
    }
}

impl SideReport {
    /// Returns the median and spread of a value over the runs.
    pub fn spread(&self, figure: impl Fn(&Measurement) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(figure))
    }

    /// Returns a latency percentile in nanoseconds, as the median over the runs.
    pub fn latency_ns(&self, percent: f64) -> Option<f64> {
        let of_run = |run: &Measurement| {
            run.fio
                .latency_ns
                .iter()
                .find(|(known, _)| (known - percent).abs() < 1e-6)
                .map(|(_, ns)| *ns as f64)
        };
        let all: Vec<f64> = self.runs.iter().filter_map(of_run).collect();
        (!all.is_empty()).then(|| Spread::of(all).median)
    }
}

/// Returns the command line with the program's name instead of its path.
fn command_line(arguments: impl Iterator<Item = std::ffi::OsString>) -> Vec<String> {
    let mut words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(program) = words.first_mut() {
        let name = Path::new(program.as_str()).file_name().map(|name| name.to_string_lossy().into_owned());
        *program = name.unwrap_or_default();
    }
    words
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fio::output::Figures;
    use crate::profile::Symbol;

    /// Makes a run whose results all follow from its bandwidth.
    pub(crate) fn run(bandwidth_mib: f64) -> Measurement {
        let operations = (bandwidth_mib * 256.0) as u64;
        let latency = |percent: f64| (percent, (1e9 / bandwidth_mib * percent / 50.0) as u64);
        Measurement {
            fio: Figures {
                bandwidth_mib,
                iops: operations as f64,
                operations,
                bytes: operations * 4096,
                seconds: 1.0,
                latency_mean_ns: 1e9 / bandwidth_mib,
                latency_ns: [50.0, 90.0, 99.0, 99.9, 99.99].map(latency).to_vec(),
                user_seconds: 0.2,
                system_seconds: 0.3,
            },
            machine_seconds: 1.2,
            memory_bytes: None,
            end: 0.0,
        }
    }

    /// Makes a report of all jobs with three rounds; `cached-read-huge` lacks the kernel.
    pub(crate) fn sample() -> Report {
        let machine = Machine {
            processor: "A <processor> & more".into(),
            processors: 2,
            memory: 8 << 30,
            load: 0.1,
            kernel: "6.18".into(),
            papilio: "0.1.0".into(),
            fio: Some("fio-3.33".into()),
            btrfs_progs: None,
        };
        let mut report = Report::new(machine, 0.015625, 3, (Kind::Ram, 2 << 30));
        for (number, job) in crate::job::JOBS.iter().enumerate() {
            let sides = Side::ALL
                .iter()
                .filter(|side| !side.is_other_build())
                .enumerate()
                .filter(|(_, side)| (job.id, **side) != ("cached-read-huge", Side::Kernel));
            let side = |(place, side): (usize, &Side)| {
                let base = 100.0 * (place + 1) as f64 * (number + 1) as f64;
                SideReport { side: *side, runs: vec![run(base), run(base * 1.1), run(base * 0.9)] }
            };
            report.jobs.push(JobReport {
                id: job.id.into(),
                file: job.text.into(),
                file_bytes: 128 << 20,
                cache: job.cache,
                sides: sides.map(side).collect(),
                fio_memory: job.cache.map(|_| 20 << 20),
                profiles: Vec::new(),
            });
        }
        let cached = report.jobs.iter_mut().find(|job| job.id == "cached-read").unwrap();
        cached.cache = Some(256 << 20);
        for side in cached.sides.iter_mut().filter(|side| side.side == Side::Papilio) {
            side.runs.iter_mut().for_each(|run| run.memory_bytes = Some(320 << 20));
        }
        let symbol =
            |percent, part: &str, name: &str| Symbol { percent, part: part.into(), name: name.into() };
        report.jobs[0].profiles.push(Profile {
            side: Side::Papilio,
            samples: 1234,
            parts: vec![("kernel and device".into(), 75.0), ("btree".into(), 25.0)],
            symbols: vec![
                symbol(75.0, "kernel and device", "shmem_write_end"),
                symbol(25.0, "btree", "<papilio::btree::Tree as Get>::get"),
            ],
        });
        report.left_out.push(LeftOut {
            side: Side::Kernel,
            job: Some("cached-read-huge".into()),
            why: "needs a memory cgroup </script>".into(),
        });
        let point = |(place, job): (usize, JobReport)| Point { value: 10_u64.pow(place as u32), job };
        let jobs = report.jobs[..4].to_vec();
        let jobs = jobs.into_iter().map(|job| JobReport { id: "prealloc-write".into(), ..job });
        report.sweeps.push(Sweep { over: Over::Snapshots, points: jobs.enumerate().map(point).collect() });
        report.model = Some(Model { memory: 5000.0, checksum: 8000.0, device: 4000.0 });
        report
    }

    #[test]
    fn json_round_trips() {
        let report = sample();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(&path, report.to_json().unwrap()).unwrap();
        assert_eq!(Report::read(&path).unwrap(), report);
        for (text, word) in [
            ("{}", "not a report"),
            ("[", "not a report"),
            (&report.to_json().unwrap().replace("\"format\": 1", "\"format\": 7"), "format 7"),
            (&report.to_json().unwrap().replace("\"cached-read-huge\"", "\"9\""), "unknown job"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Report::read(&path).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        assert!(Report::read(&folder.path().join("none")).is_err());
    }

    #[test]
    fn former_job_numbers_are_read_as_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let old = sample().to_json().unwrap();
        let old = old.replace("\"id\": \"prealloc-write\"", "\"id\": \"000\"");
        let old = old.replace("\"id\": \"cached-read-huge\"", "\"id\": \"004-huge\"");
        std::fs::write(&path, old).unwrap();
        assert_eq!(Report::read(&path).unwrap(), sample());
    }

    #[test]
    fn paired_ratios_compare_runs_of_the_same_round() {
        let mut report = sample();
        let job = &mut report.jobs[0];
        job.sides[1].runs = vec![run(100.0), run(210.0), run(309.0)];
        let runs = vec![run(100.0), run(200.0), run(300.0)];
        job.sides.push(SideReport { side: Side::PapilioOther, runs });
        let ratio = job.paired_ratio(Side::Papilio, Side::PapilioOther).unwrap();
        assert_eq!((ratio.least, ratio.median, ratio.most), (1.0, 1.03, 1.05));
        assert_eq!(job.paired_ratio(Side::Papilio, Side::Raw).map(|ratio| ratio.least > 0.0), Some(true));
        job.sides.clear();
        assert_eq!(job.paired_ratio(Side::Papilio, Side::PapilioOther), None);
    }

    #[test]
    fn ratios_compare_medians() {
        let report = sample();
        let job = report.job("prealloc-write").unwrap();
        assert_eq!(job.ratio(Side::Papilio, Side::Kernel), Some(2.0));
        assert_eq!(job.ratio(Side::Kernel, Side::Kernel), None);
        assert_eq!(report.job("cached-read-huge").unwrap().ratio(Side::Papilio, Side::Kernel), None);
        assert_eq!(report.sides().count(), 6);
    }

    #[test]
    fn reports_are_merged() {
        let (mut joined, mut other) = (sample(), sample());
        joined.jobs.truncate(2);
        joined.sweeps.clear();
        joined.left_out.clear();
        let whole = sample();
        other.machine.kernel = "7.0".into();
        other.command = vec!["papilio".into(), "sweep".into()];
        joined.add(other.clone());
        assert_eq!((joined.jobs.len(), joined.sweeps.len()), (whole.jobs.len(), 1));
        assert_eq!(joined.machine, whole.machine);
        joined.add(other);
        assert_eq!((joined.jobs.len(), joined.sweeps.len(), joined.left_out.len()), (8, 1, 1));
        assert_eq!(joined.commands().skip(1).collect::<Vec<_>>(), ["papilio sweep"]);
        assert!(!joined.is_empty());
        joined.jobs.clear();
        assert!(!joined.is_empty());
        joined.sweeps.clear();
        assert!(joined.is_empty());
    }

    #[test]
    fn memory_excludes_fio_s_own() {
        let report = sample();
        assert_eq!(report.job("cached-read").unwrap().memory(Side::Papilio), Some(300 << 20));
        assert_eq!(report.job("cached-read").unwrap().memory(Side::Mount), None);
        assert_eq!(report.job("prealloc-write").unwrap().memory(Side::Papilio), None);
    }

    #[test]
    fn points_are_grouped_by_job() {
        let mut sweep = Sweep { over: Over::Extents, points: Vec::new() };
        let jobs = sample().jobs;
        for (value, place) in [(1, 0), (1, 3), (10, 0), (10, 3)] {
            sweep.add(Point { value, job: jobs[place].clone() });
        }
        assert_eq!(sweep.points.iter().map(|point| point.value).collect::<Vec<_>>(), [1, 10, 1, 10]);
        assert_eq!(sweep.jobs(), ["prealloc-write", "checksummed-write"]);
    }

    #[test]
    fn a_percentile_is_the_median_over_runs() {
        let side = SideReport { side: Side::Raw, runs: vec![run(100.0), run(200.0), run(50.0)] };
        assert_eq!(side.latency_ns(50.0), Some(1e7));
        assert_eq!(side.latency_ns(12.0), None);
    }
}

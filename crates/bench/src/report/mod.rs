//! What a run came to: kept as JSON, shown as a table, a page, or Markdown.
//!
//! Owns [`Report`]. It holds every run's figures; medians and ratios are made of them where they are shown
//! ([`statistics`]), so that a report read again shows the same.

pub mod html;
#[cfg(test)]
mod html_in_browser;
pub mod markdown;
pub mod plots;
pub mod statistics;
pub mod table;

use crate::backing::Kind;
use crate::fio::run::Measurement;
use crate::job::Job;
use crate::machine::Machine;
use crate::model::Model;
use crate::profile::Profile;
use crate::side::Side;
use crate::sweep::Over;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use statistics::Spread;
use std::path::Path;

/// The version of the JSON's layout.
const FORMAT: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The layout's version, 1.
    pub format: u32,
    /// Seconds since 1970 when the run began.
    pub started: u64,
    /// The command that made it.
    pub command: Vec<String>,
    /// The commands of other reports that were added.
    #[serde(default)]
    pub added: Vec<Vec<String>>,
    /// Where.
    pub machine: Machine,
    /// Sizes, as a part of the originals'.
    pub scale: f64,
    /// Rounds that were asked for.
    pub rounds: usize,
    /// What the bytes were kept on.
    pub backing: Kind,
    /// Bytes of it.
    pub backing_bytes: u64,
    /// What was not run, and why.
    pub left_out: Vec<LeftOut>,
    /// The jobs that were run.
    pub jobs: Vec<JobReport>,
    /// Bandwidths behind job 002.
    pub model: Option<Model>,
    /// How the figures move with something.
    #[serde(default)]
    pub sweeps: Vec<Sweep>,
    /// Whether the run was ended before all was done.
    pub interrupted: bool,
}

/// Something that was not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// By whom.
    pub side: Side,
    /// The job; `None`: all.
    pub job: Option<String>,
    /// Why, as a line.
    pub why: String,
}

/// One job's runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// The job's name.
    pub id: String,
    /// The job file as it was scaled.
    pub file: String,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Bytes that the page cache might hold, where limited.
    pub cache: Option<u64>,
    /// Who ran it, in the order of [`Side::ALL`].
    pub sides: Vec<SideReport>,
    /// Bytes of memory that fio itself takes for it, where memory is of interest.
    #[serde(default)]
    pub fio_memory: Option<u64>,
    /// Where the time of Papilio's sides goes.
    #[serde(default)]
    pub profiles: Vec<Profile>,
}

/// One side's runs of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideReport {
    /// Whose.
    pub side: Side,
    /// A run for each round.
    pub runs: Vec<Measurement>,
}

/// Jobs run again and again with more of something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Of what.
    pub over: Over,
    /// The runs, job by job, ascending within each.
    pub points: Vec<Point>,
}

/// A job at one point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// How many there were.
    pub value: u64,
    /// The runs.
    pub job: JobReport,
}

impl Sweep {
    /// Adds a point behind the others of its job.
    pub fn add(&mut self, point: Point) {
        let last = self.points.iter().rposition(|other| other.job.id == point.job.id);
        self.points.insert(last.map_or(self.points.len(), |last| last + 1), point);
    }

    /// The jobs, each once, in order.
    pub fn jobs(&self) -> Vec<&str> {
        let mut ids: Vec<&str> = self.points.iter().map(|point| point.job.id.as_str()).collect();
        ids.dedup();
        ids
    }

    /// The points of one job.
    pub fn of_job<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Point> + Clone {
        self.points.iter().filter(move |point| point.job.id == id)
    }
}

impl Report {
    /// A report without a job yet.
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

    /// Reads a report that was written as JSON.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let report: Self = serde_json::from_str(&text)
            .with_context(|| format!("{}: not a report of papilio bench", path.display()))?;
        if report.format != FORMAT {
            bail!("{}: a report of format {}, this is {FORMAT}", path.display(), report.format);
        }
        if let Some(job) = report.jobs.iter().find(|job| job.job().is_none()) {
            bail!("{}: has an unknown job {:?}", path.display(), job.id);
        }
        Ok(report)
    }

    /// Takes in what another report has and this one lacks: jobs, sweeps, and what they left out. The
    /// machine and the scale stay this one's.
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

    /// Whether there is no figure at all.
    pub fn is_empty(&self) -> bool {
        let points = self.sweeps.iter().flat_map(|sweep| &sweep.points).map(|point| &point.job);
        self.jobs.iter().chain(points).all(|job| job.sides.is_empty())
    }

    /// As JSON, with a newline at the end.
    pub fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The commands that made it, as lines.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.command).chain(&self.added).map(|words| words.join(" "))
    }

    /// The job of that name, where it was run.
    pub fn job(&self, id: &str) -> Option<&JobReport> {
        self.jobs.iter().find(|job| job.id == id)
    }

    /// The sides that have a figure anywhere.
    pub fn sides(&self) -> impl Iterator<Item = Side> {
        let points = || self.sweeps.iter().flat_map(|sweep| &sweep.points).map(|point| &point.job);
        let has = move |side| self.jobs.iter().chain(points()).any(|job| job.side(side).is_some());
        Side::ALL.into_iter().filter(move |side| has(*side))
    }
}

impl JobReport {
    /// The job itself; `None` for a name that this version does not know.
    pub fn job(&self) -> Option<&'static Job> {
        crate::job::JOBS.iter().find(|job| job.id == self.id)
    }

    /// One side's runs, where it has any.
    pub fn side(&self, side: Side) -> Option<&SideReport> {
        self.sides.iter().find(|report| report.side == side && !report.runs.is_empty())
    }

    /// MiB a second of one side.
    pub fn bandwidth(&self, side: Side) -> Option<Spread> {
        self.side(side).map(|report| report.spread(|run| run.fio.bandwidth_mib))
    }

    /// The most memory that a side of Papilio's took beside what fio itself takes; of the mount, its server's.
    pub fn memory(&self, side: Side) -> Option<u64> {
        let seen = self.side(side)?.runs.iter().filter_map(|run| run.memory_bytes).max()?;
        let fio = if side.is_mount() { 0 } else { self.fio_memory? };
        Some(seen.saturating_sub(fio))
    }

    /// How many times as fast `side` is as `other`, by medians.
    pub fn ratio(&self, side: Side, other: Side) -> Option<f64> {
        let (ours, theirs) = (self.bandwidth(side)?, self.bandwidth(other)?);
        (side != other && theirs.median > 0.0).then(|| ours.median / theirs.median)
    }
}

impl SideReport {
    /// Median and spread of a figure.
    pub fn spread(&self, figure: impl Fn(&Measurement) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(figure))
    }

    /// A percentile of the latency in nanoseconds: the median of the runs'.
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

/// The command as it may be typed again: the program's name without its folder.
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

    /// A run with a bandwidth, and all else made of it.
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

    /// A report of all jobs, as a run of three rounds makes it; `004-huge` lacks the kernel.
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
                .enumerate()
                .filter(|(_, side)| (job.id, **side) != ("004-huge", Side::Kernel));
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
        let cached = report.jobs.iter_mut().find(|job| job.id == "004").unwrap();
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
            job: Some("004-huge".into()),
            why: "needs a memory cgroup </script>".into(),
        });
        let point = |(place, job): (usize, JobReport)| Point { value: 10_u64.pow(place as u32), job };
        let jobs = report.jobs[..4].to_vec();
        let jobs = jobs.into_iter().map(|job| JobReport { id: "000".into(), ..job });
        report.sweeps.push(Sweep { over: Over::Snapshots, points: jobs.enumerate().map(point).collect() });
        report.model = Some(Model { memory: 5000.0, checksum: 8000.0, device: 4000.0 });
        report
    }

    #[test]
    fn json_and_back() {
        let report = sample();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(&path, report.to_json().unwrap()).unwrap();
        assert_eq!(Report::read(&path).unwrap(), report);
        for (text, word) in [
            ("{}", "not a report"),
            ("[", "not a report"),
            (&report.to_json().unwrap().replace("\"format\": 1", "\"format\": 7"), "format 7"),
            (&report.to_json().unwrap().replace("\"004-huge\"", "\"9\""), "unknown job"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Report::read(&path).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        assert!(Report::read(&folder.path().join("none")).is_err());
    }

    #[test]
    fn ratios_are_of_medians() {
        let report = sample();
        let job = report.job("000").unwrap();
        assert_eq!(job.ratio(Side::Papilio, Side::Kernel), Some(2.0));
        assert_eq!(job.ratio(Side::Kernel, Side::Kernel), None);
        assert_eq!(report.job("004-huge").unwrap().ratio(Side::Papilio, Side::Kernel), None);
        assert_eq!(report.sides().count(), 6);
    }

    #[test]
    fn reports_are_joined() {
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
    fn memory_is_what_is_beside_fio_s_own() {
        let report = sample();
        assert_eq!(report.job("004").unwrap().memory(Side::Papilio), Some(300 << 20));
        assert_eq!(report.job("004").unwrap().memory(Side::Mount), None);
        assert_eq!(report.job("000").unwrap().memory(Side::Papilio), None);
    }

    #[test]
    fn points_stand_with_their_job() {
        let mut sweep = Sweep { over: Over::Extents, points: Vec::new() };
        let jobs = sample().jobs;
        for (value, place) in [(1, 0), (1, 3), (10, 0), (10, 3)] {
            sweep.add(Point { value, job: jobs[place].clone() });
        }
        assert_eq!(sweep.points.iter().map(|point| point.value).collect::<Vec<_>>(), [1, 10, 1, 10]);
        assert_eq!(sweep.jobs(), ["000", "002"]);
    }

    #[test]
    fn a_percentile_is_the_median_of_the_runs() {
        let side = SideReport { side: Side::Raw, runs: vec![run(100.0), run(200.0), run(50.0)] };
        assert_eq!(side.latency_ns(50.0), Some(1e7));
        assert_eq!(side.latency_ns(12.0), None);
    }
}

//! Points in the life of a file system: [`AgePoint`], and [`Ager`], which takes them.

use crate::measure::print_line;
use fastrand::Rng;
use papilio::FileSystem;
use std::time::{Duration, Instant};

/// Files whose extents are counted at each point.
const SAMPLE: usize = 64;

/// A state of the file system, and the work since the point before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AgePoint {
    /// Work done so far, in the workload's unit.
    pub age: u64,
    /// Mean time of a unit since the last point, in nanoseconds.
    pub nanoseconds: f64,
    /// Bytes of data in use.
    pub data: u64,
    /// Bytes of metadata in use, counted once.
    pub metadata: u64,
    /// Bytes of the device that are allocated to chunks.
    pub allocated: u64,
    /// Mean number of extents of a file.
    pub extents: f64,
    /// Anonymous memory of this process in bytes.
    pub memory: u64,
}

impl AgePoint {
    /// Returns the heading of the rows.
    pub(super) fn heading(unit: &str) -> String {
        format!(
            "{unit:>14} {:>12} {:>10} {:>12} {:>13} {:>8} {:>10}",
            "ns each", "data MiB", "metadata MiB", "allocated MiB", "extents", "memory MiB"
        )
    }

    /// Returns the names of the columns of [`AgePoint::line`].
    pub(super) fn columns(unit: &str) -> String {
        let unit = unit.replace(' ', "_");
        format!("{unit}\tns_each\tdata\tmetadata\tallocated\textents_of_a_file\tmemory")
    }

    /// Returns the point as a line of a table, in bytes.
    pub(super) fn line(&self) -> String {
        let Self { age, nanoseconds, data, metadata, allocated, extents, memory } = self;
        format!("{age}\t{nanoseconds:.0}\t{data}\t{metadata}\t{allocated}\t{extents:.2}\t{memory}")
    }

    fn row(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{:>14} {:>12.0} {:>10} {:>12} {:>13} {:>8.2} {:>10}",
            self.age,
            self.nanoseconds,
            mib(self.data),
            mib(self.metadata),
            mib(self.allocated),
            self.extents,
            mib(self.memory)
        )
    }
}

/// A file system that ages.
#[derive(Debug)]
pub(super) struct Ager {
    pub fs: FileSystem,
    pub random: Rng,
    /// Paths of files whose extents are counted.
    pub files: Vec<String>,
    step: u64,
    age: u64,
    since: (u64, Instant),
    points: Vec<AgePoint>,
    /// When the run ends, though its work is not done.
    end: Option<Instant>,
}

impl Ager {
    /// Starts; a point is taken after each `step` units of work.
    pub(super) fn new(fs: FileSystem, step: u64, seed: u64, limit: Option<Duration>) -> Self {
        let (random, now) = (Rng::with_seed(seed), Instant::now());
        let (since, end) = ((0, now), limit.map(|limit| now + limit));
        let (files, points) = (Vec::new(), Vec::new());
        Self { fs, random, files, step: step.max(1), age: 0, since, points, end }
    }

    /// Returns true if the time of the run is over.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Returns the work done so far.
    pub(super) fn age(&self) -> u64 {
        self.age
    }

    /// Notes work, and takes a point if one is due.
    ///
    /// # Errors
    /// The file system cannot be measured.
    pub(super) fn worked(&mut self, units: u64) -> anyhow::Result<()> {
        self.age += units;
        if self.age - self.since.0 < self.step {
            return Ok(());
        }
        let (done, took) = (self.age - self.since.0, self.since.1.elapsed());
        let usage = self.fs.usage()?;
        let used = |data: bool| -> u64 {
            let kind = papilio::BlockGroupFlags::DATA;
            let of_kind = usage.spaces.iter().filter(|space| space.kind.contains(kind) == data);
            of_kind.map(|space| space.used).sum()
        };
        let point = AgePoint {
            age: self.age,
            nanoseconds: took.as_nanos() as f64 / done as f64,
            data: used(true),
            metadata: used(false),
            allocated: usage.allocated(),
            extents: self.extents_of_a_file()?,
            memory: memory(),
        };
        print_line(format_args!("{}", point.row()))?;
        self.points.push(point);
        self.since = (self.age, Instant::now());
        Ok(())
    }

    fn extents_of_a_file(&mut self) -> anyhow::Result<f64> {
        let (mut extents, mut files) = (0, 0);
        for _ in 0..SAMPLE.min(self.files.len()) {
            let path = &self.files[self.random.usize(..self.files.len())];
            let file = self.fs.open_file(path)?;
            extents += file.fiemap(0)?.len();
            files += 1;
        }
        Ok(extents as f64 / f64::from(files.max(1)))
    }

    /// Returns the points.
    pub(super) fn into_points(self) -> Vec<AgePoint> {
        self.points
    }
}

/// Returns the anonymous memory of this process in bytes.
fn memory() -> u64 {
    let mut peak = crate::memory::Peak::of(std::process::id());
    peak.take();
    peak.bytes()
}

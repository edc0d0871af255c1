//! State and helpers that all sides share.

use crate::backing::Backing;
use crate::cgroup::MemoryLimit;
use crate::environment::Environment;
use crate::fio::run::Run;
use crate::job::ScaledJob;
use crate::job_file::JobFile;
use papilio::MkfsOptions;
use papilio::format::items::chunk::RaidProfile;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Programs, backing and output directory of all runs.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The programs to run.
    pub environment: &'a Environment,
    /// The file or device under every file system.
    pub backing: &'a Backing,
    /// Directory for fio's job files and output.
    pub output: PathBuf,
    /// Delay of each of the engine's requests to the backing.
    pub delay: Option<Duration>,
}

/// One run of a job.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) job: &'a ScaledJob,
    /// Whether to make a new file system first.
    pub(super) fresh: bool,
    /// Path of fio's job file and output, without a suffix.
    pub(super) stem: PathBuf,
    /// Path of the perf data file, if the run is profiled.
    pub(super) record: Option<&'a Path>,
}

impl Bench<'_> {
    /// Makes a new file system with Papilio, with the options that `mkfs.btrfs` gets for the
    /// kernel.
    pub(super) fn mkfs(&self) -> anyhow::Result<()> {
        let options = MkfsOptions::new()
            .size(self.backing.bytes())
            .force(true)
            .discard(false)
            .feature_list("no-holes,free-space-tree")?
            .data_profile(RaidProfile::Single)
            .metadata_profile(RaidProfile::Dup);
        papilio::mkfs(self.backing.path(), &options)?;
        Ok(())
    }

    /// Returns a run of fio on a job file that names the location of its files.
    pub(super) fn fio<'b>(
        &'b self,
        job: &'b ScaledJob,
        file: &JobFile,
        stem: PathBuf,
        limit: Option<&MemoryLimit>,
    ) -> Run<'b> {
        Run {
            program: &self.environment.fio,
            job_file: file.to_string(),
            measured: Some(job.measured()),
            stem,
            cgroup: limit.map(MemoryLimit::procs),
            seconds: job.seconds,
            memory_of: None,
            record: None,
        }
    }
}

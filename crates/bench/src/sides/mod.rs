//! The sides at work: each makes its file system, runs fio on it, and takes everything down again.
//!
//! Owns [`Bench`], what all of them share, and the choice of the side ([`Bench::measure`],
//! [`Bench::lay_out`]).

mod engine;
mod fuse_mount;
mod kernel;
pub mod preparation;
mod raw;

use crate::backing::Backing;
use crate::cgroup::MemoryLimit;
use crate::environment::Environment;
use crate::fio::run::{Measurement, Run};
use crate::job::{Files, ScaledJob};
use crate::job_file::JobFile;
use crate::profile::Profile;
use crate::side::Side;
use anyhow::bail;
use papilio::MkfsOptions;
use papilio::format::items::chunk::RaidProfile;
use std::path::{Path, PathBuf};

/// What runs have in common.
#[derive(Debug)]
pub struct Bench<'a> {
    /// Programs.
    pub environment: &'a Environment,
    /// Where the bytes are.
    pub backing: &'a Backing,
    /// A folder for what fio is given and what it says.
    pub output: PathBuf,
}

/// One run.
#[derive(Debug)]
struct Turn<'a> {
    job: &'a ScaledJob,
    /// On a new file system.
    fresh: bool,
    /// Where fio's job file and output are kept, without a suffix.
    stem: PathBuf,
    /// Where perf puts a profile, if one is to be made.
    record: Option<&'a Path>,
}

impl Bench<'_> {
    /// Runs a job once.
    ///
    /// # Errors
    /// The side cannot run it; no figure comes of it.
    pub fn measure(&self, job: &ScaledJob, side: Side, round: usize) -> anyhow::Result<Measurement> {
        self.measure_on(job, side, round, job.job.files == Files::New)
    }

    /// Runs a job once, on a new file system if it shall be `fresh`, else on the one that is there.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn measure_on(
        &self,
        job: &ScaledJob,
        side: Side,
        round: usize,
        fresh: bool,
    ) -> anyhow::Result<Measurement> {
        let stem = self.output.join(format!("{}-{side}-{}", job.job.id, round + 1));
        self.turn(side, Turn { job, fresh, stem, record: None })
    }

    /// Runs a job once more, for where the time of a side goes: of the engine or of the mount's server.
    ///
    /// # Errors
    /// The side cannot run it, or perf is not there or cannot sample.
    pub fn profile(&self, job: &ScaledJob, side: Side) -> anyhow::Result<Profile> {
        let stem = self.output.join(format!("{}-{side}-profile", job.job.id));
        let data = stem.with_extension("data");
        let fresh = job.job.files == Files::New;
        let run = self.turn(side, Turn { job, fresh, stem, record: Some(&data) })?;
        Profile::read(side, &data, (run.end - run.fio.seconds, run.end))
    }

    fn turn(&self, side: Side, turn: Turn<'_>) -> anyhow::Result<Measurement> {
        match side {
            Side::Kernel => self.kernel(turn),
            Side::Papilio => self.engine(turn, None),
            Side::PapilioSlow => {
                let slow = turn.job.job.slow;
                self.engine(turn, Some(slow))
            }
            Side::Mount => self.fuse_mount(turn, false),
            Side::MountRing => self.fuse_mount(turn, true),
            Side::Raw => self.raw(turn),
        }
    }

    /// Writes the files of a job that reads on a new file system, by one of `sides` that can.
    ///
    /// # Errors
    /// None can, or it fails.
    pub fn lay_out(&self, job: &ScaledJob, sides: &[Side]) -> anyhow::Result<()> {
        let stem = self.output.join(format!("{}-layout", job.job.id));
        // The kernel first: what Papilio then reads is what users have.
        if self.environment.missing(Side::Kernel).is_none() {
            self.kernel_lay_out(job, stem)
        } else if self.environment.engine.is_some() {
            self.engine_lay_out(job, stem)
        } else if sides == [Side::Raw] {
            // It reads whatever is there.
            Ok(())
        } else {
            bail!("nobody here can write its files: neither the kernel's Btrfs nor Papilio's engine is there")
        }
    }

    /// A new file system by Papilio, with what `mkfs.btrfs` is told for the kernel's.
    fn mkfs(&self) -> anyhow::Result<()> {
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

    /// Runs fio on a job file that knows where its files are.
    fn fio<'b>(
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

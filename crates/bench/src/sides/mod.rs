//! The sides at work: each makes its file system, runs fio on it, and takes everything down again.
//!
//! Owns [`Bench`], what all of them share, and the choice of the side ([`Bench::measure`],
//! [`Bench::lay_out`]).

mod engine;
mod fuse_mount;
mod kernel;
mod raw;

use crate::backing::Backing;
use crate::cgroup::MemoryLimit;
use crate::environment::Environment;
use crate::fio::run::{Measurement, Run};
use crate::job::{Files, ScaledJob};
use crate::job_file::JobFile;
use crate::side::Side;
use anyhow::bail;
use papilio::format::items::chunk::RaidProfile;
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use std::path::PathBuf;

/// What is made before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Bytes of each extent of the files, which lie in no order; `None`: written in order.
    pub extent_bytes: Option<u64>,
    /// Snapshots of the whole.
    pub snapshots: u64,
}

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
        match side {
            Side::Kernel => self.kernel(job, fresh, stem),
            Side::Papilio => self.engine(job, fresh, None, stem),
            Side::PapilioSlow => self.engine(job, fresh, Some(job.job.slow), stem),
            Side::Mount => self.fuse_mount(job, fresh, stem),
            Side::Raw => self.raw(job, stem),
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

    /// Makes a new file system, writes all files of a job on it, and takes snapshots of them.
    ///
    /// # Errors
    /// There is no engine, or it or the library fails.
    pub fn prepare(&self, job: &ScaledJob, prepared: &Prepared) -> anyhow::Result<()> {
        let stem = self.output.join(format!("{}-preparation", job.job.id));
        self.mkfs()?;
        self.engine_fill(job, prepared.extent_bytes, stem)?;
        if prepared.snapshots > 0 {
            let fs = FileSystem::open_with(self.backing.path(), &OpenOptions::new().write(true))?;
            for number in 0..prepared.snapshots {
                fs.snapshot("/", format!("/snapshot{number}"), true)?;
            }
            fs.close()?;
        }
        Ok(())
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
        }
    }
}

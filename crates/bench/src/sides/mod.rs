//! The sides at work: each makes its file system, runs fio on it, and removes everything again.
//!
//! Dispatches to the side that the caller chose ([`Bench::measure`], [`Bench::lay_out`]).

mod bench;
mod engine;
mod fuse_mount;
mod kernel;
pub mod preparation;
mod raw;

pub use bench::Bench;

use crate::fio::run::Measurement;
use crate::job::{Files, ScaledJob};
use crate::profile::Profile;
use crate::side::Side;
use anyhow::bail;
use bench::Turn;

impl Bench<'_> {
    /// Runs a job once.
    ///
    /// # Errors
    /// The side cannot run the job, or the run has no valid result.
    pub fn measure(&self, job: &ScaledJob, side: Side, round: usize) -> anyhow::Result<Measurement> {
        self.measure_on(job, side, round, job.job.files == Files::New)
    }

    /// Runs a job once, on a new file system if `fresh`, otherwise on the existing one.
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

    /// Runs a job once under perf, which samples the engine or the mount's server.
    ///
    /// # Errors
    /// The side cannot run the job, or perf is not installed or cannot sample.
    pub fn profile(&self, job: &ScaledJob, side: Side) -> anyhow::Result<Profile> {
        let stem = self.output.join(format!("{}-{side}-profile", job.job.id));
        let data = stem.with_extension("data");
        let fresh = job.job.files == Files::New;
        let run = self.turn(side, Turn { job, fresh, stem, record: Some(&data) })?;
        Profile::read(side, &data, (run.end - run.fio.seconds, run.end))
    }

    fn turn(&self, side: Side, turn: Turn<'_>) -> anyhow::Result<Measurement> {
        let engine = self.environment.engine.as_deref();
        let slow = turn.job.job.slow;
        match side {
            Side::Kernel => self.kernel(turn),
            Side::Papilio => self.engine(turn, engine, None),
            Side::PapilioOther => self.engine(turn, self.environment.other_engine.as_deref(), None),
            Side::PapilioSlow => self.engine(turn, engine, Some(slow)),
            Side::Mount => self.fuse_mount(turn, self.environment.papilio.as_deref(), false),
            Side::MountOther => self.fuse_mount(turn, self.environment.other_papilio.as_deref(), false),
            Side::MountRing => self.fuse_mount(turn, self.environment.papilio.as_deref(), true),
            Side::Raw => self.raw(turn),
        }
    }

    /// Writes the shared files of a job on a new file system, with the kernel if it is available.
    ///
    /// # Errors
    /// Neither the kernel nor Papilio's engine is available, or writing fails.
    pub fn lay_out(&self, job: &ScaledJob, sides: &[Side]) -> anyhow::Result<()> {
        let stem = self.output.join(format!("{}-layout", job.job.id));
        // The kernel first: Papilio then reads a layout that users have.
        if self.environment.missing(Side::Kernel).is_none() {
            self.kernel_lay_out(job, stem)
        } else if self.environment.engine.is_some() {
            self.engine_lay_out(job, stem)
        } else if sides == [Side::Raw] {
            // The raw side needs no particular contents.
            Ok(())
        } else {
            bail!("needs the kernel's Btrfs or Papilio's fio engine to write the files, found neither")
        }
    }
}

//! `papilio bench`: runs `papilio-bench` with this command's exit codes.

use crate::context::Context;
use crate::usage_error::UsageError;

/// Compare Papilio with the kernel's Btrfs on the same workloads, in turn
///
/// Without a subcommand, fio jobs run on the kernel's Btrfs, on Papilio inside fio (with each job's
/// tuning switch in both positions), on Papilio's mount, and on the backing without a file system.
/// Sides that this machine cannot run are skipped, and the report says why. Needs fio, and root for
/// the kernel's side.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    bench: papilio_bench::BenchArgs,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        papilio_bench::run(&self.bench, context.verbosity < 0).map_err(|error| match error
            .downcast_ref::<papilio_bench::UsageError>(
        ) {
            Some(usage) => UsageError::new(usage).into(),
            None => error,
        })
    }
}

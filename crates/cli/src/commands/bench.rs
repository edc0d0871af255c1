//! `papilio bench`: the workloads of `papilio-bench`, with this command's exit codes.

use crate::context::Context;
use crate::usage_error::UsageError;

/// Run the same work by the kernel's Btrfs and by Papilio, in turn, and compare
///
/// Without a subcommand: five jobs of the real fio, by the kernel's Btrfs, by Papilio within fio (with each
/// job's switch in both positions), by Papilio's mount, and on the bare backing. What this machine lacks is
/// left out and named. Needs fio; root for the kernel's side.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    bench: papilio_bench::BenchArgs,
}

impl Args {
    /// Runs it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        papilio_bench::run(&self.bench, context.verbosity < 0).map_err(|error| match error
            .downcast_ref::<papilio_bench::UsageError>(
        ) {
            Some(usage) => UsageError::new(usage).into(),
            None => error,
        })
    }
}

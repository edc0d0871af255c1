//! `papilio bench`: the workloads of `papilio-bench`, with this command's exit codes.

use crate::context::Context;
use crate::usage_error::UsageError;

/// Compare the performance of Papilio with that of the kernel's Btrfs
///
/// Without a subcommand, runs five jobs of fio(1) in turn on the kernel's Btrfs, on Papilio inside
/// fio (with both positions of each job's switch), on a Papilio mount, and on the bare backing.
/// Names and skips sides that this machine does not support. Needs fio, and root for the kernel's
/// side.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    bench: papilio_bench::BenchArgs,
}

impl Args {
    /// Runs the benchmark.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        papilio_bench::run(&self.bench, context.verbosity < 0).map_err(|error| match error
            .downcast_ref::<papilio_bench::UsageError>(
        ) {
            Some(usage) => UsageError::new(usage).into(),
            None => error,
        })
    }
}

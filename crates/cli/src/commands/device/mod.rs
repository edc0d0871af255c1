//! `papilio device`: the devices of file systems.
//!
//! Owns the list of its subcommands.

mod ready;
mod scan;
mod stats;

use crate::context::Context;

/// Find the devices of file systems, and show their errors
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Scan(scan::Args),
    Ready(ready::Args),
    Stats(stats::Args),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Scan(command) => command.run(context),
            Subcommand::Ready(command) => command.run(context),
            Subcommand::Stats(command) => command.run(context),
        }
    }
}

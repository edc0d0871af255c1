//! `papilio device`: the devices of file systems.
//!
//! Owns the list of its subcommands.

mod add;
mod ready;
mod remove;
mod scan;
mod stats;
mod usage;

use crate::context::Context;

/// Find, add and remove the devices of file systems, and show their errors
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Add(add::Args),
    Remove(remove::Args),
    Scan(scan::Args),
    Ready(ready::Args),
    Stats(stats::Args),
    Usage(usage::Args),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Add(command) => command.run(context),
            Subcommand::Remove(command) => command.run(context),
            Subcommand::Scan(command) => command.run(context),
            Subcommand::Ready(command) => command.run(context),
            Subcommand::Stats(command) => command.run(context),
            Subcommand::Usage(command) => command.run(context),
        }
    }
}

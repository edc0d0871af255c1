//! `papilio filesystem`: devices, and how their space is used. Owns the list of its commands.

mod df;
mod show;
mod usage;

use crate::context::Context;

/// Show the devices of file systems, and how their space is used
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Show label, UUID and devices
    Show(show::Args),
    /// Show used space by type and profile
    Df(df::Args),
    /// Show used and free space in detail
    Usage(usage::Args),
}

impl Args {
    /// Does it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Show(command) => command.run(context),
            Subcommand::Df(command) => command.run(context),
            Subcommand::Usage(command) => command.run(context),
        }
    }
}

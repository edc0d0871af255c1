//! `papilio filesystem`: devices, how their space is used, and what concerns the whole. Owns the list of
//! its commands.

mod df;
mod label;
mod resize;
mod show;
mod source;
mod sync;
mod usage;

use crate::context::Context;

/// Show the devices of file systems and how their space is used; change label and size
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
    /// Show the label, or set it
    Label(label::Args),
    /// Make a file system larger or smaller
    Resize(resize::Args),
    /// Finish what earlier changes left to the background
    Sync(sync::Args),
}

impl Args {
    /// Does it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Show(command) => command.run(context),
            Subcommand::Df(command) => command.run(context),
            Subcommand::Usage(command) => command.run(context),
            Subcommand::Label(command) => command.run(context),
            Subcommand::Resize(command) => command.run(context),
            Subcommand::Sync(command) => command.run(context),
        }
    }
}

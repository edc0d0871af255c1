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
    Show(show::Args),
    Df(df::Args),
    Usage(usage::Args),
    Label(label::Args),
    Resize(resize::Args),
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

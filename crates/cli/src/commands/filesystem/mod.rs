//! `papilio filesystem`: the devices, space, label and size of a file system, and its extents.
//!
//! Owns the list of its subcommands.

mod commit_stats;
mod defragment;
mod df;
mod du;
mod label;
mod mkswapfile;
mod redundancy;
mod resize;
mod show;
mod source;
mod sync;
pub mod usage;
pub mod usage_tree;

pub use redundancy::{OpenedAs, RedundancyArgs, warn_of_lesser_profiles};
pub use source::{UsageSource, warn_of_mixed, warn_of_profiles};

use crate::context::Context;

/// Show the devices and space of a file system, and change its label and size
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Show(show::Args),
    #[command(visible_alias = "defrag")]
    Defragment(defragment::Args),
    Df(df::Args),
    Du(du::Args),
    Usage(usage::Args),
    Label(label::Args),
    Resize(resize::Args),
    Sync(sync::Args),
    Mkswapfile(mkswapfile::Args),
    CommitStats(commit_stats::Args),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Show(command) => command.run(context),
            Subcommand::Defragment(command) => command.run(context),
            Subcommand::Df(command) => command.run(context),
            Subcommand::Du(command) => command.run(context),
            Subcommand::Usage(command) => command.run(context),
            Subcommand::Label(command) => command.run(context),
            Subcommand::Resize(command) => command.run(context),
            Subcommand::Sync(command) => command.run(context),
            Subcommand::Mkswapfile(command) => command.run(context),
            Subcommand::CommitStats(command) => command.run(context),
        }
    }
}

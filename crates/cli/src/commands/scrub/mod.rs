//! `papilio scrub`: verifies every copy, and mends wrong ones from good ones.
//!
//! Owns the list of its subcommands.

mod bar;
mod code;
mod control;
mod image;
mod kernel;
mod mounted;
mod speed;
mod start;
mod state;
mod status;

use crate::context::Context;

/// Verify all copies of tree blocks and data, and mend the bad ones
///
/// The exit status is 0 if no uncorrectable error was found, 1 if the scrub could not run, 2 if
/// there is nothing to resume or to cancel, and 3 if uncorrectable errors were found.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Start(start::Start),
    Status(status::Args),
    Cancel(control::Cancel),
    Resume(start::Resume),
    Limit(control::Limit),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Start(command) => command.run(context),
            Subcommand::Status(command) => command.run(context),
            Subcommand::Cancel(command) => command.run(context),
            Subcommand::Resume(command) => command.run(context),
            Subcommand::Limit(command) => command.run(context),
        }
    }
}

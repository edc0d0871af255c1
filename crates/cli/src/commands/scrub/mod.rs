//! `papilio scrub`: verifies every copy, and mends wrong ones from good ones.
//!
//! Owns the list of its subcommands, and the exit codes beside 0 and 1: 2 if there is nothing to
//! resume or to cancel, 3 if errors are left that cannot be corrected. They are those of `btrfs
//! scrub`.

mod control;
mod start;
mod state;
mod status;

use crate::context::Context;

/// The exit code if nothing is there to resume or to cancel.
const NOTHING: u8 = 2;
/// The exit code if errors are left that cannot be corrected.
const UNCORRECTABLE: u8 = 3;

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

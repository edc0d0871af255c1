//! `papilio stream`: streams of send as archives.
//!
//! The subcommands translate arguments and results; [`papilio::stream`] does the work. [`operands`]
//! opens the streams.

mod diff;
mod info;
mod list;
mod operands;
mod read;
mod rewrite;
mod verify;

pub(super) use list::{print_entry, to_json};
pub(super) use operands::inner_path;

use crate::context::Context;

/// List, read, check and rewrite streams of send
///
/// Each STREAM is a file of `btrfs send` or `papilio send`, or - for standard input. Several
/// streams are a chain: a full stream, and then the incremental ones in their order. A file may
/// also hold several streams one behind another. Commands are about the last subvolume of the
/// chain, unless
/// --subvolume names another one.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Info(info::Info),
    Ls(list::List),
    Cat(read::Cat),
    Extract(read::ExtractArgs),
    Verify(verify::Verify),
    Diff(diff::Diff),
    Join(rewrite::Join),
    Split(rewrite::Split),
    Recompress(rewrite::RecompressArgs),
    Index(list::Index),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Info(command) => command.run(context),
            Subcommand::Ls(command) => command.run(context),
            Subcommand::Cat(command) => command.run(context),
            Subcommand::Extract(command) => command.run(context),
            Subcommand::Verify(command) => command.run(context),
            Subcommand::Diff(command) => command.run(context),
            Subcommand::Join(command) => command.run(context),
            Subcommand::Split(command) => command.run(context),
            Subcommand::Recompress(command) => command.run(context),
            Subcommand::Index(command) => command.run(context),
        }
    }
}

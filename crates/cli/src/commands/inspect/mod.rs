//! `papilio inspect`: the on-disk structures of a file system. Owns the list of its subcommands.

mod details;
mod dump_super;
mod dump_tree;
mod flags;
mod host_paths;
mod items;
mod key_text;
mod layers;
mod list_chunks;
mod map_logical;
mod map_swapfile;
mod partitions;
mod resolve;
mod signatures;
mod tree_stats;

pub use dump_tree::parse_tree;
pub use resolve::paths_of;

use crate::context::Context;

/// Show the on-disk structures of a file system
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    DumpSuper(dump_super::Args),
    DumpTree(dump_tree::Args),
    TreeStats(tree_stats::Args),
    #[command(name = "rootid")]
    RootId(resolve::RootId),
    InodeResolve(resolve::InodeResolve),
    LogicalResolve(resolve::LogicalResolve),
    SubvolidResolve(resolve::SubvolidResolve),
    MinDevSize(resolve::MinDevSize),
    ListChunks(list_chunks::Args),
    MapSwapfile(map_swapfile::Args),
    MapLogical(map_logical::Args),
    Partitions(partitions::Args),
    Signatures(signatures::Args),
    Layers(layers::Args),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::DumpSuper(command) => command.run(context),
            Subcommand::DumpTree(command) => command.run(context),
            Subcommand::TreeStats(command) => command.run(context),
            Subcommand::RootId(command) => command.run(context),
            Subcommand::InodeResolve(command) => command.run(context),
            Subcommand::LogicalResolve(command) => command.run(context),
            Subcommand::SubvolidResolve(command) => command.run(context),
            Subcommand::MinDevSize(command) => command.run(context),
            Subcommand::ListChunks(command) => command.run(context),
            Subcommand::MapSwapfile(command) => command.run(context),
            Subcommand::MapLogical(command) => command.run(context),
            Subcommand::Partitions(command) => command.run(context),
            Subcommand::Signatures(command) => command.run(context),
            Subcommand::Layers(command) => command.run(context),
        }
    }
}

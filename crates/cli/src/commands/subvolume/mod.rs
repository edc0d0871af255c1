//! `papilio subvolume`: subvolumes and snapshots. Owns the list of its subcommands.

mod cost;
mod create;
mod delete;
mod find_new;
mod format;
mod get_default;
mod list;
mod set_default;
mod show;
mod snapshot;
mod sync;
mod undelete;

use crate::context::Context;

/// List, show, create and delete subvolumes and snapshots
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    List(list::Args),
    Show(show::Args),
    Create(create::Args),
    Snapshot(snapshot::Args),
    Delete(delete::Args),
    Undelete(undelete::Args),
    Cost(cost::Args),
    FindNew(find_new::Args),
    GetDefault(get_default::Args),
    SetDefault(set_default::Args),
    Sync(sync::Args),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::List(command) => command.run(context),
            Subcommand::Show(command) => command.run(context),
            Subcommand::Create(command) => command.run(context),
            Subcommand::Snapshot(command) => command.run(context),
            Subcommand::Delete(command) => command.run(context),
            Subcommand::Undelete(command) => command.run(context),
            Subcommand::Cost(command) => command.run(context),
            Subcommand::FindNew(command) => command.run(context),
            Subcommand::GetDefault(command) => command.run(context),
            Subcommand::SetDefault(command) => command.run(context),
            Subcommand::Sync(command) => command.run(context),
        }
    }
}

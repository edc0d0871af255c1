//! `papilio backup`: backups of snapshots in a folder or an object store.
//!
//! The subcommands translate arguments and results; `papilio_backup` does the work. [`place`] opens
//! repositories, [`source`] the snapshots.

mod create;
mod files;
mod key;
mod list;
mod place;
mod prune;
mod restore;
mod source;
mod verify;

use crate::context::Context;

/// Back up snapshots into a folder or a bucket
///
/// REPOSITORY is a folder, or s3://BUCKET/PREFIX, gs://..., az://.... BACKUP is the id of a backup
/// or the start of it, the name of its snapshot, or latest. The options --key-file and --key-fd
/// give the key of an encrypted repository; without them the terminal asks for a passphrase.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Init(place::Init),
    Create(create::Create),
    List(list::List),
    Show(list::Show),
    Ls(files::Ls),
    Extract(files::ExtractArgs),
    Restore(restore::RestoreArgs),
    Prune(prune::Prune),
    Verify(verify::VerifyArgs),
    Key(key::Key),
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Init(command) => command.run(context),
            Subcommand::Create(command) => command.run(context),
            Subcommand::List(command) => command.run(context),
            Subcommand::Show(command) => command.run(context),
            Subcommand::Ls(command) => command.run(context),
            Subcommand::Extract(command) => command.run(context),
            Subcommand::Restore(command) => command.run(context),
            Subcommand::Prune(command) => command.run(context),
            Subcommand::Verify(command) => command.run(context),
            Subcommand::Key(command) => command.run(context),
        }
    }
}

//! `papilio backup restore`.

use super::list::load;
use super::place::open;
#[cfg(target_os = "linux")]
use super::place::open_confined;
use crate::context::Context;
use crate::path::{Operand, parse_image_path};
use papilio_backup::{ImageTarget, Repository, RestoreOptions, RestoreTarget, restore};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
#[cfg(target_os = "linux")]
use std::path::Path;

/// Restore a backup as a read-only snapshot
///
/// The backups that it is based on are received first and deleted at the end, unless the target's
/// file system has such a snapshot. A restore that was interrupted goes on when it is run again. In
/// a directory of another file system, the snapshot becomes a plain directory.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// The directory that gets the snapshot, in an image or on a mount
    #[arg(value_name = "IMAGE:/DIRECTORY|PATH", value_hint = clap::ValueHint::AnyPath)]
    target: OsString,
    /// Name the snapshot NAME
    #[arg(long, value_name = "NAME")]
    name: Option<OsString>,
    /// Keep the snapshots that it is based on, under their names
    #[arg(long)]
    keep_chain: bool,
}

impl RestoreArgs {
    /// Restores the backup.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let path = match Operand::parse(&self.target) {
            #[cfg(target_os = "linux")]
            Operand::Host(path) if path.is_dir() => return self.restore_into(context, &path),
            _ => parse_image_path(&self.target)?,
        };
        let repository = open(context, &self.repository)?;
        let fs = context.change(&path.image)?;
        let target = ImageTarget::new(&fs, &path.path);
        let mut target = target.map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
        self.to(context, &repository, &mut target)
    }

    /// Restores into a directory of the host. In a plain one the run gives up the rights that it
    /// does not need; making subvolumes takes more than the sandbox leaves.
    #[cfg(target_os = "linux")]
    fn restore_into(self, context: &Context, directory: &Path) -> anyhow::Result<()> {
        let mut target = papilio_backup::DirectoryTarget::open(directory)?;
        let repository = match target.is_plain() {
            true => open_confined(context, &self.repository, Some(directory))?,
            false => open(context, &self.repository)?,
        };
        self.to(context, &repository, &mut target)
    }

    fn to(
        self,
        context: &Context,
        repository: &Repository,
        target: &mut dyn RestoreTarget,
    ) -> anyhow::Result<()> {
        let backups = load(context, repository)?;
        let backup = backups.find(&self.backup)?;
        let name = self.name.map(OsStringExt::into_vec);
        let options = RestoreOptions::new().name(name).keep_chain(self.keep_chain);
        let restored = restore(repository, &backups, backup, target, &options, &mut ())?;
        if context.verbosity > 0 {
            let (received, found) = (restored.received, restored.found);
            context.note(format_args!("{}: {received} received, {found} were there", restored.path));
        }
        Ok(())
    }
}

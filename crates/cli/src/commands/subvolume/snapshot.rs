//! `papilio subvolume snapshot`.

use super::create::inherit_error;
use crate::commands::quota::parse_qgroup;
use crate::context::Context;
use crate::mounted::{Mounted, Target};
use crate::usage_error::UsageError;
use papilio::{FileKind, PathError, QgroupId};
use std::ffi::OsString;
use std::fmt::Display;

/// Create a snapshot of a subvolume
///
/// If DEST is a directory, the snapshot becomes an entry of it with the name of the subvolume.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolume; IMAGE alone means its top level
    #[arg(value_name = "IMAGE:/SUBVOLUME|PATH", value_hint = clap::ValueHint::AnyPath)]
    source: OsString,
    /// The path of the snapshot
    #[arg(value_name = "IMAGE:/DEST|PATH", value_hint = clap::ValueHint::AnyPath)]
    destination: OsString,
    /// Create a read-only snapshot
    #[arg(short = 'r', long = "read-only")]
    read_only: bool,
    /// Make the snapshot a member of this qgroup; repeatable
    #[arg(short = 'i', value_name = "LEVEL/ID", value_parser = parse_qgroup)]
    qgroups: Vec<QgroupId>,
}

impl Args {
    /// Creates the snapshot.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (source, mut destination) =
            match (Target::parse(&self.source)?, Target::parse_new(&self.destination)?) {
                (Target::Image(source), Target::Image(destination)) => (source, destination),
                (Target::Mounted(source), Target::Mounted(destination)) => {
                    return self.run_mounted(context, &source, destination);
                }
                _ => return Err(elsewhere(&self.destination.display()).into()),
            };
        if source.image != destination.image {
            return Err(elsewhere(&destination).into());
        }
        let fs = context.change(&source.image)?;
        let inode = context.inode(&source, true)?;
        if !inode.is_subvolume_root() {
            anyhow::bail!("{source}: {}", PathError::NoSubvolume);
        }
        if fs.inode(&destination.path).is_ok_and(|inode| inode.file_type() == FileKind::Directory) {
            let name = source.base_name();
            let name = name.ok_or_else(|| anyhow::anyhow!("{destination}: {}", PathError::Exists))?;
            destination = destination.join(name);
        }
        let made = fs.parent(&destination.path).and_then(|(parent, name)| {
            parent.create_snapshot_in(inode.tree(), name, self.read_only, &self.qgroups)
        });
        made.map(drop).map_err(|error| context.at(&destination, &error))?;
        self.announce(context, &source, &destination)
    }

    fn announce(&self, context: &Context, source: &dyn Display, made: &dyn Display) -> anyhow::Result<()> {
        let kind = if self.read_only { "readonly" } else { "a" };
        context.announce(format_args!("Create {kind} snapshot of '{source}' in '{made}'"))
    }

    fn run_mounted(
        &self,
        context: &Context,
        source: &Mounted,
        mut destination: Mounted,
    ) -> anyhow::Result<()> {
        let subvolume = source.open()?;
        if !subvolume.is_subvolume_root().map_err(|error| source.at(&error))? {
            anyhow::bail!("{source}: {}", PathError::NoSubvolume);
        }
        if destination.path.is_dir() {
            let full = source.path.canonicalize().map_err(|error| source.at(&error))?;
            let name = full.file_name().filter(|_| full != source.mount.point);
            let name = name.ok_or_else(|| anyhow::anyhow!("{destination}: {}", PathError::Exists))?;
            destination.path.push(name);
        }
        let (directory, name) = destination.open_parent()?;
        match self.qgroups.as_slice() {
            [] => directory
                .create_snapshot(&subvolume, &name, self.read_only)
                .map_err(|error| destination.at(&error)),
            qgroups => directory
                .create_snapshot_in(&subvolume, &name, self.read_only, qgroups)
                .map_err(|error| inherit_error(&destination, &error)),
        }?;
        self.announce(context, source, &destination)
    }
}

fn elsewhere(destination: &dyn Display) -> UsageError {
    UsageError::new(format_args!("{destination}: a snapshot must be in the file system of its source"))
}

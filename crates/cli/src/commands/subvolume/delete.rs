//! `papilio subvolume delete`.

use crate::context::Context;
use crate::mounted::{Mounted, Target};
use crate::operands::for_each_target;
use crate::usage_error::UsageError;
use papilio::format::TreeId;
use papilio::{Error, PathError};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;

/// Delete subvolumes and snapshots with their content
///
/// On an image, the space is free when the command ends. In a mount, the server frees it in the
/// background; papilio subvolume sync waits for that.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolumes
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Delete the subvolume with this id; the path names only its file system
    #[arg(short = 'r', long = "rootid", visible_short_alias = 'i', value_name = "ID")]
    id: Option<u64>,
    /// Wait for the commit after the last deletion; on images every deletion is committed
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// Wait for a commit after each deletion
    #[arg(short = 'C', long, conflicts_with = "commit_after")]
    commit_each: bool,
}

impl Args {
    /// Deletes the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(id) = self.id {
            let [path] = &self.paths[..] else {
                return Err(UsageError::new("subvolume delete: --rootid needs exactly one path").into());
            };
            return delete_by_id(context, path, TreeId(id));
        }
        for_each_target(context, &self.paths, Target::parse, |target| {
            let path = match target {
                Target::Image(path) => path,
                Target::Mounted(mounted) => {
                    delete_mounted(&mounted)?;
                    if self.commit_after || self.commit_each {
                        sync_parent(&mounted)?;
                    }
                    return self.announce(context, &mounted);
                }
            };
            let fs = context.change(&path.image)?;
            let deleted = match fs.inode_nofollow(&path.path) {
                Ok(inode) if !inode.is_subvolume_root() => {
                    Err(Error::Path { path: Vec::new(), kind: PathError::NoSubvolume })
                }
                Ok(_) => fs.delete_subvolume(&path.path),
                Err(error) => Err(error),
            };
            // The deletion is committed before the content is removed.
            let deleted = deleted.and_then(|()| fs.sync()).and_then(|()| fs.clean_subvolumes());
            deleted.map_err(|error| context.at(&path, &error))?;
            self.announce(context, &path)
        })
    }

    fn announce(&self, context: &Context, path: &dyn Display) -> anyhow::Result<()> {
        let commit = if self.commit_after || self.commit_each { "commit" } else { "no-commit" };
        context.announce(format_args!("Delete subvolume ({commit}): '{path}'"))
    }
}

/// Commits the file system of a subvolume that was deleted.
fn sync_parent(mounted: &Mounted) -> anyhow::Result<()> {
    let (directory, _) = mounted.open_parent()?;
    directory.sync().map_err(|error| mounted.at(&error))
}

fn delete_by_id(context: &Context, path: &OsStr, id: TreeId) -> anyhow::Result<()> {
    let path = match Target::parse(path)? {
        Target::Image(path) => path,
        Target::Mounted(mounted) => {
            let deleted = mounted.open()?.delete_subvolume_by_id(id);
            return deleted.map_err(|error| mounted.at(&error));
        }
    };
    let fs = context.change(&path.image)?;
    let deleted = fs.delete_subvolume_by_id(id).and_then(|()| fs.sync()).and_then(|()| fs.clean_subvolumes());
    deleted.map_err(|error| context.at(&path, &error))
}

fn delete_mounted(mounted: &Mounted) -> anyhow::Result<()> {
    let is_subvolume = mounted.open()?.is_subvolume_root().map_err(|error| mounted.at(&error))?;
    if !is_subvolume {
        anyhow::bail!("{mounted}: {}", PathError::NoSubvolume);
    }
    let (directory, name) = mounted.open_parent()?;
    directory.delete_subvolume(&name).map_err(|error| mounted.at(&error))
}

//! `papilio subvolume delete`.

use crate::context::Context;
use crate::mounted::{Mounted, Target};
use crate::operands::{for_each_target, is_root};
use crate::usage_error::UsageError;
use papilio::format::TreeId;
use papilio::{Error, PathError, Subvolume};
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
    /// Delete the subvolume with this id (--subvolid under the name btrfs); the path names only its
    /// file system
    #[arg(short = 'r', long = "rootid", visible_short_alias = 'i', value_name = "ID")]
    id: Option<u64>,
    /// Wait for the commit after the last deletion; on images every deletion is committed
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// Wait for a commit after each deletion
    #[arg(short = 'C', long, conflicts_with = "commit_after")]
    commit_each: bool,
    /// Delete the subvolumes inside, too, the deepest first
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Only print what would be deleted
    #[arg(long)]
    dry_run: bool,
}

impl Args {
    /// Deletes the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(id) = self.id {
            let [path] = &self.paths[..] else {
                return Err(UsageError::new("subvolume delete: --rootid needs exactly one path").into());
            };
            if self.dry_run {
                return Err(
                    UsageError::new("subvolume delete: --dry-run is for paths, not for --rootid").into()
                );
            }
            return self.delete_by_id(context, path, TreeId(id));
        }
        for_each_target(context, &self.paths, Target::parse, |target| {
            let path = match target {
                Target::Image(path) => path,
                Target::Mounted(mounted) => {
                    let id = self.delete_mounted(context, &mounted)?;
                    if !self.dry_run && (self.commit_after || self.commit_each) {
                        sync_parent(&mounted)?;
                    }
                    return self.announce(context, id, &mounted);
                }
            };
            if is_root(&path) {
                anyhow::bail!("{path}: the root of the file system cannot be deleted");
            }
            if self.dry_run {
                let inode = context.inode(&path, false)?;
                if !inode.is_subvolume_root() {
                    return Err(
                        context.at(&path, &Error::Path { path: Vec::new(), kind: PathError::NoSubvolume })
                    );
                }
                return self.announce(context, inode.tree(), &path);
            }
            let fs = context.change(&path.image)?;
            let deleted = match fs.inode_nofollow(&path.path) {
                Ok(inode) if !inode.is_subvolume_root() => {
                    Err(Error::Path { path: Vec::new(), kind: PathError::NoSubvolume })
                }
                Ok(inode) => {
                    let mut inside = Ok(());
                    if self.recursive {
                        inside = fs.subvolumes().and_then(|all| {
                            let inside = inside_of(&all, inode.tree());
                            inside.into_iter().try_for_each(|one| fs.delete_subvolume_by_id(one.id))
                        });
                    }
                    inside.and_then(|()| fs.delete_subvolume(&path.path)).map(|()| inode.tree())
                }
                Err(error) => Err(error),
            };
            // The deletion is committed before the content is removed.
            let cleaned = deleted.and_then(|id| {
                fs.sync().and_then(|()| fs.clean_subvolumes())?;
                Ok(id)
            });
            let id = cleaned.map_err(|error| context.at(&path, &error))?;
            self.announce(context, id, &path)
        })
    }

    fn announce(&self, context: &Context, id: TreeId, path: &dyn Display) -> anyhow::Result<()> {
        let would = if self.dry_run { "Would delete" } else { "Delete" };
        context.announce(format_args!("{would} subvolume {id} ({}): '{path}'", self.commit_word()))
    }

    fn commit_word(&self) -> &'static str {
        if self.commit_after || self.commit_each { "commit" } else { "no-commit" }
    }
}

/// Commits the file system of a subvolume that was deleted.
fn sync_parent(mounted: &Mounted) -> anyhow::Result<()> {
    let (directory, _) = mounted.open_parent()?;
    directory.sync().map_err(|error| mounted.at(&error))
}

impl Args {
    fn delete_by_id(&self, context: &Context, path: &OsStr, id: TreeId) -> anyhow::Result<()> {
        let path = match Target::parse(path)? {
            Target::Image(path) => path,
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                let all = match self.recursive || context.arguments().drop_in {
                    true => mount.subvolumes().map_err(|error| mounted.at(&error))?,
                    false => Vec::new(),
                };
                for id in self.ids(&all, id) {
                    mount.delete_subvolume_by_id(id).map_err(|error| mounted.at(&error))?;
                    self.announce_by_id(context, id, &all, &mounted)?;
                }
                if self.commit_after || self.commit_each {
                    mount.sync().map_err(|error| mounted.at(&error))?;
                }
                return Ok(());
            }
        };
        let fs = context.change(&path.image)?;
        let all = fs.subvolumes().map_err(|error| context.at(&path, &error))?;
        let ids = self.ids(&all, id);
        let deleted = ids.iter().try_for_each(|&id| fs.delete_subvolume_by_id(id));
        let deleted = deleted.and_then(|()| fs.sync()).and_then(|()| fs.clean_subvolumes());
        deleted.map_err(|error| context.at(&path, &error))?;
        ids.into_iter().try_for_each(|id| self.announce_by_id(context, id, &all, &path))
    }

    /// Returns the subvolumes to delete if one is named by its id, in that order.
    fn ids(&self, all: &[Subvolume], id: TreeId) -> Vec<TreeId> {
        let inside = if self.recursive { inside_of(all, id) } else { Vec::new() };
        inside.into_iter().map(|one| one.id).chain([id]).collect()
    }

    /// As [`Self::announce`], below the path that names the file system.
    fn announce_by_id(
        &self,
        context: &Context,
        id: TreeId,
        all: &[Subvolume],
        place: &dyn Display,
    ) -> anyhow::Result<()> {
        let found = all.iter().find(|one| one.id == id).and_then(|one| one.path.as_deref());
        let below = String::from_utf8_lossy(found.unwrap_or_default());
        self.announce(context, id, &format_args!("{place}/{}", below.trim_start_matches('/')))
    }

    fn delete_mounted(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<TreeId> {
        let mount = mounted.open()?;
        if !mount.is_subvolume_root().map_err(|error| mounted.at(&error))? {
            anyhow::bail!("{mounted}: {}", PathError::NoSubvolume);
        }
        let own = mount.subvolume_id().map_err(|error| mounted.at(&error))?;
        if self.recursive && !self.dry_run {
            let all = mount.subvolumes().map_err(|error| mounted.at(&error))?;
            for one in inside_of(&all, own) {
                let shown =
                    one.path.map_or_else(|| one.id.to_string(), |path| String::from_utf8_lossy(&path).into());
                let deleted = mount.delete_subvolume_by_id(one.id);
                deleted.map_err(|error| mounted.at(&error).context(format!("subvolume {shown} inside")))?;
                if self.commit_each {
                    mount.sync().map_err(|error| mounted.at(&error))?;
                }
                self.announce(context, one.id, &shown)?;
            }
        }
        if self.dry_run {
            return Ok(own);
        }
        // The last component, which is deleted, must not be in use.
        drop(mount);
        let (directory, name) = mounted.open_parent()?;
        directory.delete_subvolume(&name).map_err(|error| mounted.at(&error))?;
        Ok(own)
    }
}

/// Returns the subvolumes inside one, the deepest first.
fn inside_of(all: &[Subvolume], id: TreeId) -> Vec<Subvolume> {
    let mut found: Vec<Subvolume> = Vec::new();
    let mut above = vec![id];
    // A subvolume that contains itself would be damage.
    while let Some(parent) = above.pop() {
        for one in all.iter().filter(|one| one.parent == Some(parent) && one.id != id) {
            if found.iter().all(|known| known.id != one.id) {
                above.push(one.id);
                found.push(one.clone());
            }
        }
    }
    // A parent comes before what is inside it only if it was found first.
    found.sort_by_key(|one| std::cmp::Reverse(depth(all, one)));
    found
}

fn depth(all: &[Subvolume], one: &Subvolume) -> usize {
    let mut depth = 0;
    let mut parent = one.parent;
    while let Some(id) = parent.filter(|_| depth < all.len()) {
        depth += 1;
        parent = all.iter().find(|one| one.id == id).and_then(|one| one.parent);
    }
    depth
}

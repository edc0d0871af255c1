//! Travel in time: a place as the snapshots of its subvolume have it.
//!
//! A path of the export passes through one subvolume or several. In each it has a path of its own,
//! and the snapshots of that subvolume may have something there. `?at=ID` names one by its id.
//!
//! **Invariant**: only subvolumes that snapshots connect with one on the path are reached, only the
//! exported part of them, and no symbolic link is followed. The user must be let through.

use crate::export::Export;
use crate::reply::Refusal;
use papilio::format::{TreeId, objectid};
use papilio::{FileKind, FileVersion, Inode, Subvolume, file_versions, snapshot_family};

/// A subvolume on the path of a place.
#[derive(Clone, Debug)]
struct Level {
    tree: TreeId,
    /// The path of the export in this subvolume; empty but for the first level.
    prefix: Vec<Vec<u8>>,
    /// How many names of the path lead to it.
    depth: usize,
}

/// A snapshot that has something at a path.
#[derive(Clone, Debug)]
pub(crate) struct InSnapshot {
    pub(crate) subvolume: Subvolume,
    pub(crate) inode: Inode,
}

/// A file that is a version, with the names by which `?at=` reaches it.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) tree: TreeId,
    pub(crate) subvolume_path: Option<Vec<u8>>,
    pub(crate) names: Vec<Vec<u8>>,
}

/// A version of a file, and the places that have it.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) version: FileVersion,
    pub(crate) holders: Vec<Holder>,
    /// Holders outside of the export.
    pub(crate) hidden: usize,
}

impl Export {
    /// Returns the subvolumes on a path, as far as it exists.
    fn levels(&self, names: &[Vec<u8>]) -> Result<Vec<Level>, Refusal> {
        let mut inode = self.root()?;
        let mut levels = vec![Level { tree: inode.tree(), prefix: self.prefix.clone(), depth: 0 }];
        for (number, name) in names.iter().enumerate() {
            let Some(child) = self.child(&inode, name)? else { break };
            if child.tree() != inode.tree() {
                levels.push(Level { tree: child.tree(), prefix: Vec::new(), depth: number + 1 });
            }
            inode = child;
        }
        Ok(levels)
    }

    /// Returns what a subvolume has at the path of a level.
    fn in_tree(&self, tree: TreeId, level: &Level, names: &[Vec<u8>]) -> Result<Option<Inode>, Refusal> {
        let mut inode = self.fs.subvolume_root(tree)?;
        for name in level.prefix.iter().chain(names.get(level.depth..).unwrap_or_default()) {
            match self.child(&inode, name)? {
                Some(child) if child.tree() == tree && !child.is_subvolume_stub() => inode = child,
                _ => return Ok(None),
            }
        }
        Ok(Some(inode))
    }

    /// Returns what a subvolume of the past has at a path.
    pub(crate) fn at(&self, names: &[Vec<u8>], tree: TreeId) -> Result<Inode, Refusal> {
        for level in self.levels(names)?.iter().rev() {
            if !snapshot_family(&self.fs, level.tree)?.iter().any(|found| found.id == tree) {
                continue;
            }
            if let Some(inode) = self.in_tree(tree, level, names)? {
                return Ok(inode);
            }
        }
        Err(Refusal::new(404, "that snapshot has no such file or directory"))
    }

    /// Returns the snapshots that have a directory at a path, the newest first.
    pub(crate) fn snapshots(&self, names: &[Vec<u8>]) -> Result<Vec<InSnapshot>, Refusal> {
        let levels = self.levels(names)?;
        let Some(level) = levels.last() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for subvolume in snapshot_family(&self.fs, level.tree)?.into_iter().rev() {
            // A snapshot that lets the user not through is one without the directory.
            if let Ok(Some(inode)) = self.in_tree(subvolume.id, level, names)
                && inode.file_type() == FileKind::Directory
            {
                found.push(InSnapshot { subvolume, inode });
            }
        }
        Ok(found)
    }

    /// Returns the versions of the file at a path, the newest first.
    pub(crate) fn versions(&self, names: &[Vec<u8>]) -> Result<Vec<Version>, Refusal> {
        let levels = self.levels(names)?;
        let level = levels.last().ok_or_else(|| Refusal::new(404, "there is no such file"))?;
        let own = names.get(level.depth..).unwrap_or_default();
        let path: Vec<&[u8]> = level.prefix.iter().chain(own).map(Vec::as_slice).collect();
        let mut versions = Vec::new();
        for version in file_versions(&self.fs, level.tree, &path.join(&b'/'))? {
            let mut holders = Vec::new();
            for holder in &version.holders {
                let parts: Vec<Vec<u8>> =
                    holder.path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
                let Some(rest) = parts.strip_prefix(&level.prefix[..]) else { continue };
                let names = [&names[..level.depth], rest].concat();
                let is_reached =
                    self.at(&names, holder.subvolume).is_ok_and(|inode| inode.number() == holder.inode);
                if is_reached {
                    let subvolume_path = holder.subvolume_path.clone();
                    holders.push(Holder { tree: holder.subvolume, subvolume_path, names });
                }
            }
            let hidden = version.holders.len() - holders.len();
            if !holders.is_empty() || self.caller.is_root() {
                versions.push(Version { version, holders, hidden });
            }
        }
        versions.reverse();
        Ok(versions)
    }

    /// Parses the id of a subvolume in a query.
    pub(crate) fn parse_tree(text: &str) -> Result<TreeId, Refusal> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        let tree = number.map(TreeId).filter(|tree| *tree == objectid::FS_TREE || tree.0 >= 256);
        tree.ok_or_else(|| Refusal::new(400, "at= wants the id of a subvolume"))
    }
}

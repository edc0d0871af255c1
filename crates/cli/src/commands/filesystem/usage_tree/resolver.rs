//! The path that a byte of the data counts for.
//!
//! Owns [`Resolver`]: back references lead from an address to the files that contain it. It counts
//! for one path: the shortest, and of these the first. An image is asked itself, and a mount by the
//! ioctls `LOGICAL_INO_V2` and `INO_LOOKUP`, which need the rights of an administrator.

use crate::commands::inspect::paths_of;
use crate::context::of_image;
use crate::tree_source::TreeSource;
use papilio::format::{InodeNumber, LogicalAddress, TreeId, objectid};
use papilio::{AddressUse, ExtentOwner};
use rustix::io::Errno;
use std::collections::HashMap;

/// The memory for the kernel's answer, in bytes; the most that it takes.
const ANSWER: usize = 16 << 20;
/// Memory that is enough for most answers.
const USUAL_ANSWER: usize = 64 << 10;

/// The use of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No data.
    NoData,
    /// Data that no file uses: a part of an extent.
    Unreachable,
    /// Data of this path.
    Path(Vec<u8>),
}

/// Finds the paths of addresses.
pub struct Resolver<'s> {
    source: &'s TreeSource,
    known: HashMap<(TreeId, InodeNumber), Option<Vec<u8>>>,
    /// Whether files may move while this runs, so that what is known gets old.
    changing: bool,
    /// Of a mount: the paths of subvolumes.
    subvolumes: HashMap<TreeId, Vec<u8>>,
}

impl<'s> Resolver<'s> {
    /// Creates a resolver.
    pub fn new(source: &'s TreeSource) -> Self {
        let changing = matches!(source, TreeSource::Mounted { .. });
        Self { source, known: HashMap::new(), changing, subvolumes: HashMap::new() }
    }

    /// Returns what is at an address, or with `whole` at any byte of the extent there.
    ///
    /// # Errors
    /// A tree block or item that cannot be read; the mount refuses to answer.
    pub fn find(&mut self, address: u64, whole: bool) -> anyhow::Result<Found> {
        let Some(owners) = self.owners(LogicalAddress(address), whole)? else { return Ok(Found::NoData) };
        let mut best: Option<Vec<u8>> = None;
        for owner in owners {
            let key = (owner.tree, owner.inode);
            let path = match self.known.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let paths = self.paths(owner.tree, owner.inode)?;
                    let path = paths.into_iter().min_by(|a, b| order(a, b));
                    if self.changing && self.known.len() >= KNOWN {
                        self.known.clear();
                    }
                    self.known.insert(key, path.clone());
                    path
                }
            };
            best = match (best, path) {
                (Some(best), Some(path)) if order(&path, &best).is_lt() => Some(path),
                (best, path) => best.or(path),
            };
        }
        Ok(best.map_or(Found::Unreachable, Found::Path))
    }

    /// Returns the files with data at an address; `None` if there is no data.
    fn owners(&self, address: LogicalAddress, whole: bool) -> anyhow::Result<Option<Vec<ExtentOwner>>> {
        let (mounted, root) = match self.source {
            TreeSource::Image { fs, path } => {
                let used = fs.extent_owners(address, whole).map_err(|error| of_image(path, error))?;
                return Ok(match used {
                    AddressUse::Data(owners) => Some(owners),
                    AddressUse::Free | AddressUse::TreeBlock => None,
                });
            }
            TreeSource::Mounted { mounted, root } => (mounted, root),
        };
        let mut answer = root.extent_owners(address, whole, USUAL_ANSWER);
        if answer.as_ref().is_ok_and(|(_, missed)| *missed > 0) {
            answer = root.extent_owners(address, whole, ANSWER);
        }
        match answer {
            Ok((owners, _)) => Ok(Some(owners)),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Nothing, or a tree block, is there by now.
                Some(Errno::NOENT | Errno::INVAL) => Ok(None),
                _ => Err(mounted.at(&error)),
            },
        }
    }

    fn paths(&mut self, tree: TreeId, inode: InodeNumber) -> anyhow::Result<Vec<Vec<u8>>> {
        let (mounted, root) = match self.source {
            TreeSource::Image { fs, path } => {
                return paths_of(fs, tree, inode).map_err(|error| of_image(path, error));
            }
            TreeSource::Mounted { mounted, root } => (mounted, root),
        };
        if tree != objectid::FS_TREE && !self.subvolumes.contains_key(&tree) {
            let subvolumes = root.subvolumes().map_err(|error| mounted.at(&error))?;
            let named = subvolumes.into_iter().filter_map(|one| Some((one.id, one.path?)));
            self.subvolumes.extend(named);
            // One that is being deleted has no path. It is not looked up again.
            self.subvolumes.entry(tree).or_insert_with(|| format!("(subvolume {tree})").into());
        }
        let prefix = self.subvolumes.get(&tree).map(|path| [b"/", &path[..]].concat()).unwrap_or_default();
        match root.inode_paths(tree, inode) {
            Ok(paths) => Ok(paths.into_iter().map(|path| [&prefix[..], b"/", &path].concat()).collect()),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Deleted meanwhile.
                Some(Errno::NOENT) => Ok(Vec::new()),
                _ => Err(mounted.at(&error)),
            },
        }
    }
}

/// The most paths that are remembered of a mount, where files may be renamed.
const KNOWN: usize = 4096;

fn order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_paths_come_first() {
        assert!(order(b"/b", b"/aa").is_lt() && order(b"/a", b"/b").is_lt());
    }
}

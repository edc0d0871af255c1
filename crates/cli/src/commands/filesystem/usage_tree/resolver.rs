//! The path that a byte of the data counts for.
//!
//! Owns [`Resolver`]: back references lead from an address to the files that contain it. It counts
//! for one path: the shortest, and of these the first. An image is asked itself, and a mount by the
//! ioctls `LOGICAL_INO_V2` and `INO_LOOKUP`, which need the rights of an administrator.
//!
//! A subvolume that cannot be read is left out and noted. Data that other files have counts for
//! these; the rest is [`Found::Unread`].

use crate::commands::inspect::paths_of;
use crate::context::of_image;
use crate::mounted::Mounted;
use crate::output::escaped;
use crate::tree_source::TreeSource;
use papilio::format::{InodeNumber, LogicalAddress, TreeId, objectid};
use papilio::{AddressUse, ExtentOwner, FileSystem};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};

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
    /// Data of files that cannot be read.
    Unread,
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
    /// Each place that was left out, with the first error there.
    left_out: BTreeMap<String, String>,
}

impl<'s> Resolver<'s> {
    /// Creates a resolver.
    pub fn new(source: &'s TreeSource) -> Self {
        let changing = matches!(source, TreeSource::Mounted { .. });
        Self {
            source,
            known: HashMap::new(),
            changing,
            subvolumes: HashMap::new(),
            left_out: BTreeMap::new(),
        }
    }

    /// Returns what is at an address, or with `whole` at any byte of the extent there.
    ///
    /// # Errors
    /// The extent tree or the root tree cannot be read; the mount refuses to answer.
    pub fn find(&mut self, address: u64, whole: bool) -> anyhow::Result<Found> {
        let (owners, mut is_whole) = match self.owners(LogicalAddress(address), whole)? {
            Owners::NoData => return Ok(Found::NoData),
            Owners::Files(owners) => (owners, true),
            Owners::SomeFiles(owners) => (owners, false),
        };
        let mut best: Option<Vec<u8>> = None;
        for owner in owners {
            let key = (owner.tree, owner.inode);
            let path = match self.known.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let Some(paths) = self.paths(owner.tree, owner.inode)? else {
                        is_whole = false;
                        continue;
                    };
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
        let none = if is_whole { Found::Unreachable } else { Found::Unread };
        Ok(best.map_or(none, Found::Path))
    }

    /// Returns the messages about what was left out, one for each subvolume.
    pub fn left_out(&self) -> Vec<String> {
        let message = |(place, error): (&String, &String)| {
            format!("{place}: left out, because it cannot be read: {error}")
        };
        self.left_out.iter().map(message).collect()
    }

    /// Notes a tree of an image that cannot be read, or a leaf that several trees share.
    fn leave_out(&mut self, fs: &FileSystem, tree: Option<TreeId>, error: &papilio::Error) {
        let place = match tree {
            None => "a leaf that subvolumes may share".to_owned(),
            Some(id) => {
                let path = fs.subvolume(id).ok().and_then(|found| found.path);
                let path = path
                    .map_or_else(|| format!("<subvolume {id}>").into(), |path| [b"/", &path[..]].concat());
                String::from_utf8_lossy(&escaped(&path)).into_owned()
            }
        };
        self.left_out.entry(place).or_insert_with(|| error.to_string());
    }

    /// Notes data of a mount whose files cannot be read.
    fn leave_out_of_mount(&mut self, mounted: &Mounted, error: &std::io::Error) {
        let place = format!("{mounted}: the data of some files");
        self.left_out.entry(place).or_insert_with(|| error.to_string());
    }

    /// Returns the files with data at an address.
    fn owners(&mut self, address: LogicalAddress, whole: bool) -> anyhow::Result<Owners> {
        let (mounted, root) = match self.source {
            TreeSource::Image { fs, path } => {
                let mut unread = Vec::new();
                let used =
                    fs.extent_owners_leaving_out(address, whole, |tree, error| unread.push((tree, error)));
                let used = used.map_err(|error| of_image(path, error))?;
                unread.iter().for_each(|(tree, error)| self.leave_out(fs, *tree, error));
                return Ok(match used {
                    AddressUse::Data(owners) if unread.is_empty() => Owners::Files(owners),
                    AddressUse::Data(owners) => Owners::SomeFiles(owners),
                    AddressUse::Free | AddressUse::TreeBlock => Owners::NoData,
                });
            }
            TreeSource::Mounted { mounted, root } => (mounted, root),
        };
        let mut answer = root.extent_owners(address, whole, USUAL_ANSWER);
        if answer.as_ref().is_ok_and(|(_, missed)| *missed > 0) {
            answer = root.extent_owners(address, whole, ANSWER);
        }
        match answer {
            Ok((owners, _)) => Ok(Owners::Files(owners)),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Nothing, or a tree block, is there by now.
                Some(Errno::NOENT | Errno::INVAL) => Ok(Owners::NoData),
                Some(error_number) if is_damage(error_number) => {
                    self.leave_out_of_mount(mounted, &error);
                    Ok(Owners::SomeFiles(Vec::new()))
                }
                _ => Err(mounted.at(&error)),
            },
        }
    }

    /// Returns the paths of a file; `None` if they cannot be read.
    fn paths(&mut self, tree: TreeId, inode: InodeNumber) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
        let (mounted, root) = match self.source {
            TreeSource::Image { fs, .. } => {
                return Ok(match paths_of(fs, tree, inode) {
                    Ok(paths) => Some(paths),
                    Err(error) => {
                        self.leave_out(fs, Some(tree), &error);
                        None
                    }
                });
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
            Ok(paths) => {
                Ok(Some(paths.into_iter().map(|path| [&prefix[..], b"/", &path].concat()).collect()))
            }
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Deleted meanwhile.
                Some(Errno::NOENT) => Ok(Some(Vec::new())),
                Some(error_number) if is_damage(error_number) => {
                    self.leave_out_of_mount(mounted, &error);
                    Ok(None)
                }
                _ => Err(mounted.at(&error)),
            },
        }
    }
}

/// The files with data at an address.
enum Owners {
    /// There is no data.
    NoData,
    /// All of them.
    Files(Vec<ExtentOwner>),
    /// Those in subvolumes that can be read.
    SomeFiles(Vec<ExtentOwner>),
}

/// Whether the kernel's error says that a tree block cannot be read.
fn is_damage(error: Errno) -> bool {
    matches!(error, Errno::IO | Errno::UCLEAN)
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

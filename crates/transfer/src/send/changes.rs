//! The changes from one snapshot to another, as paths.
//!
//! Owns [`SnapshotChange`] and [`snapshot_changes`]. The comparison is that of send, so its cost
//! follows the number of changes. Content counts as changed if the file's extents differ, also if
//! the same bytes were written again. Nested subvolumes and their entries are left out.
//!
//! **Locks:** those of reading.

use super::compare::{Changes, Differs, differences};
use super::{decide, living};
use papilio_engine::btree::Tree;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::items::inode::{first_name, for_each_name};
use papilio_engine::items::trees::OpenTree;
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::root::RootFlags;
use papilio_format::{InodeNumber, TreeId, objectid};
use papilio_fs::FileSystem;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Most directories in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// The change of a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NameChange {
    /// The old snapshot lacks it.
    Added,
    /// The new snapshot lacks it.
    Deleted,
    /// It was this path, without a leading slash, in the old snapshot. Files below a renamed
    /// directory are not listed.
    Renamed(Vec<u8>),
    /// Both have it, for the same inode.
    Kept,
}

/// A path that differs between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotChange {
    /// The path in the new snapshot, or in the old one if it was deleted, without a leading slash;
    /// empty for the root.
    pub path: Vec<u8>,
    /// The change of the name.
    pub name: NameChange,
    /// The kind of file.
    pub kind: FileKind,
    /// The size of the file in bytes: in the new snapshot, or in the old one if it was deleted.
    pub size: u64,
    /// Data was written, or the size changed. Always false for files that were added or deleted.
    pub content: bool,
    /// The mode, the owner, flags, times alone, or attributes changed. As for `content`.
    pub metadata: bool,
}

/// Compares two snapshots of one file system. The result is sorted by path.
///
/// # Errors
/// A subvolume that is missing, or that is not read-only while the file system is open for writing;
/// a tree block or item that cannot be read.
pub fn snapshot_changes(fs: &FileSystem, old: TreeId, new: TreeId) -> Result<Vec<SnapshotChange>> {
    let (old, new) = (steady(fs, old)?, steady(fs, new)?);
    let changes = differences(&old.tree, &new.tree)?;
    let (changes, fates) = decide(&new, Some(&old), changes)?;
    let doomed = fates.iter().filter(|(_, fate)| fate.removed.is_some()).map(|(&number, _)| number);
    let mut comparison = Comparison {
        doomed: doomed.collect(),
        old_paths: Paths::new(&old.tree),
        new_paths: Paths::new(&new.tree),
        found: Vec::new(),
    };
    comparison.run(&old, &new, &changes)?;
    comparison.found.sort_by(|a, b| (&a.path, &a.name).cmp(&(&b.path, &b.name)));
    Ok(comparison.found)
}

/// Returns a subvolume that does not change meanwhile.
fn steady(fs: &FileSystem, id: TreeId) -> Result<Arc<OpenTree>> {
    let open = fs.info.trees.subvolume(id)?;
    if fs.info.trees.transactions().is_some() && !open.item().flags.contains(RootFlags::RDONLY) {
        return Err(Error::Invalid(format!("subvolume {id} is not read-only, and may change")));
    }
    if open.root_directory() != objectid::FIRST_INODE {
        return Err(Error::path(format!("subvolume {id}").as_bytes(), PathError::NotSupported));
    }
    Ok(open)
}

/// A name: the directory's number, and the last component.
type Place = (u64, Vec<u8>);

struct Comparison<'a> {
    /// The inodes of the old snapshot that the new one lacks. Their numbers may be in use again.
    doomed: HashSet<u64>,
    old_paths: Paths<'a>,
    new_paths: Paths<'a>,
    found: Vec<SnapshotChange>,
}

impl Comparison<'_> {
    fn run(&mut self, old: &OpenTree, new: &OpenTree, changes: &Changes) -> Result<()> {
        for (&number, differs) in changes {
            let (before, after) = (living(old, number)?, living(new, number)?);
            match (before, after) {
                (Some(before), Some(after)) if !self.doomed.contains(&number) => {
                    self.lasting(number, differs, &before, &after)?;
                }
                (before, after) => {
                    if let Some(before) = before {
                        for place in self.old_paths.places(number)? {
                            let path = self.old_paths.path_at(&place)?;
                            self.push(path, NameChange::Deleted, &before, (false, false));
                        }
                    }
                    if let Some(after) = after {
                        for place in self.new_paths.places(number)? {
                            let path = self.new_paths.path_at(&place)?;
                            self.push(path, NameChange::Added, &after, (false, false));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, path: Vec<u8>, name: NameChange, item: &InodeItem, changed: (bool, bool)) {
        let kind = item.kind().unwrap_or(FileKind::Regular);
        let (content, metadata) = changed;
        self.found.push(SnapshotChange { path, name, kind, size: item.size, content, metadata });
    }

    /// An inode that both snapshots have.
    fn lasting(
        &mut self,
        number: u64,
        differs: &Differs,
        before: &InodeItem,
        after: &InodeItem,
    ) -> Result<()> {
        let changed = changes_of(differs, before, after);
        if number == objectid::FIRST_INODE.0 {
            if changed.1 {
                self.push(Vec::new(), NameChange::Kept, after, changed);
            }
            return Ok(());
        }
        let (old_places, new_places) = (self.old_paths.places(number)?, self.new_paths.places(number)?);
        // A directory with the same number may be another one.
        let kept = |place: &&Place| !self.doomed.contains(&place.0) && old_places.contains(*place);
        let kept: BTreeSet<Place> = new_places.iter().filter(kept).cloned().collect();
        let mut gone = old_places.iter().filter(|place| !kept.contains(*place)).cloned().collect::<Vec<_>>();
        let came: Vec<Place> = new_places.iter().filter(|place| !kept.contains(*place)).cloned().collect();
        gone.reverse();
        let mut reported = false;
        for place in came {
            let path = self.new_paths.path_at(&place)?;
            let name = match gone.pop() {
                Some(place) => NameChange::Renamed(self.old_paths.path_at(&place)?),
                None => NameChange::Added,
            };
            self.push(path, name, after, changed);
            reported = true;
        }
        for place in gone {
            let path = self.old_paths.path_at(&place)?;
            self.push(path, NameChange::Deleted, before, (false, false));
        }
        if !reported && (changed.0 || changed.1) {
            for place in kept {
                let path = self.new_paths.path_at(&place)?;
                self.push(path, NameChange::Kept, after, changed);
            }
        }
        Ok(())
    }
}

/// Returns whether the content and whether the metadata changed. Times and link counts that follow
/// a change of names or content do not count.
fn changes_of(differs: &Differs, before: &InodeItem, after: &InodeItem) -> (bool, bool) {
    let is_directory = after.kind() == Some(FileKind::Directory);
    let content = !is_directory && (differs.extents || before.size != after.size);
    let touched = !is_directory && !content && before.mtime != after.mtime;
    let attributes = (before.mode, before.uid, before.gid, before.flags, before.otime)
        != (after.mode, after.uid, after.gid, after.flags, after.otime);
    (content, touched || attributes || differs.xattrs)
}

/// The paths of a snapshot.
struct Paths<'a> {
    tree: &'a Tree,
    /// Those of directories.
    known: HashMap<u64, Vec<u8>>,
}

impl<'a> Paths<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self { tree, known: HashMap::new() }
    }

    /// Returns the names of an inode.
    fn places(&self, number: u64) -> Result<BTreeSet<Place>> {
        let mut places = BTreeSet::new();
        for_each_name(self.tree, InodeNumber(number), |name| {
            places.insert((name.parent.0, name.name));
            true
        })?;
        Ok(places)
    }

    fn path_at(&mut self, (parent, name): &Place) -> Result<Vec<u8>> {
        let mut path = self.directory(*parent)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(path)
    }

    fn directory(&mut self, number: u64) -> Result<Vec<u8>> {
        let mut unknown = Vec::new();
        let mut current = number;
        let mut path = loop {
            if current == objectid::FIRST_INODE.0 {
                break Vec::new();
            }
            if let Some(path) = self.known.get(&current) {
                break path.clone();
            }
            let missing = || Error::path(format!("inode {current}").as_bytes(), PathError::NotFound);
            if unknown.len() > DEPTH_LIMIT {
                return Err(missing());
            }
            let name = first_name(self.tree, InodeNumber(current))?.ok_or_else(missing)?;
            unknown.push((current, name.name));
            current = name.parent.0;
        };
        for (number, name) in unknown.into_iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            self.known.insert(number, path.clone());
        }
        Ok(path)
    }
}

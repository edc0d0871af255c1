//! The report of a clone: its progress and what it lacks.
//!
//! Owns [`Cloned`], [`CloneProgress`], and [`Listener`], which finds the paths of lost parts.

use super::loss::CloneLoss;
use super::roots::SubvolumeRoots;
use papilio_engine::btree::Tree;
use papilio_engine::items::inode::first_name;
use papilio_engine::items::trees::Trees;
use papilio_format::{InodeNumber, TreeId, objectid};

/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// A step of a clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CloneProgress {
    /// So many bytes of data have been copied.
    Copied(u64),
    /// Something is missing.
    Lost(CloneLoss),
}

/// A finished clone.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Cloned {
    /// The number of subvolumes and snapshots, with the top level.
    pub subvolumes: usize,
    /// The bytes of data that were copied.
    pub bytes: u64,
    /// The number of losses.
    pub losses: u64,
    /// Changes that mended the clone, because the items that were left did not fit together: one
    /// line each.
    pub mended: Vec<String>,
}

impl Cloned {
    /// Returns whether the clone has all that the source has, verified.
    pub fn is_whole(&self) -> bool {
        self.losses == 0 && self.mended.is_empty()
    }
}

/// Passes progress and losses on, with their paths.
pub(super) struct Listener<'a> {
    trees: &'a Trees,
    roots: &'a SubvolumeRoots,
    events: &'a mut dyn FnMut(CloneProgress),
    pub(super) losses: u64,
}

impl<'a> Listener<'a> {
    pub(super) fn new(
        trees: &'a Trees,
        roots: &'a SubvolumeRoots,
        events: &'a mut dyn FnMut(CloneProgress),
    ) -> Self {
        Self { trees, roots, events, losses: 0 }
    }

    pub(super) fn lose(&mut self, loss: CloneLoss) {
        self.losses += 1;
        (self.events)(CloneProgress::Lost(loss));
    }

    pub(super) fn copied(&mut self, bytes: u64) {
        (self.events)(CloneProgress::Copied(bytes));
    }

    /// Whether the clone gets the subvolume.
    pub(super) fn has_subvolume(&self, id: TreeId) -> bool {
        self.roots.subvolumes.contains_key(&id)
    }

    /// Whether the entry of `child` is the one in `parent`, and not a snapshot's copy of it.
    pub(super) fn is_entry_of(&self, parent: TreeId, child: TreeId) -> bool {
        self.roots.parent_of(child).is_some_and(|(found, _)| found == parent)
    }

    /// Returns the path of an inode, or words for it if it has none.
    pub(super) fn path(&self, tree: &Tree, inode: InodeNumber) -> Vec<u8> {
        let mut path = self.subvolume_path(tree.id());
        let names = names_to(tree, inode, objectid::FIRST_INODE);
        let below = names.unwrap_or_else(|| vec![format!("inode {inode}").into_bytes()]);
        for name in below {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
        }
        path
    }

    /// Returns the path of a subvolume, or words for it if it has none.
    pub(super) fn subvolume_path(&self, id: TreeId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut current = id;
        while current != objectid::FS_TREE {
            let found = self.roots.parent_of(current);
            let above = found.as_ref().and_then(|(parent, _)| self.trees.find(*parent).ok().flatten());
            let (Some((parent, entry)), Some(above)) = (found, above) else {
                return format!("subvolume {id}").into_bytes();
            };
            parts.push(entry.name.to_vec());
            let names = names_to(&above.tree, entry.directory, above.root_directory());
            parts.extend(names.unwrap_or_default().into_iter().rev());
            current = parent;
            if parts.len() > DEPTH_LIMIT {
                return format!("subvolume {id}").into_bytes();
            }
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

/// Returns the names from a subvolume's root directory down to an inode.
fn names_to(tree: &Tree, inode: InodeNumber, root: InodeNumber) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut current = inode;
    while current != root {
        let name = first_name(tree, current).ok().flatten()?;
        names.push(name.name);
        current = name.parent;
        if names.len() > DEPTH_LIMIT {
            return None;
        }
    }
    names.reverse();
    Some(names)
}

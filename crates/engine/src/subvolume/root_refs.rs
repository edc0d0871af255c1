//! References between subvolumes in the root tree, which locate a subvolume's entry.
//!
//! Owns [`Link`] and its pair of items: ROOT_REF below the parent, ROOT_BACKREF below the child.
//!
//! **Invariants**
//! - Both items are added and removed together and have the same content.
//! - A directory entry without a ROOT_REF is a snapshot's copy, and leads nowhere.
//!
//! Locks: none; changes go into a draft of the root tree.
//!
//! Kernel counterpart: `btrfs_add_root_ref`, `btrfs_del_root_ref` (`fs/btrfs/root-tree.c`).

use crate::btree::{Item, Tree};
use crate::errors::Result;
use crate::items::draft::Draft;
use crate::items::item_error;
use papilio_format::items::root_ref::{RootRef, root_backref_key, root_ref_key};
use papilio_format::{InodeNumber, ItemType, Key, TreeId};

/// The location of a subvolume's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The subvolume that contains the directory.
    pub(super) parent: TreeId,
    /// The inode of the directory.
    pub(super) directory: InodeNumber,
    /// The entry's index in the directory.
    pub(super) index: u64,
    /// The entry's name.
    pub(super) name: Vec<u8>,
}

impl Link {
    fn parse(root_tree: &Tree, item: &Item, parent: TreeId) -> Result<Self> {
        let reference = RootRef::parse(item.data()).map_err(|reason| item_error(root_tree, item, reason))?;
        Ok(Self {
            parent,
            directory: reference.directory,
            index: reference.sequence,
            name: reference.name.to_vec(),
        })
    }

    /// Writes both items of `child`.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(super) fn put(&self, draft: &mut Draft<'_>, child: TreeId) -> Result<()> {
        let bytes = RootRef { directory: self.directory, sequence: self.index, name: &self.name }.to_bytes();
        for key in [root_ref_key(self.parent, child), root_backref_key(child, self.parent)] {
            if draft.get(&key)?.is_some() {
                draft.replace(key, bytes.clone());
            } else {
                draft.insert(key, bytes.clone());
            }
        }
        Ok(())
    }
}

/// Removes both items of `child` below `parent`.
///
/// # Errors
/// [`crate::Error::MissingItem`] if either is missing; a tree block that cannot be read.
pub(super) fn remove(draft: &mut Draft<'_>, parent: TreeId, child: TreeId) -> Result<()> {
    for key in [root_ref_key(parent, child), root_backref_key(child, parent)] {
        if draft.get(&key)?.is_none() {
            return Err(draft.missing(key, "a subvolume's reference"));
        }
        draft.remove(key);
    }
    Ok(())
}

/// Finds the entry of `child` in `parent`, if it is there.
///
/// # Errors
/// A block or an item that cannot be read.
pub(super) fn link_in(root_tree: &Tree, parent: TreeId, child: TreeId) -> Result<Option<Link>> {
    let item = root_tree.get(&root_ref_key(parent, child))?;
    item.map(|item| Link::parse(root_tree, &item, parent)).transpose()
}

/// Finds the entry of `child` in any subvolume; `None` for the top level and for deleted
/// subvolumes.
///
/// # Errors
/// A block or an item that cannot be read.
pub(super) fn link_of(root_tree: &Tree, child: TreeId) -> Result<Option<Link>> {
    let first = root_backref_key(child, TreeId(0));
    let last = root_backref_key(child, TreeId(u64::MAX));
    let item = root_tree.range(first..=last).next().transpose()?;
    item.map(|item| Link::parse(root_tree, &item, TreeId(item.key.offset))).transpose()
}

/// Whether a subvolume contains others.
///
/// # Errors
/// A tree block that cannot be read.
pub(super) fn has_children(root_tree: &Tree, id: TreeId) -> Result<bool> {
    let key = root_tree.seek(&root_ref_key(id, TreeId(0)))?.key();
    Ok(key.is_some_and(|key: Key| (key.objectid, key.item_type) == (id.0, ItemType::ROOT_REF)))
}

/// Whether `id` is `above` or below it. A cycle of references, which only corruption creates,
/// counts as below.
///
/// # Errors
/// A block or an item that cannot be read.
pub(super) fn is_within(root_tree: &Tree, id: TreeId, above: TreeId) -> Result<bool> {
    /// Most levels of nested subvolumes. More mean a cycle.
    const DEPTH_LIMIT: usize = 1 << 16;
    let mut current = id;
    for _ in 0..DEPTH_LIMIT {
        if current == above {
            return Ok(true);
        }
        match link_of(root_tree, current)? {
            Some(link) => current = link.parent,
            None => return Ok(false),
        }
    }
    Ok(true)
}

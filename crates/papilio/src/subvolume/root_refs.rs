//! References between subvolumes in the root tree: where a subvolume's entry is.
//!
//! Owns [`Link`] and the pair of items that holds it: ROOT_REF below the parent, ROOT_BACKREF below the
//! child. Invariants: both come and go together and hold the same; a directory entry that no ROOT_REF
//! names is a snapshot's copy, and leads nowhere. Takes no lock; changes go into a draft of the root tree.
//! Kernel counterpart: `btrfs_add_root_ref`, `btrfs_del_root_ref` (`fs/btrfs/root-tree.c`).

use crate::btree::{Item, Tree};
use crate::errors::Result;
use crate::items::draft::Draft;
use crate::items::item_error;
use papilio_format::items::root_ref::{RootRef, root_backref_key, root_ref_key};
use papilio_format::{InodeNumber, ItemType, Key, TreeId};

/// Where a subvolume's entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The subvolume that holds the directory.
    pub(super) parent: TreeId,
    /// The directory.
    pub(super) directory: InodeNumber,
    /// The entry's index.
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

    /// Writes both items.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
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
/// [`crate::Error::MissingItem`] where either is missing, or a block that cannot be read.
pub(super) fn remove(draft: &mut Draft<'_>, parent: TreeId, child: TreeId) -> Result<()> {
    for key in [root_ref_key(parent, child), root_backref_key(child, parent)] {
        if draft.get(&key)?.is_none() {
            return Err(draft.missing(key, "a subvolume's reference"));
        }
        draft.remove(key);
    }
    Ok(())
}

/// The entry of `child` that the root tree knows in `parent`, if it is there.
///
/// # Errors
/// A block or an item that cannot be read.
pub(super) fn link_in(root_tree: &Tree, parent: TreeId, child: TreeId) -> Result<Option<Link>> {
    let item = root_tree.get(&root_ref_key(parent, child))?;
    item.map(|item| Link::parse(root_tree, &item, parent)).transpose()
}

/// The entry of `child`, wherever it is; `None` for the top level and for what was deleted.
///
/// # Errors
/// A block or an item that cannot be read.
pub(super) fn link_of(root_tree: &Tree, child: TreeId) -> Result<Option<Link>> {
    let first = root_backref_key(child, TreeId(0));
    let last = root_backref_key(child, TreeId(u64::MAX));
    let item = root_tree.range(first..=last).next().transpose()?;
    item.map(|item| Link::parse(root_tree, &item, TreeId(item.key.offset))).transpose()
}

/// Whether entries of a subvolume lead to others.
///
/// # Errors
/// A block that cannot be read.
pub(super) fn has_children(root_tree: &Tree, id: TreeId) -> Result<bool> {
    let key = root_tree.seek(&root_ref_key(id, TreeId(0)))?.key();
    Ok(key.is_some_and(|key: Key| (key.objectid, key.item_type) == (id.0, ItemType::ROOT_REF)))
}

/// Whether `id` is `above` or lies below it. References in a circle, which only corruption makes, are
/// taken for lying below.
///
/// # Errors
/// A block or an item that cannot be read.
pub(super) fn is_within(root_tree: &Tree, id: TreeId, above: TreeId) -> Result<bool> {
    /// Subvolumes below one another at most; deeper is a circle.
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

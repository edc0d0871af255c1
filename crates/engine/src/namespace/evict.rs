//! Removing inodes that have no name, apart from their file data.
//!
//! An orphan is removed in two steps. First the data layer drops its extents, a few at a time and
//! in as many transactions as that takes. Then [`evict`] removes the remaining items together with
//! the orphan item. A crash in between leaves the orphan item, which [`next_orphan`] finds at the
//! next mount.
//!
//! Kernel counterparts: `btrfs_evict_inode`, `btrfs_orphan_cleanup` (`fs/btrfs/inode.c`).

use crate::btree::{Change, Tree, TreeEditor};
use crate::errors::Result;
use crate::items::draft::edit;
use crate::items::{inode, item_error, orphan};
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeItem;
use papilio_format::items::orphan::orphan_key;
use papilio_format::{Corrupt, InodeNumber, ItemType, Key};

/// Most items of an inode that are removed in one pass with the orphan item. More take separate
/// passes.
const ONE_PASS: usize = 256;

/// An inode that is listed as an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// Tells what the clean-up has to do.
    pub(crate) state: OrphanState,
}

/// The state of an orphan item's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanState {
    /// The inode has no name: drop its data, then evict it.
    Unnamed(InodeItem),
    /// The inode has names: remove the orphan item, and a Merkle tree that was not finished.
    /// (Kernels before 3.17 listed inodes that were being truncated.)
    Named(InodeItem),
    /// There is no inode: remove the orphan item only.
    Gone,
}

/// Finds the first orphan of a subvolume with inode number `from` or larger.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn next_orphan(tree: &Tree, from: InodeNumber) -> Result<Option<Orphan>> {
    let Some(number) = orphan::next(tree, from)? else { return Ok(None) };
    let state = match inode::inode(tree, number)? {
        None => OrphanState::Gone,
        Some(item) if item.nlink > 0 => OrphanState::Named(item),
        Some(item) => OrphanState::Unnamed(item),
    };
    Ok(Some(Orphan { inode: number, state }))
}

/// Returns whether an inode has file extents that must be dropped before it is removed: any but
/// inline data alone, which a small file has.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn has_extents(tree: &Tree, inode: InodeNumber) -> Result<bool> {
    let is_extent = |key: Key| (key.objectid, key.item_type) == (inode.0, ItemType::EXTENT_DATA);
    let mut cursor = tree.seek(&Key::new(inode.0, ItemType::EXTENT_DATA, 0))?;
    let Some(item) = cursor.item().filter(|item| is_extent(item.key)) else { return Ok(false) };
    let extent = FileExtentItem::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
    if !matches!(extent.content, FileExtentContent::Inline(_)) {
        return Ok(true);
    }
    cursor.step()?;
    Ok(cursor.key().is_some_and(is_extent))
}

/// Removes the orphan item of an inode. Returns whether it existed.
///
/// # Errors
/// Errors of reading and changing the tree.
pub(crate) fn forget_orphan(editor: &mut TreeEditor<'_>, inode: InodeNumber) -> Result<bool> {
    edit(editor, |draft| orphan::remove(draft, inode))
}

/// Removes an inode that has neither names nor extents: all of its items and its orphan item. Does
/// nothing if the inode is gone already.
///
/// # Errors
/// [`crate::Error::Item`], before anything changes, for an inode that still has a name or an extent
/// on disk; errors of reading and changing the tree.
pub(crate) fn evict(editor: &mut TreeEditor<'_>, inode: InodeNumber) -> Result<()> {
    let mut keys = evictable_keys(&editor.tree(), inode)?;
    if keys.len() > ONE_PASS {
        editor.remove_range(Key::first_of(inode.0)..=Key::last_of(inode.0))?;
        keys.clear();
    }
    // The object id of orphan items is larger than any inode number, so the keys stay sorted.
    keys.push(orphan_key(inode.0));
    editor.apply(&keys.into_iter().map(|key| Change::Remove { key }).collect::<Vec<_>>())
}

/// Checks all items of an inode, and returns their keys: all of them, or [`ONE_PASS`] plus one.
fn evictable_keys(tree: &Tree, inode: InodeNumber) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    for item in tree.range(Key::first_of(inode.0)..=Key::last_of(inode.0)) {
        let item = item?;
        if keys.len() <= ONE_PASS {
            keys.push(item.key);
        }
        let fault = |reason| Err(item_error(tree, &item, reason));
        match item.key.item_type {
            ItemType::INODE_ITEM => {
                let parsed =
                    InodeItem::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
                if parsed.nlink > 0 {
                    return fault(Corrupt::field(
                        "inode",
                        "nlink",
                        parsed.nlink.into(),
                        "the inode to be removed still has names",
                    ));
                }
            }
            ItemType::EXTENT_DATA => {
                let extent =
                    FileExtentItem::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
                match extent.content {
                    FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)
                        if !part.is_hole() =>
                    {
                        let address = part.disk_address.0;
                        return fault(Corrupt::field(
                            "file extent",
                            "disk_address",
                            address,
                            "the extent was not dropped before the inode",
                        ));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(keys)
}

//! Removing inodes that have no name: the part that is not file data.
//!
//! An orphan's life ends in two steps: the data layer drops its extents, a few at a time and in as many
//! transactions as it takes; then [`evict`] removes what is left and the orphan item with it. A crash in
//! between leaves the orphan item, and [`next_orphan`] finds it at the next mount. Kernel counterparts:
//! `btrfs_evict_inode`, `btrfs_orphan_cleanup` (`fs/btrfs/inode.c`).

use crate::btree::{Change, Tree, TreeEditor};
use crate::errors::Result;
use crate::items::draft::edit;
use crate::items::{inode, item_error, orphan};
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeItem;
use papilio_format::items::orphan::orphan_key;
use papilio_format::{Corrupt, InodeNumber, ItemType, Key};

/// Items of an inode that are removed in one pass with the orphan item; more take passes of their own.
const ONE_PASS: usize = 256;

/// An inode that is listed as an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// What is to be done with it.
    pub(crate) state: OrphanState,
}

/// What an orphan item stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanState {
    /// An inode without a name: its data is to be dropped, then the inode evicted.
    Unnamed(InodeItem),
    /// An inode that has names (kernels before 3.17 listed those that were being truncated): only the
    /// orphan item is to go.
    Named,
    /// Nothing: only the orphan item is to go.
    Gone,
}

/// The first orphan of a subvolume with a number of `from` or larger.
///
/// # Errors
/// A block on the way that cannot be read.
pub(crate) fn next_orphan(tree: &Tree, from: InodeNumber) -> Result<Option<Orphan>> {
    let Some(number) = orphan::next(tree, from)? else { return Ok(None) };
    let state = match inode::inode(tree, number)? {
        None => OrphanState::Gone,
        Some(item) if item.nlink > 0 => OrphanState::Named,
        Some(item) => OrphanState::Unnamed(item),
    };
    Ok(Some(Orphan { inode: number, state }))
}

/// Takes the orphan item of an inode away; whether it was there.
///
/// # Errors
/// What reading and changing the tree says.
pub(crate) fn forget_orphan(editor: &mut TreeEditor<'_>, inode: InodeNumber) -> Result<bool> {
    edit(editor, |draft| orphan::remove(draft, inode))
}

/// Removes an inode without names whose extents are gone: its item, attributes, what else it has, and its
/// orphan item. Nothing happens where the inode is gone already.
///
/// # Errors
/// [`crate::Error::Item`], before anything changed, for an inode that still has a name or an extent on disk;
/// or what reading and changing the tree says.
pub(crate) fn evict(editor: &mut TreeEditor<'_>, inode: InodeNumber) -> Result<()> {
    let mut keys = evictable_keys(&editor.tree(), inode)?;
    if keys.len() > ONE_PASS {
        editor.remove_range(Key::first_of(inode.0)..=Key::last_of(inode.0))?;
        keys.clear();
    }
    // An orphan's object id is larger than any inode number.
    keys.push(orphan_key(inode.0));
    editor.apply(&keys.into_iter().map(|key| Change::Remove { key }).collect::<Vec<_>>())
}

/// The keys of an inode's items, or somewhat more than [`ONE_PASS`] of them; all items are checked.
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
                        "it is to be removed",
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
                        return fault(Corrupt::field("file extent", "disk_address", address, "not dropped"));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(keys)
}

//! Orphans of a subvolume: inodes without a name that clean-up must not forget.
//!
//! An orphan item is put in with the change that takes the last name, and taken out when the inode
//! has been removed, so that a crash in between leaves a list of what to do. Kernel counterparts:
//! `btrfs_insert_orphan_item`, `btrfs_del_orphan_item` (`fs/btrfs/orphan.c`), `btrfs_orphan_cleanup`
//! (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::draft::Draft;
use papilio_format::InodeNumber;
use papilio_format::items::orphan::{orphan_key, orphan_of};

/// Lists an inode as an orphan; nothing changes where it is listed.
///
/// # Errors
/// A block on the way that cannot be read.
pub(crate) fn insert(draft: &mut Draft<'_>, inode: InodeNumber) -> Result<()> {
    let key = orphan_key(inode.0);
    if draft.get(&key)?.is_none() {
        draft.insert(key, Vec::new());
    }
    Ok(())
}

/// Takes an inode off the list; whether it was there.
///
/// # Errors
/// A block on the way that cannot be read.
pub(crate) fn remove(draft: &mut Draft<'_>, inode: InodeNumber) -> Result<bool> {
    let key = orphan_key(inode.0);
    let there = draft.get(&key)?.is_some();
    if there {
        draft.remove(key);
    }
    Ok(there)
}

/// The first orphan with a number of `from` or larger.
///
/// # Errors
/// A block on the way that cannot be read.
pub(crate) fn next(tree: &Tree, from: InodeNumber) -> Result<Option<InodeNumber>> {
    let cursor = tree.seek(&orphan_key(from.0))?;
    Ok(cursor.key().and_then(|key| orphan_of(&key)).map(InodeNumber))
}

//! Orphans of a subvolume: inodes without a name that have yet to be removed.
//!
//! The change that removes an inode's last name inserts its orphan item. The item is deleted once
//! the inode has been removed, so that a crash in between leaves a list of what to do.
//!
//! Kernel counterparts: `btrfs_insert_orphan_item`, `btrfs_del_orphan_item` (`fs/btrfs/orphan.c`),
//! `btrfs_orphan_cleanup` (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::draft::Draft;
use papilio_format::InodeNumber;
use papilio_format::items::orphan::{orphan_key, orphan_of};

/// Lists an inode as an orphan, unless it is listed already.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn insert(draft: &mut Draft<'_>, inode: InodeNumber) -> Result<()> {
    let key = orphan_key(inode.0);
    if draft.get(&key)?.is_none() {
        draft.insert(key, Vec::new());
    }
    Ok(())
}

/// Removes an inode from the list. Returns whether it was listed.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn remove(draft: &mut Draft<'_>, inode: InodeNumber) -> Result<bool> {
    let key = orphan_key(inode.0);
    let there = draft.get(&key)?.is_some();
    if there {
        draft.remove(key);
    }
    Ok(there)
}

/// Finds the first orphan with inode number `from` or larger.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn next(tree: &Tree, from: InodeNumber) -> Result<Option<InodeNumber>> {
    let cursor = tree.seek(&orphan_key(from.0))?;
    Ok(cursor.key().and_then(|key| orphan_of(&key)).map(InodeNumber))
}

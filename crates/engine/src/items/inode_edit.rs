//! Inode items, loaded for a change and stored again.
//!
//! **Invariant**: every stored change sets the inode's `transid` to the running transaction. Its
//! `sequence` counts changes as the kernel's i_version does: one for most, more for renames.
//!
//! Kernel counterparts: `btrfs_update_inode`, `fill_inode_item` (`fs/btrfs/inode.c`).

use crate::errors::{Error, PathError, Result};
use crate::items::draft::Draft;
use papilio_format::items::inode::{InodeItem, inode_key};
use papilio_format::{Corrupt, InodeNumber, TreeId};

/// Loads the inode `number` for a change.
///
/// # Errors
/// [`PathError::NotFound`] if there is none; [`Error::Item`] for an inode with flags that only a
/// newer kernel may change; errors of reading.
pub(crate) fn load(draft: &mut Draft<'_>, number: InodeNumber) -> Result<InodeItem> {
    let key = inode_key(number);
    let item = match draft.get(&key)? {
        None => return Err(no_such_inode(draft.id(), number)),
        Some(data) => InodeItem::parse(data),
    };
    let item = item.map_err(|reason| draft.fault(key, reason))?;
    let unknown = item.flags.unknown_ro();
    if unknown != 0 {
        let reason = Corrupt::field("inode", "flags", unknown, "unknown flags that forbid changes");
        return Err(draft.fault(key, reason));
    }
    Ok(item)
}

/// The error for an inode that `tree` does not have.
pub(crate) fn no_such_inode(tree: TreeId, number: InodeNumber) -> Error {
    Error::path(format!("subvolume {tree}, inode {number}").as_bytes(), PathError::NotFound)
}

/// Stores a changed inode.
pub(crate) fn store(draft: &mut Draft<'_>, number: InodeNumber, item: &InodeItem) {
    store_changes(draft, number, item, 1);
}

/// Stores an inode after so many changes, as its `sequence` counts them.
pub(crate) fn store_changes(draft: &mut Draft<'_>, number: InodeNumber, item: &InodeItem, changes: u64) {
    let sequence = item.sequence.wrapping_add(changes);
    let item = InodeItem { transid: draft.generation(), sequence, ..*item };
    draft.replace(inode_key(number), item.to_bytes().to_vec());
}

/// Adds a new inode.
pub(crate) fn insert(draft: &mut Draft<'_>, number: InodeNumber, item: &InodeItem) {
    draft.insert(inode_key(number), item.to_bytes().to_vec());
}

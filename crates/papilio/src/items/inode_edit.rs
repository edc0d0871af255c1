//! Inode items, read to be changed and put back.
//!
//! Invariant: whatever changes an inode counts its `sequence` on and stamps it with the running
//! transaction. Kernel counterparts: `btrfs_update_inode`, `fill_inode_item` (`fs/btrfs/inode.c`).

use crate::errors::{Error, PathError, Result};
use crate::items::draft::Draft;
use papilio_format::items::inode::{InodeItem, inode_key};
use papilio_format::{Corrupt, InodeNumber};

/// The inode `number`, to be changed.
///
/// # Errors
/// [`PathError::NotFound`] where there is none; [`Error::Item`] for one with flags that only a newer
/// kernel may change; or what reading says.
pub(crate) fn load(draft: &mut Draft<'_>, number: InodeNumber) -> Result<InodeItem> {
    let key = inode_key(number);
    let item = match draft.get(&key)? {
        None => return Err(no_such_inode(draft, number)),
        Some(data) => InodeItem::parse(data),
    };
    let item = item.map_err(|reason| draft.fault(key, reason))?;
    let unknown = item.flags.unknown_ro();
    if unknown != 0 {
        let reason = Corrupt::field("inode", "flags", unknown, "unknown, so that it must not be changed");
        return Err(draft.fault(key, reason));
    }
    Ok(item)
}

fn no_such_inode(draft: &Draft<'_>, number: InodeNumber) -> Error {
    Error::path(format!("subvolume {}, inode {number}", draft.id()).as_bytes(), PathError::NotFound)
}

/// Puts a changed inode back.
pub(crate) fn store(draft: &mut Draft<'_>, number: InodeNumber, item: &InodeItem) {
    let item = InodeItem { transid: draft.generation(), sequence: item.sequence.wrapping_add(1), ..*item };
    draft.replace(inode_key(number), item.to_bytes().to_vec());
}

/// Adds a new inode.
pub(crate) fn insert(draft: &mut Draft<'_>, number: InodeNumber, item: &InodeItem) {
    draft.insert(inode_key(number), item.to_bytes().to_vec());
}

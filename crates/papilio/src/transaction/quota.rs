//! Quotas: not kept up to date, but marked as inconsistent.
//!
//! Owns [`mark_inconsistent`]. This code does not update quota counts, so they are wrong after its
//! first change. The mark makes the kernel report that and ask for a rescan. Limits are not
//! enforced.
//!
//! Locks: the quota tree's writer lock.
//!
//! Kernel counterpart: `qgroup_mark_inconsistent` (`fs/btrfs/qgroup.c`).

use super::handle::Handle;
use crate::errors::{Error, Result};
use papilio_format::items::qgroup::{QgroupStatus, QgroupStatusFlags};
use papilio_format::{ItemType, Key, objectid};

/// Marks the quota counts as inconsistent, if there are quotas.
///
/// # Errors
/// A block or an item that cannot be read; errors of changing the tree.
pub(super) fn mark_inconsistent(handle: &Handle<'_>) -> Result<()> {
    let Some(tree) = handle.transactions().live().find(objectid::QUOTA_TREE)? else { return Ok(()) };
    let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    let mut editor = tree.edit(handle);
    let Some(item) = editor.get(&key)? else { return Ok(()) };
    let fault = |reason| Error::Item { tree: objectid::QUOTA_TREE, key, reason };
    let mut status = QgroupStatus::parse(item.data()).map_err(fault)?;
    drop(item);
    if status.header.flags.contains(QgroupStatusFlags::INCONSISTENT) {
        return Ok(());
    }
    tracing::warn!("quota counts are not updated by this code; marked for a rescan");
    status.header.flags |= QgroupStatusFlags::INCONSISTENT;
    editor.replace(key, &status.to_bytes())
}

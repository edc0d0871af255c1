//! Quotas: not kept up to date, and marked so.
//!
//! Owns [`mark_inconsistent`]. The numbers of a file system with quotas are wrong from the first change by
//! this code on; the mark makes the kernel say so and take them from a rescan. Limits are not enforced.
//! Lock: the quota tree's writer lock. Kernel counterpart: `qgroup_mark_inconsistent`
//! (`fs/btrfs/qgroup.c`).

use super::Handle;
use crate::errors::{Error, Result};
use papilio_format::items::qgroup::{QgroupStatus, QgroupStatusFlags};
use papilio_format::{ItemType, Key, objectid};

/// Marks the numbers of quotas as wrong, where there are quotas.
///
/// # Errors
/// A block or an item that cannot be read, or what changing the tree meets.
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
    tracing::warn!("quotas are not kept up to date: they are marked for a rescan");
    status.header.flags |= QgroupStatusFlags::INCONSISTENT;
    editor.replace(key, &status.to_bytes())
}

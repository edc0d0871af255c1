//! Compares quotas with their model, and the numbers of qgroups with a recount.
//!
//! Owns [`compare`]. After a power loss, too, quotas are on or off as they were committed, and each
//! subvolume has the limits that it had. Where the file system says that its numbers are right,
//! they equal those of a count of all extents.

use crate::model::{Limits, Model, Place, Quotas};
use papilio::{FileSystem, Inode, QgroupStatusFlags, QgroupUsage};
use std::collections::BTreeMap;

/// Compares the state of quotas. `roots` are the root directories of all subvolumes that have
/// names.
///
/// # Errors
/// The first difference.
pub(crate) fn compare(fs: &FileSystem, model: &Model, roots: &[(Place, Inode)]) -> Result<(), String> {
    let text = |error: papilio::Error| format!("quotas: {error}");
    let status = fs.quota_status().map_err(text)?;
    let found = status.as_ref().map(|status| match status.flags.contains(QgroupStatusFlags::SIMPLE_MODE) {
        true => Quotas::Simple,
        false => Quotas::Full,
    });
    if found != model.quotas() {
        return Err(format!("quotas are {found:?}, expected {:?}", model.quotas()));
    }
    let Some(status) = status else { return Ok(()) };
    let groups: BTreeMap<u64, QgroupUsage> =
        fs.qgroups().map_err(text)?.into_iter().map(|group| (group.id.0, group)).collect();
    for (place, inode) in roots {
        let tree = inode.tree().0;
        let limits = groups
            .get(&tree)
            .map(|group| Limits { referenced: group.max_referenced, exclusive: group.max_exclusive });
        let expected = model.limits(*place);
        if limits != Some(expected) {
            return Err(format!("subvolume {tree} has {limits:?}, expected {expected:?}"));
        }
    }
    if status.is_inconsistent() || status.is_rescanning() {
        return Ok(());
    }
    let counted = fs.count_qgroups().map_err(text)?;
    for (id, referenced, exclusive) in counted {
        let group = groups.get(&id.0).ok_or_else(|| format!("there is no qgroup {id}"))?;
        if (group.referenced, group.exclusive) != (referenced, exclusive) {
            return Err(format!(
                "qgroup {id} has {} and {} bytes, counted {referenced} and {exclusive}",
                group.referenced, group.exclusive
            ));
        }
    }
    Ok(())
}

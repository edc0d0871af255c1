//! Refusing changes that would exceed a limit.
//!
//! Owns the check of limits, and the bytes that writers announced.
//!
//! The numbers of qgroups are those of the last commit. A writer announces the data that it is
//! about to write, and a subvolume's new tree blocks count until the next commit. A limit is
//! exceeded if the numbers and all of these together exceed it. Because overwritten data is
//! announced, too, a caller that is refused flushes everything, commits, and tries once more.
//!
//! Locks: the state and the announced bytes, which are leaves.
//!
//! Kernel counterpart: `qgroup_reserve`, `qgroup_check_limits`, `try_flush_qgroup`
//! (`fs/btrfs/qgroup.c`).

use super::groups::{QgroupUsage, Quotas};
use crate::errors::{Error, QuotaError, Result};
use papilio_format::TreeId;
use papilio_format::items::qgroup::QgroupId;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl Quotas {
    /// Whether any qgroup has a limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Announces `data` bytes that a writer is about to write to a subvolume, if it may write them
    /// and `metadata` bytes of tree blocks.
    ///
    /// # Errors
    /// [`QuotaError::Exceeded`].
    pub(crate) fn announce(&self, tree: TreeId, data: u64, metadata: u64) -> Result<()> {
        let state = self.lock();
        let Some(state) = state.as_ref() else { return Ok(()) };
        let mut announced = self.announced.lock();
        let blocks = self.blocks.lock();
        for id in state.including(QgroupId(tree.0)) {
            let group = &state.groups[&id];
            if group.limit.flags.is_empty() {
                continue;
            }
            let subvolumes = state.subvolumes_of(id);
            let waiting = subvolumes.iter().filter_map(|id| announced.get(&TreeId(id.0)));
            let more = waiting.fold(data.saturating_add(metadata), |sum, bytes| sum.saturating_add(*bytes));
            let added: i64 = subvolumes.iter().filter_map(|id| blocks.get(&TreeId(id.0))).sum();
            let more = more.saturating_add_signed(added);
            let usage = QgroupUsage {
                referenced: group.info.referenced.saturating_add(more),
                exclusive: group.info.exclusive.saturating_add(more),
            };
            if let Some(limit) = group.limit.exceeded_by(usage) {
                return Err(Error::Quota(QuotaError::Exceeded { qgroup: id, limit }));
            }
        }
        if data > 0 {
            let bytes = announced.entry(tree).or_default();
            *bytes = bytes.saturating_add(data);
        }
        Ok(())
    }

    /// Returns the fewest bytes that a qgroup with a limit has left: any write may be to it.
    pub fn least_room(&self) -> u64 {
        if !self.is_limited() {
            return u64::MAX;
        }
        let state = self.lock();
        let Some(state) = state.as_ref() else { return u64::MAX };
        let announced: u64 = self.announced.lock().values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let rooms = state.groups.values().map(|group| group.limit.room(group.info));
        rooms.min().unwrap_or(u64::MAX).saturating_sub(announced)
    }

    /// The bytes announced so far.
    pub(crate) fn announced(&self) -> BTreeMap<TreeId, u64> {
        self.announced.lock().clone()
    }

    /// Forgets bytes that were announced before a flush and a commit, which counted them.
    pub(crate) fn settle(&self, before: &BTreeMap<TreeId, u64>) {
        let mut announced = self.announced.lock();
        for (tree, bytes) in before {
            if let Some(left) = announced.get_mut(tree) {
                *left = left.saturating_sub(*bytes);
            }
        }
        announced.retain(|_, bytes| *bytes > 0);
    }

    /// Notes that a subvolume got tree blocks of `bytes` bytes, or lost some.
    pub(in crate::transaction) fn blocks_changed(&self, tree: TreeId, bytes: i64) {
        *self.blocks.lock().entry(tree).or_default() += bytes;
    }

    /// A commit has counted all tree blocks.
    pub(super) fn blocks_counted(&self) {
        self.blocks.lock().clear();
    }
}

#[cfg(test)]
mod tests;

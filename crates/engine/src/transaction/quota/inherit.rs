//! The qgroups of subvolumes that appear and disappear.
//!
//! Owns [`Inherit`], and the functions that give a new subvolume its qgroup and take a deleted
//! one's away.
//!
//! A snapshot shares all that its source references, so that neither references any of it
//! exclusively. This is exact for the two qgroups, and for groups that include both. For a group
//! that includes only one of them, it depends on the others in the group; where the numbers do not
//! tell, they become inconsistent.
//!
//! Locks: the quota tree's writer.
//!
//! Kernel counterpart: `btrfs_qgroup_inherit`, `qgroup_snapshot_quick_inherit`,
//! `btrfs_qgroup_cleanup_dropped_subvolume` (`fs/btrfs/qgroup.c`).

use super::groups::{Limits, Qgroup, QgroupUsage, QuotaState};
use super::manage::{group_items, put_relation, remove_group_items};
use crate::errors::{QuotaError, Result};
use crate::transaction::handle::Handle;
use crate::transaction::transaction::Transactions;
use papilio_format::items::qgroup::QgroupId;
use papilio_format::{TreeId, objectid};
use std::collections::BTreeSet;

/// The qgroups that a new subvolume joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherit {
    /// Groups above level 0 that include the subvolume from the start.
    pub groups: Vec<QgroupId>,
    /// Its limits; `None` for none, or for those of a snapshot's source.
    pub limits: Option<Limits>,
}

impl Transactions {
    /// Checks that the groups exist. Without quotas, everything is ignored.
    ///
    /// # Errors
    /// [`QuotaError::NoQgroup`], [`QuotaError::WrongLevels`].
    pub(crate) fn check_inherit(&self, inherit: &Inherit) -> Result<()> {
        let state = self.quotas().lock();
        let Some(state) = state.as_ref() else { return Ok(()) };
        for &id in &inherit.groups {
            if id.level() == 0 {
                return Err(QuotaError::WrongLevels.into());
            }
            if !state.groups.contains_key(&id) {
                return Err(QuotaError::NoQgroup(id).into());
            }
        }
        Ok(())
    }

    /// Removes the qgroup of a subvolume whose tree is gone, as long as it has no members. Commits,
    /// because the numbers are those of the last commit.
    ///
    /// # Errors
    /// Errors of the commit and of changing the quota tree.
    pub(crate) fn remove_quota_of(&self, id: TreeId) -> Result<()> {
        let id = QgroupId(id.0);
        let has = |state: &QuotaState| {
            // With simple quotas, others may share extents that the subvolume is charged for.
            let charged = |group: &Qgroup| state.is_simple() && group.info != QgroupUsage::default();
            state.groups.get(&id).is_some_and(|group| group.members.is_empty() && !charged(group))
        };
        if self.quotas().is_simple() {
            self.commit()?;
        }
        if !self.quotas().lock().as_ref().is_some_and(has) {
            return Ok(());
        }
        self.change_first(4, |handle| {
            self.quotas().with(|slot| match slot {
                Some(state) if has(state) => {
                    if state.groups[&id].info != QgroupUsage::default() && self.quotas().is_counting() {
                        state.mark_inconsistent("a deleted subvolume still had bytes");
                    }
                    remove_group_items(handle, state, id)
                }
                _ => Ok(()),
            })
        })
    }
}

impl Handle<'_> {
    /// Creates the qgroup of a new subvolume, whose name is in subvolume `within`. For a snapshot
    /// of `source`, the snapshot is not made yet. Except with simple quotas, the transaction has
    /// not changed anything else. With these, the subvolume joins the groups of the one around it,
    /// unless the caller names others.
    ///
    /// # Errors
    /// Errors of changing the quota tree.
    pub(crate) fn inherit_quotas(
        &self,
        source: Option<TreeId>,
        within: TreeId,
        new: TreeId,
        inherit: &Inherit,
    ) -> Result<()> {
        let transactions = self.transactions();
        let Some(tree) = transactions.live().find(objectid::QUOTA_TREE)? else { return Ok(()) };
        let counting = transactions.quotas().is_counting();
        let id = QgroupId(new.0);
        transactions.quotas().with(|slot| {
            let Some(state) = slot else { return Ok(()) };
            let mut group = Qgroup::default();
            let simple = state.is_simple();
            if let Some(from) = source.and_then(|source| state.groups.get(&QgroupId(source.0)))
                && !simple
            {
                group.limit = from.limit;
            }
            if let Some(limits) = inherit.limits {
                group.limit = limits;
            }
            let items = group_items(self.generation(), id, &group);
            state.groups.insert(id, group);
            let mut editor = tree.edit(self);
            editor.apply(&items)?;
            let mut groups = inherit.groups.clone();
            if let Some(around) = state.groups.get(&QgroupId(within.0))
                && simple
                && groups.is_empty()
            {
                groups.extend(&around.parents);
            }
            for parent in groups {
                state.relate(id, parent);
                put_relation(&mut editor, id, parent)?;
            }
            drop(editor);
            if let Some(source) = source
                && counting
            {
                if self.is_alone() {
                    state.share_numbers(QgroupId(source.0), id);
                    state.snapshots.push((source, new));
                } else {
                    // Counting began after the caller asked whether it must be the first.
                    state.mark_inconsistent("a snapshot was made while quotas were turned on");
                }
            }
            Ok(())
        })
    }
}

impl QuotaState {
    /// Sets the numbers after `source` and `snapshot` have come to share everything.
    fn share_numbers(&mut self, source: QgroupId, snapshot: QgroupId) {
        let Some(from) = self.groups.get_mut(&source) else {
            self.mark_inconsistent("a snapshot of a subvolume without a qgroup");
            return;
        };
        let referenced = from.info.referenced;
        from.info.exclusive = 0;
        self.changed.insert(source);
        if let Some(to) = self.groups.get_mut(&snapshot) {
            to.info = QgroupUsage { referenced, exclusive: 0 };
            self.changed.insert(snapshot);
        }
        let (with_source, with_snapshot) = (self.including(source), self.including(snapshot));
        let mut known = true;
        for &id in with_source.difference(&with_snapshot).filter(|id| **id != source) {
            let alone = self.subvolumes_of(id) == BTreeSet::from([source]);
            let group = self.groups.get_mut(&id).expect("only known qgroups include others");
            if alone {
                group.info.exclusive = 0;
                self.changed.insert(id);
            } else if group.info.exclusive > 0 {
                known = false;
            }
        }
        for &id in with_snapshot.difference(&with_source).filter(|id| **id != snapshot) {
            let group = self.groups.get_mut(&id).expect("only known qgroups include others");
            if group.info.referenced == 0 {
                group.info.referenced = referenced;
                self.changed.insert(id);
            } else {
                known = false;
            }
        }
        if !known {
            self.mark_inconsistent("a snapshot is not in the same groups as its source");
        }
    }
}

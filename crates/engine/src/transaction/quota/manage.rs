//! Turning quotas on and off; creating, joining and limiting qgroups.
//!
//! Owns these operations of [`Transactions`]. Each is the first change of a transaction, so that
//! the numbers it starts from are exact.
//!
//! Locks: `commit`, the gate exclusively, the quota tree's writer, the root tree's.
//!
//! Kernel counterparts: `btrfs_quota_enable`, `btrfs_quota_disable`, `btrfs_add_qgroup_relation`,
//! `btrfs_create_qgroup`, `btrfs_remove_qgroup`, `btrfs_limit_qgroup` (`fs/btrfs/qgroup.c`).

use super::groups::{Limits, Qgroup, QgroupUsage, QuotaState};
use crate::btree::{Change, TreeEditor};
use crate::errors::{Error, QuotaError, Result};
use crate::transaction::handle::Handle;
use crate::transaction::transaction::Transactions;
use crate::transaction::whole_trees::{add_tree, remove_tree};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::qgroup::{
    QgroupId, QgroupLimitFlags, QgroupStatus, QgroupStatusFlags, QgroupStatusHeader,
};
use papilio_format::{Generation, ItemType, Key, TreeId, objectid};

/// Items that one of these operations changes, for the metadata reservation.
const ITEMS: u64 = 8;

/// A change of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// The limit.
    pub flag: QgroupLimitFlags,
    /// The most bytes; `None` removes the limit.
    pub bytes: Option<u64>,
}

impl Transactions {
    /// Turns quotas on, with a qgroup for each subvolume. Does nothing if they are on. Simple
    /// quotas count from this transaction on; the numbers of others are inconsistent until a
    /// rescan.
    ///
    /// # Errors
    /// Blocks and items that cannot be read; errors of changing trees.
    pub fn enable_quotas(&self, simple: bool) -> Result<()> {
        if self.quotas().is_on() {
            return Ok(());
        }
        let subvolumes = self.subvolume_ids()?;
        // A quota tree without quotas is the rest of a kernel's failed attempt.
        self.change_first(ITEMS + subvolumes.len() as u64 / 16, |handle| {
            if self.live().find(objectid::QUOTA_TREE)?.is_some() {
                remove_tree(handle, objectid::QUOTA_TREE)?;
            }
            let tree = add_tree(handle, objectid::QUOTA_TREE)?;
            let (more, since) = if simple {
                self.require_features(IncompatFeatures::SIMPLE_QUOTA);
                (QgroupStatusFlags::SIMPLE_MODE, handle.generation())
            } else {
                (QgroupStatusFlags::INCONSISTENT, Generation(0))
            };
            let flags = QgroupStatusFlags::ON | more;
            let header = QgroupStatusHeader { version: 1, generation: handle.generation(), flags, rescan: 0 };
            let status = QgroupStatus { header, enable_generation: Some(since) };
            let mut state = QuotaState::new(status);
            let mut changes = state.take_changes(handle.generation());
            for id in &subvolumes {
                let id = QgroupId(id.0);
                changes.extend(group_items(handle.generation(), id, &Qgroup::default()));
                state.groups.insert(id, Qgroup::default());
            }
            changes.sort_by_key(Change::key);
            tree.edit(handle).apply(&changes)?;
            self.quotas().with(|slot| *slot = Some(state));
            Ok(())
        })
    }

    /// Turns quotas off and forgets all qgroups. Does nothing if they are off.
    ///
    /// # Errors
    /// As [`Transactions::enable_quotas`].
    pub fn disable_quotas(&self) -> Result<()> {
        if !self.quotas().is_on() {
            return Ok(());
        }
        self.change_first(ITEMS, |handle| {
            remove_tree(handle, objectid::QUOTA_TREE)?;
            self.quotas().with(|slot| *slot = None);
            Ok(())
        })
    }

    /// Creates a qgroup above level 0.
    ///
    /// # Errors
    /// [`QuotaError::Reserved`] at level 0, [`QuotaError::Exists`]; as
    /// [`Transactions::change_quotas`].
    pub fn create_qgroup(&self, id: QgroupId) -> Result<()> {
        if objectid::is_subvolume(TreeId(id.0)) || id.0 == 0 {
            return Err(QuotaError::Reserved(id).into());
        }
        self.change_quotas(|handle, state| {
            if state.groups.contains_key(&id) {
                return Err(QuotaError::Exists(id).into());
            }
            edit(handle, |editor| editor.apply(&group_items(handle.generation(), id, &Qgroup::default())))?;
            state.groups.insert(id, Qgroup::default());
            Ok(())
        })
    }

    /// Removes a qgroup and its part in others.
    ///
    /// # Errors
    /// [`QuotaError::NoQgroup`]; [`QuotaError::Busy`] if it has members or belongs to a subvolume,
    /// or if simple quotas charge it for extents; as [`Transactions::change_quotas`].
    pub fn destroy_qgroup(&self, id: QgroupId) -> Result<()> {
        self.change_quotas(|handle, state| {
            let group = state.groups.get(&id).ok_or(QuotaError::NoQgroup(id))?;
            let tree = TreeId(id.0);
            let in_use = objectid::is_subvolume(tree) && self.live().find(tree)?.is_some();
            // Simple quotas need the numbers until the last extent is gone.
            let charged = state.is_simple() && group.info != QgroupUsage::default();
            if !group.members.is_empty() || in_use || charged {
                return Err(QuotaError::Busy(id).into());
            }
            remove_group_items(handle, state, id)
        })
    }

    /// Makes `parent` include `member`. Returns whether the numbers are inconsistent afterwards.
    ///
    /// # Errors
    /// [`QuotaError::WrongLevels`], [`QuotaError::NoQgroup`], [`QuotaError::Related`]; as
    /// [`Transactions::change_quotas`].
    pub fn assign_qgroup(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        if member.level() >= parent.level() {
            return Err(QuotaError::WrongLevels.into());
        }
        self.change_quotas(|handle, state| {
            check_known(state, [member, parent])?;
            if state.groups[&member].parents.contains(&parent) {
                return Err(QuotaError::Related { member, parent }.into());
            }
            edit(handle, |editor| put_relation(editor, member, parent))?;
            let before = state.including(member);
            state.relate(member, parent);
            let joined: Vec<QgroupId> = state.including(member).difference(&before).copied().collect();
            state.shift_numbers(member, &joined, true);
            Ok(state.has(QgroupStatusFlags::INCONSISTENT))
        })
    }

    /// Ends the inclusion of `member` in `parent`. Returns whether the numbers are inconsistent
    /// afterwards.
    ///
    /// # Errors
    /// [`QuotaError::NotRelated`]; as [`Transactions::change_quotas`].
    pub fn remove_qgroup(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.change_quotas(|handle, state| {
            let related = state.groups.get(&member).is_some_and(|group| group.parents.contains(&parent));
            if !related {
                return Err(QuotaError::NotRelated { member, parent }.into());
            }
            edit(handle, |editor| {
                editor.remove(Key::new(member.0, ItemType::QGROUP_RELATION, parent.0))?;
                editor.remove(Key::new(parent.0, ItemType::QGROUP_RELATION, member.0)).map(drop)
            })?;
            let before = state.including(member);
            state.part(member, parent);
            let left: Vec<QgroupId> = before.difference(&state.including(member)).copied().collect();
            state.shift_numbers(member, &left, false);
            Ok(state.has(QgroupStatusFlags::INCONSISTENT))
        })
    }

    /// Sets and removes limits of a qgroup.
    ///
    /// # Errors
    /// [`QuotaError::NoQgroup`]; as [`Transactions::change_quotas`].
    pub fn limit_qgroup(&self, id: QgroupId, changes: &[LimitChange]) -> Result<()> {
        self.change_quotas(|handle, state| {
            let group = state.groups.get_mut(&id).ok_or(QuotaError::NoQgroup(id))?;
            let mut limit = group.limit;
            for change in changes {
                limit.set(change);
            }
            edit(handle, |editor| {
                editor.put(Key::new(0, ItemType::QGROUP_LIMIT, id.0), &limit.to_item().to_bytes())
            })?;
            group.limit = limit;
            Ok(())
        })
    }

    /// Runs `change` on the state of quotas, as the first change of a transaction.
    ///
    /// # Errors
    /// [`QuotaError::Off`]; errors of `change` and of the commit.
    pub(super) fn change_quotas<R>(
        &self,
        mut change: impl FnMut(&Handle<'_>, &mut QuotaState) -> Result<R>,
    ) -> Result<R> {
        if !self.quotas().is_on() {
            return Err(QuotaError::Off.into());
        }
        self.change_first(ITEMS, |handle| {
            self.quotas().with(|slot| match slot {
                Some(state) => change(handle, state),
                None => Err(QuotaError::Off.into()),
            })
        })
    }

    /// The ids of all subvolumes, also of those that are being deleted.
    fn subvolume_ids(&self) -> Result<Vec<TreeId>> {
        let root_tree = self.live().root_tree().tree().pinned(self.pin());
        let mut ids = Vec::new();
        for item in root_tree.range(Key::first_of(objectid::FS_TREE.0)..=Key::last_of(objectid::LAST_FREE)) {
            let key = item?.key;
            let id = TreeId(key.objectid);
            if key.item_type == ItemType::ROOT_ITEM && objectid::is_subvolume(id) {
                ids.push(id);
            }
        }
        Ok(ids)
    }
}

impl QuotaState {
    /// Adds the numbers of `member` to groups that have just begun to include it, or takes them
    /// from groups that included it until now. Where the groups have other subvolumes, too, that is
    /// exact only if the member shares nothing.
    fn shift_numbers(&mut self, member: QgroupId, groups: &[QgroupId], joined: bool) {
        if self.is_simple() {
            return self.shift_charges(member, groups, joined);
        }
        let info = self.groups[&member].info;
        let own = self.subvolumes_of(member);
        let mut known = true;
        for &id in groups {
            let alone =
                if joined { self.subvolumes_of(id) == own } else { self.subvolumes_of(id).is_empty() };
            let group = self.groups.get_mut(&id).expect("only known qgroups include others");
            let number = &mut group.info;
            if alone {
                *number = if joined { info } else { Default::default() };
            } else if info.referenced == info.exclusive && joined {
                number.referenced = number.referenced.saturating_add(info.referenced);
                number.exclusive = number.exclusive.saturating_add(info.exclusive);
            } else if info.referenced == info.exclusive {
                number.referenced = number.referenced.saturating_sub(info.referenced);
                number.exclusive = number.exclusive.saturating_sub(info.exclusive);
            } else {
                known = false;
            }
            self.changed.insert(id);
        }
        if !known {
            self.mark_inconsistent("the members of groups changed");
        }
    }
}

impl Limits {
    fn set(&mut self, change: &LimitChange) {
        self.flags.set(change.flag, change.bytes.is_some());
        let bytes = change.bytes.unwrap_or(0);
        let fields = [
            (QgroupLimitFlags::MAX_REFERENCED, &mut self.max_referenced),
            (QgroupLimitFlags::MAX_EXCLUSIVE, &mut self.max_exclusive),
            (QgroupLimitFlags::RESERVED_REFERENCED, &mut self.reserved_referenced),
            (QgroupLimitFlags::RESERVED_EXCLUSIVE, &mut self.reserved_exclusive),
        ];
        for (flag, field) in fields {
            if change.flag == flag {
                *field = bytes;
            }
        }
    }
}

fn check_known(state: &QuotaState, ids: [QgroupId; 2]) -> Result<()> {
    for id in ids {
        if !state.groups.contains_key(&id) {
            return Err(QuotaError::NoQgroup(id).into());
        }
    }
    Ok(())
}

fn edit<R>(handle: &Handle<'_>, change: impl FnOnce(&mut TreeEditor<'_>) -> Result<R>) -> Result<R> {
    let tree = handle.transactions().live().get(objectid::QUOTA_TREE)?;
    change(&mut tree.edit(handle))
}

/// The items of a new qgroup, ascending.
pub(super) fn group_items(generation: Generation, id: QgroupId, group: &Qgroup) -> [Change; 2] {
    let put = |item_type, data: &[u8]| Change::Put { key: Key::new(0, item_type, id.0), data: data.to_vec() };
    [
        put(ItemType::QGROUP_INFO, &group.info.to_item(generation).to_bytes()),
        put(ItemType::QGROUP_LIMIT, &group.limit.to_item().to_bytes()),
    ]
}

/// Writes a relation in both directions.
pub(super) fn put_relation(editor: &mut TreeEditor<'_>, member: QgroupId, parent: QgroupId) -> Result<()> {
    editor.put(Key::new(member.0, ItemType::QGROUP_RELATION, parent.0), &[])?;
    editor.put(Key::new(parent.0, ItemType::QGROUP_RELATION, member.0), &[])
}

/// Removes a qgroup without members, and its items.
pub(super) fn remove_group_items(handle: &Handle<'_>, state: &mut QuotaState, id: QgroupId) -> Result<()> {
    let parents = state.groups.get(&id).map(|group| group.parents.clone()).unwrap_or_default();
    edit(handle, |editor| {
        for parent in &parents {
            editor.remove(Key::new(id.0, ItemType::QGROUP_RELATION, parent.0))?;
            editor.remove(Key::new(parent.0, ItemType::QGROUP_RELATION, id.0))?;
        }
        editor.remove(Key::new(0, ItemType::QGROUP_INFO, id.0))?;
        editor.remove(Key::new(0, ItemType::QGROUP_LIMIT, id.0)).map(drop)
    })?;
    for parent in parents {
        state.part(id, parent);
    }
    state.groups.remove(&id);
    Ok(())
}

impl From<QuotaError> for Error {
    fn from(reason: QuotaError) -> Self {
        Error::Quota(reason)
    }
}

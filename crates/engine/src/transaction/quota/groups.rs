//! The qgroups of a file system, in memory.
//!
//! Owns [`Quotas`], [`QuotaState`] and [`Qgroup`]: status, numbers, limits and relations.
//!
//! **Invariants**
//! - The numbers are those of the last commit, and the next commit writes the changed ones.
//! - Relations lead from a lower level to a higher one, so that they form no circle.
//! - While `counting` is set, every change marks the extents that it touches.
//!
//! **Locks**: one, a leaf.
//!
//! Kernel counterpart: `struct btrfs_qgroup`, `btrfs_read_qgroup_config` (`fs/btrfs/qgroup.c`).

use crate::btree::{Change, Tree};
use crate::errors::{Error, Result};
use papilio_format::items::qgroup::{
    QgroupId, QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupStatus, QgroupStatusFlags,
};
use papilio_format::{Generation, ItemType, Key, TreeId, objectid};
use papilio_locks::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The key of the status item.
pub(super) const STATUS_KEY: Key = Key::new(0, ItemType::QGROUP_STATUS, 0);

/// One qgroup.
#[derive(Clone, Debug, Default)]
pub struct Qgroup {
    /// Bytes referenced, in all and exclusively.
    pub info: QgroupUsage,
    /// The limits that are set.
    pub limit: Limits,
    /// The qgroups that include this one.
    pub parents: BTreeSet<QgroupId>,
    /// The qgroups that this one includes.
    pub members: BTreeSet<QgroupId>,
}

/// The numbers of a qgroup, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QgroupUsage {
    /// Bytes that its subvolumes reference.
    pub referenced: u64,
    /// Bytes that no other subvolume references.
    pub exclusive: u64,
}

/// The limits of a qgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Which of the limits hold.
    pub flags: QgroupLimitFlags,
    /// The most referenced bytes.
    pub max_referenced: u64,
    /// The most exclusive bytes.
    pub max_exclusive: u64,
    pub(crate) reserved_referenced: u64,
    pub(crate) reserved_exclusive: u64,
}

impl Limits {
    /// Whether the qgroup may reference `usage` bytes; returns the limit that forbids it.
    pub(crate) fn exceeded_by(&self, usage: QgroupUsage) -> Option<u64> {
        let over = |flag, limit, used| self.flags.contains(flag) && used > limit;
        if over(QgroupLimitFlags::MAX_REFERENCED, self.max_referenced, usage.referenced) {
            return Some(self.max_referenced);
        }
        over(QgroupLimitFlags::MAX_EXCLUSIVE, self.max_exclusive, usage.exclusive)
            .then_some(self.max_exclusive)
    }

    /// The bytes that a qgroup with these numbers may still get.
    pub(super) fn room(&self, usage: QgroupUsage) -> u64 {
        let left = |flag, limit: u64, used| {
            if self.flags.contains(flag) { limit.saturating_sub(used) } else { u64::MAX }
        };
        left(QgroupLimitFlags::MAX_REFERENCED, self.max_referenced, usage.referenced).min(left(
            QgroupLimitFlags::MAX_EXCLUSIVE,
            self.max_exclusive,
            usage.exclusive,
        ))
    }

    pub(super) fn to_item(self) -> QgroupLimit {
        QgroupLimit {
            flags: self.flags,
            max_referenced: self.max_referenced,
            max_exclusive: self.max_exclusive,
            reserved_referenced: self.reserved_referenced,
            reserved_exclusive: self.reserved_exclusive,
        }
    }
}

impl QgroupUsage {
    /// Returns the item that records these numbers for a commit.
    pub fn to_item(self, generation: Generation) -> QgroupInfo {
        QgroupInfo {
            generation,
            referenced: self.referenced,
            referenced_compressed: self.referenced,
            exclusive: self.exclusive,
            exclusive_compressed: self.exclusive,
        }
    }
}

/// Status and qgroups of a file system with quotas.
#[derive(Clone, Debug)]
pub struct QuotaState {
    /// The status item.
    pub status: QgroupStatus,
    /// The qgroups, by id.
    pub groups: BTreeMap<QgroupId, Qgroup>,
    /// Qgroups whose numbers the next commit writes.
    pub(super) changed: BTreeSet<QgroupId>,
    /// Snapshots (source, snapshot) made in the running transaction, as its first change.
    pub(super) snapshots: Vec<(TreeId, TreeId)>,
}

/// Bytes that the running transaction charges to each subvolume, less those that it refunds.
pub(super) type Charges = BTreeMap<TreeId, i64>;

/// Quotas of an open, writable file system.
#[derive(Debug)]
pub struct Quotas {
    /// Whether changes mark the extents that they touch.
    counting: AtomicBool,
    /// With simple quotas, the transaction that turned them on; else `u64::MAX`.
    pub(super) simple_since: AtomicU64,
    /// Whether any qgroup has a limit.
    pub(super) limited: AtomicBool,
    state: Mutex<Option<QuotaState>>,
    /// Bytes that writers announced and that the numbers may not include yet, by subvolume.
    pub(super) announced: Mutex<BTreeMap<TreeId, u64>>,
    /// Bytes of tree blocks that the running transaction added, less those that it dropped.
    pub(super) blocks: Mutex<BTreeMap<TreeId, i64>>,
    /// The charges of simple quotas.
    pub(super) charges: Mutex<Charges>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            counting: AtomicBool::new(false),
            simple_since: AtomicU64::new(u64::MAX),
            limited: AtomicBool::new(false),
            state: Mutex::default(),
            announced: Mutex::default(),
            blocks: Mutex::default(),
            charges: Mutex::default(),
        }
    }
}

impl QuotaState {
    /// Quotas without qgroups.
    pub(super) fn new(status: QgroupStatus) -> Self {
        Self { status, groups: BTreeMap::new(), changed: BTreeSet::new(), snapshots: Vec::new() }
    }

    /// Reads the quota tree.
    ///
    /// # Errors
    /// A block or an item that cannot be read; [`Error::MissingItem`] without a status item.
    pub fn read(tree: &Tree) -> Result<Self> {
        let mut status = None;
        let mut state = Self::new(Self::blank_status());
        for item in tree.items() {
            let item = item?;
            let (key, id) = (item.key, QgroupId(item.key.offset));
            let fault = |reason| Error::Item { tree: tree.id(), key, reason };
            match key.item_type {
                ItemType::QGROUP_STATUS => {
                    status = Some(QgroupStatus::parse(item.data()).map_err(fault)?);
                }
                ItemType::QGROUP_INFO => {
                    let info = QgroupInfo::parse(item.data()).map_err(fault)?;
                    state.groups.entry(id).or_default().info =
                        QgroupUsage { referenced: info.referenced, exclusive: info.exclusive };
                }
                ItemType::QGROUP_LIMIT => {
                    let limit = QgroupLimit::parse(item.data()).map_err(fault)?;
                    state.groups.entry(id).or_default().limit = Limits {
                        flags: limit.flags,
                        max_referenced: limit.max_referenced,
                        max_exclusive: limit.max_exclusive,
                        reserved_referenced: limit.reserved_referenced,
                        reserved_exclusive: limit.reserved_exclusive,
                    };
                }
                ItemType::QGROUP_RELATION => {
                    // Both directions are stored; the lower id is the member.
                    let (member, parent) = (QgroupId(key.objectid), id);
                    if member.level() < parent.level()
                        && state.groups.contains_key(&member)
                        && state.groups.contains_key(&parent)
                    {
                        state.relate(member, parent);
                    }
                }
                _ => {}
            }
        }
        let missing = Error::MissingItem { tree: tree.id(), key: STATUS_KEY, what: "the state of quotas" };
        state.status = status.ok_or(missing)?;
        Ok(state)
    }

    fn blank_status() -> QgroupStatus {
        QgroupStatus::parse(&[0; QgroupStatus::SIZES[0]]).expect("all zeros parse as a status item")
    }

    /// Whether the flag is set.
    pub fn has(&self, flag: QgroupStatusFlags) -> bool {
        self.status.header.flags.contains(flag)
    }

    /// Whether changes are to be counted: not while the numbers are wrong anyway.
    fn is_counting(&self) -> bool {
        self.has(QgroupStatusFlags::ON)
            && !self.has(QgroupStatusFlags::SIMPLE_MODE)
            && (!self.has(QgroupStatusFlags::INCONSISTENT) || self.has(QgroupStatusFlags::RESCAN))
    }

    /// Marks the numbers as wrong until a rescan, and ends a rescan that is under way.
    pub(super) fn mark_inconsistent(&mut self, cause: &str) {
        let flags = &mut self.status.header.flags;
        if !flags.contains(QgroupStatusFlags::INCONSISTENT) || flags.contains(QgroupStatusFlags::RESCAN) {
            tracing::warn!("the numbers of quotas are inconsistent until a rescan: {cause}");
        }
        flags.insert(QgroupStatusFlags::INCONSISTENT);
        flags.remove(QgroupStatusFlags::RESCAN);
        self.status.header.rescan = 0;
    }

    pub(super) fn relate(&mut self, member: QgroupId, parent: QgroupId) {
        self.groups.entry(member).or_default().parents.insert(parent);
        self.groups.entry(parent).or_default().members.insert(member);
    }

    pub(super) fn part(&mut self, member: QgroupId, parent: QgroupId) {
        if let Some(group) = self.groups.get_mut(&member) {
            group.parents.remove(&parent);
        }
        if let Some(group) = self.groups.get_mut(&parent) {
            group.members.remove(&member);
        }
    }

    /// A qgroup and all that include it, directly or not.
    pub(crate) fn including(&self, id: QgroupId) -> BTreeSet<QgroupId> {
        let mut found = BTreeSet::new();
        let mut next = vec![id];
        while let Some(id) = next.pop() {
            if let Some(group) = self.groups.get(&id)
                && found.insert(id)
            {
                next.extend(&group.parents);
            }
        }
        found
    }

    /// The subvolumes that a qgroup includes, directly or not.
    pub(super) fn subvolumes_of(&self, id: QgroupId) -> BTreeSet<QgroupId> {
        let mut found = BTreeSet::new();
        let mut next = vec![id];
        while let Some(id) = next.pop() {
            if id.level() == 0 {
                found.insert(id);
            }
            next.extend(self.groups.get(&id).iter().flat_map(|group| &group.members));
        }
        found
    }

    /// The qgroups that reference an extent with these roots, and whether each does so exclusively.
    fn referencing(&self, roots: &[TreeId]) -> BTreeMap<QgroupId, bool> {
        let mut counts: BTreeMap<QgroupId, usize> = BTreeMap::new();
        for root in roots {
            for id in self.including(QgroupId(root.0)) {
                *counts.entry(id).or_default() += 1;
            }
        }
        counts.into_iter().map(|(id, count)| (id, count == roots.len())).collect()
    }

    /// Counts `bytes` of extents whose roots change from `old` to `new`. Returns `false` if a
    /// number would fall below 0, which shows that it was wrong before.
    #[must_use]
    pub(crate) fn count(&mut self, old: &[TreeId], new: &[TreeId], bytes: u64) -> bool {
        let (before, after) = (self.referencing(old), self.referencing(new));
        let mut good = true;
        let ids: BTreeSet<QgroupId> = before.keys().chain(after.keys()).copied().collect();
        for id in ids {
            let (old, new) = (before.get(&id), after.get(&id));
            let group = self.groups.get_mut(&id).expect("only known qgroups reference an extent");
            let mut shift = |number: &mut u64, was: bool, is: bool| {
                if was == is {
                    return;
                }
                self.changed.insert(id);
                let changed = if is { number.checked_add(bytes) } else { number.checked_sub(bytes) };
                good &= changed.is_some();
                *number = changed.unwrap_or(0);
            };
            shift(&mut group.info.referenced, old.is_some(), new.is_some());
            shift(&mut group.info.exclusive, old == Some(&true), new == Some(&true));
        }
        good
    }

    /// Sets all numbers to 0.
    pub(super) fn clear_numbers(&mut self) {
        for (id, group) in &mut self.groups {
            group.info = QgroupUsage::default();
            self.changed.insert(*id);
        }
    }

    /// Takes the items that a commit writes, in ascending order.
    pub(super) fn take_changes(&mut self, generation: Generation) -> Vec<Change> {
        self.status.header.generation = generation;
        let mut changes = vec![Change::Put { key: STATUS_KEY, data: self.status.to_bytes() }];
        for id in std::mem::take(&mut self.changed) {
            if let Some(group) = self.groups.get(&id) {
                let key = Key::new(0, ItemType::QGROUP_INFO, id.0);
                changes.push(Change::Put { key, data: group.info.to_item(generation).to_bytes().to_vec() });
            }
        }
        changes
    }
}

impl Quotas {
    /// Reads the quota tree, if there is one. `generation` is the last commit's.
    ///
    /// # Errors
    /// As [`QuotaState::read`].
    pub(in crate::transaction) fn load(&self, tree: Option<&Tree>, generation: Generation) -> Result<()> {
        let Some(tree) = tree else { return Ok(()) };
        let mut state = QuotaState::read(tree)?;
        if !state.has(QgroupStatusFlags::ON) {
            return Ok(());
        }
        if state.status.header.generation != generation
            && !state.has(QgroupStatusFlags::SIMPLE_MODE)
            && !state.has(QgroupStatusFlags::INCONSISTENT)
        {
            state.mark_inconsistent("something wrote to the file system without counting");
        }
        self.with(|slot| *slot = Some(state));
        Ok(())
    }

    /// Whether changes must mark the extents that they touch.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.counting.load(Ordering::Relaxed)
    }

    /// Whether quotas are on.
    pub(crate) fn is_on(&self) -> bool {
        self.state.lock().is_some()
    }

    /// Whether a rescan is under way.
    pub(crate) fn is_rescanning(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|state| state.has(QgroupStatusFlags::RESCAN))
    }

    /// A copy of the state, as of the last commit.
    pub fn state(&self) -> Option<QuotaState> {
        self.state.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<QuotaState>> {
        self.state.lock()
    }

    /// Runs `change` on the state, and notes whether changes are to be counted from now on.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Option<QuotaState>) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let counting = state.as_ref().is_some_and(QuotaState::is_counting);
        self.counting.store(counting, Ordering::Relaxed);
        let since = state.as_ref().and_then(QuotaState::simple_since);
        self.simple_since.store(since.map_or(u64::MAX, |since| since.0), Ordering::Relaxed);
        let mut groups = state.iter().flat_map(|state| state.groups.values());
        self.limited.store(groups.any(|group| !group.limit.flags.is_empty()), Ordering::Relaxed);
        result
    }

    /// Marks the numbers as wrong, if quotas are on.
    pub(crate) fn mark_inconsistent(&self, cause: &str) {
        self.with(|state| {
            if let Some(state) = state {
                state.mark_inconsistent(cause);
            }
        });
    }
}

/// Whether a tree's blocks and data are counted.
#[inline]
pub(in crate::transaction) fn is_counted(tree: TreeId) -> bool {
    objectid::is_subvolume(tree)
}

#[cfg(test)]
pub(super) mod tests;

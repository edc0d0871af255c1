//! Quotas of an open file system: turning them on and off, qgroups and their limits, rescans.
//!
//! Owns the methods of [`FileSystem`] that do this, [`QuotaStatus`] and [`QgroupUsage`]. Numbers
//! are those of the last commit.
//!
//! Locks: those of the operations in `transaction::quota`.

use crate::file_system::FileSystem;
use papilio_engine::errors::{Error, QuotaError, Result};
use papilio_engine::transaction::quota::groups::QuotaState;
use papilio_engine::transaction::quota::{LimitChange, RescanStep, count_all, count_simple};
use papilio_format::items::qgroup::{QgroupId, QgroupLimitFlags, QgroupStatusFlags};
use papilio_format::{LogicalAddress, TreeId, objectid};

/// The state of quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Whether they are on, wrong until a rescan, being rescanned, simple.
    pub flags: QgroupStatusFlags,
    /// The address up to which a rescan has counted.
    pub rescanned: LogicalAddress,
    /// Number of qgroups.
    pub qgroups: usize,
}

impl QuotaStatus {
    /// Whether the numbers are wrong until a rescan.
    pub fn is_inconsistent(&self) -> bool {
        self.flags.contains(QgroupStatusFlags::INCONSISTENT)
    }

    /// Whether a rescan is under way.
    pub fn is_rescanning(&self) -> bool {
        self.flags.contains(QgroupStatusFlags::RESCAN)
    }
}

/// A qgroup with its numbers, limits and relations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QgroupUsage {
    /// Its id.
    pub id: QgroupId,
    /// Bytes that its subvolumes reference.
    pub referenced: u64,
    /// Bytes that no other subvolume references.
    pub exclusive: u64,
    /// Most bytes that its subvolumes may reference.
    pub max_referenced: Option<u64>,
    /// Most bytes that only its subvolumes may reference.
    pub max_exclusive: Option<u64>,
    /// The qgroups that include this one.
    pub parents: Vec<QgroupId>,
    /// The qgroups that this one includes.
    pub members: Vec<QgroupId>,
}

impl FileSystem {
    /// Returns the state of quotas; `None` if they are off.
    ///
    /// # Errors
    /// Blocks and items that cannot be read.
    pub fn quota_status(&self) -> Result<Option<QuotaStatus>> {
        Ok(self.quota_state()?.map(|state| QuotaStatus {
            flags: state.status.header.flags,
            rescanned: LogicalAddress(state.status.header.rescan),
            qgroups: state.groups.len(),
        }))
    }

    /// Returns all qgroups, ascending by level and number.
    ///
    /// # Errors
    /// [`QuotaError::Off`]; blocks and items that cannot be read.
    pub fn qgroups(&self) -> Result<Vec<QgroupUsage>> {
        let state = self.quota_state()?.ok_or(QuotaError::Off)?;
        let of = |(&id, group): (&QgroupId, &papilio_engine::transaction::quota::Qgroup)| {
            let limit = |flag, bytes| group.limit.flags.contains(flag).then_some(bytes);
            QgroupUsage {
                id,
                referenced: group.info.referenced,
                exclusive: group.info.exclusive,
                max_referenced: limit(QgroupLimitFlags::MAX_REFERENCED, group.limit.max_referenced),
                max_exclusive: limit(QgroupLimitFlags::MAX_EXCLUSIVE, group.limit.max_exclusive),
                parents: group.parents.iter().copied().collect(),
                members: group.members.iter().copied().collect(),
            }
        };
        Ok(state.groups.iter().map(of).collect())
    }

    /// Turns quotas on, with a qgroup for each subvolume. The numbers are inconsistent until
    /// [`FileSystem::rescan_quotas`]. Does nothing if they are on.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn enable_quotas(&self) -> Result<()> {
        self.info.transactions()?.enable_quotas(false)
    }

    /// Turns simple quotas on, with a qgroup for each subvolume. They charge each extent to the
    /// subvolume that allocates it, and need no look-up of references. Extents that exist already
    /// are charged to nobody. Does nothing if quotas are on. Kernels before 6.7 do not mount the
    /// file system afterwards.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn enable_simple_quotas(&self) -> Result<()> {
        self.info.transactions()?.enable_quotas(true)
    }

    /// Turns quotas off and forgets all qgroups.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn disable_quotas(&self) -> Result<()> {
        self.info.transactions()?.disable_quotas()
    }

    /// Begins to count all extents anew. [`FileSystem::rescan_quotas_step`] goes on.
    ///
    /// # Errors
    /// [`QuotaError::Off`], [`QuotaError::Rescanning`]; as [`FileSystem::sync`].
    pub fn start_quota_rescan(&self) -> Result<()> {
        self.info.transactions()?.start_rescan()?;
        self.info.background.rescan();
        Ok(())
    }

    /// Counts a piece of the extents. Returns the address up to which it has counted; `None` once
    /// no rescan is under way.
    ///
    /// # Errors
    /// Blocks and items that cannot be read: the numbers are then inconsistent.
    pub fn rescan_quotas_step(&self) -> Result<Option<LogicalAddress>> {
        Ok(match self.info.transactions()?.rescan_step()? {
            RescanStep::Done => None,
            RescanStep::Counted(next) => Some(next),
        })
    }

    /// Counts all extents anew, or finishes the rescan that is under way. Calls `progress` with the
    /// address up to which it has counted. Dirty data of open files is written first.
    ///
    /// # Errors
    /// As [`FileSystem::start_quota_rescan`] and [`FileSystem::rescan_quotas_step`].
    pub fn rescan_quotas(&self, mut progress: impl FnMut(LogicalAddress)) -> Result<()> {
        if !self.quota_status()?.ok_or(QuotaError::Off)?.is_rescanning() {
            self.start_quota_rescan()?;
        }
        while let Some(address) = self.rescan_quotas_step()? {
            progress(address);
        }
        self.sync()
    }

    /// Creates a qgroup above level 0. Those of level 0 come and go with their subvolumes.
    ///
    /// # Errors
    /// [`QuotaError`]; as [`FileSystem::sync`].
    pub fn create_qgroup(&self, id: QgroupId) -> Result<()> {
        self.info.transactions()?.create_qgroup(id)
    }

    /// Removes a qgroup without members.
    ///
    /// # Errors
    /// [`QuotaError`]; as [`FileSystem::sync`].
    pub fn destroy_qgroup(&self, id: QgroupId) -> Result<()> {
        self.info.transactions()?.destroy_qgroup(id)
    }

    /// Makes `parent` include `member`. Returns whether a rescan is needed.
    ///
    /// # Errors
    /// [`QuotaError`]; as [`FileSystem::sync`].
    pub fn assign_qgroup(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.info.transactions()?.assign_qgroup(member, parent)
    }

    /// Ends the inclusion of `member` in `parent`. Returns whether a rescan is needed.
    ///
    /// # Errors
    /// [`QuotaError`]; as [`FileSystem::sync`].
    pub fn remove_qgroup(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.info.transactions()?.remove_qgroup(member, parent)
    }

    /// Limits the bytes that a qgroup references, or references exclusively; `None` removes the
    /// limit.
    ///
    /// # Errors
    /// [`QuotaError`]; as [`FileSystem::sync`].
    pub fn limit_qgroup(&self, id: QgroupId, bytes: Option<u64>, exclusive: bool) -> Result<()> {
        let flag = if exclusive { QgroupLimitFlags::MAX_EXCLUSIVE } else { QgroupLimitFlags::MAX_REFERENCED };
        self.info.transactions()?.limit_qgroup(id, &[LimitChange { flag, bytes }])
    }

    /// Counts all extents of the last commit anew, without changing anything, and returns the
    /// numbers: bytes referenced, and referenced exclusively. `btrfs check -Q` does the same.
    ///
    /// # Errors
    /// [`QuotaError::Off`]; blocks and items that cannot be read.
    pub fn count_qgroups(&self) -> Result<Vec<(QgroupId, u64, u64)>> {
        let state = self.quota_state()?.ok_or(QuotaError::Off)?;
        let (forest, root_tree) = (self.info.trees.forest(), self.info.trees.root_tree());
        let counted = match state.is_simple() {
            true => count_simple(forest, &root_tree, &state)?,
            false => count_all(forest, root_tree, &state)?,
        };
        Ok(counted.into_iter().map(|(id, usage)| (id, usage.referenced, usage.exclusive)).collect())
    }

    /// Removes the qgroups of level 0 whose subvolumes are gone, and returns their ids. Those that
    /// simple quotas still charge for extents stay.
    ///
    /// # Errors
    /// [`QuotaError`]; as [`FileSystem::sync`].
    pub fn clear_stale_qgroups(&self) -> Result<Vec<QgroupId>> {
        let mut cleared = Vec::new();
        for group in self.qgroups()? {
            let tree = TreeId(group.id.0);
            if objectid::is_subvolume(tree) && self.info.transactions()?.live().find(tree)?.is_none() {
                match self.destroy_qgroup(group.id) {
                    Ok(()) => cleared.push(group.id),
                    Err(Error::Quota(QuotaError::Busy(_))) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(cleared)
    }

    fn quota_state(&self) -> Result<Option<QuotaState>> {
        if let Some(transactions) = self.info.trees.transactions() {
            return Ok(transactions.quotas().state());
        }
        let Some(open) = self.info.trees.find(objectid::QUOTA_TREE)? else { return Ok(None) };
        let state = QuotaState::read(&open.tree)?;
        Ok(state.has(QgroupStatusFlags::ON).then_some(state))
    }
}

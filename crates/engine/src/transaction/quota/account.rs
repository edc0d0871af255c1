//! Counting what a transaction changed: a part of each commit.
//!
//! Owns the steps of a commit that bring the numbers of qgroups up to date. Extents that changes
//! marked are taken before the delayed references are applied; their root sets are compared after.
//! Most are known without a look at the extent tree: a block that its subvolume alone reached, or
//! a new one.
//!
//! **Invariants**
//! - An extent that gains or loses a root within a transaction is marked. Only a snapshot adds a
//!   root to extents that are not: it is the first change of its transaction, so that it applies
//!   to the root sets of the last commit.
//! - A failure to find a root set makes the numbers inconsistent, and does not fail the commit.
//!
//! Locks: the gate, exclusively, and `commit`; the quota tree's writer.
//!
//! Kernel counterpart: `btrfs_qgroup_account_extents`, `btrfs_run_qgroups` (`fs/btrfs/qgroup.c`).

use super::super::root_sets::{RootSet, RootSets};
use super::groups::QuotaState;
use super::roots::{RootFinder, View};
use crate::btree::{RootPointer, Tree};
use crate::errors::Result;
use crate::transaction::delayed_refs::{Head, QuotaMark, RefKind};
use crate::transaction::handle::Handle;
use crate::transaction::transaction::Transactions;
use papilio_format::items::qgroup::QgroupStatusFlags;
use papilio_format::superblock::RawSuperblock;
use papilio_format::{Key, LogicalAddress, TreeId, objectid};
use std::collections::HashMap;

/// Knowledge about the subvolumes that reach an extent.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nobody,
    /// This subvolume alone.
    Only(TreeId),
    Unknown,
}

/// An extent whose root set may have changed.
#[derive(Clone, Copy, Debug)]
pub(in crate::transaction) struct TouchedExtent {
    address: LogicalAddress,
    length: u64,
    kind: RefKind,
    key: Option<Key>,
    old: Known,
    new: Known,
}

impl TouchedExtent {
    fn of(address: LogicalAddress, head: &Head, touch: QuotaMark) -> Self {
        let is_block = matches!(head.kind, RefKind::TreeBlock { .. });
        let old = match touch.only {
            _ if head.new => Known::Nobody,
            Some(only) => Known::Only(only),
            None => Known::Unknown,
        };
        let new = if head.new && touch.shared {
            Known::Unknown
        } else if head.new {
            // A snapshot is the first change of its transaction, so that it does not share this.
            head.only_tree().map_or(Known::Unknown, Known::Only)
        } else if is_block && touch.only.is_some() && head.total() == -1 {
            // A block that one subvolume alone reaches has one reference.
            Known::Nobody
        } else {
            Known::Unknown
        };
        // The first key of a new block changes with its content.
        let key = if head.new { None } else { touch.key };
        Self { address, length: head.length, kind: head.kind, key, old, new }
    }
}

impl Transactions {
    /// The extents that the transaction marked. Call it before their references are applied.
    pub(in crate::transaction) fn touched_extents(&self) -> Vec<TouchedExtent> {
        if self.quotas().is_counting() { self.delayed().touched(TouchedExtent::of) } else { Vec::new() }
    }

    /// Counts the marked extents and writes the numbers that changed. `committed` is the superblock
    /// of the last commit, and the extent tree has the transaction's references.
    ///
    /// # Errors
    /// Errors of changing the quota tree.
    pub(in crate::transaction) fn update_quotas(
        &self,
        handle: &Handle<'_>,
        committed: &RawSuperblock,
        touched: &[TouchedExtent],
    ) -> Result<()> {
        let Some(tree) = self.live().find(objectid::QUOTA_TREE)? else { return Ok(()) };
        let changes = self.quotas().with(|slot| {
            let state = slot.as_mut()?;
            if state.is_simple() {
                state.apply_charges(&self.quotas().take_charges());
            } else if let Err(error) = self.count_touched(state, committed, touched) {
                state.mark_inconsistent(&error.to_string());
            }
            state.snapshots.clear();
            Some(state.take_changes(handle.generation()))
        });
        self.quotas().blocks_counted();
        match changes {
            Some(changes) => tree.edit(handle).apply(&changes),
            None => Ok(()),
        }
    }

    fn count_touched(
        &self,
        state: &mut QuotaState,
        committed: &RawSuperblock,
        touched: &[TouchedExtent],
    ) -> Result<()> {
        if touched.is_empty() {
            return Ok(());
        }
        let forest = self.live().forest();
        let mut sets = RootSets::default();
        let mut before = RootFinder::new(forest, View::Committed(self.committed_root_tree(committed)))?;
        let mut after = RootFinder::new(forest, View::Live(self.live()))?;
        // A rescan meets the extents from here on later.
        let rescanning = state.has(QgroupStatusFlags::RESCAN);
        let end =
            if rescanning { LogicalAddress(state.status.header.rescan) } else { LogicalAddress(u64::MAX) };
        let mut sums: HashMap<(RootSet, RootSet), u64> = HashMap::new();
        for extent in touched.iter().filter(|extent| extent.address < end) {
            let old = match extent.old {
                Known::Nobody => RootSet::EMPTY,
                Known::Only(root) => sets.single(root),
                Known::Unknown => extent.find(&mut before, &mut sets)?,
            };
            let old = with_snapshots(&mut sets, old, &state.snapshots);
            let new = match extent.new {
                Known::Nobody => RootSet::EMPTY,
                Known::Only(root) => sets.single(root),
                Known::Unknown => extent.find(&mut after, &mut sets)?,
            };
            if old != new {
                *sums.entry((old, new)).or_default() += extent.length;
            }
        }
        let mut good = true;
        for ((old, new), bytes) in sums {
            good &= state.count(sets.members(old), sets.members(new), bytes);
        }
        if !good {
            state.mark_inconsistent("fewer bytes were counted than are dropped");
        }
        Ok(())
    }

    /// The root tree of the last commit.
    pub(super) fn committed_root_tree(&self, committed: &RawSuperblock) -> Tree {
        let pointer = RootPointer {
            address: committed.root,
            level: committed.root_level,
            generation: Some(committed.generation),
        };
        self.live().forest().tree(objectid::ROOT_TREE, pointer)
    }
}

impl TouchedExtent {
    fn find(&self, finder: &mut RootFinder<'_>, sets: &mut RootSets) -> Result<RootSet> {
        finder.roots_of(sets, self.address, self.length, self.kind, self.key)
    }
}

/// Adds the snapshots of the running transaction to a set of the last commit.
pub(super) fn with_snapshots(sets: &mut RootSets, set: RootSet, snapshots: &[(TreeId, TreeId)]) -> RootSet {
    let mut found = set;
    for &(source, snapshot) in snapshots {
        if sets.contains(found, source) {
            let single = sets.single(snapshot);
            found = sets.union(found, single);
        }
    }
    found
}

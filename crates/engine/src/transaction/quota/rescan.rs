//! Counting all extents anew, a bounded piece at a time.
//!
//! Owns [`RescanStep`], the rescan of an open file system, and [`count_all`] for checks.
//!
//! **Invariants**
//! - The numbers include the extents below the progress, as of the last commit, and no others. The
//!   commits that follow count changes of these.
//! - The progress is stored with the numbers, so that a rescan resumes after a crash or a mount.
//!
//! Locks: `commit`, for a piece.
//!
//! Kernel counterpart: `btrfs_qgroup_rescan`, `qgroup_rescan_leaf` (`fs/btrfs/qgroup.c`).

use super::super::root_sets::{RootSet, RootSets};
use super::account::with_snapshots;
use super::groups::{QgroupUsage, QuotaState};
use super::roots::{RootFinder, View};
use crate::btree::{Forest, Tree};
use crate::errors::{QuotaError, Result};
use crate::transaction::delayed_refs::RefKind;
use crate::transaction::transaction::Transactions;
use papilio_format::items::extent::ExtentItem;
use papilio_format::items::qgroup::{QgroupId, QgroupStatusFlags};
use papilio_format::{ItemType, Key, LogicalAddress, objectid};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Extents counted in one piece.
const PIECE: usize = 4096;

/// The progress of a rescan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RescanStep {
    /// No rescan is under way.
    Done,
    /// Extents below this address are counted.
    Counted(LogicalAddress),
}

/// Bytes of extents, by their roots.
type Sums = HashMap<RootSet, u64>;

impl Transactions {
    /// Begins to count all extents anew.
    ///
    /// # Errors
    /// [`QuotaError::Off`]; [`QuotaError::Rescanning`] if a rescan is under way; errors of the
    /// commit.
    pub fn start_rescan(&self) -> Result<()> {
        self.change_quotas(|_, state| {
            if state.has(QgroupStatusFlags::SIMPLE_MODE) {
                return Err(QuotaError::Simple.into());
            }
            if state.has(QgroupStatusFlags::RESCAN) {
                return Err(QuotaError::Rescanning.into());
            }
            state.status.header.flags.insert(QgroupStatusFlags::RESCAN);
            state.status.header.rescan = 0;
            state.clear_numbers();
            Ok(())
        })
    }

    /// Counts a piece of the extents, if a rescan is under way. The next commit makes it durable.
    ///
    /// # Errors
    /// Blocks and items that cannot be read: the numbers are then inconsistent.
    pub fn rescan_step(&self) -> Result<RescanStep> {
        let mut committed = self.lock_commit();
        self.check_running()?;
        let Some(from) = self.quotas().lock().as_ref().and_then(QuotaState::rescan_progress) else {
            return Ok(RescanStep::Done);
        };
        let root_tree = self.committed_root_tree(committed.last());
        let mut sets = RootSets::default();
        let counted = RootFinder::new(self.live().forest(), View::Committed(root_tree))
            .and_then(|mut finder| count_piece(&mut finder, &mut sets, from));
        let result = self.quotas().with(|slot| {
            let Some(state) = slot else { return Ok(RescanStep::Done) };
            let (sums, next) = counted.inspect_err(|error| state.mark_inconsistent(&error.to_string()))?;
            for (set, bytes) in sums {
                let set = with_snapshots(&mut sets, set, &state.snapshots);
                if !state.count(&[], sets.members(set), bytes) {
                    state.mark_inconsistent("the extents have more bytes than a number can hold");
                }
            }
            let header = &mut state.status.header;
            let Some(next) = next else {
                header.flags.remove(QgroupStatusFlags::RESCAN | QgroupStatusFlags::INCONSISTENT);
                header.rescan = 0;
                return Ok(RescanStep::Done);
            };
            header.rescan = next.0;
            Ok(RescanStep::Counted(next))
        });
        committed.must_write();
        result
    }
}

impl QuotaState {
    fn rescan_progress(&self) -> Option<LogicalAddress> {
        let header = &self.status.header;
        header.flags.contains(QgroupStatusFlags::RESCAN).then_some(LogicalAddress(header.rescan))
    }
}

/// Counts the extents from `from` on. Returns their bytes by roots, and where to go on.
fn count_piece(
    finder: &mut RootFinder<'_>,
    sets: &mut RootSets,
    from: LogicalAddress,
) -> Result<(Sums, Option<LogicalAddress>)> {
    let tree = finder.extent_tree().clone();
    let node_size = u64::from(tree.forest().volume().geometry().node_size);
    let mut sums = Sums::new();
    let mut counted = 0;
    let mut cursor = tree.seek(&Key::first_of(from.0))?;
    while let Some(item) = cursor.item() {
        let key = item.key;
        let (length, kind) = match key.item_type {
            ItemType::METADATA_ITEM => match u8::try_from(key.offset) {
                Ok(level) => (node_size, RefKind::TreeBlock { level }),
                Err(_) => (0, RefKind::Data),
            },
            ItemType::EXTENT_ITEM => {
                let fault = |reason| crate::errors::Error::Item { tree: objectid::EXTENT_TREE, key, reason };
                let parsed = ExtentItem::parse(key.item_type, item.data()).map_err(fault)?;
                let kind = match parsed.tree_block {
                    Some(info) => RefKind::TreeBlock { level: info.level },
                    None => RefKind::Data,
                };
                (key.offset, kind)
            }
            _ => (0, RefKind::Data),
        };
        if length > 0 {
            if counted == PIECE {
                return Ok((sums, Some(LogicalAddress(key.objectid))));
            }
            counted += 1;
            let set = finder.roots_of(sets, LogicalAddress(key.objectid), length, kind, None)?;
            if set != RootSet::EMPTY {
                *sums.entry(set).or_default() += length;
            }
        }
        cursor.step()?;
    }
    Ok((sums, None))
}

/// Counts all extents of the commit that `root_tree` belongs to, for the qgroups of `state`.
///
/// # Errors
/// Blocks and items that cannot be read; references that lead nowhere.
pub fn count_all(
    forest: &Arc<Forest>,
    root_tree: Tree,
    state: &QuotaState,
) -> Result<BTreeMap<QgroupId, QgroupUsage>> {
    let mut state = state.clone();
    state.clear_numbers();
    let mut finder = RootFinder::new(forest, View::Committed(root_tree))?;
    let mut sets = RootSets::default();
    let mut next = Some(LogicalAddress(0));
    while let Some(from) = next {
        let sums;
        (sums, next) = count_piece(&mut finder, &mut sets, from)?;
        for (set, bytes) in sums {
            // The sum of the lengths of distinct extents is below 2^64.
            let _ = state.count(&[], sets.members(set), bytes);
        }
    }
    Ok(state.groups.into_iter().map(|(id, group)| (id, group.info)).collect())
}

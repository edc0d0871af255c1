//! Simple quotas: each extent is charged to the subvolume that allocated it, not to others that
//! share it.
//!
//! Owns the charges that a transaction collects while it updates the extent tree, and
//! [`count_simple`] for checks. A data extent names its subvolume in an owner reference of its
//! item, a tree block in its header.
//!
//! **Invariants**
//! - Extents that are older than the transaction that turned simple quotas on are charged to
//!   nobody. So is data without an owner reference.
//! - A qgroup's two numbers are equal. Those of a subvolume that is gone stay until its last extent
//!   is.
//!
//! Locks: the charges, a leaf.
//!
//! Kernel counterpart: `btrfs_record_squota_delta` (`fs/btrfs/qgroup.c`).

use super::groups::{Charges, QgroupUsage, QuotaState, Quotas};
use super::roots::{RootFinder, View};
use crate::btree::{Forest, Tree};
use crate::errors::{Error, Result};
use crate::transaction::delayed_refs::{Head, RefKind};
use crate::transaction::extent_items::Applied;
use crate::transaction::transaction::Transactions;
use papilio_format::items::back_ref::BackRef;
use papilio_format::items::extent::ExtentItem;
use papilio_format::items::qgroup::{QgroupId, QgroupStatusFlags};
use papilio_format::{Generation, ItemType, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Quotas {
    /// Whether extents are charged to the subvolumes that allocate them.
    #[inline]
    pub(crate) fn is_simple(&self) -> bool {
        self.simple_since.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether extents of a transaction are charged to the subvolumes that allocated them.
    pub(in crate::transaction) fn charges_extents_of(&self, generation: Generation) -> bool {
        generation.0 >= self.simple_since.load(Ordering::Relaxed)
    }

    pub(super) fn take_charges(&self) -> Charges {
        std::mem::take(&mut *self.charges.lock())
    }
}

impl Transactions {
    /// Charges an extent that a head made, or refunds one that it removed.
    pub(in crate::transaction) fn charge(&self, address: LogicalAddress, head: &Head, applied: &Applied) {
        let quotas = self.quotas();
        let since = Generation(quotas.simple_since.load(Ordering::Relaxed));
        let (owner, bytes) = if head.new && head.generation >= since {
            (head.owner, head.length as i64)
        } else if applied.removed && applied.generation >= since {
            let owner = match head.kind {
                RefKind::Data => applied.owner,
                // A commit may free blocks that it made, of trees that are not charged. They are in
                // memory only.
                RefKind::TreeBlock { .. } if applied.generation == self.generation() => None,
                RefKind::TreeBlock { level } => {
                    owner_of_block(self.live().forest(), address, level, applied.generation)
                        .inspect_err(|error| tracing::warn!("simple quotas: {error}; it stays charged"))
                        .ok()
                }
            };
            (owner, -(head.length as i64))
        } else {
            return;
        };
        if let Some(owner) = owner.filter(|owner| objectid::is_subvolume(*owner)) {
            *quotas.charges.lock().entry(owner).or_default() += bytes;
        }
    }
}

impl QuotaState {
    /// Whether quotas are simple.
    pub fn is_simple(&self) -> bool {
        self.has(QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE)
    }

    /// The first transaction whose extents are charged, with simple quotas.
    pub(super) fn simple_since(&self) -> Option<Generation> {
        self.is_simple().then(|| self.status.enable_generation.unwrap_or(Generation(0)))
    }

    /// Adds charges to the numbers of subvolumes, and of all qgroups that include them.
    pub(super) fn apply_charges(&mut self, charges: &Charges) {
        for (tree, &bytes) in charges.iter().filter(|(_, bytes)| **bytes != 0) {
            for id in self.including(QgroupId(tree.0)) {
                let group = self.groups.get_mut(&id).expect("only known qgroups include others");
                let referenced = group.info.referenced.checked_add_signed(bytes).unwrap_or_else(|| {
                    tracing::warn!("qgroup {id} is refunded more bytes than it was charged");
                    0
                });
                group.info = QgroupUsage { referenced, exclusive: referenced };
                self.changed.insert(id);
            }
        }
    }

    /// Adds the numbers of `member` to groups that have just begun to include it, or takes them
    /// from groups that included it until now.
    pub(super) fn shift_charges(&mut self, member: QgroupId, groups: &[QgroupId], joined: bool) {
        let bytes = self.groups[&member].info.referenced;
        for id in groups {
            let group = self.groups.get_mut(id).expect("only known qgroups include others");
            let before = group.info.referenced;
            let referenced = if joined { before.saturating_add(bytes) } else { before.saturating_sub(bytes) };
            group.info = QgroupUsage { referenced, exclusive: referenced };
            self.changed.insert(*id);
        }
    }
}

/// Returns the tree that allocated a block, also one that the running transaction has freed.
fn owner_of_block(
    forest: &Forest,
    address: LogicalAddress,
    level: u8,
    generation: Generation,
) -> Result<TreeId> {
    let (level, generation) = (Some(level), Some(generation));
    let expected = NodeExpectation { level, generation, ..NodeExpectation::at(address) };
    Ok(forest.block(objectid::EXTENT_TREE, &expected)?.owner())
}

/// Counts all extents of the commit that `root_tree` belongs to, for the qgroups of `state`.
///
/// # Errors
/// Blocks and items that cannot be read.
pub fn count_simple(
    forest: &Arc<Forest>,
    root_tree: &Tree,
    state: &QuotaState,
) -> Result<BTreeMap<QgroupId, QgroupUsage>> {
    let since = state.simple_since().unwrap_or(Generation(u64::MAX));
    let mut counted = state.clone();
    counted.clear_numbers();
    let mut charges = Charges::new();
    let node_size = forest.volume().geometry().node_size;
    let extents = RootFinder::new(forest, View::Committed(root_tree.clone()))?.extent_tree().clone();
    for item in extents.items() {
        let item = item?;
        let key = item.key;
        if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let fault = |reason| Error::Item { tree: objectid::EXTENT_TREE, key, reason };
        let parsed = ExtentItem::parse(key.item_type, item.data()).map_err(fault)?;
        if parsed.header.generation < since {
            continue;
        }
        let level = match parsed.tree_block {
            Some(info) => Some(info.level),
            None if key.item_type == ItemType::METADATA_ITEM => u8::try_from(key.offset).ok(),
            None => None,
        };
        let (owner, bytes) = match level {
            Some(level) => (
                Some(owner_of_block(forest, LogicalAddress(key.objectid), level, parsed.header.generation)?),
                i64::from(node_size),
            ),
            None => {
                let mut owner = None;
                for reference in parsed.inline_refs() {
                    if let BackRef::Owner { root } = reference.map_err(fault)? {
                        owner = Some(root);
                    }
                }
                (owner, i64::try_from(key.offset).unwrap_or(0))
            }
        };
        if let Some(owner) = owner.filter(|owner| objectid::is_subvolume(*owner)) {
            let sum = charges.entry(owner).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    counted.apply_charges(&charges);
    Ok(counted.groups.into_iter().map(|(id, group)| (id, group.info)).collect())
}

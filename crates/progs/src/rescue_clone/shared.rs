//! The tree blocks that subvolumes share, so that the clone's subvolumes share theirs.
//!
//! Owns [`Leaves`], the leaves of a subvolume that was copied, [`Bases`], those of the last few,
//! [`Plan`], the part of the next one that still has to be copied, and [`by_family`], the order of
//! copying. The next subvolume begins as a snapshot of the clone of the one among the bases that it
//! shares most with. Only the keys of leaves that the two do not share are copied.
//!
//! **Invariant**: a leaf counts as shared only if nothing of its inodes was lost. So each loss is
//! told for every subvolume that it concerns.

use super::roots::{KeyRange, SubvolumeRoot};
use papilio_engine::btree::{Tree, TreeBlock};
use papilio_format::{Key, LogicalAddress, TreeId, Uuid, objectid};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// A leaf's address, `None` for a part that cannot be read, and the keys that it may have.
type Leaf = (Option<LogicalAddress>, KeyRange);

/// The numbers of inodes that lost something.
#[derive(Clone, Debug, Default)]
pub(super) struct LostInodes {
    /// First and last number, in no order.
    runs: Vec<(u64, u64)>,
}

impl LostInodes {
    /// Adds the inodes from `first` to `last`.
    pub(super) fn add(&mut self, first: u64, last: u64) {
        match self.runs.last_mut() {
            Some(run) if run.0 <= first && first <= run.1.saturating_add(1) => run.1 = run.1.max(last),
            _ => self.runs.push((first, last)),
        }
    }

    /// Sorts and joins the runs.
    fn sorted(&self) -> Vec<(u64, u64)> {
        let mut runs = self.runs.clone();
        runs.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(last) if run.0 <= last.1.saturating_add(1) => last.1 = last.1.max(run.1),
                _ => joined.push(run),
            }
        }
        joined
    }
}

/// The leaves of a subvolume that was copied without losses, with the keys that each may have.
pub(super) struct Leaves {
    id: TreeId,
    places: HashMap<LogicalAddress, KeyRange>,
}

impl Leaves {
    /// Collects the leaves of a tree whose inodes are not among the lost ones.
    pub(super) fn of(tree: &Tree, lost: &LostInodes) -> Self {
        let lost = lost.sorted();
        let is_whole = |(from, to): &KeyRange| {
            let last = to.map_or(u64::MAX, |key| key.objectid);
            let after = lost.partition_point(|run| run.1 < from.objectid);
            lost.get(after).is_none_or(|run| run.0 > last)
        };
        let leaves = leaves(tree).into_iter().filter(|(_, range)| is_whole(range));
        Self {
            id: tree.id(),
            places: leaves.filter_map(|(address, range)| Some((address?, range))).collect(),
        }
    }
}

/// The subvolumes of a family that were copied last, of which the next one may become a snapshot.
#[derive(Default)]
pub(super) struct Bases {
    recent: VecDeque<Leaves>,
}

impl Bases {
    /// The number of subvolumes kept. A family with a few branches finds a near relative among
    /// them, whichever branch was copied last.
    const KEPT: usize = 4;

    /// Adds the leaves of a subvolume that was copied.
    pub(super) fn add(&mut self, leaves: Leaves) {
        self.recent.push_front(leaves);
        self.recent.truncate(Self::KEPT);
    }

    /// Returns the base that shares most leaves with a tree, the last one copied if several do.
    fn nearest(&self, leaves: &[Leaf]) -> Option<&Leaves> {
        let shared = |base: &Leaves| {
            leaves
                .iter()
                .filter(|(address, _)| address.is_some_and(|at| base.places.contains_key(&at)))
                .count()
        };
        self.recent.iter().rev().max_by_key(|base| shared(base))
    }
}

/// The part of a subvolume that has to be copied.
pub(super) struct Plan {
    /// The keys to copy, in their order.
    pub(super) ranges: Vec<KeyRange>,
    /// The subvolume that has the rest in the clone.
    pub(super) base: Option<TreeId>,
}

impl Plan {
    /// Copies all items.
    pub(super) fn whole() -> Self {
        Self { ranges: vec![(Key::MIN, None)], base: None }
    }

    /// Copies the items of `tree` that the nearest of `bases` does not share. Returns
    /// [`Plan::whole`] unless half of the leaves of `tree`, and a quarter of the base's, are
    /// shared.
    pub(super) fn after(tree: &Tree, bases: &Bases) -> Self {
        if bases.recent.is_empty() {
            return Self::whole();
        }
        let leaves = leaves(tree);
        let base = bases.nearest(&leaves).expect("there is a base");
        let (mut ranges, mut at) = (Vec::new(), Some(Key::MIN));
        let (mut shared, all) = (0, leaves.len());
        for (address, (from, to)) in leaves {
            let Some(place) = address.and_then(|address| base.places.get(&address)) else { continue };
            shared += 1;
            let from = from.max(place.0);
            if let Some(start) = at.filter(|at| *at < from) {
                ranges.push((start, Some(from)));
            }
            at = match (to, place.1) {
                (Some(to), Some(other)) => Some(to.min(other)),
                (to, other) => to.or(other),
            };
        }
        if 2 * shared < all || 4 * shared < base.places.len() || shared == 0 {
            return Self::whole();
        }
        ranges.extend(at.map(|at| (at, None)));
        Self { ranges, base: Some(base.id) }
    }
}

/// Returns the leaves of a tree with the keys that each may have. A part whose inner node cannot be
/// read counts as a leaf without an address.
fn leaves(tree: &Tree) -> Vec<Leaf> {
    let mut found = Vec::new();
    match tree.root_block() {
        Ok(root) => below(tree, &root, None, &mut found),
        Err(_) => found.push((None, (Key::MIN, None))),
    }
    // The first pointer may have a key above the least one.
    if let Some((_, range)) = found.first_mut() {
        range.0 = Key::MIN;
    }
    found
}

fn below(tree: &Tree, block: &Arc<TreeBlock>, bound: Option<Key>, found: &mut Vec<Leaf>) {
    let view = block.view();
    if block.level() == 0 {
        found.push((Some(block.address()), (Key::MIN, bound)));
        return;
    }
    for slot in 0..view.len() {
        let child = view.child(slot);
        let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
        let range = (child.key, bound);
        if block.level() == 1 {
            found.push((Some(child.address), range));
            continue;
        }
        match tree.child(block, slot, bound) {
            Ok(child) => below(tree, &child, bound, found),
            Err(_) => found.push((None, range)),
        }
    }
}

/// Returns the subvolumes in the order of copying. Those that come from one another are neighbours:
/// the newest first, as it shares most with the one before it. The top level is the first of its
/// family, since it exists in the clone already.
pub(super) fn by_family(subvolumes: &BTreeMap<TreeId, SubvolumeRoot>) -> Vec<Vec<TreeId>> {
    let mut families: HashMap<Uuid, Uuid> = HashMap::new();
    fn head(families: &HashMap<Uuid, Uuid>, mut uuid: Uuid) -> Uuid {
        while let Some(above) = families.get(&uuid) {
            uuid = *above;
        }
        uuid
    }
    for root in subvolumes.values() {
        let (uuid, parent) = (root.item.uuid, root.item.parent_uuid);
        if uuid.is_nil() || parent.is_nil() {
            continue;
        }
        let (own, above) = (head(&families, uuid), head(&families, parent));
        if own != above {
            families.insert(own, above);
        }
    }
    let mut grouped: BTreeMap<(TreeId, Uuid), Vec<TreeId>> = BTreeMap::new();
    let mut first: HashMap<Uuid, TreeId> = HashMap::new();
    for (id, root) in subvolumes {
        let uuid = root.item.uuid;
        let family = if uuid.is_nil() { uuid } else { head(&families, uuid) };
        let lowest = if uuid.is_nil() { *id } else { *first.entry(family).or_insert(*id) };
        grouped.entry((lowest, family)).or_default().push(*id);
    }
    let mut families: Vec<_> = grouped.into_values().collect();
    for family in &mut families {
        family.sort_by_key(|id| (*id != objectid::FS_TREE, Reverse(subvolumes[id].item.ctransid), *id));
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_inodes_are_joined() {
        let mut lost = LostInodes::default();
        for (first, last) in [(300, 300), (301, 310), (257, 260), (305, 306), (261, 261), (400, u64::MAX)] {
            lost.add(first, last);
        }
        assert_eq!(lost.sorted(), [(257, 261), (300, 310), (400, u64::MAX)]);
    }
}

//! Sets of subvolumes, each stored once.
//!
//! Owns [`RootSets`]. A member is the position of a subvolume in the order of creation. Snapshots
//! that share a block mostly follow one another, so a set is kept as runs of positions.
//!
//! **Invariant:** equal sets have equal ids. The runs of a set are sorted, and neither overlap nor
//! touch.

use std::collections::HashMap;
use std::sync::Arc;

/// Most unions that are remembered.
const REMEMBERED_UNIONS: usize = 1 << 18;

/// Positions from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) last: u32,
}

/// A set of subvolumes in [`RootSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SetId(pub(super) u32);

/// All sets that a walk has met.
#[derive(Debug, Default)]
pub(super) struct RootSets {
    sets: Vec<Arc<[Run]>>,
    ids: HashMap<Arc<[Run]>, SetId>,
    unions: HashMap<(SetId, SetId), SetId>,
}

impl RootSets {
    /// Returns the set of one subvolume.
    pub(super) fn single(&mut self, position: u32) -> SetId {
        self.intern(vec![Run { first: position, last: position }])
    }

    /// Returns the union of two sets.
    pub(super) fn union(&mut self, a: SetId, b: SetId) -> SetId {
        if a == b {
            return a;
        }
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let mut runs = [self.runs(a), self.runs(b)].concat();
        runs.sort_unstable();
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(before) if run.first <= before.last.saturating_add(1) => {
                    before.last = before.last.max(run.last);
                }
                _ => joined.push(run),
            }
        }
        let union = self.intern(joined);
        if self.unions.len() == REMEMBERED_UNIONS {
            self.unions.clear();
        }
        self.unions.insert(pair, union);
        union
    }

    /// Returns the runs of a set.
    pub(super) fn runs(&self, set: SetId) -> &[Run] {
        &self.sets[set.0 as usize]
    }

    fn intern(&mut self, runs: Vec<Run>) -> SetId {
        let runs: Arc<[Run]> = runs.into();
        if let Some(known) = self.ids.get(&runs) {
            return *known;
        }
        let id = SetId(u32::try_from(self.sets.len()).expect("fewer sets than 4 billion fit in memory"));
        self.sets.push(Arc::clone(&runs));
        self.ids.insert(runs, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn members(sets: &RootSets, set: SetId) -> BTreeSet<u32> {
        sets.runs(set).iter().flat_map(|run| run.first..=run.last).collect()
    }

    #[test]
    fn unions_are_those_of_sets() {
        let mut sets = RootSets::default();
        let mut known: Vec<(SetId, BTreeSet<u32>)> =
            (0..12).map(|position| (sets.single(position), BTreeSet::from([position]))).collect();
        let mut random = 1_u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = |shift: u32| (random >> shift) as usize % known.len();
            let (a, b) = (pick(20), pick(40));
            let union = sets.union(known[a].0, known[b].0);
            let expected: BTreeSet<u32> = &known[a].1 | &known[b].1;
            assert_eq!(members(&sets, union), expected);
            match known.iter().find(|(_, set)| *set == expected) {
                Some((id, _)) => assert_eq!(*id, union),
                None => known.push((union, expected)),
            }
        }
        assert!(
            known.iter().all(|(id, _)| sets.runs(*id).windows(2).all(|two| two[0].last + 1 < two[1].first))
        );
    }
}

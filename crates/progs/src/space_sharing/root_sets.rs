//! Sets of subvolumes, each stored once.
//!
//! Owns [`RootSets`]. A member is the position of a subvolume in the order of creation. Snapshots
//! that share a block mostly follow one another, so a set is kept as runs of positions.
//!
//! **Invariant:** equal sets have equal ids. The runs of a set are sorted, and neither overlap nor
//! touch.

use std::collections::HashMap;
use std::sync::Arc;

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
    /// Memory for the runs of a union.
    gathered: Vec<Run>,
}

impl RootSets {
    /// Returns the set of one subvolume.
    pub(super) fn single(&mut self, position: u32) -> SetId {
        self.intern(&[Run { first: position, last: position }])
    }

    /// Returns the union of at least one set. All are united at once: a block of many snapshots
    /// has a reference from hundreds of sets, and unions of some of them would be kept for nothing.
    pub(super) fn union(&mut self, mut of: impl Iterator<Item = SetId>) -> SetId {
        let first = of.next().expect("a union has a set");
        let Some(second) = of.find(|set| *set != first) else { return first };
        let mut runs = std::mem::take(&mut self.gathered);
        runs.clear();
        let mut last = first;
        runs.extend_from_slice(self.runs(first));
        for set in std::iter::once(second).chain(of) {
            if set != last {
                runs.extend_from_slice(self.runs(set));
                last = set;
            }
        }
        runs.sort_unstable();
        runs.dedup_by(|run, before| {
            let touches = run.first <= before.last.saturating_add(1);
            if touches {
                before.last = before.last.max(run.last);
            }
            touches
        });
        let union = self.intern(&runs);
        self.gathered = runs;
        union
    }

    /// Returns the runs of a set.
    pub(super) fn runs(&self, set: SetId) -> &[Run] {
        &self.sets[set.0 as usize]
    }

    fn intern(&mut self, runs: &[Run]) -> SetId {
        if let Some(known) = self.ids.get(runs) {
            return *known;
        }
        let runs: Arc<[Run]> = runs.into();
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
            let some: Vec<usize> =
                [20, 40, 30, 50].into_iter().map(pick).take(1 + random as usize % 4).collect();
            let union = sets.union(some.iter().map(|number| known[*number].0));
            let expected: BTreeSet<u32> = some.iter().flat_map(|number| known[*number].1.clone()).collect();
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

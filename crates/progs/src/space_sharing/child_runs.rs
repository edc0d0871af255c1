//! Runs of pointers to tree blocks, each kept once.
//!
//! Owns [`ChildRuns`]. A snapshot copies the nodes above what changes, so hundreds of nodes have
//! nearly the same children. A node's children are cut into runs of some 16, at places that only
//! the addresses decide. Equal runs of different nodes are then one run with several holders, and
//! each child is looked at once for each different run instead of once for each node.
//!
//! **Invariant:** the children of a node are those of its runs, in order. No set is lost or added.

use super::references::{HolderReference, HolderReferences};
use super::root_sets::{RootSets, SetId};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The address of a block, and what [`HolderReference::detail`] says of it.
pub(super) type Child = (u64, u64);

/// A run ends behind an address whose hash is below this share of all: one in 16.
const ENDS_BELOW: u64 = 1 << 60;
/// Most children of a run.
const LONGEST: usize = 64;

/// Runs that nodes of one level have.
#[derive(Debug)]
pub(super) struct ChildRuns {
    numbers: HashMap<Arc<[Child]>, u32>,
    runs: Vec<Arc<[Child]>>,
    /// The run, and subvolumes that hold a node with it.
    holders: Vec<(u32, SetId)>,
    /// Children of all runs.
    children: usize,
    /// Most children, and most holders.
    bound: usize,
}

impl ChildRuns {
    /// Keeps up to `bound` children, and as many holders.
    pub(super) fn new(bound: usize) -> Self {
        Self { numbers: HashMap::new(), runs: Vec::new(), holders: Vec::new(), children: 0, bound }
    }

    /// Adds the children of a node that these subvolumes hold.
    pub(super) fn add(&mut self, children: &[Child], set: SetId) {
        let mut rest = children;
        while !rest.is_empty() {
            let end = rest.iter().take(LONGEST).position(|(address, _)| ends_run(*address));
            let (run, behind) = rest.split_at(end.map_or(rest.len().min(LONGEST), |last| last + 1));
            rest = behind;
            let number = match self.numbers.get(run) {
                Some(number) => *number,
                None => {
                    let number = self.runs.len() as u32;
                    let run: Arc<[Child]> = run.into();
                    self.children += run.len();
                    self.runs.push(Arc::clone(&run));
                    self.numbers.insert(run, number);
                    number
                }
            };
            self.holders.push((number, set));
        }
    }

    /// Returns whether it should be emptied before more is added.
    pub(super) fn is_full(&self) -> bool {
        self.children > self.bound || self.holders.len() > self.bound
    }

    /// Moves all children into `references`, each with all holders of its runs.
    ///
    /// # Errors
    /// A temporary file cannot be made or written.
    pub(super) fn empty_into(
        &mut self,
        references: &mut HolderReferences,
        sets: &mut RootSets,
    ) -> io::Result<()> {
        self.holders.sort_unstable();
        for same in self.holders.chunk_by(|one, other| one.0 == other.0) {
            let set = sets.union(same.iter().map(|(_, set)| *set));
            for &(address, detail) in &*self.runs[same[0].0 as usize] {
                references.push(HolderReference { address, detail, set }, sets)?;
            }
        }
        *self = Self::new(self.bound);
        Ok(())
    }
}

fn ends_run(address: u64) -> bool {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15) < ENDS_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Returns the members of the set of each address.
    fn collected(nodes: &[(Vec<Child>, u32)], bound: Option<usize>) -> BTreeMap<Child, BTreeSet<u32>> {
        let mut sets = RootSets::default();
        let mut references = HolderReferences::new(1 << 20);
        let mut runs = ChildRuns::new(bound.unwrap_or(0));
        for (children, holder) in nodes {
            let set = sets.single(*holder);
            if bound.is_none() {
                for &(address, detail) in children {
                    references.push(HolderReference { address, detail, set }, &mut sets).unwrap();
                }
                continue;
            }
            runs.add(children, set);
            if runs.is_full() {
                runs.empty_into(&mut references, &mut sets).unwrap();
            }
        }
        runs.empty_into(&mut references, &mut sets).unwrap();
        let mut sorted = references.sorted(&mut sets).unwrap();
        let mut found = BTreeMap::new();
        while let Some(reference) = sorted.next(&mut sets).unwrap() {
            let members = sets.runs(reference.set).iter().flat_map(|run| run.first..=run.last).collect();
            found.insert((reference.address, reference.detail), members);
        }
        found
    }

    #[test]
    fn runs_give_the_sets_of_single_pointers() {
        // Snapshots: each has the children of the one before, but for some.
        let mut children: Vec<Child> = (0..300_u64).map(|number| (number << 14, number)).collect();
        let mut nodes = Vec::new();
        let mut random = 7_u64;
        for holder in 0..60 {
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % children.len();
                match random >> 62 {
                    0 => drop(children.remove(at)),
                    1 => children.insert(at, ((random >> 20) & !0x3fff, holder.into())),
                    _ => children[at].0 = (random >> 20) & !0x3fff,
                }
            }
            let (left, right) = children.split_at(children.len() / 2);
            nodes.push((left.to_vec(), holder));
            nodes.push((right.to_vec(), holder));
        }
        let expected = collected(&nodes, None);
        for bound in [0, 100, 1000, 1 << 20] {
            assert!(collected(&nodes, Some(bound)) == expected, "at most {bound}");
        }
        let mut runs = ChildRuns::new(1 << 20);
        let set = RootSets::default().single(0);
        nodes.iter().for_each(|(children, _)| runs.add(children, set));
        let all: usize = nodes.iter().map(|(children, _)| children.len()).sum();
        assert!(runs.children * 4 < all && runs.holders.len() * 8 < all, "{} of {all}", runs.children);
    }
}

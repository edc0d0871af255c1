//! Sets of subvolumes, each stored once.
//!
//! Owns [`RootSets`] and [`RootSet`], the number of a set. Many extents have few distinct sets, so
//! that unions and comparisons are cheap.
//!
//! Locks: none.

use papilio_format::TreeId;
use std::collections::{BTreeSet, HashMap};

/// The number of a set in its [`RootSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RootSet(u32);

impl RootSet {
    /// The set without members.
    pub(super) const EMPTY: Self = Self(0);
}

/// All sets met so far.
#[derive(Debug)]
pub(super) struct RootSets {
    sets: Vec<Box<[TreeId]>>,
    numbers: HashMap<Box<[TreeId]>, RootSet>,
    single: HashMap<TreeId, RootSet>,
    unions: HashMap<(RootSet, RootSet), RootSet>,
}

impl Default for RootSets {
    fn default() -> Self {
        let empty: Box<[TreeId]> = Box::default();
        Self {
            numbers: HashMap::from([(empty.clone(), RootSet::EMPTY)]),
            sets: vec![empty],
            single: HashMap::new(),
            unions: HashMap::new(),
        }
    }
}

impl RootSets {
    /// The members, ascending.
    pub(super) fn members(&self, set: RootSet) -> &[TreeId] {
        &self.sets[set.0 as usize]
    }

    /// The set with one member.
    pub(super) fn single(&mut self, root: TreeId) -> RootSet {
        if let Some(&set) = self.single.get(&root) {
            return set;
        }
        let set = self.number(Box::new([root]));
        self.single.insert(root, set);
        set
    }

    /// The set with the members of both.
    pub(super) fn union(&mut self, one: RootSet, other: RootSet) -> RootSet {
        if one == other || other == RootSet::EMPTY {
            return one;
        }
        if one == RootSet::EMPTY {
            return other;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(&set) = self.unions.get(&pair) {
            return set;
        }
        let mut members = [self.members(one), self.members(other)].concat();
        members.sort_unstable();
        members.dedup();
        let set = self.number(members.into());
        self.unions.insert(pair, set);
        set
    }

    /// The set with these members.
    pub(super) fn of(&mut self, members: &BTreeSet<TreeId>) -> RootSet {
        self.number(members.iter().copied().collect())
    }

    /// The set with the members of all.
    pub(super) fn union_of(&mut self, sets: &BTreeSet<RootSet>) -> RootSet {
        match sets.first() {
            Some(&only) if sets.len() == 1 => only,
            _ => self.of(&sets.iter().flat_map(|set| self.members(*set)).copied().collect()),
        }
    }

    /// Whether `root` is a member.
    pub(super) fn contains(&self, set: RootSet, root: TreeId) -> bool {
        self.members(set).binary_search(&root).is_ok()
    }

    fn number(&mut self, members: Box<[TreeId]>) -> RootSet {
        if let Some(&set) = self.numbers.get(&members) {
            return set;
        }
        let set = RootSet(u32::try_from(self.sets.len()).expect("fewer sets than extents in a batch"));
        self.sets.push(members.clone());
        self.numbers.insert(members, set);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_have_one_number() {
        let mut sets = RootSets::default();
        let [five, six, seven] = [5, 256, 257].map(|id| sets.single(TreeId(id)));
        let one = sets.union(five, six);
        let both = sets.union(one, seven);
        let other = sets.union(seven, five);
        assert_eq!(sets.union(other, six), both);
        assert_eq!(sets.members(both), [TreeId(5), TreeId(256), TreeId(257)]);
        assert_eq!(sets.of(&[256, 257].map(TreeId).into()), sets.union(six, seven));
        assert_eq!(sets.union_of(&[five, other, six].into()), both);
        assert_eq!((sets.union_of(&[one].into()), sets.union_of(&[].into())), (one, RootSet::EMPTY));
        assert_eq!(sets.union(both, RootSet::EMPTY), both);
        assert_eq!(sets.union(RootSet::EMPTY, six), six);
        assert!(sets.contains(other, TreeId(257)) && !sets.contains(other, TreeId(256)));
    }
}

//! A set of addresses as disjoint ranges.
//!
//! Owns [`RangeSet`].
//!
//! **Invariants**
//! - Ranges are not empty, do not overlap and are not adjacent (adjacent ranges are merged).
//! - `bytes` is the sum of their lengths.
//!
//! Ranges are keyed by their end, so that removing bytes from the front of one, an allocator's most
//! frequent operation, changes an entry in place.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: the extent entries of `struct btrfs_free_space_ctl`
//! (`fs/btrfs/free-space-cache.c`), `extent_io_tree` for pinned extents.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;

/// Disjoint, merged ranges of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Maps each range's end to its start.
    by_end: BTreeMap<u64, u64>,
    bytes: u64,
}

/// The result of an insertion: the neighbours it merged with, and the resulting range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) left: Option<Range<u64>>,
    pub(super) right: Option<Range<u64>>,
    pub(super) whole: Range<u64>,
}

impl RangeSet {
    /// Returns the number of bytes in the set.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of ranges in the set.
    pub(crate) fn len(&self) -> usize {
        self.by_end.len()
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    /// Iterates over the ranges in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_end.iter().map(|(&end, &start)| start..end)
    }

    /// Returns the last range.
    pub(crate) fn last(&self) -> Option<Range<u64>> {
        self.by_end.last_key_value().map(|(&end, &start)| start..end)
    }

    /// Returns the first range that ends after `address`: it contains the address or follows it.
    pub(crate) fn first_behind(&self, address: u64) -> Option<Range<u64>> {
        let (&end, &start) = self.by_end.range((Excluded(address), Unbounded)).next()?;
        Some(start..end)
    }

    /// Returns the range that contains all of `range`.
    pub fn holder(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.first_behind(range.start).filter(|found| found.start <= range.start && range.end <= found.end)
    }

    /// Returns whether any byte of `range` is in the set.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        range.start < range.end && self.first_behind(range.start).is_some_and(|found| found.start < range.end)
    }

    /// Adds a range that does not overlap the set.
    ///
    /// # Panics
    /// If a part of it is in the set already, or it is empty.
    pub(super) fn insert(&mut self, range: Range<u64>) -> Merged {
        assert!(range.start < range.end, "{range:?} is empty");
        assert!(!self.overlaps(&range), "{range:?} is in the set already, at least in part");
        self.bytes += range.end - range.start;
        let left = self.by_end.remove(&range.start).map(|start| start..range.start);
        let start = left.as_ref().map_or(range.start, |left| left.start);
        let right = self.first_behind(range.end).filter(|found| found.start == range.end);
        let end = right.as_ref().map_or(range.end, |right| right.end);
        self.by_end.insert(end, start);
        Merged { left, right, whole: start..end }
    }

    /// Removes a range that is entirely in the set. Returns the range that contained it.
    ///
    /// # Panics
    /// If a part of it is not in the set, or it is empty.
    pub(super) fn remove(&mut self, range: &Range<u64>) -> Range<u64> {
        assert!(range.start < range.end, "{range:?} is empty");
        let Some(holder) = self.holder(range) else {
            panic!("{range:?} is not in the set, at least in part")
        };
        self.bytes -= range.end - range.start;
        if range.end == holder.end {
            self.by_end.remove(&holder.end);
        } else {
            self.by_end.insert(holder.end, range.end);
        }
        if range.start > holder.start {
            self.by_end.insert(range.start, holder.start);
        }
        holder
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds `range`, which may overlap the set.
    pub(crate) fn cover(&mut self, range: &Range<u64>) {
        if range.start < range.end {
            self.remove_overlap(range);
            self.insert(range.clone());
        }
    }

    /// Removes the parts of `range` that are in the set, and returns them in ascending order.
    pub(crate) fn remove_overlap(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut removed = Vec::new();
        if range.is_empty() {
            return removed;
        }
        while let Some(found) = self.first_behind(range.start).filter(|found| found.start < range.end) {
            let piece = found.start.max(range.start)..found.end.min(range.end);
            self.remove(&piece);
            removed.push(piece);
        }
        removed
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    /// Collects ranges that may overlap and touch, in any order.
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.cover(&range));
        set
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const SIZE: u64 = 96;

    /// Returns the ranges of a plain array of bytes.
    pub(crate) fn runs(model: &[bool]) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for at in (0..model.len() as u64).filter(|&at| model[at as usize]) {
            match runs.last_mut() {
                Some(run) if run.end == at => run.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    /// Generates a non-empty range.
    pub(crate) fn any_range() -> impl Strategy<Value = Range<u64>> {
        (0..SIZE, 1..=16u64).prop_map(|(start, length)| start..(start + length).min(SIZE))
    }

    proptest! {
        #[test]
        fn sets_match_a_plain_array(steps in prop::collection::vec((0..4u8, any_range()), 1..120)) {
            let mut set = RangeSet::default();
            let mut model = vec![false; SIZE as usize];
            for (step, range) in steps {
                let part = range.start as usize..range.end as usize;
                let (all, any) = (model[part.clone()].iter().all(|&bit| bit), model[part.clone()].iter().any(|&bit| bit));
                prop_assert_eq!(set.overlaps(&range), any);
                prop_assert_eq!(set.holder(&range).is_some(), all);
                match step {
                    0 if !any => {
                        let merged = set.insert(range.clone());
                        model[part].fill(true);
                        prop_assert!(runs(&model).contains(&merged.whole));
                        prop_assert_eq!(merged.left.is_some(), merged.whole.start < range.start);
                        prop_assert_eq!(merged.right.is_some(), merged.whole.end > range.end);
                    }
                    1 if all => {
                        let before = runs(&model);
                        prop_assert!(before.contains(&set.remove(&range)));
                        model[part].fill(false);
                    }
                    2 => {
                        set.cover(&range);
                        model[part].fill(true);
                    }
                    _ => {
                        let removed = set.remove_overlap(&range);
                        let mut expected = vec![false; SIZE as usize];
                        expected[part.clone()].copy_from_slice(&model[part.clone()]);
                        prop_assert_eq!(removed, runs(&expected));
                        model[part].fill(false);
                    }
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), runs(&model));
                prop_assert_eq!(set.last(), runs(&model).pop());
                prop_assert_eq!(set.bytes(), model.iter().filter(|&&bit| bit).count() as u64);
                prop_assert_eq!(set.iter().collect::<RangeSet>(), set.clone());
            }
        }
    }

    #[test]
    fn an_empty_range_overlaps_nothing() {
        let set: RangeSet = std::iter::once(10..20).collect();
        assert!(!set.overlaps(&(15..15)) && set.overlaps(&(15..16)));
    }

    #[test]
    #[should_panic(expected = "in the set already")]
    fn inserting_twice_panics() {
        let mut set = RangeSet::default();
        set.insert(10..20);
        set.insert(19..21);
    }

    #[test]
    #[should_panic(expected = "not in the set")]
    fn removing_absent_bytes_panics() {
        let mut set = RangeSet::default();
        set.insert(10..20);
        set.remove(&(19..21));
    }
}

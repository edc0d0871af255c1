//! The free space of one block group, indexed by address and by length.
//!
//! Owns [`FreeSpace`].
//!
//! **Invariant**: `by_length` holds each range of `ranges` exactly once.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `struct btrfs_free_space_ctl` with its two trees, by offset and by bytes
//! (`fs/btrfs/free-space-cache.c`).

use super::range_set::RangeSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// How many ranges that are long enough a search for an aligned run examines.
const EXAMINED: usize = 64;

/// Disjoint free ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeSpace {
    ranges: RangeSet,
    /// (length, start)
    by_length: BTreeSet<(u64, u64)>,
}

impl FreeSpace {
    /// Returns the number of free bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.bytes()
    }

    /// Returns the ranges by address.
    pub(super) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Adds a range.
    ///
    /// # Panics
    /// If a part of it is already free.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let merged = self.ranges.insert(range);
        for old in [merged.left, merged.right].into_iter().flatten() {
            self.by_length.remove(&entry(&old));
        }
        self.by_length.insert(entry(&merged.whole));
    }

    /// Removes a range.
    ///
    /// # Panics
    /// If a part of it is not free.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let holder = self.ranges.remove(range);
        self.by_length.remove(&entry(&holder));
        for rest in [holder.start..range.start, range.end..holder.end] {
            if rest.start < rest.end {
                self.by_length.insert(entry(&rest));
            }
        }
    }

    /// Removes the free parts of `range` and returns their size in bytes.
    pub(super) fn remove_overlap(&mut self, range: &Range<u64>) -> u64 {
        let before = self.bytes();
        while self.ranges.overlaps(range)
            && let Some(found) = self.ranges.first_behind(range.start)
        {
            self.remove(&(found.start.max(range.start)..found.end.min(range.end)));
        }
        before - self.bytes()
    }

    /// Returns the length of the longest range in bytes.
    #[inline]
    pub(super) fn longest(&self) -> u64 {
        self.by_length.last().map_or(0, |&(length, _)| length)
    }

    /// Returns the free range from `address` up to the next gap; empty if the address is not free.
    #[inline]
    pub(super) fn rest_at(&self, address: u64) -> Range<u64> {
        match self.ranges.first_behind(address) {
            Some(found) if found.start <= address => address..found.end,
            _ => address..address,
        }
    }

    /// Returns the aligned start of an allocation of `length` bytes, in the shortest range that has
    /// space for it at a multiple of `alignment`.
    pub(super) fn best_fit(&self, length: u64, alignment: u64) -> Option<u64> {
        self.by_length.range((length, 0)..).find_map(|&(have, start)| {
            let aligned = start.checked_next_multiple_of(alignment)?;
            (aligned - start <= have - length).then_some(aligned)
        })
    }

    /// Returns the start of an allocation of `length` bytes at a multiple of `alignment` from
    /// `base`, in one of the shortest ranges that have space for it.
    pub(super) fn fit_from(&self, base: u64, length: u64, alignment: u64) -> Option<u64> {
        let fits = |&(have, start): &(u64, u64)| {
            let aligned = base.checked_add((start - base).checked_next_multiple_of(alignment)?)?;
            (aligned - start <= have.checked_sub(length)?).then_some(aligned)
        };
        // Many ranges may be long enough, and yet hold no aligned run.
        let shortest = self.by_length.range((length, 0)..).take(EXAMINED).find_map(fits);
        shortest.or_else(|| fits(self.by_length.range((length.checked_add(alignment)?, 0)..).next()?))
    }

    /// Returns the longest range.
    pub(super) fn longest_range(&self) -> Option<Range<u64>> {
        self.by_length.last().map(|&(length, start)| start..start + length)
    }

    /// Returns the longest run of whole, aligned multiples of `alignment` with at least `min`
    /// bytes. Only examines the longest range.
    pub(super) fn longest_run(&self, min: u64, alignment: u64) -> Option<Range<u64>> {
        let &(length, start) = self.by_length.last()?;
        let aligned = start.checked_next_multiple_of(alignment)?;
        let end = (start + length) / alignment * alignment;
        (aligned < end && end - aligned >= min).then_some(aligned..end)
    }
}

fn entry(range: &Range<u64>) -> (u64, u64) {
    (range.end - range.start, range.start)
}

#[cfg(test)]
mod tests {
    use super::super::range_set::tests::{SIZE, any_range, runs};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fits_match_a_linear_search(
            steps in prop::collection::vec((any::<bool>(), any_range()), 1..80),
            length in 1..12u64,
            alignment in prop::sample::select(vec![1u64, 2, 4, 8]),
            at in 0..SIZE,
        ) {
            let mut free = FreeSpace::default();
            let mut model = vec![false; SIZE as usize];
            for (add, range) in steps {
                let taken = free.remove_overlap(&range);
                let part = range.start as usize..range.end as usize;
                prop_assert_eq!(taken, model[part.clone()].iter().filter(|&&bit| bit).count() as u64);
                model[part].fill(add);
                if add {
                    free.insert(range);
                }
            }
            let runs = runs(&model);
            prop_assert_eq!(free.ranges().iter().collect::<Vec<_>>(), runs.clone());
            prop_assert_eq!(free.by_length.len(), runs.len());
            prop_assert_eq!(free.longest(), runs.iter().map(|run| run.end - run.start).max().unwrap_or(0));

            let fits = |run: &&Range<u64>| run.start.next_multiple_of(alignment) + length <= run.end;
            let shortest = runs.iter().filter(fits).map(|run| run.end - run.start).min();
            let found = free.best_fit(length, alignment);
            prop_assert_eq!(found.is_some(), shortest.is_some());
            if let Some(start) = found {
                prop_assert!(start.is_multiple_of(alignment));
                let holder = free.ranges().holder(&(start..start + length)).unwrap();
                prop_assert_eq!(Some(holder.end - holder.start), shortest);
            }
            // All ranges lie behind the base.
            let base = runs.first().map_or(0, |run| run.start.saturating_sub(at % 3));
            let fits_from = |run: &&Range<u64>| {
                base + (run.start - base).next_multiple_of(alignment) + length <= run.end
            };
            let shortest = runs.iter().filter(fits_from).map(|run| run.end - run.start).min();
            let found = free.fit_from(base, length, alignment);
            prop_assert_eq!(found.is_some(), shortest.is_some());
            if let Some(start) = found {
                prop_assert!((start - base).is_multiple_of(alignment));
                let holder = free.ranges().holder(&(start..start + length)).unwrap();
                prop_assert_eq!(Some(holder.end - holder.start), shortest);
            }
            if let Some(run) = free.longest_run(length, alignment) {
                prop_assert!(run.end - run.start >= length);
                prop_assert!(run.start.is_multiple_of(alignment) && run.end.is_multiple_of(alignment));
                prop_assert!(free.ranges().holder(&run).is_some());
            } else {
                prop_assert!(free.longest() < length + 2 * alignment);
            }
            let rest = free.rest_at(at);
            prop_assert_eq!(rest.start, at);
            let expected = (at..SIZE).take_while(|&at| model[at as usize]).count() as u64;
            prop_assert_eq!(rest.end - rest.start, expected);
        }
    }
}

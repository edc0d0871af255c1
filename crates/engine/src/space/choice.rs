//! The choice of a range for an allocation.
//!
//! Allocations of one kind follow one another: each begins at the *cursor*, where the last one
//! ended. Elsewhere the shortest free range with enough space is taken, so that long ones stay.
//!
//! **Rows with parity.** A power cut while a row is written leaves parity that does not fit its
//! data. Then nothing in that row can be rebuilt (the "write hole"). So an allocation begins in a
//! row that is free, also as of the last commit. The rest of that row is for the same transaction
//! alone: [`SpaceState::end_rows`] forgets the cursor. Only when no whole row is free, an
//! allocation takes a part of a row that holds committed bytes.
//!
//! **Locks**: none; [`super::Space`]'s lock protects all of it.
//!
//! Kernel counterpart: `find_free_extent` (`fs/btrfs/extent-tree.c`), which knows no rows.

use super::SpaceKind;
use super::block_group::BlockGroup;
use super::space::{SpaceState, slot};
use papilio_format::items::block_group::BlockGroupFlags;
use std::ops::Range;

/// After a run ends, the next one preferably starts in a free range of at least this many bytes, so
/// that small extents written at the same time are adjacent.
const CLUSTER: u64 = 1 << 20;

impl SpaceState {
    /// Chooses the range for an allocation, and sets the cursor behind it.
    pub(super) fn choose(
        &mut self,
        kind: SpaceKind,
        flags: BlockGroupFlags,
        min: u64,
        want: u64,
        alignment: u64,
    ) -> Option<Range<u64>> {
        let found = self.in_own_rows(kind, flags, min, want, alignment);
        let range = found.clone().or_else(|| self.anywhere(flags, min, want, alignment))?;
        // Without parity every range is in rows of its own, so that the cursor is kept.
        let next = (found.is_some() || self.groups_row(&range) == 0).then_some(range.end);
        let cursors = &mut self.info(flags).cursors;
        *(if kind == SpaceKind::Data { &mut cursors.data } else { &mut cursors.metadata }) = next;
        Some(range)
    }

    /// Lets no further allocation begin in a row that one of this transaction has begun.
    pub(super) fn end_rows(&mut self) {
        for number in 0..self.infos.len() {
            let cursors = self.infos[number].cursors;
            let keep = |at: &u64| self.groups_row(&(*at..at.saturating_add(1))) == 0;
            let kept = (cursors.data.filter(keep), cursors.metadata.filter(keep));
            let cursors = &mut self.infos[number].cursors;
            (cursors.data, cursors.metadata) = kept;
        }
    }

    /// Returns the row length of the block group that holds a range.
    fn groups_row(&self, range: &Range<u64>) -> u64 {
        self.group_of(range).map_or(0, |group| group.row)
    }

    /// Chooses a range that shares no row with committed bytes.
    fn in_own_rows(
        &self,
        kind: SpaceKind,
        flags: BlockGroupFlags,
        min: u64,
        want: u64,
        alignment: u64,
    ) -> Option<Range<u64>> {
        let info = &self.infos[slot(flags)];
        let cursors = info.cursors;
        let cursor = if kind == SpaceKind::Data { cursors.data } else { cursors.metadata };
        if let Some(at) = cursor.filter(|at| at.is_multiple_of(alignment))
            && let Some(group) = self.group_of(&(at..at.saturating_add(1)))
            && group.serves()
            && slot(group.flags) == slot(flags)
            && let rest = group.free.rest_at(at)
            && group.row_start(rest.end).saturating_sub(at) >= want
        {
            return Some(at..at + want);
        }
        let fit = |length: u64| {
            let fit = |start: u64| self.groups[&start].own_fit(length, alignment);
            info.with_space_for(length).find_map(fit)
        };
        if let Some(start) = fit(want.max(CLUSTER)).or_else(|| fit(want)) {
            return Some(start..start + want);
        }
        // Any other run shares a row, so that a shorter one comes first.
        let groups = info.with_longest_ranges().map(|start| &self.groups[&start]);
        let rows = groups.filter(|group| group.row > 0);
        let runs = rows.filter_map(|group| group.longest_rows(min, alignment));
        runs.max_by_key(|run| run.end - run.start).map(|run| run.start..run.end.min(run.start + want))
    }

    /// Chooses a range wherever there is one.
    fn anywhere(&self, flags: BlockGroupFlags, min: u64, want: u64, alignment: u64) -> Option<Range<u64>> {
        let info = &self.infos[slot(flags)];
        let free = |start: u64| &self.groups[&start].free;
        let with_rows = |start: &u64| self.groups[start].row > 0;
        let fits = |start| free(start).best_fit(want, alignment);
        if let Some(start) = info.with_space_for(want).filter(with_rows).find_map(fits) {
            return Some(start..start + want);
        }
        let runs = info.with_longest_ranges().filter_map(|start| free(start).longest_run(min, alignment));
        runs.max_by_key(|run| run.end - run.start).map(|run| run.start..run.end.min(run.start + want))
    }
}

impl BlockGroup {
    /// Returns the start of the row that contains `address`; without parity the address itself.
    fn row_start(&self, address: u64) -> u64 {
        if self.row == 0 { address } else { address - (address - self.start) % self.row }
    }

    /// Returns the start of an allocation of `length` bytes that shares no row.
    fn own_fit(&self, length: u64, alignment: u64) -> Option<u64> {
        if self.row == 0 {
            return self.free.best_fit(length, alignment);
        }
        let start = self.free.fit_from(self.start, length.checked_next_multiple_of(self.row)?, self.row)?;
        start.is_multiple_of(alignment).then_some(start)
    }

    /// Returns the whole rows in the longest free range, if they are at least `min` bytes.
    fn longest_rows(&self, min: u64, alignment: u64) -> Option<Range<u64>> {
        let longest = self.free.longest_range()?;
        let start = self.row_start(longest.start.checked_add(self.row - 1)?);
        let end = self.row_start(longest.end);
        (start < end && end - start >= min && start.is_multiple_of(alignment)).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block_group::BlockGroup;
    use super::super::space::SpaceState;
    use super::*;

    /// Rows of three data columns of 64 KiB.
    const ROW: u64 = 192 << 10;
    /// No multiple of a row.
    const START: u64 = 1 << 20;
    const SECTOR: u64 = 4096;

    /// A block group of ten rows, of which these ranges, in bytes from the start, are free.
    fn state(free: &[(u64, u64)], row: u64) -> SpaceState {
        let used = 10 * ROW - free.iter().map(|(start, end)| end - start).sum::<u64>();
        let free = free.iter().map(|(start, end)| START + start..START + end);
        let flags = BlockGroupFlags::DATA | BlockGroupFlags::RAID5;
        let mut group = BlockGroup::new(&(START..START + 10 * ROW), flags, used, free, &[]);
        group.row = row;
        let mut state = SpaceState::default();
        state.info(flags).add(&group);
        state.groups.insert(START, group);
        state
    }

    /// Allocates data, and returns the range from the start of the block group.
    fn allocate(state: &mut SpaceState, min: u64, want: u64) -> Option<Range<u64>> {
        let flags = BlockGroupFlags::DATA;
        let range = state.choose(SpaceKind::Data, flags, min, want, SECTOR)?;
        let group = state.groups.get_mut(&START).expect("there is one");
        let before = group.footprint();
        group.reserve(&range);
        let after = group.footprint();
        state.info(flags).change(START, &before, &after);
        Some(range.start - START..range.end - START)
    }

    #[test]
    fn a_transaction_begins_rows_of_its_own() {
        // The first row is free from its second sector on.
        let mut state = state(&[(SECTOR, 10 * ROW)], ROW);
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), Some(ROW..ROW + SECTOR));
        assert_eq!(allocate(&mut state, SECTOR, ROW), Some(ROW + SECTOR..2 * ROW + SECTOR));
        state.end_rows();
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), Some(3 * ROW..3 * ROW + SECTOR));
    }

    #[test]
    fn a_run_ends_before_a_row_with_other_bytes() {
        // The last free row is half full.
        let mut state = state(&[(0, 3 * ROW + ROW / 2)], ROW);
        assert_eq!(allocate(&mut state, SECTOR, 2 * ROW), Some(0..2 * ROW));
        // The cursor has one and a half rows before it.
        assert_eq!(allocate(&mut state, SECTOR, ROW + SECTOR), Some(2 * ROW..3 * ROW));
        // Now only shared bytes are left.
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), Some(3 * ROW..3 * ROW + SECTOR));
    }

    #[test]
    fn the_group_with_most_free_rows_comes_first() {
        // The first group has two free rows, one behind it has one.
        let mut state = state(&[(0, 2 * ROW), (4 * ROW, 4 * ROW + SECTOR)], ROW);
        let (at, flags) = (START + 10 * ROW, BlockGroupFlags::DATA | BlockGroupFlags::RAID5);
        let free = std::iter::once(at..at + ROW);
        let mut group = BlockGroup::new(&(at..at + 10 * ROW), flags, 9 * ROW, free, &[]);
        group.row = ROW;
        state.info(flags).add(&group);
        state.groups.insert(at, group);
        assert_eq!(allocate(&mut state, SECTOR, 3 * ROW), Some(0..2 * ROW));
    }

    #[test]
    fn fewer_rows_than_are_needed_are_not_taken() {
        let mut state = state(&[(0, ROW + SECTOR)], ROW);
        assert_eq!(allocate(&mut state, 2 * ROW, 2 * ROW), None);
        assert_eq!(allocate(&mut state, ROW, 2 * ROW), Some(0..ROW));
    }

    #[test]
    fn a_free_range_within_a_row_holds_no_row() {
        let mut state = state(&[(SECTOR, ROW - SECTOR)], ROW);
        assert_eq!(allocate(&mut state, SECTOR, 2 * ROW), Some(SECTOR..ROW - SECTOR));
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), None);
    }

    #[test]
    fn rows_are_shared_when_none_is_free() {
        let half = ROW / 2;
        let mut state = state(&[(half, ROW), (4 * ROW, 4 * ROW + SECTOR)], ROW);
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), Some(4 * ROW..4 * ROW + SECTOR));
        assert_eq!(allocate(&mut state, ROW, ROW), None);
        assert_eq!(allocate(&mut state, SECTOR, ROW), Some(half..ROW));
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), None);
    }

    #[test]
    fn without_parity_allocations_go_on_after_a_commit() {
        let mut state = state(&[(SECTOR, 10 * ROW)], 0);
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), Some(SECTOR..2 * SECTOR));
        state.end_rows();
        assert_eq!(allocate(&mut state, SECTOR, SECTOR), Some(2 * SECTOR..3 * SECTOR));
    }
}

//! One block group in memory: its free, reserved, used and pinned bytes.
//!
//! Owns [`BlockGroup`], [`NewBlockGroup`], [`FreeSpaceChanges`] and [`BlockGroupUpdate`].
//!
//! **Invariant**: `free + used + reserved + pinned + excluded == length`.
//!
//! **Locks**: none; [`super::Space`]'s lock protects it.
//!
//! Kernel counterpart: `struct btrfs_block_group` (`fs/btrfs/block-group.h`),
//! `btrfs_update_block_group`.

use super::free_space::FreeSpace;
use super::range_set::RangeSet;
use super::{LogicalRange, SpaceTotals};
use papilio_format::items::block_group::BlockGroupFlags;
use std::ops::Range;

/// Redundant profiles (`extra` in `find_free_extent`, `fs/btrfs/extent-tree.c`).
pub(super) const REDUNDANT: BlockGroupFlags =
    BlockGroupFlags::PROFILE_MASK.difference(BlockGroupFlags::RAID0);

/// Changes of a block group's extent items, for the free-space tree. A range is in at most one of
/// the two sets: inserting and then removing it cancel out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeSpaceChanges {
    /// Ranges that got an extent item.
    pub(crate) allocated: RangeSet,
    /// Ranges that lost their extent item.
    pub(crate) freed: RangeSet,
}

impl FreeSpaceChanges {
    /// Returns whether nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.freed.is_empty()
    }

    pub(super) fn allocate(&mut self, range: &Range<u64>) {
        record(range, &mut self.allocated, &mut self.freed);
    }

    pub(super) fn free(&mut self, range: &Range<u64>) {
        record(range, &mut self.freed, &mut self.allocated);
    }
}

/// Removes `range` from `opposite`, and adds to `same` the parts that were not in it.
fn record(range: &Range<u64>, same: &mut RangeSet, opposite: &mut RangeSet) {
    let mut at = range.start;
    for undone in opposite.remove_overlap(range) {
        same.cover(&(at..undone.start));
        at = undone.end;
    }
    same.cover(&(at..range.end));
}

/// A block group to add.
#[derive(Clone, Debug)]
pub struct NewBlockGroup {
    /// Its logical range.
    pub range: LogicalRange,
    /// Type of contents and profile.
    pub flags: BlockGroupFlags,
    /// Bytes with an extent item.
    pub used: u64,
    /// Bytes of data in a row with parity; 0 without parity.
    pub(crate) row: u64,
}

/// The state of a block group that a commit writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockGroupUpdate {
    /// Its range; with BLOCK_GROUP_ITEM this is the key of its item.
    pub(crate) range: LogicalRange,
    /// Bytes in use now.
    pub(crate) used: u64,
    /// Type of contents and profile.
    pub(crate) flags: BlockGroupFlags,
    /// Changes since the previous update.
    pub(crate) changes: FreeSpaceChanges,
}

/// One block group.
#[derive(Debug)]
pub(super) struct BlockGroup {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) flags: BlockGroupFlags,
    pub(super) used: u64,
    pub(super) reserved: u64,
    pub(super) pinned: u64,
    pub(super) excluded: u64,
    pub(super) free: FreeSpace,
    /// Whether new allocations are forbidden.
    pub(super) read_only: bool,
    /// Whether a part lies on a seed device, so that it stays read-only.
    pub(super) on_seed: bool,
    /// Whether its extents are being moved elsewhere, after which it is removed.
    pub(super) relocating: bool,
    /// Whether its profile keeps it out of service: it is not redundant while that of another block
    /// group of its kind is, or all are converted to another.
    pub(super) lesser: bool,
    /// Bytes of data in a row with parity; 0 without parity.
    pub(super) row: u64,
    changes: FreeSpaceChanges,
}

/// The values of a block group by which [`super::space_info::SpaceInfo`] computes sums and finds
/// space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footprint {
    pub(super) totals: SpaceTotals,
    /// log2 of the longest free range; `None` if nothing may be allocated here.
    pub(super) class: Option<u32>,
}

impl BlockGroup {
    /// Creates a block group with the given free ranges, except for the parts in `excluded`.
    ///
    /// # Panics
    /// If free ranges overlap, lie outside, or contradict `used`.
    pub(super) fn new(
        range: &Range<u64>,
        flags: BlockGroupFlags,
        used: u64,
        free_ranges: impl IntoIterator<Item = Range<u64>>,
        excluded: &[Range<u64>],
    ) -> Self {
        let length = range.end - range.start;
        let mut free = FreeSpace::default();
        for piece in free_ranges {
            assert!(range.start <= piece.start && piece.end <= range.end, "{piece:?} is not in {range:?}");
            free.insert(piece);
        }
        let sum = free.bytes();
        assert!(sum + used == length, "{range:?}: {sum} bytes free and {used} used are not {length}");
        let excluded = excluded.iter().map(|piece| free.remove_overlap(piece)).sum();
        Self {
            start: range.start,
            length,
            flags,
            used,
            reserved: 0,
            pinned: 0,
            excluded,
            free,
            read_only: false,
            on_seed: false,
            relocating: false,
            lesser: false,
            row: 0,
            changes: FreeSpaceChanges::default(),
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.length
    }

    pub(super) fn range(&self) -> LogicalRange {
        LogicalRange::of(self.start..self.end())
    }

    pub(super) fn describe(&self) -> NewBlockGroup {
        NewBlockGroup { range: self.range(), flags: self.flags, used: self.used, row: self.row }
    }

    pub(super) fn is_redundant(&self) -> bool {
        self.flags.intersects(REDUNDANT)
    }

    /// Returns whether allocations are made here.
    pub(super) fn serves(&self) -> bool {
        !self.read_only && !self.lesser
    }

    /// Returns whether it is empty, also as of the last commit.
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0 && self.reserved == 0 && self.pinned == 0
    }

    pub(super) fn footprint(&self) -> Footprint {
        let (used, reserved, pinned, free) = (self.used, self.reserved, self.pinned, self.free.bytes());
        debug_assert_eq!(used + reserved + pinned + free + self.excluded, self.length);
        let totals = SpaceTotals { total: self.length, used, reserved, pinned, free };
        Footprint { totals, class: self.free.longest().checked_ilog2().filter(|_| self.serves()) }
    }

    /// free -> reserved
    pub(super) fn reserve(&mut self, range: &Range<u64>) {
        self.free.remove(range);
        self.reserved += range.end - range.start;
    }

    /// reserved -> free
    pub(super) fn release(&mut self, range: Range<u64>) {
        self.take_reserved(&range);
        self.free.insert(range);
    }

    /// reserved -> used
    pub(super) fn insert_extent(&mut self, range: &Range<u64>) {
        self.take_reserved(range);
        self.used += range.end - range.start;
        self.changes.allocate(range);
    }

    /// reserved -> pinned
    pub(super) fn pin_reserved(&mut self, range: &Range<u64>) {
        self.take_reserved(range);
        self.pinned += range.end - range.start;
    }

    /// used -> pinned. Returns false if fewer bytes were in use or some of the range is free: a
    /// damaged extent tree may hold an extent twice, and it is then removed twice.
    pub(super) fn remove_extent(&mut self, range: &Range<u64>) -> bool {
        let length = range.end - range.start;
        if self.used < length || self.free.ranges().overlaps(range) {
            return false;
        }
        self.used -= length;
        self.pinned += length;
        self.changes.free(range);
        true
    }

    /// pinned -> free
    pub(super) fn unpin(&mut self, range: Range<u64>) {
        let length = range.end - range.start;
        assert!(self.pinned >= length, "{range:?}: only {} bytes of the block group are pinned", self.pinned);
        self.pinned -= length;
        self.free.insert(range);
    }

    /// Returns the state for a commit to write, and resets the changes.
    pub(super) fn take_update(&mut self) -> BlockGroupUpdate {
        let (range, used, flags) = (self.range(), self.used, self.flags);
        BlockGroupUpdate { range, used, flags, changes: std::mem::take(&mut self.changes) }
    }

    fn take_reserved(&mut self, range: &Range<u64>) {
        let length = range.end - range.start;
        assert!(
            self.reserved >= length && !self.free.ranges().overlaps(range),
            "{range:?} is not reserved: only {} bytes of the block group are",
            self.reserved
        );
        self.reserved -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(set: &RangeSet) -> Vec<(u64, u64)> {
        set.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn opposite_changes_cancel_out() {
        let mut changes = FreeSpaceChanges::default();
        changes.allocate(&(10..40));
        changes.free(&(20..30));
        assert_eq!(ranges(&changes.allocated), [(10, 20), (30, 40)]);
        assert!(changes.freed.is_empty());
        changes.free(&(0..15));
        assert_eq!(ranges(&changes.allocated), [(15, 20), (30, 40)]);
        assert_eq!(ranges(&changes.freed), [(0, 10)]);
        changes.allocate(&(5..15));
        assert_eq!(ranges(&changes.allocated), [(10, 20), (30, 40)]);
        assert_eq!(ranges(&changes.freed), [(0, 5)]);
        changes.free(&(10..20));
        changes.free(&(30..40));
        changes.allocate(&(0..5));
        assert!(changes.is_empty());
    }

    #[test]
    fn superblock_ranges_are_not_free() {
        let flags = BlockGroupFlags::DATA;
        let mut group = BlockGroup::new(&(100..200), flags, 30, [100..120, 150..200], &[90..105, 140..160]);
        assert_eq!(group.excluded, 15);
        assert_eq!(group.free.ranges().iter().collect::<Vec<_>>(), [105..120, 160..200]);
        group.reserve(&(160..170));
        group.insert_extent(&(160..170));
        assert!(!group.remove_extent(&(165..175)), "a part is free");
        assert!(group.remove_extent(&(160..170)));
        assert!(group.take_update().changes.is_empty());
        assert_eq!(group.footprint().totals.pinned, 10);
        group.unpin(160..170);
        assert_eq!(group.footprint().totals.free, 55);
    }

    #[test]
    #[should_panic(expected = "are not 100")]
    fn used_and_free_must_agree() {
        BlockGroup::new(&(100..200), BlockGroupFlags::DATA, 30, Some(100..171), &[]);
    }
}

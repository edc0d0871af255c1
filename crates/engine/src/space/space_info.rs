//! The block groups of one kind: their sums, their free space, and the reserved bytes.
//!
//! Owns [`SpaceInfo`] and the choice of a profile.
//!
//! **Invariants**
//! - `totals` and `available` are sums over the kind's block groups.
//! - `by_longest` holds each block group in service that has free space, once.
//!
//! **Locks**: none; [`super::Space`]'s lock protects it.
//!
//! Kernel counterparts: `struct btrfs_space_info` (`fs/btrfs/space-info.h`),
//! `btrfs_reduce_alloc_profile` (`fs/btrfs/block-group.c`).

use super::SpaceTotals;
use super::block_group::{BlockGroup, Footprint};
use super::chunk_allocation::devices_min;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use std::collections::{BTreeMap, BTreeSet};

/// Where the next allocations preferably start: separately for data and metadata of mixed block
/// groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursors {
    pub(super) data: Option<u64>,
    pub(super) metadata: Option<u64>,
}

/// The block groups of one kind.
#[derive(Debug, Default)]
pub(super) struct SpaceInfo {
    pub(super) totals: SpaceTotals,
    /// Free bytes of the block groups in service.
    pub(super) available: u64,
    /// Bytes of existing reservations.
    pub(super) promised: u64,
    pub(super) cursors: Cursors,
    /// Whether block groups without redundancy are out of service.
    pub(super) redundant: bool,
    /// The profile that all block groups are converted to. Those of others are out of service.
    pub(super) target: Option<BlockGroupFlags>,
    /// Number of block groups by flags.
    flags: BTreeMap<u64, usize>,
    /// (log2 of the longest free range, start). A search examines only block groups that may have
    /// enough space, those with the least first, so that the emptiest can be removed.
    by_longest: BTreeSet<(u32, u64)>,
}

impl SpaceInfo {
    /// Adds a block group.
    pub(super) fn add(&mut self, group: &BlockGroup) {
        *self.flags.entry(group.flags.bits()).or_default() += 1;
        let nothing = Footprint { totals: SpaceTotals::default(), class: None };
        self.change(group.start, &nothing, &group.footprint());
    }

    /// Removes a block group.
    pub(super) fn remove(&mut self, group: &BlockGroup) {
        let count = self.flags.get_mut(&group.flags.bits()).expect("the block group was added");
        *count -= 1;
        if *count == 0 {
            self.flags.remove(&group.flags.bits());
        }
        let nothing = Footprint { totals: SpaceTotals::default(), class: None };
        self.change(group.start, &group.footprint(), &nothing);
    }

    /// Updates the sums and the index after a change of a block group.
    pub(super) fn change(&mut self, start: u64, before: &Footprint, after: &Footprint) {
        let sum = |sum: u64, before: u64, after: u64| sum - before + after;
        let (totals, from, to) = (&mut self.totals, &before.totals, &after.totals);
        totals.total = sum(totals.total, from.total, to.total);
        totals.used = sum(totals.used, from.used, to.used);
        totals.reserved = sum(totals.reserved, from.reserved, to.reserved);
        totals.pinned = sum(totals.pinned, from.pinned, to.pinned);
        totals.free = sum(totals.free, from.free, to.free);
        // A block group without a class has no free space or is out of service.
        let available = |footprint: &Footprint| footprint.class.map_or(0, |_| footprint.totals.free);
        self.available = sum(self.available, available(before), available(after));
        if before.class != after.class {
            if let Some(class) = before.class {
                self.by_longest.remove(&(class, start));
            }
            if let Some(class) = after.class {
                self.by_longest.insert((class, start));
            }
        }
    }

    /// Iterates over the starts of block groups whose longest free range may be `length` or more,
    /// the shortest first.
    pub(super) fn with_space_for(&self, length: u64) -> impl Iterator<Item = u64> + '_ {
        self.by_longest.range((length.ilog2(), 0)..).map(|&(_, start)| start)
    }

    /// Iterates over the starts of block groups with the longest free ranges, within a factor of
    /// two.
    pub(super) fn with_longest_ranges(&self) -> impl Iterator<Item = u64> + '_ {
        let class = self.by_longest.last().map_or(0, |&(class, _)| class);
        self.by_longest.range((class, 0)..).map(|&(_, start)| start)
    }

    /// Returns whether a block group is out of service because of its profile.
    pub(super) fn is_lesser(&self, group: &BlockGroup) -> bool {
        match self.target {
            Some(target) => group.flags & BlockGroupFlags::PROFILE_MASK != target,
            None => self.redundant && !group.is_redundant(),
        }
    }

    /// Returns the profile for new allocations: the target of a conversion, else the most redundant
    /// one in use that `devices` devices can hold; single if there is none.
    pub(super) fn profile(&self, devices: usize) -> BlockGroupFlags {
        use RaidProfile::*;
        if let Some(target) = self.target {
            return target;
        }
        let there = self.flags.keys().fold(0, |all, flags| all | flags);
        let there = BlockGroupFlags::from_bits_retain(there);
        [Raid1c4, Raid6, Raid1c3, Raid5, Raid10, Raid1, Dup, Raid0]
            .into_iter()
            .find(|profile| there.contains(profile.flags()) && devices >= devices_min(*profile))
            .map_or(BlockGroupFlags::empty(), RaidProfile::flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(start: u64, flags: BlockGroupFlags, free: u64) -> BlockGroup {
        let ranges = (free > 0).then_some(start..start + free);
        BlockGroup::new(&(start..start + 1000), flags, 1000 - free, ranges, &[])
    }

    #[test]
    fn profile_is_the_most_redundant_that_fits_the_devices() {
        let mut info = SpaceInfo::default();
        let data = BlockGroupFlags::DATA;
        assert_eq!(info.profile(1), BlockGroupFlags::empty());
        info.add(&group(0, data, 10));
        assert_eq!(info.profile(9), BlockGroupFlags::empty());
        info.add(&group(1000, data | BlockGroupFlags::RAID0, 10));
        assert_eq!(info.profile(1), BlockGroupFlags::RAID0);
        let raid1 = group(2000, data | BlockGroupFlags::RAID1, 10);
        info.add(&raid1);
        assert_eq!(info.profile(1), BlockGroupFlags::RAID0);
        assert_eq!(info.profile(2), BlockGroupFlags::RAID1);
        assert_eq!(info.flags.get(&raid1.flags.bits()), Some(&1));
        info.remove(&raid1);
        assert_eq!(info.profile(2), BlockGroupFlags::RAID0);
        assert_eq!(info.flags.get(&raid1.flags.bits()), None);
    }

    #[test]
    fn search_skips_groups_that_are_too_small() {
        let mut info = SpaceInfo::default();
        for (start, free) in [(0, 900), (1000, 40), (2000, 0), (3000, 70)] {
            info.add(&group(start, BlockGroupFlags::DATA, free));
        }
        assert_eq!(info.with_space_for(1).collect::<Vec<_>>(), [1000, 3000, 0]);
        assert_eq!(info.with_space_for(100).collect::<Vec<_>>(), [3000, 0]);
        assert_eq!(info.with_space_for(128).collect::<Vec<_>>(), [0]);
        assert_eq!(info.with_longest_ranges().collect::<Vec<_>>(), [0]);
        assert_eq!(info.available, 1010);

        let mut full = group(0, BlockGroupFlags::DATA, 900);
        let before = full.footprint();
        full.read_only = true;
        info.change(0, &before, &full.footprint());
        assert_eq!(info.with_longest_ranges().collect::<Vec<_>>(), [3000]);
        assert_eq!((info.available, info.totals.free), (110, 1010));
    }
}

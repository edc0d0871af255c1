//! [`Space`] compared with a plain array of sectors, and its reservations.

mod service;

use super::*;
use crate::errors::Error;
use papilio_format::checksum::ChecksumType;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{Generation, Geometry, Uuid};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const SECTOR: u64 = 4096;
const NODE: u64 = 16384;

fn geometry(incompat: IncompatFeatures) -> Geometry {
    Geometry {
        node_size: NODE as u32,
        sector_size: SECTOR as u32,
        checksum_type: ChecksumType::Crc32c,
        incompat,
        compat_ro: CompatRoFeatures::empty(),
        metadata_uuid: Uuid::nil(),
        generation: Generation(1),
    }
}

fn space(mixed: bool) -> Arc<Space> {
    let incompat = if mixed { IncompatFeatures::MIXED_GROUPS } else { IncompatFeatures::empty() };
    Arc::new(Space::new(&geometry(incompat), 1))
}

fn range(start: u64, length: u64) -> LogicalRange {
    LogicalRange { start: LogicalAddress(start), length }
}

/// Adds an entirely free block group.
fn add(space: &Space, start: u64, length: u64, flags: BlockGroupFlags) {
    let new = NewBlockGroup { range: range(start, length), flags, used: 0, row: 0 };
    space.add_block_group(&new, Some(start..start + length), &[]);
}

fn is_full(result: crate::errors::Result<impl Sized>) -> bool {
    matches!(result.err(), Some(Error::NoSpace { .. }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sector {
    Free,
    Reserved,
    Used,
    Pinned,
    Frozen,
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { data: bool, min: u64, want: u64 },
    Release(usize),
    Insert(usize),
    Pin(usize),
    Remove(usize),
    Claim(u64, u64),
    Freeze,
    Unpin,
    Update,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..8u64, 0..8u64).prop_map(|(min, more)| Step::Allocate { data: true, min, want: min + more }),
        4 => Just(Step::Allocate { data: false, min: 1, want: 1 }),
        2 => any::<usize>().prop_map(Step::Release),
        5 => any::<usize>().prop_map(Step::Insert),
        1 => any::<usize>().prop_map(Step::Pin),
        4 => any::<usize>().prop_map(Step::Remove),
        1 => (0..160u64, 1..6u64).prop_map(|(at, length)| Step::Claim(at, length)),
        1 => Just(Step::Freeze),
        1 => Just(Step::Unpin),
        1 => Just(Step::Update),
    ]
}

/// The effect of the steps on an array of sectors.
struct Model {
    space: Arc<Space>,
    mixed: bool,
    sectors: Vec<Sector>,
    reserved: Vec<LogicalRange>,
    used: Vec<LogicalRange>,
    frozen: Option<Pinned>,
    /// Sectors that the free-space tree holds.
    tree: BTreeSet<u64>,
}

/// Data in sectors 0 to 80, metadata in 80 to 144, or both kinds in both. Steps use sectors up to
/// 160.
const GROUPS: [(u64, u64); 2] = [(0, 80), (80, 64)];

impl Model {
    fn new(mixed: bool) -> Self {
        let space = space(mixed);
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        for ((start, length), flags) in
            GROUPS.into_iter().zip([BlockGroupFlags::DATA, BlockGroupFlags::METADATA])
        {
            add(&space, start * SECTOR, length * SECTOR, if mixed { both } else { flags });
        }
        Self {
            space,
            mixed,
            sectors: vec![Sector::Free; 144],
            reserved: Vec::new(),
            used: Vec::new(),
            frozen: None,
            tree: (0..144).collect(),
        }
    }

    fn part(range: LogicalRange) -> std::ops::Range<usize> {
        (range.start.0 / SECTOR) as usize..(range.end().0 / SECTOR) as usize
    }

    fn set(&mut self, range: LogicalRange, from: Sector, to: Sector) {
        let part = &mut self.sectors[Self::part(range)];
        assert!(part.iter().all(|&sector| sector == from), "{range:?}: {part:?} should be {from:?}");
        part.fill(to);
    }

    /// Returns the sectors from which a kind may be allocated.
    fn groups(&self, data: bool) -> &'static [(u64, u64)] {
        if self.mixed {
            &GROUPS
        } else if data {
            &GROUPS[..1]
        } else {
            &GROUPS[1..]
        }
    }

    fn longest_free(&self, data: bool) -> u64 {
        let longest = |&(start, length): &(u64, u64)| {
            let sectors = &self.sectors[start as usize..(start + length) as usize];
            let runs = sectors.split(|&sector| sector != Sector::Free);
            runs.map(|run| run.len() as u64).max().unwrap_or(0)
        };
        self.groups(data).iter().map(longest).max().unwrap_or(0)
    }

    /// Returns whether a whole aligned node is free somewhere.
    fn node_free(&self) -> bool {
        let node = (NODE / SECTOR) as usize;
        let free = |at: usize| self.sectors[at..at + node].iter().all(|&sector| sector == Sector::Free);
        let group =
            |&(start, length): &(u64, u64)| (start..start + length).step_by(node).any(|at| free(at as usize));
        self.groups(false).iter().any(group)
    }

    fn allocate(&mut self, data: bool, min: u64, want: u64) {
        let kind = if data { SpaceKind::Data } else { SpaceKind::Metadata };
        let longest = self.longest_free(data);
        let result = self.space.allocate(kind, min * SECTOR, want * SECTOR);
        let possible = if data { longest >= min } else { self.node_free() };
        assert_eq!(result.is_ok(), possible, "{result:?}");
        let Ok(range) = result else { return };
        let expected = if data { longest.min(want) * SECTOR } else { NODE };
        assert_eq!(range.length, expected);
        let inside = |&(start, length): &(u64, u64)| {
            range.start.0 >= start * SECTOR && range.end().0 <= (start + length) * SECTOR
        };
        assert!(self.groups(data).iter().any(inside), "{range:?} lies in a block group of its kind");
        self.set(range, Sector::Free, Sector::Reserved);
        self.reserved.push(range);
    }

    fn step(&mut self, step: Step) {
        let take = |list: &mut Vec<LogicalRange>, index: usize| {
            (!list.is_empty()).then(|| list.swap_remove(index % list.len()))
        };
        match step {
            Step::Allocate { data, min, want } => self.allocate(data, min, want),
            Step::Release(index) => {
                let Some(range) = take(&mut self.reserved, index) else { return };
                self.space.release(range);
                self.set(range, Sector::Reserved, Sector::Free);
            }
            Step::Insert(index) => {
                let Some(range) = take(&mut self.reserved, index) else { return };
                self.space.extent_inserted(range);
                self.set(range, Sector::Reserved, Sector::Used);
                self.used.push(range);
            }
            Step::Pin(index) => {
                let Some(range) = take(&mut self.reserved, index) else { return };
                self.space.pin_reserved(range);
                self.set(range, Sector::Reserved, Sector::Pinned);
            }
            Step::Remove(index) => {
                let Some(range) = take(&mut self.used, index) else { return };
                self.space.extent_removed(range).unwrap();
                self.set(range, Sector::Used, Sector::Pinned);
                self.space.extent_removed(range).unwrap_err();
            }
            Step::Claim(at, length) => {
                let range = range(at * SECTOR, length * SECTOR);
                let in_group = GROUPS.iter().any(|&(start, size)| at >= start && at + length <= start + size);
                let free = in_group && self.sectors[Self::part(range)].iter().all(|&it| it == Sector::Free);
                assert_eq!(self.space.claim(range).is_ok(), free);
                if free {
                    self.set(range, Sector::Free, Sector::Reserved);
                    self.reserved.push(range);
                }
            }
            Step::Freeze if self.frozen.is_none() => {
                self.frozen = Some(self.space.take_pinned());
                self.replace(Sector::Pinned, Sector::Frozen);
            }
            Step::Unpin => {
                let Some(pinned) = self.frozen.take() else { return };
                self.space.unpin(pinned);
                self.replace(Sector::Frozen, Sector::Free);
            }
            Step::Freeze | Step::Update => self.update(),
        }
    }

    fn replace(&mut self, from: Sector, to: Sector) {
        self.sectors.iter_mut().filter(|sector| **sector == from).for_each(|sector| *sector = to);
    }

    /// Applies the changes to the tree's sectors, which must then be those without an extent item.
    fn update(&mut self) {
        for update in self.space.dirty_groups() {
            let sectors = |set: &RangeSet| -> Vec<u64> {
                set.iter().flat_map(|range| range.start / SECTOR..range.end / SECTOR).collect()
            };
            for sector in sectors(&update.changes.allocated) {
                assert!(self.tree.remove(&sector), "{sector} was free");
            }
            for sector in sectors(&update.changes.freed) {
                assert!(self.tree.insert(sector), "{sector} was in use");
            }
            let used =
                self.sectors[Self::part(update.range)].iter().filter(|&&it| it == Sector::Used).count();
            assert_eq!(update.used, used as u64 * SECTOR);
        }
        for (at, &sector) in self.sectors.iter().enumerate() {
            assert_eq!(self.tree.contains(&(at as u64)), sector != Sector::Used, "sector {at}");
        }
        assert!(self.space.dirty_groups().is_empty());
    }

    fn check(&self) {
        let count = |part: &[Sector], states: &[Sector]| {
            part.iter().filter(|sector| states.contains(sector)).count() as u64 * SECTOR
        };
        for (data, kind) in [(true, SpaceKind::Data), (false, SpaceKind::Metadata)] {
            let groups = self.groups(data).iter();
            let part: Vec<_> = groups
                .flat_map(|&(start, length)| &self.sectors[start as usize..(start + length) as usize])
                .copied()
                .collect();
            let expected = SpaceTotals {
                total: part.len() as u64 * SECTOR,
                used: count(&part, &[Sector::Used]),
                reserved: count(&part, &[Sector::Reserved]),
                pinned: count(&part, &[Sector::Pinned, Sector::Frozen]),
                free: count(&part, &[Sector::Free]),
            };
            assert_eq!(self.space.totals(kind), expected);
            assert_eq!(self.space.available(kind), expected.free);
        }
        assert_eq!(self.space.bytes_used(), count(&self.sectors, &[Sector::Used]));
    }
}

proptest! {
    #[test]
    fn every_byte_is_in_exactly_one_state(mixed: bool, steps in prop::collection::vec(any_step(), 1..150)) {
        let mut model = Model::new(mixed);
        for step in steps {
            model.step(step);
            model.check();
        }
        model.update();
    }

    #[test]
    fn reserved_bytes_can_be_allocated(
        asked in prop::collection::vec((1..12u64, any::<bool>(), 0..3u8), 1..60),
        reserve in 0..8u64,
        unallocated in 0..8u64,
    ) {
        let space = space(false);
        add(&space, 0, 24 * NODE, BlockGroupFlags::METADATA);
        space.set_global_reserve(reserve * NODE);
        space.set_unallocated(2 * unallocated * NODE, 2);
        let (mut held, mut next_chunk) = (Vec::new(), 0u64);
        let mut allocated = 0u64;
        for (nodes, emergency, what) in asked {
            let promised: u64 = held.iter().map(Reservation::bytes).sum::<u64>() / NODE;
            let spared = if emergency { 0 } else { reserve };
            let fits = allocated + promised + nodes + spared <= 24 + unallocated;
            let result = space.reserve_metadata(nodes * NODE, emergency);
            prop_assert_eq!(result.is_ok(), fits);
            let Ok(mut reservation) = result else { prop_assert!(is_full(result)); continue };
            if what == 0 {
                // Allocate everything reserved, creating chunks as needed.
                for _ in 0..nodes {
                    if is_full(space.allocate(SpaceKind::Metadata, NODE, NODE)) {
                        prop_assert!(next_chunk < unallocated);
                        prop_assert!(space.available(SpaceKind::Metadata) == 0);
                        next_chunk += 1;
                        add(&space, (1 << 30) + next_chunk * NODE, NODE, BlockGroupFlags::METADATA);
                        space.set_unallocated(2 * (unallocated - next_chunk) * NODE, 2);
                        space.allocate(SpaceKind::Metadata, NODE, NODE).unwrap();
                    }
                    reservation.spend(NODE);
                    allocated += 1;
                }
                prop_assert_eq!(reservation.bytes(), 0);
            } else if what == 1 {
                let part = reservation.split(NODE);
                prop_assert_eq!(part.bytes(), NODE);
                reservation.merge(part);
                prop_assert_eq!(reservation.bytes(), nodes * NODE);
                held.push(reservation);
            }
        }
        let promised: u64 = held.iter().map(Reservation::bytes).sum();
        let free = space.available(SpaceKind::Metadata);
        prop_assert_eq!(space.metadata_shortfall(), (promised + reserve * NODE).saturating_sub(free));
        held.clear();
        prop_assert_eq!(space.metadata_shortfall(), (reserve * NODE).saturating_sub(free));
    }
}

#[test]
fn allocations_of_a_kind_are_contiguous() {
    let space = space(false);
    add(&space, 0, 8 << 20, BlockGroupFlags::DATA);
    add(&space, 16 << 20, 8 << 20, BlockGroupFlags::METADATA);
    add(&space, 32 << 20, 8 << 20, BlockGroupFlags::SYSTEM);
    let (mut data, mut node) = (0, 16 << 20);
    for step in 1..100u64 {
        let length = step % 7 * SECTOR + SECTOR;
        assert_eq!(space.allocate(SpaceKind::Data, SECTOR, length).unwrap(), range(data, length));
        assert_eq!(space.allocate(SpaceKind::Metadata, NODE, NODE).unwrap(), range(node, NODE));
        (data, node) = (data + length, node + NODE);
    }
    assert_eq!(space.allocate(SpaceKind::System, NODE, NODE).unwrap(), range(32 << 20, NODE));
    // A hole of the right size is not used while a longer run continues at the cursor.
    space.release(range(0, 2 * SECTOR));
    assert_eq!(space.allocate(SpaceKind::Data, SECTOR, 2 * SECTOR).unwrap().start.0, data);
}

#[test]
fn fuller_groups_are_used_first() {
    let space = space(false);
    add(&space, 0, 64 << 20, BlockGroupFlags::DATA);
    add(&space, 64 << 20, 8 << 20, BlockGroupFlags::DATA);
    assert_eq!(space.allocate(SpaceKind::Data, SECTOR, SECTOR).unwrap().start.0, 64 << 20);
    assert_eq!(space.empty_groups().iter().map(|group| group.range.start.0).collect::<Vec<_>>(), [0]);
}

#[test]
fn read_only_groups_are_not_used_and_can_be_removed() {
    let space = space(false);
    let (first, second) = (LogicalAddress(0), LogicalAddress(1 << 20));
    add(&space, first.0, 1 << 20, BlockGroupFlags::DATA);
    add(&space, second.0, 1 << 20, BlockGroupFlags::DATA);
    let promise = space.reserve_data(1 << 20).unwrap();
    assert!(is_full(space.reserve_data((1 << 20) + 1)));
    assert!(space.mark_empty_read_only(first));
    assert!(!space.mark_empty_read_only(second), "the reservation would no longer fit");
    assert!(is_full(space.reserve_data(1)));
    assert_eq!(space.allocate(SpaceKind::Data, 1 << 20, 1 << 20).unwrap().start, second);
    assert!(is_full(space.allocate(SpaceKind::Data, SECTOR, SECTOR)));
    drop(promise);
    assert!(space.empty_groups().is_empty(), "one is already read-only, the other in use");
    space.remove_block_group(first);
    assert_eq!(space.totals(SpaceKind::Data).total, 1 << 20);
    assert!(space.block_group_of(first).is_none());
    assert_eq!(space.block_group_of(second).unwrap().range, range(1 << 20, 1 << 20));
}

/// The ranges that a trim would discard.
#[test]
fn free_ranges_are_passed_one_by_one() {
    let space = space(false);
    add(&space, 1 << 20, 1 << 20, BlockGroupFlags::DATA);
    add(&space, 4 << 20, 1 << 20, BlockGroupFlags::DATA);
    // Free: four sectors, one sector, the rest of the first group, and all of the second.
    let used = space.allocate(SpaceKind::Data, 16 * SECTOR, 16 * SECTOR).unwrap();
    space.release(range(used.start.0, 4 * SECTOR));
    space.release(range(used.start.0 + 8 * SECTOR, SECTOR));
    let passed = |within: std::ops::Range<u64>, min: u64, max: u64| {
        let (mut found, mut at) = (Vec::new(), within.start);
        while let Some(next) = space
            .with_free(at..within.end, min, max, |free| {
                found.push((free.start.0, free.length));
                Ok::<_, ()>(())
            })
            .unwrap()
        {
            assert!(next > at);
            at = next;
        }
        found
    };
    let start = used.start.0;
    let end = start + (1 << 20);
    let (small, one, rest) =
        ((start, 4 * SECTOR), (start + 8 * SECTOR, SECTOR), (start + 16 * SECTOR, end - start - 16 * SECTOR));
    let other = (4 << 20, 1 << 20);
    assert_eq!(passed(0..u64::MAX, 1, u64::MAX), [small, one, rest, other]);
    assert_eq!(passed(0..u64::MAX, 4 * SECTOR, u64::MAX), [small, rest, other]);
    assert_eq!(passed(0..u64::MAX, 4 * SECTOR + 1, u64::MAX), [rest, other]);
    assert_eq!(passed(0..u64::MAX, 1 << 20, u64::MAX), [other]);
    // Within a range, and at most so many bytes at once.
    assert_eq!(passed(start + SECTOR..start + 9 * SECTOR, 1, u64::MAX), [(start + SECTOR, 3 * SECTOR), one]);
    let halves = [other.0, other.0 + (1 << 19)].map(|at| (at, 1 << 19));
    assert_eq!(passed(4 << 20..5 << 20, 1, 1 << 19), halves);
    assert!(passed(2 << 20..4 << 20, 1, u64::MAX).is_empty());
    // The next run begins where the range ends.
    assert!(passed(start + 4 * SECTOR..start + 8 * SECTOR, 1, u64::MAX).is_empty());
    let error = space.with_free(0..u64::MAX, 1, 1, |_| Err("busy"));
    assert_eq!(error, Err("busy"));
}

#[test]
fn lesser_profiles_serve_only_without_a_redundant_one() {
    let space = space(false);
    let metadata = BlockGroupFlags::METADATA;
    add(&space, 0, 1 << 20, metadata);
    assert_eq!(space.chunk_flags(SpaceKind::Metadata), metadata);
    assert_eq!(space.allocate(SpaceKind::Metadata, NODE, NODE).unwrap().start.0, 0);
    add(&space, 1 << 20, NODE, metadata | BlockGroupFlags::DUP);
    assert_eq!(space.chunk_flags(SpaceKind::Metadata), metadata | BlockGroupFlags::DUP);
    assert_eq!(space.available(SpaceKind::Metadata), NODE);
    assert_eq!(space.allocate(SpaceKind::Metadata, NODE, NODE).unwrap().start.0, 1 << 20);
    assert!(is_full(space.allocate(SpaceKind::Metadata, NODE, NODE)));
    space.release(range(1 << 20, NODE));
    assert!(space.mark_empty_read_only(LogicalAddress(1 << 20)));
    space.remove_block_group(LogicalAddress(1 << 20));
    assert_eq!(space.allocate(SpaceKind::Metadata, NODE, NODE).unwrap().start.0, NODE);
}

#[test]
fn damage_is_an_error() {
    let space = space(false);
    add(&space, 0, 1 << 20, BlockGroupFlags::DATA);
    let used = space.allocate(SpaceKind::Data, SECTOR, 4 * SECTOR).unwrap();
    space.extent_inserted(used);
    for wrong in [
        range(1 << 20, SECTOR),
        range((1 << 20) - SECTOR, 2 * SECTOR),
        range(u64::MAX - 1, SECTOR),
        range(SECTOR, 4 * SECTOR),
        range(8 * SECTOR, SECTOR),
        range(0, 0),
    ] {
        assert!(matches!(space.extent_removed(wrong), Err(Error::Item { .. })), "{wrong:?}");
        assert!(matches!(space.claim(wrong), Err(Error::Item { .. })) || wrong == range(8 * SECTOR, SECTOR));
    }
    space.extent_removed(range(0, 2 * SECTOR)).unwrap();
    assert!(space.extent_removed(range(SECTOR, 2 * SECTOR)).is_err(), "a part has already been removed");
    assert_eq!(space.bytes_used(), 2 * SECTOR);
}

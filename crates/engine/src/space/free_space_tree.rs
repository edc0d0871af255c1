//! Editing the free-space tree: the parts of each block group without an extent item.
//!
//! Owns [`apply`], [`create`] and [`delete`]. Each first plans all item changes of a block group
//! and checks them against the existing items. Then it makes them in one pass in key order. So a
//! contradiction is found before anything changes.
//!
//! **Invariants**
//! - The ranges of a block group are all extents or all bitmaps, as its info item says, and the
//!   info counts the free ranges.
//! - Adjacent ranges are merged, and bitmaps cover the whole block group.
//! - Superblock locations count as free here.
//!
//! **Locks**: only the editor's.
//!
//! Kernel counterpart: `fs/btrfs/free-space-tree.c`, including the thresholds between the two
//! forms.

use super::block_group::FreeSpaceChanges;
use super::range_set::RangeSet;
use super::{LogicalRange, free_space_items};
use crate::btree::{Change, Cursor, Tree, TreeEditor};
use crate::errors::{Error, Result};
use free_space_items::{item_error, sectors_of};
use papilio_format::items::bitmap::{BitRun, set_run};
use papilio_format::items::free_space::{BITMAP_SECTORS, FreeSpaceBitmap, FreeSpaceFlags, FreeSpaceInfo};
use papilio_format::{Geometry, ItemType, Key};
use std::collections::BTreeMap;
use std::ops::Range;

/// Applies the changes of one block group since the last call to the tree.
///
/// # Errors
/// Fails on an unreadable block; [`Error::MissingItem`] or [`Error::Item`] if the tree contradicts
/// the changes (nothing has changed then); the errors of [`TreeEditor::apply`].
pub(crate) fn apply(
    editor: &mut TreeEditor<'_>,
    group: LogicalRange,
    changes: &FreeSpaceChanges,
) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let planned = {
        let tree = editor.tree();
        let plan = Plan::new(&tree, editor.geometry(), group, changes)?;
        if plan.info.flags.contains(FreeSpaceFlags::USING_BITMAPS) {
            plan.change_bitmaps()?
        } else {
            plan.change_extents()?
        }
    };
    editor.apply(&planned)
}

/// Adds a block group with the free ranges `free`. Removes items that an older block group at the
/// same address left behind (mkfs.btrfs before 6.3 leaves some).
///
/// # Errors
/// The errors of [`TreeEditor::apply`].
pub(crate) fn create(editor: &mut TreeEditor<'_>, group: LogicalRange, free: &RangeSet) -> Result<()> {
    delete(editor, group)?;
    let sector_size = u64::from(editor.geometry().sector_size);
    let mut info = FreeSpaceInfo { extent_count: free.len() as u32, flags: FreeSpaceFlags::empty() };
    let mut changes = Vec::new();
    if u64::from(info.extent_count) > Thresholds::of(group.length, sector_size).high {
        info.flags = FreeSpaceFlags::USING_BITMAPS;
        changes.extend(bitmaps_of(group, free, sector_size));
    } else {
        changes.extend(free.iter().map(|range| put_extent(&range)));
    }
    changes.push(put_info(group, &info));
    changes.sort_by_key(Change::key);
    editor.apply(&changes)
}

/// Removes a block group.
///
/// # Errors
/// The errors of [`TreeEditor::remove_range`].
pub(crate) fn delete(editor: &mut TreeEditor<'_>, group: LogicalRange) -> Result<()> {
    editor.remove_range(free_space_items::keys(group)).map(drop)
}

/// Numbers of free ranges at which the form changes (`set_free_space_tree_thresholds`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thresholds {
    /// With more ranges, bitmaps are used: extents would take more space.
    high: u64,
    /// With fewer ranges, extents are used.
    low: u64,
}

impl Thresholds {
    fn of(length: u64, sector_size: u64) -> Self {
        /// Size of an item header in a leaf in bytes.
        const ITEM_HEADER: u64 = 25;
        let bitmaps = length.div_ceil(sector_size * BITMAP_SECTORS);
        let high = bitmaps * (ITEM_HEADER + BITMAP_SECTORS / 8) / ITEM_HEADER;
        Self { high, low: high.saturating_sub(100) }
    }
}

fn extent_key(range: &Range<u64>) -> Key {
    Key::new(range.start, ItemType::FREE_SPACE_EXTENT, range.end - range.start)
}

fn put_extent(range: &Range<u64>) -> Change {
    Change::Put { key: extent_key(range), data: Vec::new() }
}

fn put_info(group: LogicalRange, info: &FreeSpaceInfo) -> Change {
    Change::Put { key: free_space_items::info_key(group), data: info.to_bytes().to_vec() }
}

/// Returns the bitmaps of a whole block group.
fn bitmaps_of(group: LogicalRange, free: &RangeSet, sector_size: u64) -> impl Iterator<Item = Change> {
    let span = (sector_size * BITMAP_SECTORS) as usize;
    let bytes = group.bytes();
    bytes.clone().step_by(span).map(move |start| {
        let end = (start + span as u64).min(bytes.end);
        let mut runs = Vec::new();
        let mut at = start;
        while at < end
            && let Some(found) = free.first_behind(at).filter(|found| found.start < end)
        {
            let piece = found.start.max(at)..found.end.min(end);
            runs.push(sectors_of(&piece, start, sector_size));
            at = piece.end;
        }
        let data = FreeSpaceBitmap::encode((end - start) / sector_size, runs);
        Change::Put { key: Key::new(start, ItemType::FREE_SPACE_BITMAP, end - start), data }
    })
}

/// The inputs for planning the item changes of one block group.
struct Plan<'a> {
    tree: &'a Tree,
    geometry: &'a Geometry,
    group: LogicalRange,
    changes: &'a FreeSpaceChanges,
    info: FreeSpaceInfo,
    sector_size: u64,
    thresholds: Thresholds,
}

impl<'a> Plan<'a> {
    fn new(
        tree: &'a Tree,
        geometry: &'a Geometry,
        group: LogicalRange,
        changes: &'a FreeSpaceChanges,
    ) -> Result<Self> {
        let Some(info) = free_space_items::read_info(tree, group, geometry)? else {
            let what = "free space of a block group";
            return Err(Error::MissingItem { tree: tree.id(), key: free_space_items::info_key(group), what });
        };
        let sector_size = u64::from(geometry.sector_size);
        let thresholds = Thresholds::of(group.length, sector_size);
        for range in changes.allocated.iter().chain(changes.freed.iter()) {
            let inside = group.start.0 <= range.start && range.end <= group.end().0;
            assert!(inside, "{range:?} lies outside the block group {group:?}");
            assert!(
                (range.start - group.start.0).is_multiple_of(sector_size),
                "{range:?} is not a multiple of whole sectors"
            );
            assert!(
                (range.end - range.start).is_multiple_of(sector_size),
                "{range:?} is not a multiple of whole sectors"
            );
        }
        Ok(Self { tree, geometry, group, changes, info, sector_size, thresholds })
    }

    fn contradiction(&self, range: &Range<u64>, why: &'static str) -> Error {
        item_error(extent_key(range), "free space", range.start, why)
    }

    /// Applies the changes to a set of free ranges.
    fn change_set(&self, set: &mut RangeSet) -> Result<()> {
        for range in self.changes.allocated.iter() {
            if set.holder(&range).is_none() {
                return Err(self.contradiction(&range, "allocated in the extent tree, but not free here"));
            }
            set.remove(&range);
        }
        for range in self.changes.freed.iter() {
            if set.overlaps(&range) {
                return Err(self.contradiction(&range, "freed in the extent tree, but already free here"));
            }
            set.insert(range);
        }
        Ok(())
    }

    /// Plans the changes for extents.
    fn change_extents(self) -> Result<Vec<Change>> {
        let old = self.touched_extents()?;
        let mut set = RangeSet::default();
        for (&start, &end) in &old {
            if set.overlaps(&(start..end)) {
                return Err(self.contradiction(&(start..end), "overlaps another free range"));
            }
            set.insert(start..end);
        }
        self.change_set(&mut set)?;
        let Some(others) = u64::from(self.info.extent_count).checked_sub(old.len() as u64) else {
            return Err(self.wrong_count());
        };
        let count = others + set.len() as u64;
        if count > self.thresholds.high {
            return self.convert_to_bitmaps();
        }
        let mut planned = Vec::new();
        let gone = old.iter().filter(|&(&start, &end)| set.holder(&(start..end)) != Some(start..end));
        planned.extend(gone.map(|(&start, &end)| Change::Remove { key: extent_key(&(start..end)) }));
        let new = set.iter().filter(|range| old.get(&range.start) != Some(&range.end));
        planned.extend(new.map(|range| put_extent(&range)));
        self.finish(planned, count)
    }

    /// Returns the extents that the changes overlap or touch: start to end.
    fn touched_extents(&self) -> Result<BTreeMap<u64, u64>> {
        let mut found = BTreeMap::new();
        let mut cursor = Cursor::new(self.tree);
        for range in self.changes.allocated.iter().chain(self.changes.freed.iter()) {
            let (first, last) = (range.start, range.end.min(self.group.end().0 - 1));
            cursor.seek(&Key::new(first, ItemType::FREE_SPACE_EXTENT, 0))?;
            // The previous extent may reach up to here; the following ones start here or later.
            cursor.step_back()?;
            loop {
                if let Some(key) = cursor.key().filter(|key| key.objectid >= self.group.start.0) {
                    if key.objectid > last {
                        break;
                    }
                    self.take_extent(&key, &mut found)?;
                }
                cursor.step()?;
                if cursor.key().is_none() {
                    break;
                }
            }
        }
        Ok(found)
    }

    fn take_extent(&self, key: &Key, found: &mut BTreeMap<u64, u64>) -> Result<()> {
        match key.item_type {
            ItemType::FREE_SPACE_INFO if *key == free_space_items::info_key(self.group) => Ok(()),
            ItemType::FREE_SPACE_EXTENT => {
                found.insert(key.objectid, free_space_items::end_in(key, self.group)?);
                Ok(())
            }
            _ => Err(free_space_items::misplaced(*key)),
        }
    }

    fn convert_to_bitmaps(mut self) -> Result<Vec<Change>> {
        let (mut set, keys) = self.read_whole()?;
        self.change_set(&mut set)?;
        let mut planned: Vec<_> = keys.into_iter().map(|key| Change::Remove { key }).collect();
        planned.extend(bitmaps_of(self.group, &set, self.sector_size));
        self.info.flags.insert(FreeSpaceFlags::USING_BITMAPS);
        self.finish(planned, set.len() as u64)
    }

    fn convert_to_extents(mut self) -> Result<Vec<Change>> {
        let (mut set, keys) = self.read_whole()?;
        self.change_set(&mut set)?;
        let mut planned: Vec<_> = keys.into_iter().map(|key| Change::Remove { key }).collect();
        planned.extend(set.iter().map(|range| put_extent(&range)));
        self.info.flags.remove(FreeSpaceFlags::USING_BITMAPS);
        self.finish(planned, set.len() as u64)
    }

    /// Returns all free ranges before the changes, and the keys of their items.
    fn read_whole(&self) -> Result<(RangeSet, Vec<Key>)> {
        let read = free_space_items::read_ranges(self.tree, self.group, &self.info, self.geometry)?;
        Ok((read.free, read.keys))
    }

    /// Plans the changes for bitmaps.
    fn change_bitmaps(self) -> Result<Vec<Change>> {
        let mut bitmaps = Bitmaps { plan: &self, loaded: BTreeMap::new() };
        let mut count = u64::from(self.info.extent_count);
        for (set, free) in [(&self.changes.allocated, false), (&self.changes.freed, true)] {
            for range in set.iter() {
                let neighbours = bitmaps.neighbours(&range)?;
                bitmaps.set(&range, free)?;
                // Removing a run leaves its free neighbours as separate runs; adding one merges
                // with them.
                let changed = if free {
                    (count + 1).checked_sub(neighbours)
                } else {
                    (count + neighbours).checked_sub(1)
                };
                count = changed.ok_or_else(|| self.wrong_count())?;
            }
        }
        if count < self.thresholds.low {
            return self.convert_to_extents();
        }
        let put = |bitmap: LoadedBitmap| Change::Put { key: bitmap.key, data: bitmap.bits };
        let planned = bitmaps.loaded.into_values().filter(|bitmap| bitmap.changed).map(put).collect();
        self.finish(planned, count)
    }

    fn wrong_count(&self) -> Error {
        let key = free_space_items::info_key(self.group);
        item_error(key, "free space info", self.info.extent_count.into(), "not the number of free ranges")
    }

    fn finish(&self, mut planned: Vec<Change>, count: u64) -> Result<Vec<Change>> {
        // The count is at most the number of sectors; a block group with 2^32 sectors has 16 TiB.
        let extent_count = u32::try_from(count).map_err(|_| self.wrong_count())?;
        planned.push(put_info(self.group, &FreeSpaceInfo { extent_count, ..self.info }));
        planned.sort_by_key(Change::key);
        Ok(planned)
    }
}

struct LoadedBitmap {
    key: Key,
    bits: Vec<u8>,
    changed: bool,
}

/// The bitmaps that the changes touch.
struct Bitmaps<'a> {
    plan: &'a Plan<'a>,
    loaded: BTreeMap<u64, LoadedBitmap>,
}

impl Bitmaps<'_> {
    /// Returns the bitmap that covers an address of the block group.
    fn at(&mut self, address: u64) -> Result<&mut LoadedBitmap> {
        let covers = |key: &Key| key.objectid <= address && address - key.objectid < key.offset;
        let known = self.loaded.range(..=address).next_back();
        let start = match known.filter(|(_, bitmap)| covers(&bitmap.key)) {
            Some((&start, _)) => start,
            None => {
                let bitmap = self.load(address)?;
                let key = bitmap.key;
                if !covers(&key) {
                    return Err(item_error(
                        key,
                        "free space bitmap",
                        address,
                        "does not reach up to the next bitmap",
                    ));
                }
                self.loaded.insert(key.objectid, bitmap);
                key.objectid
            }
        };
        Ok(self.loaded.get_mut(&start).expect("found or inserted above"))
    }

    fn load(&self, address: u64) -> Result<LoadedBitmap> {
        let (tree, group) = (self.plan.tree, self.plan.group);
        let missing = || {
            let key = Key::new(address, ItemType::FREE_SPACE_BITMAP, 0);
            Error::MissingItem { tree: tree.id(), key, what: "free space bitmap" }
        };
        let last = Key::new(address, ItemType(u8::MAX), u64::MAX);
        let item = tree.last_up_to(&last)?.ok_or_else(missing)?;
        if item.key.objectid < group.start.0 || item.key.item_type == ItemType::FREE_SPACE_INFO {
            return Err(missing());
        }
        if item.key.item_type != ItemType::FREE_SPACE_BITMAP {
            return Err(free_space_items::misplaced(item.key));
        }
        free_space_items::end_in(&item.key, group)?;
        let bitmap = FreeSpaceBitmap::parse(&item.key, item.data(), self.plan.geometry)
            .map_err(|reason| Error::Item { tree: tree.id(), key: item.key, reason })?;
        Ok(LoadedBitmap { key: item.key, bits: bitmap.to_bytes().to_vec(), changed: false })
    }

    /// Returns how many of the two sectors adjacent to a range are free.
    fn neighbours(&mut self, range: &Range<u64>) -> Result<u64> {
        let (group, sector_size) = (self.plan.group.bytes(), self.plan.sector_size);
        let mut count = 0;
        if range.start > group.start {
            count += u64::from(self.is_free(range.start - sector_size)?);
        }
        if range.end < group.end {
            count += u64::from(self.is_free(range.end)?);
        }
        Ok(count)
    }

    fn is_free(&mut self, address: u64) -> Result<bool> {
        let sector_size = self.plan.sector_size;
        let bitmap = self.at(address)?;
        let bit = (address - bitmap.key.objectid) / sector_size;
        Ok(bitmap.bits[(bit / 8) as usize] >> (bit % 8) & 1 == 1)
    }

    /// Sets or clears the bits of a range; fails unless all have the opposite value.
    fn set(&mut self, range: &Range<u64>, free: bool) -> Result<()> {
        let (plan, mut at) = (self.plan, range.start);
        while at < range.end {
            let bitmap = self.at(at)?;
            let piece = at..range.end.min(bitmap.key.objectid + bitmap.key.offset);
            let run = sectors_of(&piece, bitmap.key.objectid, plan.sector_size);
            if !is_uniform(&bitmap.bits, run, !free) {
                let why = if free {
                    "freed in the extent tree, but already free here"
                } else {
                    "allocated in the extent tree, but not free here"
                };
                return Err(plan.contradiction(&piece, why));
            }
            set_run(&mut bitmap.bits, run, free);
            bitmap.changed = true;
            at = piece.end;
        }
        Ok(())
    }
}

/// Returns whether all bits of a run equal `set`.
fn is_uniform(bytes: &[u8], run: BitRun, set: bool) -> bool {
    let (mut bit, end) = (run.start, run.start + run.length);
    while bit < end {
        let count = (8 - bit % 8).min(end - bit);
        let mask = ((0xffu16 >> (8 - count)) << (bit % 8)) as u8;
        if bytes[(bit / 8) as usize] & mask != if set { mask } else { 0 } {
            return false;
        }
        bit += count;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::free_space_items::{read_info, read_ranges};
    use super::*;
    use crate::btree::LiveTree;
    use crate::btree::testing::TestForest;
    use papilio_format::{LogicalAddress, objectid};
    use proptest::prelude::*;

    const SECTOR: u64 = 4096;

    /// Applies the insertion of an extent item for a range.
    fn allocate_range(editor: &mut TreeEditor<'_>, group: LogicalRange, range: LogicalRange) -> Result<()> {
        let mut changes = FreeSpaceChanges::default();
        changes.allocated.cover(&range.bytes());
        apply(editor, group, &changes)
    }

    /// Applies the removal of a range's extent item.
    fn free_range(editor: &mut TreeEditor<'_>, group: LogicalRange, range: LogicalRange) -> Result<()> {
        let mut changes = FreeSpaceChanges::default();
        changes.freed.cover(&range.bytes());
        apply(editor, group, &changes)
    }

    /// A block group's sectors, tracked independently of the tree.
    struct Model {
        group: LogicalRange,
        free: Vec<bool>,
        bitmaps: bool,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Flip ranges to the other state, all in one batch.
        Toggle(Vec<(u64, u64)>),
        /// Free, or allocate, all of a range except every n-th sector.
        Comb { start: u64, length: u64, tooth: u64, free: bool },
        /// Free, or allocate, all of a range.
        Fill { start: u64, length: u64, free: bool },
        /// A single range, through the functions for one range.
        Single { start: u64, length: u64 },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let at = || 0..1_000_000u64;
        let ranges = prop::collection::vec((at(), 1..40u64), 1..12);
        prop_oneof![
            4 => ranges.prop_map(Step::Toggle),
            2 => (at(), 1..2500u64, 2..5u64, any::<bool>())
                .prop_map(|(start, length, tooth, free)| Step::Comb { start, length, tooth, free }),
            3 => (at(), 1..40_000u64, any::<bool>())
                .prop_map(|(start, length, free)| Step::Fill { start, length, free }),
            2 => (at(), 1..2100u64).prop_map(|(start, length)| Step::Single { start, length }),
        ]
    }

    impl Model {
        fn new(start: u64, sectors: u64, free: Vec<bool>) -> Self {
            let group = LogicalRange { start: LogicalAddress(start), length: sectors * SECTOR };
            let mut model = Self { group, free, bitmaps: false };
            model.bitmaps = model.runs().len() as u64 > Thresholds::of(group.length, SECTOR).high;
            model
        }

        fn runs(&self) -> RangeSet {
            let mut runs = RangeSet::default();
            let mut at = 0;
            for run in self.free.chunk_by(|one, other| one == other) {
                let end = at + run.len() as u64;
                if run[0] {
                    runs.insert(self.range(at, end));
                }
                at = end;
            }
            runs
        }

        fn range(&self, first: u64, end: u64) -> Range<u64> {
            self.group.start.0 + first * SECTOR..self.group.start.0 + end * SECTOR
        }

        /// Returns the changes that turn the model into `wanted`, and applies them to it.
        fn change_to(&mut self, wanted: &[bool]) -> FreeSpaceChanges {
            let mut changes = FreeSpaceChanges::default();
            for (sector, &free) in
                wanted.iter().enumerate().filter(|&(sector, &free)| free != self.free[sector])
            {
                let range = self.range(sector as u64, sector as u64 + 1);
                if free { changes.free(&range) } else { changes.allocate(&range) }
            }
            self.free.copy_from_slice(wanted);
            let (count, thresholds) = (self.runs().len() as u64, Thresholds::of(self.group.length, SECTOR));
            if !changes.is_empty() {
                self.bitmaps = if self.bitmaps { count >= thresholds.low } else { count > thresholds.high };
            }
            changes
        }

        fn step(&mut self, tree: &LiveTree, forest: &TestForest, step: &Step) {
            let sectors = self.free.len() as u64;
            let part = |start: u64, length: u64| {
                (start % sectors) as usize..(start % sectors + length).min(sectors) as usize
            };
            let mut wanted = self.free.clone();
            match *step {
                Step::Toggle(ref ranges) => ranges.iter().for_each(|&(start, length)| {
                    wanted[part(start, length)].iter_mut().for_each(|free| *free = !*free);
                }),
                Step::Comb { start, length, tooth, free } => {
                    for (index, sector) in wanted[part(start, length)].iter_mut().enumerate() {
                        *sector = (index as u64).is_multiple_of(tooth) != free;
                    }
                }
                Step::Fill { start, length, free } => wanted[part(start, length)].fill(free),
                Step::Single { start, length } => {
                    // While the sectors have the same state.
                    let part = part(start, length);
                    let free = self.free[part.start];
                    let same = self.free[part.clone()].iter().take_while(|other| **other == free).count();
                    wanted[part.start..part.start + same].fill(!free);
                    self.change_to(&wanted);
                    let range = LogicalRange::of(self.range(part.start as u64, (part.start + same) as u64));
                    let change = if free { allocate_range } else { free_range };
                    return change(&mut tree.edit(&forest.allocator), self.group, range).unwrap();
                }
            }
            let changes = self.change_to(&wanted);
            apply(&mut tree.edit(&forest.allocator), self.group, &changes).unwrap();
        }

        /// Checks that the tree's items are exactly those of the model.
        fn check(&self, tree: &Tree, geometry: &Geometry) {
            let info = read_info(tree, self.group, geometry).unwrap().expect("there is an info item");
            let runs = self.runs();
            assert_eq!(u64::from(info.extent_count), runs.len() as u64);
            assert_eq!(info.flags.contains(FreeSpaceFlags::USING_BITMAPS), self.bitmaps);
            let read = read_ranges(tree, self.group, &info, geometry).unwrap();
            assert_eq!(read.free, runs);
            let bitmaps = self.group.length.div_ceil(SECTOR * BITMAP_SECTORS);
            assert_eq!(read.keys.len() as u64, if self.bitmaps { bitmaps } else { runs.len() as u64 });
        }
    }

    fn geometry() -> (TestForest, Geometry) {
        let forest = TestForest::new(4096);
        let geometry = forest.volume.geometry();
        assert_eq!(u64::from(geometry.sector_size), SECTOR);
        (forest, geometry)
    }

    /// Tiny; one bitmap and a bit; several bitmaps of which the last is shorter; and one so large
    /// that bitmaps turn back into extents before the last range is gone.
    const LENGTHS: [u64; 5] = [1, 37, 2049, 3 * 2048 + 77, 20 * 2048 + 1];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn the_tree_matches_a_plain_array(
            which in prop::collection::vec((0..LENGTHS.len(), any::<bool>()), 1..4),
            steps in prop::collection::vec((any::<prop::sample::Index>(), any_step()), 1..25),
        ) {
            let (forest, geometry) = geometry();
            let tree = forest.live_tree(objectid::FREE_SPACE_TREE);
            let mut models: Vec<Model> = Vec::new();
            for (index, comb) in which {
                // Adjacent block groups.
                let start = models.last().map_or(1 << 20, |model| model.group.end().0);
                let free = (0..LENGTHS[index]).map(|sector| !comb || sector % 2 == 1).collect();
                let model = Model::new(start, LENGTHS[index], free);
                create(&mut tree.edit(&forest.allocator), model.group, &model.runs()).unwrap();
                models.push(model);
            }
            models.iter().for_each(|model| model.check(&tree.tree(), &geometry));
            for (index, step) in steps {
                index.get_mut(&mut models).step(&tree, &forest, &step);
                models.iter().for_each(|model| model.check(&tree.tree(), &geometry));
            }
            for gone in (0..models.len()).rev() {
                delete(&mut tree.edit(&forest.allocator), models.remove(gone).group).unwrap();
                models.iter().for_each(|model| model.check(&tree.tree(), &geometry));
            }
            prop_assert_eq!(tree.tree().items().count(), 0);
        }
    }

    #[test]
    fn thresholds_match_the_kernel() {
        let of = |length| Thresholds::of(length, SECTOR);
        assert_eq!(of(1 << 30), Thresholds { high: 128 * 281 / 25, low: 128 * 281 / 25 - 100 });
        assert_eq!(of(8 << 20), Thresholds { high: 11, low: 0 });
        assert_eq!(of((8 << 20) + SECTOR), Thresholds { high: 22, low: 0 });
    }

    #[test]
    fn forms_convert_in_both_directions() {
        let (forest, geometry) = geometry();
        let tree = forest.live_tree(objectid::FREE_SPACE_TREE);
        let mut model = Model::new(1 << 20, 20 * 2048 + 1, vec![true; 20 * 2048 + 1]);
        create(&mut tree.edit(&forest.allocator), model.group, &model.runs()).unwrap();
        let Thresholds { high, low } = Thresholds::of(model.group.length, SECTOR);
        let sectors = model.free.len() as u64;
        let mut seen = vec![model.bitmaps];
        // Add holes far apart, one by one; then remove them from the end.
        let holes: Vec<u64> = (1..high + 3).map(|hole| hole * (sectors / (high + 4))).collect();
        for &start in holes.iter().chain(holes.iter().rev()) {
            model.step(&tree, &forest, &Step::Single { start, length: 1 });
            model.check(&tree.tree(), &geometry);
            seen.push(model.bitmaps);
        }
        seen.dedup();
        assert_eq!(seen, [false, true, false]);
        assert!(low > 1 && model.free.iter().all(|&free| free));
    }

    #[test]
    fn contradictions_are_found_before_any_change() {
        let (forest, geometry) = geometry();
        for comb in [false, true] {
            let tree = forest.live_tree(objectid::FREE_SPACE_TREE);
            let free = (0..2049).map(|sector| sector >= 100 && (!comb || sector % 2 == 1)).collect();
            let model = Model::new(1 << 20, 2049, free);
            assert_eq!(model.bitmaps, comb);
            create(&mut tree.edit(&forest.allocator), model.group, &model.runs()).unwrap();
            let single = |first, end| LogicalRange::of(model.range(first, end));
            let mut editor = tree.edit(&forest.allocator);
            let is_item = |result: Result<()>| matches!(result, Err(Error::Item { .. }));
            assert!(is_item(allocate_range(&mut editor, model.group, single(99, 102))));
            assert!(is_item(allocate_range(&mut editor, model.group, single(0, 1))));
            assert!(is_item(free_range(&mut editor, model.group, single(101, 102))));
            assert!(is_item(free_range(&mut editor, model.group, single(50, 102))));
            let other = LogicalRange { length: model.group.length + SECTOR, ..model.group };
            let missing = allocate_range(&mut editor, other, single(101, 102));
            assert!(matches!(missing, Err(Error::MissingItem { .. })));
            drop(editor);
            model.check(&tree.tree(), &geometry);
        }
    }

    #[test]
    fn damage_is_an_error() {
        let (forest, _) = geometry();
        let group = LogicalRange { start: LogicalAddress(1 << 20), length: 2049 * SECTOR };
        let at = |sector: u64| (1 << 20) + sector * SECTOR;
        let extent = |first, end| put_extent(&(at(first)..at(end)));
        let bitmap = |first: u64, end: u64, bits: Vec<u8>| Change::Put {
            key: Key::new(at(first), ItemType::FREE_SPACE_BITMAP, (end - first) * SECTOR),
            data: bits,
        };
        let info = |extent_count, flags| put_info(group, &FreeSpaceInfo { extent_count, flags });
        let (extents, bitmaps) = (FreeSpaceFlags::empty(), FreeSpaceFlags::USING_BITMAPS);
        let cases: [(&str, Vec<Change>); 8] = [
            ("the count is too small", vec![info(0, extents), extent(10, 20)]),
            ("the other form", vec![info(1, extents), bitmap(0, 2048, vec![0xff; 256])]),
            ("the other form", vec![info(1, bitmaps), extent(10, 20)]),
            ("two overlap", vec![info(2, extents), extent(8, 16), extent(10, 20)]),
            ("out of the block group", vec![info(1, extents), extent(10, 2050)]),
            ("no bitmap for the remainder", vec![info(1, bitmaps), bitmap(0, 8, vec![0])]),
            ("a bitmap out of the block group", vec![info(1, bitmaps), bitmap(0, 2056, vec![0xff; 257])]),
            ("no bitmap", vec![info(1, bitmaps)]),
        ];
        for (what, mut items) in cases {
            let tree = forest.live_tree(objectid::FREE_SPACE_TREE);
            items.sort_by_key(Change::key);
            tree.edit(&forest.allocator).apply(&items).unwrap();
            let range = LogicalRange::of(at(10)..at(20));
            let result = allocate_range(&mut tree.edit(&forest.allocator), group, range);
            assert!(
                matches!(result, Err(Error::Item { .. } | Error::MissingItem { .. })),
                "{what}: {result:?}"
            );
        }
    }
}

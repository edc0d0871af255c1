//! Reading one block group's items of the free-space tree.
//!
//! Owns [`read_info`] and [`read_ranges`]. The ranges they return are checked: they lie in the
//! block group, do not overlap, and have the form and the number that its info item states.
//!
//! **Locks**: none.
//!
//! Kernel counterparts: `load_free_space_bitmaps`, `load_free_space_extents`
//! (`fs/btrfs/free-space-tree.c`).

use super::LogicalRange;
use super::range_set::RangeSet;
use crate::btree::{Item, Tree};
use crate::errors::{Error, Result};
use papilio_format::items::bitmap::BitRun;
use papilio_format::items::free_space::{FreeSpaceBitmap, FreeSpaceFlags, FreeSpaceInfo};
use papilio_format::{Corrupt, Geometry, ItemType, Key, objectid};
use std::ops::{Range, RangeInclusive};

/// Returns the key of a block group's info item.
pub(super) fn info_key(group: LogicalRange) -> Key {
    Key::new(group.start.0, ItemType::FREE_SPACE_INFO, group.length)
}

/// Returns the range of keys of a block group's items.
pub(super) fn keys(group: LogicalRange) -> RangeInclusive<Key> {
    Key::new(group.start.0, ItemType::FREE_SPACE_INFO, 0)..=Key::last_of(group.end().0 - 1)
}

/// Returns an error about an item of the free-space tree.
pub(super) fn item_error(key: Key, what: &'static str, value: u64, why: &'static str) -> Error {
    let reason = Corrupt::field(what, "range", value, why);
    Error::Item { tree: objectid::FREE_SPACE_TREE, key, reason }
}

/// Returns the error for an item of the wrong form.
pub(super) fn misplaced(key: Key) -> Error {
    item_error(key, "free space", key.objectid, "not of the form that the block group's info states")
}

/// Returns the end of an item's range; fails unless it lies in the block group.
pub(super) fn end_in(key: &Key, group: LogicalRange) -> Result<u64> {
    let end = key.objectid.checked_add(key.offset).filter(|&end| end <= group.end().0);
    match end.filter(|_| key.objectid >= group.start.0 && key.offset > 0) {
        Some(end) => Ok(end),
        None => Err(item_error(*key, "free space", key.objectid, "extends beyond its block group")),
    }
}

/// Converts a range to sectors relative to `start`.
pub(super) fn sectors_of(range: &Range<u64>, start: u64, sector_size: u64) -> BitRun {
    BitRun { start: (range.start - start) / sector_size, length: (range.end - range.start) / sector_size }
}

/// Returns a block group's info item, or `None` if there is none.
///
/// # Errors
/// Fails on an unreadable block or a malformed item.
pub(super) fn read_info(
    tree: &Tree,
    group: LogicalRange,
    geometry: &Geometry,
) -> Result<Option<FreeSpaceInfo>> {
    let key = info_key(group);
    let Some(item) = tree.get(&key)? else { return Ok(None) };
    let info = FreeSpaceInfo::parse(item.data())
        .and_then(|info| info.validate(&key, geometry).map(|()| info))
        .map_err(|reason| Error::Item { tree: tree.id(), key, reason })?;
    Ok(Some(info))
}

/// The free space of a block group, and the items that record it.
#[derive(Debug, Default)]
pub(super) struct ReadRanges {
    pub(super) free: RangeSet,
    /// Keys of the extents or bitmaps.
    pub(super) keys: Vec<Key>,
    /// Number of ranges, counted as in the info item.
    count: u64,
}

/// Returns all free ranges of a block group with the info item `info`.
///
/// # Errors
/// Fails on an unreadable block. [`Error::Item`] if items are malformed, overlap, extend beyond the
/// block group, have the other form, or differ in number from the info's count.
pub(super) fn read_ranges(
    tree: &Tree,
    group: LogicalRange,
    info: &FreeSpaceInfo,
    geometry: &Geometry,
) -> Result<ReadRanges> {
    let mut read = ReadRanges::default();
    for item in tree.range(keys(group)) {
        let item = item?;
        if item.key == info_key(group) {
            continue;
        }
        let bitmaps = info.flags.contains(FreeSpaceFlags::USING_BITMAPS);
        match item.key.item_type {
            ItemType::FREE_SPACE_EXTENT if !bitmaps => read.add_extent(&item, group)?,
            ItemType::FREE_SPACE_BITMAP if bitmaps => read.add_bitmap(&item, group, geometry)?,
            _ => return Err(misplaced(item.key)),
        }
        read.keys.push(item.key);
    }
    if read.count != u64::from(info.extent_count) {
        let why = "not the number of free ranges";
        return Err(item_error(info_key(group), "free space info", info.extent_count.into(), why));
    }
    Ok(read)
}

impl ReadRanges {
    fn add_extent(&mut self, item: &Item, group: LogicalRange) -> Result<()> {
        self.count += 1;
        self.add(item, item.key.objectid..end_in(&item.key, group)?)
    }

    fn add_bitmap(&mut self, item: &Item, group: LogicalRange, geometry: &Geometry) -> Result<()> {
        end_in(&item.key, group)?;
        let bitmap = FreeSpaceBitmap::parse(&item.key, item.data(), geometry)
            .map_err(|reason| Error::Item { tree: objectid::FREE_SPACE_TREE, key: item.key, reason })?;
        let (start, sector_size) = (bitmap.start().0, u64::from(geometry.sector_size));
        for run in bitmap.free_runs() {
            let range = start + run.start * sector_size..start + (run.start + run.length) * sector_size;
            // A range that continues from the previous bitmap counts once.
            let goes_on = self.free.last().is_some_and(|last| last.end == range.start);
            self.count += u64::from(!goes_on);
            self.add(item, range)?;
        }
        Ok(())
    }

    fn add(&mut self, item: &Item, range: Range<u64>) -> Result<()> {
        if self.free.overlaps(&range) {
            return Err(item_error(item.key, "free space", range.start, "overlaps another free range"));
        }
        self.free.insert(range);
        Ok(())
    }
}

//! Compares the free-space tree with the extents: all space of a block group without extents is
//! free, locations of superblock copies included.
//!
//! Owns [`FreeSpace`].
//!
//! Kernel counterparts: `load_free_space_tree`, `populate_free_space_tree`
//! (`fs/btrfs/free-space-tree.c`).

use super::block_groups::BlockGroups;
use super::references::Extent;
use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_format::items::bitmap::BitRun;
use papilio_format::items::free_space::{FreeSpaceBitmap, FreeSpaceFlags, FreeSpaceInfo};
use papilio_format::{Geometry, ItemType, Key, LogicalAddress, objectid};

/// Bits of a bitmap: 256 bytes of them.
const BITMAP_BITS: u64 = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
}

/// The FREE_SPACE_INFO item of a block group.
#[derive(Clone, Copy, Debug)]
struct Info {
    key: Key,
    count: u32,
    bitmaps: bool,
    /// Number of free ranges that follow the item.
    ranges: u64,
    /// Whether an item of the wrong form was reported.
    wrong_form: bool,
}

/// The content of the free-space tree.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    infos: Vec<Info>,
    /// Ascending, unless the tree is damaged.
    ranges: Vec<Range>,
    /// Bytes of a sector.
    sector: u64,
}

impl FreeSpace {
    /// Reads a leaf of the tree; call it with the leaves in order.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>, geometry: &Geometry, findings: &mut Findings) {
        let view = visit.block.view();
        self.sector = u64::from(geometry.sector_size);
        for slot in 0..view.len() {
            let (key, data) = (view.key(slot), view.item(slot));
            match key.item_type {
                ItemType::FREE_SPACE_INFO => {
                    if let Ok(FreeSpaceInfo { extent_count: count, flags }) = FreeSpaceInfo::parse(data) {
                        let bitmaps = flags.contains(FreeSpaceFlags::USING_BITMAPS);
                        self.infos.push(Info { key, count, bitmaps, ranges: 0, wrong_form: false });
                    }
                }
                ItemType::FREE_SPACE_EXTENT => {
                    self.check_item(&key, false, findings);
                    self.add(key.objectid, key.objectid.saturating_add(key.offset), false);
                }
                ItemType::FREE_SPACE_BITMAP => {
                    self.check_item(&key, true, findings);
                    let Ok(bitmap) = FreeSpaceBitmap::parse(&key, data, geometry) else { continue };
                    let sector = u64::from(geometry.sector_size);
                    for run in bitmap.free_runs() {
                        let start = bitmap.start().0.saturating_add(run.start.saturating_mul(sector));
                        self.add(start, start.saturating_add(run.length.saturating_mul(sector)), true);
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks that an item belongs to the block group of the last info item, and has its form
    /// (extents or bitmaps).
    fn check_item(&mut self, key: &Key, bitmap: bool, findings: &mut Findings) {
        let place = || Place::item(objectid::FREE_SPACE_TREE, *key);
        let end = key.objectid.saturating_add(key.offset);
        let Some(info) = self.infos.last_mut().filter(|info| {
            key.objectid >= info.key.objectid && end <= info.key.objectid.saturating_add(info.key.offset)
        }) else {
            let message = format_args!("free space outside the block group of the info item before it");
            return findings.add(FindingKind::FreeSpaceItem, place(), message);
        };
        if info.bitmaps != bitmap && !info.wrong_form {
            info.wrong_form = true;
            let message = format_args!("an extent where the info item says bitmaps, or the reverse");
            findings.add(FindingKind::FreeSpaceItem, place(), message);
        }
    }

    /// Adds a free range; with `join`, merges it with an adjacent one of the bitmap before.
    fn add(&mut self, start: u64, end: u64, join: bool) {
        let Some(info) = self.infos.last_mut() else { return };
        if let Some(last) = self.ranges.last_mut()
            && join
            && info.ranges > 0
            && last.end == start
        {
            last.end = end;
            return;
        }
        info.ranges += 1;
        self.ranges.push(Range { start, end });
    }

    /// Compares with the extents, which are sorted.
    pub(super) fn compare(&self, groups: &BlockGroups, extents: &[Extent], findings: &mut Findings) {
        for info in &self.infos {
            self.check_count(info, findings);
        }
        let mut ranges = self.ranges.clone();
        ranges.sort_by_key(|range| range.start);
        for group in &groups.groups {
            let info = self.infos.binary_search_by_key(&group.start, |info| info.key.objectid);
            let whole = |index: usize| self.infos[index].key.offset == group.length;
            if !info.is_ok_and(whole) {
                findings.add(
                    FindingKind::FreeSpaceInfoMissing,
                    Place { address: Some(LogicalAddress(group.start)), ..free_space_tree() },
                    format_args!("the block group of {} bytes has no free-space item", group.length),
                );
                let used = used_in(extents, group.start, group.end());
                let free = complement(group.start, group.end(), used);
                if group.has_chunk {
                    findings.mend(rebuild(group.start, group.end(), false, &free, self.sector));
                }
                continue;
            }
            let used = used_in(extents, group.start, group.end());
            let free = complement(group.start, group.end(), used);
            let first = ranges.partition_point(|range| range.end <= group.start);
            let count = ranges[first..].iter().take_while(|range| range.start < group.end()).count();
            let stored = &ranges[first..first + count];
            compare_ranges(&free, stored, findings);
            let info = &self.infos[info.expect("it was found")];
            if free != stored || info.wrong_form || u64::from(info.count) != info.ranges {
                findings.mend(rebuild(group.start, group.end(), info.bitmaps, &free, self.sector));
            }
        }
        let gone = |info: &&Info| {
            groups.groups.binary_search_by_key(&info.key.objectid, |group| group.start).is_err()
        };
        let first = groups.groups.first().map_or(0, |group| group.start);
        // `mkfs.btrfs` before 6.3 leaves those of its temporary block groups, which lie before all
        // others and are wholly free. The kernel ignores them.
        let is_left = |info: &&Info| {
            let end = info.key.objectid.saturating_add(info.key.offset);
            end <= first && (info.count, info.ranges, info.bitmaps) == (1, 1, false)
        };
        let key_range = |info: &Info| {
            let (start, length) = (info.key.objectid, info.key.offset);
            let last = start.saturating_add(length.saturating_sub(1));
            let overlaps = groups.groups.iter().any(|group| group.start <= last && group.end() > start);
            // The items of a block group that overlaps are written anew by its own remedy.
            (info.key, if overlaps { info.key } else { Key::last_of(last) })
        };
        let left = self.infos.iter().filter(gone).filter(is_left).count();
        for info in self.infos.iter().filter(gone).filter(is_left) {
            let (first, last) = key_range(info);
            findings.mend(Remedy::DropLeftSpace { first, last });
        }
        if left > 0 {
            findings.note(
                "free-space-left",
                format!("the free-space tree has items of {left} temporary block groups of mkfs"),
            );
        }
        for info in self.infos.iter().filter(gone).filter(|info| !is_left(info)) {
            let message = format_args!("the block group of {} bytes does not exist", info.key.offset);
            findings.add(
                FindingKind::FreeSpaceStale,
                Place::item(objectid::FREE_SPACE_TREE, info.key),
                message,
            );
            let ((first, last), tree) = (key_range(info), objectid::FREE_SPACE_TREE);
            findings.mend(Remedy::Replace { tree, first, last, items: Vec::new() });
        }
    }

    fn check_count(&self, info: &Info, findings: &mut Findings) {
        if u64::from(info.count) != info.ranges {
            findings.add(
                FindingKind::FreeSpaceCount,
                Place::item(objectid::FREE_SPACE_TREE, info.key),
                format_args!("the item counts {} free ranges, there are {}", info.count, info.ranges),
            );
        }
    }
}

/// Returns the extents inside a block group.
fn used_in(extents: &[Extent], start: u64, end: u64) -> impl Iterator<Item = &Extent> {
    let first = extents.partition_point(|extent| extent.end() <= start);
    extents[first..].iter().take_while(move |extent| extent.start < end)
}

/// Proposes to write all items of a block group anew.
fn rebuild(start: u64, end: u64, bitmaps: bool, free: &[Range], sector: u64) -> Remedy {
    let items = items_of(start, end, bitmaps, free, sector);
    let (first, last) = (Key::new(start, ItemType(0), 0), Key::new(end - 1, ItemType(255), u64::MAX));
    Remedy::Replace { tree: objectid::FREE_SPACE_TREE, first, last, items }
}

/// Returns the items of a block group, with extents, for ranges in use, which are sorted.
pub(crate) fn items_of_group(start: u64, end: u64, used: &[(u64, u64)], sector: u64) -> Vec<(Key, Vec<u8>)> {
    let first = used.partition_point(|range| range.1 <= start);
    let (mut free, mut at) = (Vec::new(), start);
    for range in used[first..].iter().take_while(|range| range.0 < end) {
        if range.0 > at {
            free.push(Range { start: at, end: range.0 });
        }
        at = at.max(range.1);
    }
    if at < end {
        free.push(Range { start: at, end });
    }
    items_of(start, end, false, &free, sector)
}

fn items_of(start: u64, end: u64, bitmaps: bool, free: &[Range], sector: u64) -> Vec<(Key, Vec<u8>)> {
    let flags = if bitmaps { FreeSpaceFlags::USING_BITMAPS } else { FreeSpaceFlags::empty() };
    let info = FreeSpaceInfo { extent_count: u32::try_from(free.len()).unwrap_or(u32::MAX), flags };
    let key = Key::new(start, ItemType::FREE_SPACE_INFO, end - start);
    let mut items = vec![(key, info.to_bytes().to_vec())];
    if bitmaps {
        let step = BITMAP_BITS * sector;
        for from in (start..end).step_by(step as usize) {
            let to = end.min(from + step);
            let inside = free.iter().filter(|range| range.start < to && range.end > from);
            let runs = inside.map(|range| BitRun {
                start: (range.start.max(from) - from) / sector,
                length: (range.end.min(to) - range.start.max(from)) / sector,
            });
            let bits = FreeSpaceBitmap::encode((to - from) / sector, runs);
            items.push((Key::new(from, ItemType::FREE_SPACE_BITMAP, to - from), bits));
        }
    } else {
        let key = |range: &Range| Key::new(range.start, ItemType::FREE_SPACE_EXTENT, range.end - range.start);
        items.extend(free.iter().map(|range| (key(range), Vec::new())));
    }
    items
}

fn free_space_tree() -> Place {
    Place::tree(objectid::FREE_SPACE_TREE)
}

/// Returns the ranges of a block group without extents.
fn complement<'a>(start: u64, end: u64, used: impl Iterator<Item = &'a Extent>) -> Vec<Range> {
    let mut free = Vec::new();
    let mut at = start;
    for extent in used {
        if extent.start > at {
            free.push(Range { start: at, end: extent.start });
        }
        at = at.max(extent.end());
    }
    if at < end {
        free.push(Range { start: at, end });
    }
    free
}

/// Reports ranges that are in only one of two sorted lists.
fn compare_ranges(free: &[Range], stored: &[Range], findings: &mut Findings) {
    for missing in subtract(free, stored) {
        let (start, end) = (missing.start, missing.end);
        findings.add(
            FindingKind::FreeSpaceLost,
            Place { address: Some(LogicalAddress(start)), ..free_space_tree() },
            format_args!("{} bytes are free, but missing from the free-space tree", end - start),
        );
    }
    for extra in subtract(stored, free) {
        let (start, end) = (extra.start, extra.end);
        findings.add(
            FindingKind::FreeSpaceUsed,
            Place { address: Some(LogicalAddress(start)), ..free_space_tree() },
            format_args!("{} bytes are in use, but free in the free-space tree", end - start),
        );
    }
}

/// Returns the parts of `from` that no range of `what` covers; both are sorted.
fn subtract(from: &[Range], what: &[Range]) -> Vec<Range> {
    let mut rest = Vec::new();
    let mut index = 0;
    for range in from {
        let mut at = range.start;
        while index < what.len() && what[index].end <= at {
            index += 1;
        }
        let mut next = index;
        while next < what.len() && what[next].start < range.end {
            if what[next].start > at {
                rest.push(Range { start: at, end: what[next].start });
            }
            at = at.max(what[next].end);
            next += 1;
        }
        if at < range.end {
            rest.push(Range { start: at, end: range.end });
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u64, u64)]) -> Vec<Range> {
        list.iter().map(|&(start, end)| Range { start, end }).collect()
    }

    #[test]
    fn subtraction_of_ranges() {
        type List = &'static [(u64, u64)];
        let cases: [(List, List, List); 6] = [
            (&[(0, 10)], &[], &[(0, 10)]),
            (&[(0, 10)], &[(0, 10)], &[]),
            (&[(0, 10)], &[(2, 3), (5, 7)], &[(0, 2), (3, 5), (7, 10)]),
            (&[(0, 10), (20, 30)], &[(5, 25)], &[(0, 5), (25, 30)]),
            (&[(0, 10), (20, 30)], &[(0, 40)], &[]),
            (&[(5, 6)], &[(0, 1), (7, 9)], &[(5, 6)]),
        ];
        for (from, what, expected) in cases {
            assert_eq!(subtract(&ranges(from), &ranges(what)), ranges(expected), "{from:?} - {what:?}");
        }
    }
}

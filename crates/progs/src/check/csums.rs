//! Data checksums: which ranges have them.
//!
//! Owns [`Csums`].
//!
//! Kernel counterpart: `btrfs_lookup_csums_list` (`fs/btrfs/file-item.c`).

use super::references::References;
use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::{Geometry, ItemType, Key, LogicalAddress, objectid};

/// The ranges of logical addresses that have checksums, ascending, with adjacent ones merged.
#[derive(Debug, Default)]
pub(super) struct Csums {
    ranges: Vec<(u64, u64)>,
    /// Data extents that only the log of fsyncs refers to: start and end.
    logged: Vec<(u64, u64)>,
}

impl Csums {
    /// Reads a leaf of the checksum tree; call it with the leaves in order.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>, geometry: &Geometry, findings: &mut Findings) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_CSUM {
                continue;
            }
            let Ok(item) = CsumItem::parse(&key, view.item(slot), geometry) else { continue };
            let (start, end) = (item.start().0, item.end().0);
            match self.ranges.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                Some(last) if last.1 > start => {
                    let message = format_args!("the item before it reaches to {}", last.1);
                    findings.add(FindingKind::CsumOverlap, place(start), message);
                    last.1 = last.1.max(end);
                }
                _ => self.ranges.push((start, end)),
            }
        }
    }

    /// Reads the data extents of a leaf of the log of fsyncs: their extent items come with the
    /// replay, their checksums may be there before.
    pub(super) fn read_log_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in (0..view.len()).filter(|_| visit.block.level() == 0) {
            if view.key(slot).item_type == ItemType::EXTENT_DATA
                && let Ok(item) = FileExtentItem::parse(view.item(slot))
                && let FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) = item.content
                && !part.is_hole()
            {
                let start = part.disk_address.0;
                self.logged.push((start, start.saturating_add(part.disk_length)));
            }
        }
    }

    /// Returns how many bytes of data have checksums.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, (start, end)| sum.saturating_add(end - start))
    }

    /// Returns how many bytes of a range have checksums.
    pub(super) fn covered(&self, start: u64, end: u64) -> u64 {
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let inside = self.ranges[first..].iter().take_while(|range| range.0 < end);
        inside.fold(0, |sum, range| sum + (range.1.min(end) - range.0.max(start)))
    }

    /// Returns the parts of a range without checksums.
    pub(super) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let (mut gaps, mut at) = (Vec::new(), start);
        for range in self.ranges[first..].iter().take_while(|range| range.0 < end) {
            if range.0 > at {
                gaps.push((at, range.0));
            }
            at = at.max(range.1);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// Finds checksums outside data extents.
    pub(super) fn compare_extents(&self, references: &References, findings: &mut Findings) {
        let data = references.extents.iter().filter(|extent| extent.is_data());
        let mut ranges: Vec<(u64, u64)> = data.map(|extent| (extent.start, extent.end())).collect();
        // Data that a file extent refers to keeps its checksums, whatever the extent tree says.
        ranges.extend(references.claims.iter().chain(&self.logged));
        ranges.sort_unstable();
        let mut extents = ranges.into_iter().peekable();
        for &(start, end) in &self.ranges {
            let mut at = start;
            while at < end {
                while extents.next_if(|extent| extent.1 <= at).is_some() {}
                let (from, to) = match extents.peek() {
                    Some(extent) if extent.0 < end => (extent.0.max(at), extent.1.min(end)),
                    _ => (end, end),
                };
                if from > at {
                    let message = format_args!("checksums of {} bytes outside any data extent", from - at);
                    findings.add(FindingKind::CsumWithoutExtent, place(at), message);
                    findings.mend(Remedy::DropCsums { start: at, end: from });
                }
                at = to.max(from);
            }
        }
    }
}

pub(super) fn place(start: u64) -> Place {
    Place { address: Some(LogicalAddress(start)), ..csum_tree_item(start) }
}

fn csum_tree_item(start: u64) -> Place {
    let key = Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, start);
    Place::item(objectid::CSUM_TREE, key)
}

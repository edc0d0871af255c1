//! Data checksums: which ranges have them, and whether the data matches.
//!
//! Owns [`Csums`] and [`verify_data`].
//!
//! Kernel counterparts: `btrfs_lookup_csums_list` (`fs/btrfs/file-item.c`),
//! `scrub_verify_one_sector` (`fs/btrfs/scrub.c`).

use super::references::References;
use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::{Visit, ways_to_read};
use crate::btree::Forest;
use crate::errors::Error;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::{Geometry, ItemType, Key, LogicalAddress, objectid};

/// Largest read, in bytes.
const READ_SIZE: usize = 1 << 20;

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
        if !self.logged.is_empty() {
            ranges.extend(&self.logged);
            ranges.sort_unstable();
        }
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

fn place(start: u64) -> Place {
    Place { address: Some(LogicalAddress(start)), ..csum_tree_item(start) }
}

fn csum_tree_item(start: u64) -> Place {
    let key = Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, start);
    Place::item(objectid::CSUM_TREE, key)
}

/// Reads every copy of the data of a checksum leaf and verifies it. Returns the number of bytes
/// read.
pub(super) fn verify_data(
    forest: &Forest,
    leaf: &Visit<'_>,
    findings: &mut Findings,
    mut progress: impl FnMut(u64),
) -> u64 {
    let geometry = forest.volume().geometry();
    let view = leaf.block.view();
    let mut buffer = Vec::new();
    let mut read = 0;
    for slot in 0..view.len() {
        let key = view.key(slot);
        if key.item_type != ItemType::EXTENT_CSUM {
            continue;
        }
        let Ok(item) = CsumItem::parse(&key, view.item(slot), &geometry) else { continue };
        let sector = geometry.sector_size as usize;
        let sum_size = geometry.checksum_type.size();
        let mut start = item.start().0;
        let mut sums = item.as_bytes();
        while !sums.is_empty() {
            // An item may continue into the next chunk, which has its own copies.
            let chunks = forest.volume().chunk_map();
            let left =
                chunks.find(LogicalAddress(start)).map_or(sector as u64, |chunk| chunk.end().0 - start);
            let most = (left / sector as u64).clamp(1, (READ_SIZE / sector) as u64) as usize;
            let (run, rest) = sums.split_at(sums.len().min(most * sum_size));
            sums = rest;
            buffer.resize(run.len() / sum_size * sector, 0);
            read += verify_range(forest, start, run, &mut buffer, findings);
            start += buffer.len() as u64;
            progress(buffer.len() as u64);
        }
    }
    read
}

/// Verifies one run of sectors in all ways of reading it (see [`ways_to_read`]).
fn verify_range(forest: &Forest, start: u64, sums: &[u8], buffer: &mut [u8], findings: &mut Findings) -> u64 {
    let geometry = forest.volume().geometry();
    let ways = match ways_to_read(forest, LogicalAddress(start)) {
        Ok(ways) => ways,
        Err(error) => {
            findings.add(FindingKind::Unmapped, place(start), format_args!("{error}"));
            return 0;
        }
    };
    let sectors = sums.len() / geometry.checksum_type.size();
    let mut bad = vec![0u8; sectors];
    let mut tried = 0u8;
    let mut read = 0;
    let mut faults: Vec<(usize, usize)> = Vec::new();
    for copy in 0..ways {
        match forest.volume().read_copy(LogicalAddress(start), buffer, copy) {
            Ok(()) => {}
            Err(Error::DeviceMissing { .. }) => continue,
            Err(error) => {
                findings.add(FindingKind::DataRead, place(start), format_args!("copy {copy}: {error}"));
                continue;
            }
        }
        tried += 1;
        read += buffer.len() as u64;
        let sectors = buffer.chunks_exact(geometry.sector_size as usize);
        let sums = sums.chunks_exact(geometry.checksum_type.size());
        for (index, (sector, sum)) in sectors.zip(sums).enumerate() {
            if !geometry.checksum_type.verify(sector, sum) {
                bad[index] = bad[index].saturating_add(1);
                faults.push((index, copy));
            }
        }
    }
    let mut reported = vec![false; bad.len()];
    for (index, copy) in faults {
        let address = LogicalAddress(start + index as u64 * u64::from(geometry.sector_size));
        let place = Place::extent(address.0).on(forest.volume().place_of(address, copy));
        if bad[index] < tried {
            findings.add(FindingKind::DataCopy, place, format_args!("copy {copy}: checksum mismatch"));
        } else if !std::mem::replace(&mut reported[index], true) {
            let message = format_args!("checksum mismatch (copies tried: {tried})");
            findings.add(FindingKind::DataChecksum, place, message);
        }
    }
    read
}

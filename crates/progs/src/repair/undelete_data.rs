//! The data of a deleted subvolume: which of its extents still hold what they held.
//!
//! Owns [`LostExtents`], which its file extents refer to, and [`verify`].

use super::super::check::references::References;
use papilio_engine::btree::Tree;
use papilio_engine::items::inode::inode;
use papilio_engine::volume::Volume;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{Generation, Geometry, InodeNumber, Key, LogicalAddress};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// The most checksums of one item that start before a range.
const SUMS_BEFORE: u64 = 65536;

/// A file extent that refers to an extent on disk.
#[derive(Clone, Debug)]
pub(super) struct DataUse {
    pub(super) key: Key,
    /// Bytes of the file.
    pub(super) length: u64,
    /// The addresses whose content the file needs; empty if it was only preallocated.
    pub(super) needed: Range<u64>,
}

/// Extents on disk by their start, each with its length and the file extents that refer to it.
#[derive(Debug, Default)]
pub(super) struct LostExtents(BTreeMap<u64, (u64, Vec<DataUse>)>);

impl LostExtents {
    pub(super) fn add(&mut self, start: LogicalAddress, length: u64, file_extent: DataUse) {
        self.0.entry(start.0).or_insert((length, Vec::new())).1.push(file_extent);
    }
}

/// The state of the data.
#[derive(Debug, Default)]
pub(super) struct DataVerdict {
    /// File extents whose data is gone: the key, the bytes of the file, and the reason.
    pub(super) lost: Vec<(Key, u64, &'static str)>,
    /// Files without checksums, with the bytes that nothing verifies.
    pub(super) unverified: BTreeMap<InodeNumber, u64>,
    /// Checksums to add, each run by the address of its first sector.
    pub(super) sums: Vec<(u64, Vec<u8>)>,
}

/// Checks the extents of a tree of generation `since`. The first of the checksum trees that has the
/// checksums of a sector counts.
pub(super) fn verify(
    volume: &Volume,
    references: &References,
    extents: &LostExtents,
    sum_trees: &[Tree],
    since: Generation,
    files: &Tree,
) -> DataVerdict {
    let mut used: Vec<(u64, u64)> = references.used_ranges().collect();
    used.sort_unstable();
    let mut outcome = DataVerdict::default();
    for (&start, (length, uses)) in &extents.0 {
        let end = start.saturating_add(*length);
        let lose = |outcome: &mut DataVerdict, why| {
            outcome.lost.extend(uses.iter().map(|one| (one.key, one.length, why)));
        };
        // An extent from before the older state is the one that the state had.
        let same = references.extent_at(start).is_some_and(|extent| {
            extent.is_data() && extent.length == *length && extent.generation <= since.0
        });
        if same {
            continue;
        }
        let at = used.partition_point(|range| range.0 < end);
        if used[..at].iter().rev().take(1).any(|range| range.1 > start) {
            lose(&mut outcome, "the space has other data by now");
            continue;
        }
        if volume.chunk_map().require(LogicalAddress(start), *length).is_err() {
            lose(&mut outcome, "the chunk of the data is gone");
            continue;
        }
        let good = good_sums(volume, sum_trees, start, *length);
        for one in uses {
            judge(&good, one, &volume.geometry(), files, &mut outcome);
        }
        push_runs(&mut outcome.sums, &good, u64::from(volume.geometry().sector_size));
    }
    outcome
}

/// A checksum of a sector, and whether the data matches it.
type Sum = (Vec<u8>, bool);
/// The sectors for which any tree has a checksum.
type Sums = BTreeMap<u64, Sum>;

/// Decides about one file extent.
fn judge(good: &Sums, one: &DataUse, geometry: &Geometry, files: &Tree, outcome: &mut DataVerdict) {
    let sector = u64::from(geometry.sector_size);
    let needed = || (one.needed.start..one.needed.end).step_by(sector as usize);
    let count = |wanted: fn(Option<&Sum>) -> bool| needed().filter(|at| wanted(good.get(at))).count();
    let (bad, missing) = (count(|sum| sum.is_some_and(|(_, good)| !good)), count(|sum| sum.is_none()));
    if bad > 0 {
        outcome.lost.push((one.key, one.length, "the data was overwritten"));
    } else if missing > 0 {
        let number = InodeNumber(one.key.objectid);
        let without = inode(files, number).ok().flatten();
        if without.is_some_and(|item| item.flags.contains(InodeFlags::NODATASUM)) {
            *outcome.unverified.entry(number).or_default() += one.length;
        } else {
            outcome.lost.push((one.key, one.length, "the checksums of the data are gone"));
        }
    }
}

/// Reads the checksums of a range, and compares the data with them.
fn good_sums(volume: &Volume, sum_trees: &[Tree], start: u64, length: u64) -> Sums {
    let geometry = volume.geometry();
    let sector = u64::from(geometry.sector_size);
    let end = start.saturating_add(length);
    let mut sums = Sums::new();
    for tree in sum_trees {
        if sums.len() as u64 * sector >= length {
            break;
        }
        let first = start.saturating_sub(SUMS_BEFORE * sector);
        let keys = CsumItem::key(LogicalAddress(first))..=CsumItem::key(LogicalAddress(end - 1));
        // Items behind a block that cannot be read may be in another tree.
        for item in tree.range(keys).map_while(Result::ok) {
            let Ok(found) = CsumItem::parse(&item.key, item.data(), &geometry) else { continue };
            let sizes = found.as_bytes().chunks_exact(geometry.checksum_type.size());
            for (number, sum) in sizes.enumerate() {
                let at = found.start().0 + number as u64 * sector;
                if (start..end).contains(&at) {
                    sums.entry(at).or_insert_with(|| (sum.to_vec(), false));
                }
            }
        }
    }
    for copy in 0..volume.copies(LogicalAddress(start)).unwrap_or(0) {
        let mut at = start;
        while at < end {
            let mut bytes = vec![0; PIECE.min(end - at) as usize];
            if volume.read_copy(LogicalAddress(at), &mut bytes, copy).is_ok() {
                for (number, data) in bytes.chunks_exact(sector as usize).enumerate() {
                    if let Some((sum, good)) = sums.get_mut(&(at + number as u64 * sector)) {
                        *good |= geometry.checksum_type.compute(data).as_bytes() == &sum[..];
                    }
                }
            }
            at += bytes.len() as u64;
        }
    }
    sums
}

/// Appends the checksums that the data matches.
fn push_runs(runs: &mut Vec<(u64, Vec<u8>)>, sums: &Sums, sector: u64) {
    let mut next = None;
    for (&at, (sum, _)) in sums.iter().filter(|(_, (_, good))| *good) {
        match runs.last_mut().filter(|_| next == Some(at)) {
            Some((_, run)) => run.extend_from_slice(sum),
            None => runs.push((at, sum.clone())),
        }
        next = Some(at + sector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_good_checksums_are_kept_in_runs() {
        let sum = |good| (vec![1, 2, 3, 4], good);
        let sums = Sums::from([(0, sum(true)), (4096, sum(true)), (8192, sum(false)), (12288, sum(true))]);
        let mut runs = vec![(1 << 20, vec![9])];
        push_runs(&mut runs, &sums, 4096);
        let lengths: Vec<_> = runs.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        assert_eq!(lengths, [(1 << 20, 1), (0, 8), (12288, 4)]);
    }
}

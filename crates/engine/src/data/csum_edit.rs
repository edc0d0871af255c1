//! Insertion of new data's checksums into the checksum tree.
//!
//! Owns [`ChecksumRuns`], the checksums of a batch of extents, and [`insert_checksums`].
//!
//! Invariants:
//! - Items never overlap.
//! - Checksums that continue an item that is not full extend it, so that sequential writing fills
//!   leaves.
//! - All look-ups come before the first change.
//!
//! Locks: none; the caller's editor holds the tree's. Kernel counterpart: `btrfs_csum_file_blocks`
//! (`fs/btrfs/file-item.c`).

use crate::btree::{Change, Item, Tree, TreeEditor};
use crate::errors::{Error, Result};
use crate::transaction::csum_items::{max_sums, remove_sums};
use papilio_format::items::csum::CsumItem;
use papilio_format::{ChecksumType, Geometry, ItemType, LogicalAddress, objectid};
use std::ops::Range;

/// The checksums of new data, in runs of consecutive sectors.
#[derive(Clone, Debug)]
pub struct ChecksumRuns {
    checksum_type: ChecksumType,
    sector_size: usize,
    runs: Vec<ChecksumRun>,
    /// All checksums in a row.
    checksums: Vec<u8>,
}

/// Checksums of consecutive sectors.
#[derive(Clone, Debug)]
struct ChecksumRun {
    start: LogicalAddress,
    end: LogicalAddress,
    /// Their byte range in [`ChecksumRuns::checksums`].
    place: Range<usize>,
}

impl ChecksumRuns {
    /// Creates an empty batch.
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            checksum_type: geometry.checksum_type,
            sector_size: geometry.sector_size as usize,
            runs: Vec::new(),
            checksums: Vec::new(),
        }
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the bytes of the checksums of `length` bytes of data.
    pub fn size_of(&self, length: usize) -> usize {
        length / self.sector_size * self.checksum_type.size()
    }

    /// Adds computed checksums, one for each sector from `start` on.
    /// [`ChecksumRuns::remove_duplicates`] must follow where a range may have been added twice.
    pub fn add(&mut self, start: LogicalAddress, checksums: &[u8]) {
        let size = self.checksum_type.size();
        assert!(checksums.len().is_multiple_of(size), "a checksum is whole");
        let first = self.checksums.len();
        self.checksums.extend_from_slice(checksums);
        self.push(start, checksums.len() / size, first);
    }

    /// Removes the checksums of sectors that were added more than once, as by extents that several
    /// items of a file share. The copies are equal.
    pub fn remove_duplicates(&mut self) {
        let (size, sector) = (self.checksum_type.size(), self.sector_size as u64);
        self.runs.sort_unstable_by_key(|run| run.start);
        let mut reached = LogicalAddress(0);
        self.runs.retain_mut(|run| {
            if run.end <= reached {
                return false;
            }
            if run.start < reached {
                run.place.start += ((reached.0 - run.start.0) / sector) as usize * size;
                run.start = reached;
            }
            reached = run.end;
            true
        });
    }

    /// Appends a run: the checksums from byte `first` on belong to `sectors` sectors from `start`
    /// on.
    fn push(&mut self, start: LogicalAddress, sectors: usize, first: usize) {
        assert!(start.0 > 0, "no data lies at address 0, which stands for holes");
        let place = first..self.checksums.len();
        let end = LogicalAddress(start.0 + (sectors * self.sector_size) as u64);
        match self.runs.last_mut() {
            Some(last) if last.end == start => (last.end, last.place.end) = (end, place.end),
            _ => self.runs.push(ChecksumRun { start, end, place }),
        }
    }
}

/// Inserts all of `checksums`. They replace any that the tree has for these sectors.
///
/// # Errors
/// A tree block or item that cannot be read, before anything was changed; or an error of changing
/// the tree.
pub fn insert_checksums(editor: &mut TreeEditor<'_>, checksums: ChecksumRuns) -> Result<()> {
    let most = max_sums(editor.geometry());
    insert_short_checksums(editor, checksums, most)
}

/// As [`insert_checksums`], with at most `most` checksums in an item: extending a short item moves
/// fewer bytes.
///
/// # Errors
/// As [`insert_checksums`].
pub(crate) fn insert_short_checksums(
    editor: &mut TreeEditor<'_>,
    checksums: ChecksumRuns,
    most: usize,
) -> Result<()> {
    let changes = plan_short_checksums(editor, checksums, most)?;
    editor.apply(&changes)
}

/// Plans [`insert_short_checksums`], for a caller that applies the changes together with others.
/// The changes are sorted by key, and valid until the tree changes. Checksums that the tree already
/// has for these sectors are removed at once.
///
/// # Errors
/// As [`insert_checksums`].
pub(crate) fn plan_short_checksums(
    editor: &mut TreeEditor<'_>,
    mut checksums: ChecksumRuns,
    most: usize,
) -> Result<Vec<Change>> {
    checksums.runs.sort_unstable_by_key(|run| run.start);
    assert!(checksums.runs.is_sorted_by(|a, b| a.end <= b.start), "a sector has one checksum");
    let geometry = *editor.geometry();
    let mut before = items_before(&editor.tree(), &geometry, &checksums)?;
    let stale = overlapped(&before, &checksums);
    if !stale.is_empty() {
        drop(before);
        remove_sums(editor, &stale)?;
        before = items_before(&editor.tree(), &geometry, &checksums)?;
    }
    Ok(plan_insertion(before, &geometry, &checksums, most.min(max_sums(&geometry))))
}

/// An existing item.
struct Before {
    start: LogicalAddress,
    end: LogicalAddress,
    item: Item,
}

/// Returns for each run the last item that starts before the run's end.
fn items_before(tree: &Tree, geometry: &Geometry, checksums: &ChecksumRuns) -> Result<Vec<Option<Before>>> {
    checksums.runs.iter().map(|run| item_before(tree, geometry, run.end)).collect()
}

/// Returns the last item that starts before `end`.
fn item_before(tree: &Tree, geometry: &Geometry, end: LogicalAddress) -> Result<Option<Before>> {
    let Some(item) = tree.last_up_to(&CsumItem::key(LogicalAddress(end.0 - 1)))? else { return Ok(None) };
    if (item.key.objectid, item.key.item_type) != (objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM) {
        return Ok(None);
    }
    let view = CsumItem::parse(&item.key, item.data(), geometry);
    let view = view.map_err(|reason| Error::Item { tree: tree.id(), key: item.key, reason })?;
    Ok(Some(Before { start: view.start(), end: view.end(), item }))
}

/// Returns the runs for which the tree already has checksums. No crash between two of our steps
/// leaves any; only a damaged tree does.
fn overlapped(before: &[Option<Before>], checksums: &ChecksumRuns) -> Vec<(LogicalAddress, u64)> {
    let of_runs = checksums.runs.iter().zip(before);
    let stale = of_runs.filter(|(run, before)| before.as_ref().is_some_and(|before| before.end > run.start));
    stale.map(|(run, _)| (run.start, run.end.0 - run.start.0)).collect()
}

/// An item that is being built.
struct Growing {
    start: LogicalAddress,
    checksums: Vec<u8>,
}

/// Plans the insertion of runs that overlap no item. An item that starts before the end of a run
/// therefore also ends before its start.
fn plan_insertion(
    before: Vec<Option<Before>>,
    geometry: &Geometry,
    checksums: &ChecksumRuns,
    most: usize,
) -> Vec<Change> {
    let size = geometry.checksum_type.size();
    let most = most * size;
    let sector = u64::from(geometry.sector_size);
    let end_of =
        |item: &Growing| LogicalAddress(item.start.0 + (item.checksums.len() / size) as u64 * sector);
    let mut changes = Vec::new();
    let mut push =
        |item: Growing| changes.push(Change::Put { key: CsumItem::key(item.start), data: item.checksums });
    let mut growing: Option<Growing> = None;
    for (run, before) in checksums.runs.iter().zip(before) {
        let mut item = match growing.take() {
            Some(item) if end_of(&item) == run.start => item,
            other => {
                other.into_iter().for_each(&mut push);
                match before {
                    Some(Before { start, end, item }) if end == run.start && item.data().len() < most => {
                        Growing { start, checksums: item.data().to_vec() }
                    }
                    _ => Growing { start: run.start, checksums: Vec::new() },
                }
            }
        };
        let mut rest = &checksums.checksums[run.place.clone()];
        while !rest.is_empty() {
            if item.checksums.len() >= most {
                let start = end_of(&item);
                push(std::mem::replace(&mut item, Growing { start, checksums: Vec::new() }));
            }
            let (taken, later) = rest.split_at(rest.len().min(most - item.checksums.len()));
            item.checksums.extend_from_slice(taken);
            rest = later;
        }
        growing = Some(item);
    }
    growing.into_iter().for_each(push);
    changes
}

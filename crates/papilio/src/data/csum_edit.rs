//! Putting the checksums of new data into the checksum tree.
//!
//! Owns [`SumRuns`], the sums of a batch of extents, and [`insert_sums`]. Invariants: items never
//! overlap; sums that follow an item that has room make it longer, so that sequential writing fills
//! leaves. Everything is looked up before the first change. Locks: none; the caller's editor holds the
//! tree's. Kernel counterpart: `btrfs_csum_file_blocks` (`fs/btrfs/file-item.c`).

use crate::btree::{Change, Item, Tree, TreeEditor};
use crate::errors::{Error, Result};
use crate::transaction::csum_items::{max_sums, remove_sums};
use papilio_format::items::csum::CsumItem;
use papilio_format::{ChecksumType, Geometry, ItemType, LogicalAddress, objectid};
use std::ops::Range;

/// The sums of what was written, a run of sectors at a time.
#[derive(Clone, Debug)]
pub(crate) struct SumRuns {
    checksum_type: ChecksumType,
    sector_size: usize,
    runs: Vec<Run>,
    /// All sums, one behind the other.
    sums: Vec<u8>,
}

/// Sums of consecutive sectors.
#[derive(Clone, Debug)]
struct Run {
    start: LogicalAddress,
    end: LogicalAddress,
    /// Where they are among the sums.
    place: Range<usize>,
}

impl SumRuns {
    /// None yet.
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            checksum_type: geometry.checksum_type,
            sector_size: geometry.sector_size as usize,
            runs: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes of the sums of `length` bytes of data.
    pub(crate) fn size_of(&self, length: usize) -> usize {
        length / self.sector_size * self.checksum_type.size()
    }

    /// Adds sums that were computed before, one for each sector from `start` on. No range may be added twice.
    pub(crate) fn add_known(&mut self, start: LogicalAddress, sums: &[u8]) {
        let size = self.checksum_type.size();
        assert!(sums.len().is_multiple_of(size), "sums are whole");
        let first = self.sums.len();
        self.sums.extend_from_slice(sums);
        self.push(start, sums.len() / size, first);
    }

    /// Forgets sums of sectors that were added more than once, as where several extents of a file share them:
    /// they are the same.
    pub(crate) fn forget_repeated(&mut self) {
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

    /// The sums from `first` on are those of `sectors` sectors from `start` on.
    fn push(&mut self, start: LogicalAddress, sectors: usize, first: usize) {
        assert!(start.0 > 0, "no data lies at address 0, which stands for holes");
        let place = first..self.sums.len();
        let end = LogicalAddress(start.0 + (sectors * self.sector_size) as u64);
        match self.runs.last_mut() {
            Some(last) if last.end == start => (last.end, last.place.end) = (end, place.end),
            _ => self.runs.push(Run { start, end, place }),
        }
    }
}

/// Inserts all sums of `sums`. Where the tree has sums for these sectors already, those are replaced.
///
/// # Errors
/// A tree block or item that cannot be read, before anything was changed; or what changing the tree
/// meets.
pub(crate) fn insert_sums(editor: &mut TreeEditor<'_>, sums: SumRuns) -> Result<()> {
    let most = max_sums(editor.geometry());
    insert_short_sums(editor, sums, most)
}

/// As [`insert_sums`], in items of `most` sums at most: growing one of those moves less.
///
/// # Errors
/// As [`insert_sums`].
pub(crate) fn insert_short_sums(editor: &mut TreeEditor<'_>, sums: SumRuns, most: usize) -> Result<()> {
    let changes = plan_short_sums(editor, sums, most)?;
    editor.apply(&changes)
}

/// What [`insert_short_sums`] is to do, for who does it together with more: changes in the order of their keys, true
/// as long as nobody else changes the tree. Sums that the tree has for these sectors already are gone by then.
///
/// # Errors
/// As [`insert_sums`].
pub(crate) fn plan_short_sums(
    editor: &mut TreeEditor<'_>,
    mut sums: SumRuns,
    most: usize,
) -> Result<Vec<Change>> {
    sums.runs.sort_unstable_by_key(|run| run.start);
    assert!(sums.runs.is_sorted_by(|a, b| a.end <= b.start), "no sector has two sums");
    let geometry = *editor.geometry();
    let mut before = items_before(&editor.tree(), &geometry, &sums)?;
    let stale = overlapped(&before, &sums);
    if !stale.is_empty() {
        drop(before);
        remove_sums(editor, &stale)?;
        before = items_before(&editor.tree(), &geometry, &sums)?;
    }
    Ok(plan_insertion(before, &geometry, &sums, most.min(max_sums(&geometry))))
}

/// An item that is there.
struct Before {
    start: LogicalAddress,
    end: LogicalAddress,
    item: Item,
}

/// For each run, the last item that starts before its end.
fn items_before(tree: &Tree, geometry: &Geometry, sums: &SumRuns) -> Result<Vec<Option<Before>>> {
    sums.runs.iter().map(|run| item_before(tree, geometry, run.end)).collect()
}

/// The last item that starts before `end`.
fn item_before(tree: &Tree, geometry: &Geometry, end: LogicalAddress) -> Result<Option<Before>> {
    let Some(item) = tree.last_up_to(&CsumItem::key(LogicalAddress(end.0 - 1)))? else { return Ok(None) };
    if (item.key.objectid, item.key.item_type) != (objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM) {
        return Ok(None);
    }
    let view = CsumItem::parse(&item.key, item.data(), geometry);
    let view = view.map_err(|reason| Error::Item { tree: tree.id(), key: item.key, reason })?;
    Ok(Some(Before { start: view.start(), end: view.end(), item }))
}

/// Those of the runs that the tree has sums for already. A crash between two of our steps leaves none;
/// it takes a tree that says more than it should.
fn overlapped(before: &[Option<Before>], sums: &SumRuns) -> Vec<(LogicalAddress, u64)> {
    let of_runs = sums.runs.iter().zip(before);
    let stale = of_runs.filter(|(run, before)| before.as_ref().is_some_and(|before| before.end > run.start));
    stale.map(|(run, _)| (run.start, run.end.0 - run.start.0)).collect()
}

/// An item that grows.
struct Growing {
    start: LogicalAddress,
    sums: Vec<u8>,
}

/// Of runs that overlap no item: what starts before such a run's end, starts and ends before it.
fn plan_insertion(
    before: Vec<Option<Before>>,
    geometry: &Geometry,
    sums: &SumRuns,
    most: usize,
) -> Vec<Change> {
    let size = geometry.checksum_type.size();
    let most = most * size;
    let sector = u64::from(geometry.sector_size);
    let end_of = |item: &Growing| LogicalAddress(item.start.0 + (item.sums.len() / size) as u64 * sector);
    let mut changes = Vec::new();
    let mut push =
        |item: Growing| changes.push(Change::Put { key: CsumItem::key(item.start), data: item.sums });
    let mut growing: Option<Growing> = None;
    for (run, before) in sums.runs.iter().zip(before) {
        let mut item = match growing.take() {
            Some(item) if end_of(&item) == run.start => item,
            other => {
                other.into_iter().for_each(&mut push);
                match before {
                    Some(Before { start, end, item }) if end == run.start && item.data().len() < most => {
                        Growing { start, sums: item.data().to_vec() }
                    }
                    _ => Growing { start: run.start, sums: Vec::new() },
                }
            }
        };
        let mut rest = &sums.sums[run.place.clone()];
        while !rest.is_empty() {
            if item.sums.len() >= most {
                let start = end_of(&item);
                push(std::mem::replace(&mut item, Growing { start, sums: Vec::new() }));
            }
            let (taken, later) = rest.split_at(rest.len().min(most - item.sums.len()));
            item.sums.extend_from_slice(taken);
            rest = later;
        }
        growing = Some(item);
    }
    growing.into_iter().for_each(push);
    changes
}

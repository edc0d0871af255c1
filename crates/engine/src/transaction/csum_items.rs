//! Items of the checksum tree, and removing checksums from them.
//!
//! Owns [`remove_sums`], which a transaction calls when the last reference to a data extent is
//! gone, and [`max_sums`], the limit of an item's length.
//!
//! **Invariants**
//! - Items never overlap.
//! - An item that loses all checksums is removed; one that loses its front moves to a new key; one
//!   that loses its middle becomes two.
//! - Everything is looked up before the first change.
//!
//! Locks: none; the caller's editor holds the tree's.
//!
//! Kernel counterpart: `btrfs_del_csums`, `truncate_one_csum` (`fs/btrfs/file-item.c`).

use crate::btree::{Change, Cursor, Tree, TreeEditor};
use crate::errors::{Error, Result};
use papilio_format::items::csum::CsumItem;
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{Geometry, LogicalAddress};
use std::ops::Range;

/// Most checksums in one item, whatever the node size: as many as a page has bytes
/// (`MAX_CSUM_ITEMS`).
const MAX_SUMS: usize = 4096;

/// The most checksums that an item may hold: as many as fit a leaf beside another item's header,
/// less one. The kernel counts the same way (`MAX_CSUM_ITEMS`, `fs/btrfs/file-item.c`).
pub fn max_sums(geometry: &Geometry) -> usize {
    let leaf_bytes = geometry.node_size as usize - NodeHeader::SIZE - 2 * ItemHeader::SIZE;
    (leaf_bytes / geometry.checksum_type.size() - 1).min(MAX_SUMS)
}

/// Parses the checksum item at a cursor; `None` if the cursor is past the last one.
///
/// # Errors
/// [`Error::Item`] for an item that cannot be parsed.
pub(crate) fn csum_item<'c>(
    tree: &Tree,
    cursor: &'c Cursor<'_>,
    geometry: &Geometry,
) -> Result<Option<CsumItem<'c>>> {
    let (Some(key), Some(data)) = (cursor.key(), cursor.data()) else { return Ok(None) };
    if key != CsumItem::key(LogicalAddress(key.offset)) {
        return Ok(None);
    }
    let item = CsumItem::parse(&key, data, geometry);
    item.map(Some).map_err(|reason| Error::Item { tree: tree.id(), key, reason })
}

/// Removes the checksums of ranges (start, bytes) in one pass over the tree, and skips sectors
/// without one. The ranges ascend and do not overlap.
///
/// # Errors
/// A tree block or item that cannot be read, in which case nothing has changed; errors of changing
/// the tree.
pub(crate) fn remove_sums(editor: &mut TreeEditor<'_>, ranges: &[(LogicalAddress, u64)]) -> Result<()> {
    let ranges: Vec<Range<u64>> = ranges
        .iter()
        .map(|&(start, length)| start.0..start.0.saturating_add(length))
        .filter(|range| !range.is_empty())
        .collect();
    assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "ranges overlap or do not ascend");
    let tree = editor.tree();
    let changes = plan_removal(&tree, editor.geometry(), &ranges)?;
    drop(tree);
    if changes.is_empty() { Ok(()) } else { editor.apply(&changes) }
}

/// Returns the changes that remove the checksums of `ranges`, in ascending order of keys.
fn plan_removal(tree: &Tree, geometry: &Geometry, ranges: &[Range<u64>]) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut cursor = Cursor::new(tree);
    let mut rest = ranges;
    // Where to continue inside the first remaining range.
    let mut position = 0;
    while let Some(range) = rest.first() {
        let from = range.start.max(position);
        if from >= range.end {
            rest = &rest[1..];
            continue;
        }
        seek_covering(tree, &mut cursor, geometry, LogicalAddress(from))?;
        let Some(item) = csum_item(tree, &cursor, geometry)? else { break };
        if item.start().0 >= range.end {
            rest = &rest[1..];
            continue;
        }
        cut_item(&item, rest, geometry, &mut changes);
        position = item.end().0;
    }
    Ok(changes)
}

/// Moves the cursor to the item that covers `address`, or else to the first item after it.
fn seek_covering(
    tree: &Tree,
    cursor: &mut Cursor<'_>,
    geometry: &Geometry,
    address: LogicalAddress,
) -> Result<()> {
    let key = CsumItem::key(address);
    cursor.seek(&key)?;
    if cursor.key() == Some(key) {
        return Ok(());
    }
    cursor.step_back()?;
    if csum_item(tree, cursor, geometry)?.is_none_or(|item| item.end() <= address) {
        if cursor.key().is_some() {
            cursor.step()?;
        } else {
            cursor.seek(&key)?;
        }
    }
    Ok(())
}

/// Adds the changes that remove `ranges` from one item.
fn cut_item(item: &CsumItem<'_>, ranges: &[Range<u64>], geometry: &Geometry, changes: &mut Vec<Change>) {
    let (start, end) = (item.start().0, item.end().0);
    let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
    let byte = |address: u64| ((address - start) / sector) as usize * size;
    let keep = |from: u64, to: u64, changes: &mut Vec<Change>| {
        if from < to {
            let data = item.as_bytes()[byte(from)..byte(to)].to_vec();
            changes.push(Change::Put { key: CsumItem::key(LogicalAddress(from)), data });
        }
    };
    let first = changes.len();
    let mut kept = start;
    for range in ranges.iter().take_while(|range| range.start < end) {
        keep(kept, range.start.max(kept), changes);
        kept = kept.max(range.end.min(end));
    }
    keep(kept, end, changes);
    let key = CsumItem::key(item.start());
    let stays = changes.get(first).is_some_and(|change| change.key() == key);
    if !stays {
        changes.insert(first, Change::Remove { key });
    }
}

#[cfg(test)]
mod tests;

//! The data extents of a file system and their stored checksums, by address.
//!
//! Owns [`ListedExtent`] and the searches for it. They read the extent and the checksum tree, and
//! no data. A block that cannot be read is passed to the caller, and the walk goes on behind it.
//!
//! **Invariant:** all answers are those of the trees in memory, without references that are still
//! delayed.
//!
//! **Locks:** none.

use crate::errors::{Error, Result};
use crate::items::item_error;
use crate::items::trees::Trees;
use crate::jobs::extent_owners::extent_at;
use papilio_format::items::extent::{ExtentFlags, ExtentItem};
use papilio_format::{Corrupt, Generation, ItemType, Key, LogicalAddress, Node, objectid};
use std::ops::Range;

/// A data extent, as the extent tree describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedExtent {
    /// The logical address of its first byte.
    pub start: LogicalAddress,
    /// Its length on disk in bytes.
    pub length: u64,
    /// The number of its references; those of a leaf that snapshots share count once.
    pub references: u64,
    /// The transaction that allocated it.
    pub generation: Generation,
}

/// Which sectors of a range have checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksummed {
    /// All.
    All,
    /// Some, as in an extent that was allocated before it was written.
    Part,
    /// None.
    Nothing,
}

/// Passes all data extents to `visit`, by address, until it returns false; faults go to `fault`.
///
/// # Errors
/// The root of the extent tree cannot be read.
pub fn data_extents(
    trees: &Trees,
    visit: &mut dyn FnMut(ListedExtent) -> bool,
    fault: &mut dyn FnMut(Error),
) -> Result<()> {
    let tree = &trees.get(objectid::EXTENT_TREE, "the extent tree")?.tree;
    let mut leaf = |node: Node<'_>| {
        (0..node.len()).all(|slot| {
            let key = node.key(slot);
            let is_extent = key.item_type == ItemType::EXTENT_ITEM;
            let extent = if is_extent { data_extent(&key, node.item(slot)) } else { None };
            extent.is_none_or(&mut *visit)
        })
    };
    tree.visit_leaves(Generation(0), &mut leaf, fault)
}

/// Passes the ranges of addresses whose checksums a leaf of the checksum tree has to `visit`, leaf
/// by leaf, in order. Leaves older than `oldest` are left out.
///
/// # Errors
/// The root of the checksum tree cannot be read.
pub fn checksummed_since(
    trees: &Trees,
    oldest: Generation,
    visit: &mut dyn FnMut(&[Range<u64>]),
    fault: &mut dyn FnMut(Error),
) -> Result<()> {
    let tree = &trees.get(objectid::CSUM_TREE, "the checksum tree")?.tree;
    let (size, sector) = sizes(trees);
    let mut ranges = Vec::new();
    let mut leaf = |node: Node<'_>| {
        ranges.clear();
        for slot in 0..node.len() {
            let key = node.key(slot);
            if key.item_type == ItemType::EXTENT_CSUM {
                let sectors = (node.item(slot).len() / size) as u64;
                ranges.push(key.offset..key.offset.saturating_add(sectors.saturating_mul(sector)));
            }
        }
        visit(&ranges);
        true
    };
    tree.visit_leaves(oldest, &mut leaf, fault)
}

/// Returns the data extent that contains an address.
///
/// # Errors
/// A block or an item of the extent tree that cannot be read.
pub fn data_extent_at(trees: &Trees, address: LogicalAddress) -> Result<Option<ListedExtent>> {
    let tree = &trees.get(objectid::EXTENT_TREE, "the extent tree")?.tree;
    let Some((key, false)) = extent_at(tree, address)? else { return Ok(None) };
    Ok(tree.get(&key)?.and_then(|item| data_extent(&key, item.data())))
}

/// Appends the checksums of all sectors in `range` to `into`, if each has one. Otherwise `into`
/// stays as it was.
///
/// # Errors
/// A block or an item of the checksum tree that cannot be read.
pub fn stored_checksums(trees: &Trees, range: Range<u64>, into: &mut Vec<u8>) -> Result<Checksummed> {
    let Some(open) = trees.find(objectid::CSUM_TREE)? else { return Ok(Checksummed::Nothing) };
    let tree = &open.tree;
    let (size, sector) = sizes(trees);
    let before = into.len();
    let key = |address| Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, address);
    let (mut next, mut any) = (range.start, false);
    // The item that covers the first sector may begin before it.
    let first = match tree.last_up_to(&key(range.start))? {
        Some(item) if item.key.item_type == ItemType::EXTENT_CSUM => item.key,
        _ => key(range.start),
    };
    for item in tree.range(first..=key(range.end.saturating_sub(1))) {
        let item = item?;
        let data = item.data();
        if !data.len().is_multiple_of(size) {
            let reason = Corrupt::field(
                "checksum item",
                "length",
                data.len() as u64,
                "not a multiple of the checksum's size",
            );
            return Err(item_error(tree, &item, reason));
        }
        let start = item.key.offset;
        let end = start.saturating_add((data.len() / size) as u64 * sector).min(range.end);
        if end <= next {
            continue;
        }
        any = true;
        if start > next {
            break;
        }
        let at = |address: u64| ((address - start) / sector) as usize * size;
        into.extend_from_slice(&data[at(next)..at(end)]);
        next = end;
    }
    if next < range.end {
        into.truncate(before);
        return Ok(if any { Checksummed::Part } else { Checksummed::Nothing });
    }
    Ok(Checksummed::All)
}

/// Returns the sizes of a checksum and of a sector in bytes.
fn sizes(trees: &Trees) -> (usize, u64) {
    let geometry = trees.forest().volume().geometry();
    (geometry.checksum_type.size(), u64::from(geometry.sector_size))
}

fn data_extent(key: &Key, item: &[u8]) -> Option<ListedExtent> {
    let header = ExtentItem::parse(key.item_type, item).ok()?.header;
    header.flags.contains(ExtentFlags::DATA).then_some(ListedExtent {
        start: LogicalAddress(key.objectid),
        length: key.offset,
        references: header.refs,
        generation: header.generation,
    })
}

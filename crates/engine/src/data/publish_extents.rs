//! Publishing data that is on the device in the trees: the second phase of every change of data.
//!
//! Owns [`publish_extents`], [`publish_written`] and [`publish_preallocated`]. The checksums of any
//! number of extents go to the checksum tree in one insertion, the extents in one pass over the
//! file's tree.
//!
//! Locks: as [`super::file_edit`]. Kernel counterpart: `btrfs_finish_one_ordered`
//! (`fs/btrfs/inode.c`).

use crate::data::convert::{STEP_RANGES, convert_step};
use crate::data::csum_edit::{ChecksumRuns, insert_checksums};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::ordered_extents::OrderedPart;
use crate::data::progress::Progress;
use crate::data::stored_extents::{StoredExtent, StoredExtents};
use crate::data::written_extents::{WrittenExtent, WrittenExtents};
use crate::errors::Result;
use crate::space::RangeSet;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::InodeItem;
use std::collections::BTreeMap;
use std::ops::Range;

/// The least bytes of an extent that continues another though its last sector is not full.
const LEAST_CUT: u64 = 128 << 10;

/// Publishes `extents`, ascending and disjoint, in place of the file's old extents there. `item`
/// becomes the inode item, except for the flags and the byte count, which come from the tree.
///
/// # Errors
/// An error of reading or changing trees. The transaction is then aborted.
pub(crate) fn publish_extents(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    extents: &[WrittenExtent],
    checksums: Option<ChecksumRuns>,
    item: InodeItem,
) -> Result<()> {
    let tree = file.tree.tree();
    let ranges: Vec<Range<u64>> = extents.iter().map(WrittenExtent::range).collect();
    // One stored extent may overlap several ranges.
    let mut stored: BTreeMap<u64, StoredExtent> = BTreeMap::new();
    let mut reached = 0;
    for range in &ranges {
        let from = range.start.max(reached);
        for extent in StoredExtents::new(&tree, file.inode, context.sector() as u32, from, range.end) {
            let extent = extent?;
            reached = extent.end;
            stored.insert(extent.start, extent);
        }
    }
    let mut changes = context.changes(file);
    for extent in stored.values() {
        let first = ranges.partition_point(|range| range.end <= extent.start);
        let behind = ranges.partition_point(|range| range.start < extent.end);
        changes.cut_all(extent, &ranges[first..behind])?;
    }
    let mut inserted = extents;
    let end_of_file = file.item.size.next_multiple_of(context.sector());
    // One extent for the pieces of a file that grows, whose writes are published one by one. A
    // small one that ends inside its last sector stays apart: the next write replaces that sector,
    // and an extent keeps its space until nothing refers to a part of it.
    if let Some((first, others)) = extents.split_first()
        && first.start == end_of_file
        && first.compression == Compression::None
        && (first.range().end <= item.size || first.length >= LEAST_CUT)
    {
        changes.append(&tree, first.start, &first.item())?;
        inserted = others;
    }
    drop(tree);
    for extent in inserted {
        changes.insert(extent.start, &extent.item(), true);
    }
    if let Some(checksums) = checksums.filter(|checksums| !checksums.is_empty()) {
        insert_checksums(&mut context.checksum_tree.edit(context.space), checksums)?;
    }
    file.publish(context, changes, item)
}

/// Publishes the extents of one change. A second call does nothing.
///
/// # Errors
/// As [`publish_extents`].
pub(crate) fn publish_written(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    written: &mut WrittenExtents<'_>,
    mut item: InodeItem,
) -> Result<()> {
    if !written.features.is_empty() {
        context.space.require_features(written.features)?;
    }
    item.flags |= written.flags;
    // Cloned: a change that finds no space for metadata runs again.
    publish_extents(context, file, &written.extents, written.checksums.clone(), item)?;
    let (mut progress, mut from) = (Progress::More, 0);
    while !written.filled.is_empty() && progress == Progress::More {
        let item = file.item;
        (progress, from) = convert_step(context, file, &written.filled, from, item)?;
    }
    written.set_published();
    Ok(())
}

/// Publishes that `parts` of preallocated extents, ascending and at most [`STEP_RANGES`], hold
/// data.
///
/// # Errors
/// An error of reading or changing trees.
pub(crate) fn publish_preallocated(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    parts: &[OrderedPart],
    checksums: ChecksumRuns,
    item: InodeItem,
) -> Result<()> {
    assert!(parts.len() <= STEP_RANGES, "{} parts in a step", parts.len());
    let written: RangeSet = parts.iter().map(|part| part.range.clone()).collect();
    insert_checksums(&mut context.checksum_tree.edit(context.space), checksums)?;
    let (progress, _) = convert_step(context, file, &written, 0, item)?;
    assert_eq!(progress, Progress::Done, "one step publishes so few ranges");
    Ok(())
}

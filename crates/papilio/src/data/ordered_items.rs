//! Ordered extents become items.
//!
//! Owns [`put_new`] and [`put_preallocated`]: of any number of them, the sums in one insertion and the extents
//! in one pass over the file's tree. Locks: as [`super::file_edit`]. Kernel counterpart:
//! `btrfs_finish_one_ordered` (`fs/btrfs/inode.c`).

use crate::data::convert::{STEP_RANGES, convert_step};
use crate::data::csum_edit::{SumRuns, insert_sums};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::inline::move_out_of_line;
use crate::data::ordered_extents::OrderedPart;
use crate::data::stored_extents::{StoredExtent, StoredExtents};
use crate::data::truncate::Progress;
use crate::errors::Result;
use crate::space::RangeSet;
use papilio_format::Generation;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeItem;
use std::collections::BTreeMap;
use std::ops::Range;

/// Puts extents in room that was allocated for them, ascending, in the place of what the file has there.
///
/// # Errors
/// What reading and changing trees meets.
pub(crate) fn put_new(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    parts: &[OrderedPart],
    sums: SumRuns,
    item: InodeItem,
) -> Result<()> {
    move_out_of_line(context, file, None)?;
    context.space.settle();
    let item = InodeItem { flags: file.item.flags, nbytes: file.item.nbytes, ..item };
    let tree = file.tree.tree();
    let ranges: Vec<Range<u64>> = parts.iter().map(|part| part.range.clone()).collect();
    // One item may lie in the way of many.
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
    drop(tree);
    for part in parts {
        changes.insert(part.range.start, &ordinary(part), true);
    }
    insert_sums(&mut context.checksum_tree.edit(context.space), sums)?;
    file.publish(context, changes, item)
}

/// Says that `parts` of preallocated extents, ascending and [`STEP_RANGES`] at most, hold data.
///
/// # Errors
/// What reading and changing trees meets.
pub(crate) fn put_preallocated(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    parts: &[OrderedPart],
    sums: SumRuns,
    item: InodeItem,
) -> Result<()> {
    assert!(parts.len() <= STEP_RANGES, "{} parts in a step", parts.len());
    let written: RangeSet = parts.iter().map(|part| part.range.clone()).collect();
    insert_sums(&mut context.checksum_tree.edit(context.space), sums)?;
    let (progress, _) = convert_step(context, file, &written, 0, item)?;
    assert_eq!(progress, Progress::Done, "they are few enough for one step");
    Ok(())
}

fn ordinary(part: &OrderedPart) -> FileExtentItem<'static> {
    let length = part.range.end - part.range.start;
    FileExtentItem {
        generation: Generation(0),
        ram_bytes: length,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Regular(ExtentPart {
            disk_address: part.disk,
            disk_length: length,
            offset: 0,
            length,
        }),
    }
}

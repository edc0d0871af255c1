//! Conversion of preallocated ranges that now hold data to regular extents.
//!
//! Owns [`convert_step`]. Neighbours in the file that are also neighbours in the same extent on
//! disk are merged. A file written in random order ends up with no more items than one written in
//! order.
//!
//! Locks: as [`super::file_edit`]. Kernel counterpart: `btrfs_mark_extent_written`
//! (`fs/btrfs/file.c`).

use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::file_extents_edit::{is_plain, on_disk};
use crate::data::progress::Progress;
use crate::data::stored_extents::{StoredExtent, StoredExtents};
use crate::errors::Result;
use crate::space::RangeSet;
use papilio_format::items::file_extent::{ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeItem;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most written ranges that one step converts.
pub(crate) const STEP_RANGES: usize = 128;

/// A part of the file that becomes one item.
#[derive(Clone, Copy, Debug)]
struct ItemPart<'a> {
    start: u64,
    part: ExtentPart,
    preallocated: bool,
    /// The item that the part was cut from.
    of: FileExtentItem<'a>,
}

impl ItemPart<'_> {
    fn end(&self) -> u64 {
        self.start + self.part.length
    }

    fn continues(&self, before: &Self) -> bool {
        let (own, other) = (&self.part, &before.part);
        self.preallocated == before.preallocated
            && before.end() == self.start
            && (own.disk_address, own.disk_length) == (other.disk_address, other.disk_length)
            && other.offset + other.length == own.offset
    }

    fn item(&self) -> FileExtentItem<'_> {
        let content = if self.preallocated {
            FileExtentContent::Prealloc(self.part)
        } else {
            FileExtentContent::Regular(self.part)
        };
        FileExtentItem { content, ..self.of }
    }
}

/// Converts the preallocated extents in the `written` ranges after `from` to regular ones, and
/// stores `item` as the inode item. Returns where the next step begins; [`Progress::Done`] after
/// the last range.
///
/// # Errors
/// An error of reading or changing trees.
pub(crate) fn convert_step(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    written: &RangeSet,
    from: u64,
    item: InodeItem,
) -> Result<(Progress, u64)> {
    let mut runs = Vec::with_capacity(STEP_RANGES);
    let mut at = from;
    while runs.len() < STEP_RANGES
        && let Some(run) = written.first_behind(at)
    {
        at = run.end;
        runs.push(run);
    }
    let more = written.first_behind(at).is_some();
    let tree = file.tree.tree();
    let sector = context.sector();
    let mut stored: BTreeMap<u64, StoredExtent> = BTreeMap::new();
    for run in &runs {
        // One sector more on both sides: the run may merge with its neighbours.
        let (start, end) = (run.start.saturating_sub(sector), run.end + sector);
        for extent in StoredExtents::new(&tree, file.inode, sector as u32, start, end) {
            let extent = extent?;
            stored.insert(extent.start, extent);
        }
    }
    drop(tree);
    let mut parts: Vec<ItemPart<'_>> = Vec::new();
    for (&start, extent) in &stored {
        for part in parts_of(start, extent, &runs) {
            match parts.last_mut() {
                Some(last) if part.continues(last) => last.part.length += part.part.length,
                _ => parts.push(part),
            }
        }
    }
    let mut changes = context.changes(file);
    let after: Vec<_> = parts.iter().map(|part| (part.start, part.item())).collect();
    changes.rewrite(stored.values(), &after);
    file.publish(context, changes, item)?;
    Ok((if more { Progress::More } else { Progress::Done }, at))
}

/// Cuts an item at the boundaries of `runs`. Returns nothing for an item that is not a plain extent
/// on disk.
fn parts_of<'a>(start: u64, extent: &'a StoredExtent, runs: &[Range<u64>]) -> Vec<ItemPart<'a>> {
    let of = extent.extent();
    let Some(part) = on_disk(&of).filter(|_| is_plain(&of)) else { return Vec::new() };
    let preallocated = matches!(of.content, FileExtentContent::Prealloc(_));
    if !preallocated {
        return vec![ItemPart { start, part, preallocated, of }];
    }
    let cut = |from: u64, to: u64, preallocated| ItemPart {
        start: from,
        part: ExtentPart { offset: part.offset + (from - start), length: to - from, ..part },
        preallocated,
        of,
    };
    let mut parts = Vec::new();
    let mut at = start;
    for run in runs.iter().filter(|run| run.start < extent.end && run.end > start) {
        let (from, to) = (run.start.max(start), run.end.min(extent.end));
        if at < from {
            parts.push(cut(at, from, true));
        }
        parts.push(cut(from, to, false));
        at = to;
    }
    if at < extent.end {
        parts.push(cut(at, extent.end, true));
    }
    parts
}

//! The ranges of a file system that are in use, in frames.
//!
//! Owns [`plan`] and [`PlannedFrame`].
//!
//! **Invariant:** the ranges ascend without overlap, and a frame has those of one kind only.

use crate::image::collect::CollectReader;
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::item_error;
use papilio_engine::items::trees::Trees;
use papilio_format::disk_archive::FrameKind;
use papilio_format::items::extent::{ExtentFlags, ExtentItem};
use papilio_format::{Generation, ItemType, Key, LogicalAddress, objectid};
use std::collections::BTreeSet;

/// The most bytes of a frame of data. A reader decompresses a whole frame.
const DATA_FRAME: u64 = 1 << 20;
/// As [`DATA_FRAME`], for tree blocks, which are read one by one.
const METADATA_FRAME: u64 = 256 << 10;

/// A range that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedRange {
    pub(super) start: u64,
    pub(super) length: u64,
}

/// Ranges of one kind that go into one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedFrame {
    pub(super) kind: FrameKind,
    /// Whether the extents are newer than the parent.
    pub(super) newer: bool,
    pub(super) ranges: Vec<UsedRange>,
}

/// Collects ranges into frames.
#[derive(Debug, Default)]
struct Frames {
    done: Vec<PlannedFrame>,
    /// The frames that are not full: tree blocks old and new, data old and new.
    open: [Vec<UsedRange>; 4],
}

impl Frames {
    fn add(&mut self, kind: FrameKind, newer: bool, mut start: u64, end: u64) {
        let (limit, first) = match kind {
            FrameKind::Metadata => (METADATA_FRAME, 0),
            _ => (DATA_FRAME, 2),
        };
        let slot = first + usize::from(newer);
        while start < end {
            let open = &mut self.open[slot];
            let used: u64 = open.iter().map(|range| range.length).sum();
            let length = (end - start).min(limit - used);
            match open.last_mut() {
                Some(last) if last.start + last.length == start => last.length += length,
                _ => open.push(UsedRange { start, length }),
            }
            start += length;
            if used + length == limit {
                self.close(slot);
            }
        }
    }

    fn close(&mut self, slot: usize) {
        let ranges = std::mem::take(&mut self.open[slot]);
        if !ranges.is_empty() {
            let kind = if slot < 2 { FrameKind::Metadata } else { FrameKind::Data };
            self.done.push(PlannedFrame { kind, newer: slot % 2 == 1, ranges });
        }
    }
}

/// Returns the frames of a file system: the used ranges by their addresses, tree blocks and data
/// apart. `log` is the root of the trees of its log. Extents of commits after `since` are newer.
///
/// # Errors
/// A tree that cannot be read; extents that overlap.
pub(super) fn plan(
    trees: &Trees,
    log: Option<LogicalAddress>,
    since: Option<Generation>,
) -> Result<Vec<PlannedFrame>> {
    let volume = trees.forest().volume();
    let node_size = u64::from(volume.geometry().node_size);
    let mut logged = BTreeSet::new();
    if let Some(log) = log {
        // No extent tree has the blocks of a log.
        CollectReader { volume }.walk(log, true, &mut logged)?;
    }
    let mut logged = logged.into_iter().peekable();
    let mut frames = Frames::default();
    let mut end = 0;
    let tree = &trees.get(objectid::EXTENT_TREE, "the extent tree")?.tree;
    for item in tree.items() {
        let item = item?;
        let Key { objectid: start, item_type, offset } = item.key;
        if !matches!(item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let extent =
            ExtentItem::parse(item_type, item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        let (kind, length) = match () {
            () if extent.is_tree_block() => (FrameKind::Metadata, node_size),
            () if extent.header.flags.contains(ExtentFlags::DATA) => (FrameKind::Data, offset),
            () => continue,
        };
        while let Some(block) = logged.next_if(|block| *block < start) {
            frames.add(FrameKind::Metadata, true, block, block + node_size);
            end = end.max(block + node_size);
        }
        // A log block that the extent tree has, too, is added once.
        logged.next_if(|block| *block == start);
        let next = start.checked_add(length).filter(|_| start >= end);
        let Some(next) = next else {
            let text = format!("the extent at {} overlaps the one before it", LogicalAddress(start));
            return Err(Error::Invalid(text));
        };
        let newer = since.is_none_or(|since| extent.header.generation > since);
        frames.add(kind, newer, start, next);
        end = next;
    }
    for block in logged {
        frames.add(FrameKind::Metadata, true, block, block + node_size);
    }
    (0..4).for_each(|slot| frames.close(slot));
    Ok(frames.done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_full_and_of_one_kind() {
        let mut frames = Frames::default();
        frames.add(FrameKind::Data, true, 0, 3 << 19);
        frames.add(FrameKind::Metadata, true, 4 << 20, (4 << 20) + 16384);
        frames.add(FrameKind::Data, true, 8 << 20, (8 << 20) + 4096);
        frames.add(FrameKind::Data, false, 9 << 20, (9 << 20) + 4096);
        (0..4).for_each(|slot| frames.close(slot));
        let range = |start, length| UsedRange { start, length };
        let frame = |kind, newer, ranges: &[UsedRange]| PlannedFrame { kind, newer, ranges: ranges.to_vec() };
        assert_eq!(
            frames.done,
            [
                frame(FrameKind::Data, true, &[range(0, 1 << 20)]),
                frame(FrameKind::Metadata, true, &[range(4 << 20, 16384)]),
                frame(FrameKind::Data, false, &[range(9 << 20, 4096)]),
                frame(FrameKind::Data, true, &[range(1 << 20, 1 << 19), range(8 << 20, 4096)]),
            ]
        );
    }
}

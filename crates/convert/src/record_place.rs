//! A place for the record of a switch.
//!
//! Owns [`record_place`]. System chunks have few tree blocks, no logs and no data, so that a part
//! of them is always free. They lie where the source has nothing: all that it uses is data of its
//! image. The search begins at the end of a chunk, far from blocks of older chunk trees.

use crate::error::Result;
use crate::layout::reserved_ranges;
use crate::record::RECORD_BYTES;
use papilio_engine::volume::Chunk;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{DeviceId, ItemType, Key, objectid};
use papilio_fs::FileSystem;
use std::ops::Range;

/// The unit of a place.
const UNIT: u64 = 4096;

/// Returns a place on the only device that holds no block of a committed Btrfs, lies outside of the
/// ranges for superblocks, and for which `is_free` holds.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn record_place(fs: &FileSystem, is_free: impl Fn(&Range<u64>) -> bool) -> Result<Option<u64>> {
    let total = fs.info.volume().superblock().raw.dev_item.total_bytes;
    let reserved = reserved_ranges(total);
    for chunk in fs.info.volume().chunk_map().iter() {
        let Some(stripe) = chunk.stripes().first().filter(|stripe| stripe.devid == DeviceId(1)) else {
            continue;
        };
        if !chunk.flags().contains(BlockGroupFlags::SYSTEM) {
            continue;
        }
        for gap in gaps(fs, chunk)?.into_iter().rev() {
            let mut end = gap.end;
            while end >= gap.start + RECORD_BYTES {
                let start = stripe.offset.0 + (end - RECORD_BYTES - chunk.start().0);
                let range = start..start + RECORD_BYTES;
                let is_reserved = |other: &Range<u64>| other.start < range.end && range.start < other.end;
                if range.end <= total && !reserved.iter().any(is_reserved) && is_free(&range) {
                    return Ok(Some(start));
                }
                end -= UNIT;
            }
        }
    }
    Ok(None)
}

/// Returns the logical ranges of a chunk that hold no tree block, in order.
fn gaps(fs: &FileSystem, chunk: &Chunk) -> Result<Vec<Range<u64>>> {
    let tree = fs.info.trees.get(objectid::EXTENT_TREE, "the extent tree")?.tree.clone();
    let node_size = u64::from(fs.info.volume().geometry().node_size);
    let (mut from, end) = (chunk.start().0, chunk.end().0);
    let mut gaps = Vec::new();
    for item in tree.range(Key::first_of(from)..=Key::last_of(end - 1)) {
        let key = item?.key;
        let length = match key.item_type {
            ItemType::METADATA_ITEM => node_size,
            ItemType::EXTENT_ITEM => key.offset,
            _ => continue,
        };
        if key.objectid > from {
            gaps.push(from..key.objectid);
        }
        from = from.max(key.objectid.saturating_add(length));
    }
    if from < end {
        gaps.push(from..end);
    }
    Ok(gaps)
}

//! The extents of a saved image, and whether they lie where the source had them.
//!
//! Owns [`ImageExtents`].

use crate::error::ConvertError;
use crate::layout::reserved_ranges;
use papilio_engine::errors::Error;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{DeviceId, Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId};
use papilio_fs::FileSystem;
use std::ops::Range;

/// A reason why the image cannot be used.
pub(crate) enum Fault {
    Moved(String),
    Other(ConvertError),
}

impl<E: Into<ConvertError>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// The ranges of the image that have data, in order.
pub(crate) struct ImageExtents {
    pub(crate) ranges: Vec<Range<u64>>,
}

impl ImageExtents {
    /// Reads the extents of the image, and checks that each lies at its place.
    ///
    /// # Errors
    /// An extent that lies elsewhere or is not of the conversion; a tree block that cannot be read.
    pub(crate) fn read(fs: &FileSystem, tree: TreeId, number: InodeNumber, size: u64) -> Result<Self, Fault> {
        let open = fs.info.trees.find(tree)?;
        let missing = || Fault::Moved("the subvolume of the image cannot be read".to_owned());
        let items = open.as_ref().ok_or_else(missing)?.tree.clone();
        let reserved = reserved_ranges(size);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut made: Option<Generation> = None;
        let from = Key::new(number.0, ItemType::EXTENT_DATA, 0);
        for item in items.range(from..=Key::new(number.0, ItemType::EXTENT_DATA, u64::MAX)) {
            let item = item?;
            let offset = item.key.offset;
            let extent = FileExtentItem::parse(item.data()).map_err(|reason| Error::Item {
                tree,
                key: item.key,
                reason,
            })?;
            let moved = |why: &str| Err(Fault::Moved(format!("the image was changed: byte {offset} {why}")));
            let part = match extent.content {
                FileExtentContent::Regular(part) if part.is_hole() => continue,
                FileExtentContent::Regular(part) if extent.compression == Compression::None => part,
                _ => return moved("is inline, preallocated or compressed"),
            };
            // All extents are of the conversion. A later one would be a change.
            if made.is_some_and(|made| made != extent.generation) {
                return moved("was written after the conversion, or before others");
            }
            made = Some(extent.generation);
            let end = offset.saturating_add(part.length);
            let address = LogicalAddress(part.disk_address.0.saturating_add(part.offset));
            let places = places_of(fs, address, part.length);
            let is_superblocks = |range: &Range<u64>| {
                reserved.iter().any(|other| other.start < range.end && range.start < other.end)
            };
            let Some(own) = reserved.iter().find(|range| range.contains(&offset)) else {
                if places.len() != 1 || places[0] != (offset..end) {
                    return moved("lies elsewhere on the device, as after a balance");
                }
                if is_superblocks(&(offset..end)) {
                    return moved("lies where superblocks do");
                }
                add(&mut ranges, offset..end);
                continue;
            };
            // Its place is that of a superblock, so that its content must be elsewhere.
            if end > own.end || places.is_empty() || places.iter().any(is_superblocks) {
                return moved("has no copy apart from superblocks");
            }
            add(&mut ranges, offset..end);
        }
        Ok(Self { ranges })
    }

    /// Returns the first byte of a range that has no data.
    pub(crate) fn first_gap(&self, range: &Range<u64>) -> Option<u64> {
        let at = self.ranges.partition_point(|known| known.end <= range.start);
        match self.ranges.get(at) {
            Some(known) if known.start <= range.start => (known.end < range.end).then_some(known.end),
            _ => Some(range.start),
        }
    }
}

/// Adds a range that begins at the end of the last one or later.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Returns the places of the copies of a range on the only device, if it lies in one chunk whose
/// copies are in one piece each.
fn places_of(fs: &FileSystem, logical: LogicalAddress, length: u64) -> Vec<Range<u64>> {
    let map = fs.info.volume().chunk_map();
    let Some(chunk) = map.find(logical) else { return Vec::new() };
    let is_mirrored = chunk.profile().data_stripes(chunk.stripes().len()) == 1;
    let is_inside = logical.0.checked_add(length).is_some_and(|end| end <= chunk.end().0);
    if !is_mirrored || !is_inside || chunk.stripes().iter().any(|stripe| stripe.devid != DeviceId(1)) {
        return Vec::new();
    }
    let place = |start: u64| start + (logical.0 - chunk.start().0);
    let places = chunk.stripes().iter().map(|stripe| place(stripe.offset.0));
    places.map(|start| start..start.saturating_add(length)).collect()
}

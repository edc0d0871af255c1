//! Extents of logged files, and their checksums.
//!
//! Part of [`Replay`]. A logged extent replaces everything in its range. If the extent tree has the
//! extent on disk, it gains a reference. Otherwise it was written since the last commit and was
//! claimed before the replay; it now gets an item. Checksums of the log replace existing ones: an
//! extent may have been cloned, and its old checksums may cover another part of it.
//!
//! **Locks**: the trees' editors, one after the other.
//!
//! Kernel counterpart: `replay_one_extent` (`fs/btrfs/tree-log.c`).

use super::replay::Replay;
use crate::btree::{Item, Tree};
use crate::data::csum_edit::{ChecksumRuns, insert_checksums};
use crate::data::file_extents_edit::{ExtentChanges, on_disk};
use crate::errors::{Error, Result};
use crate::items::item_error;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{Corrupt, FileOffset, Geometry, InodeNumber, ItemType, Key, LogicalAddress, objectid};

impl Replay<'_> {
    /// Replays a logged extent into the subvolume.
    pub(super) fn replay_extent(&mut self, item: &Item) -> Result<()> {
        let fault = |reason| item_error(&self.log, item, reason);
        let number = InodeNumber(item.key.objectid);
        let extent = FileExtentItem::parse(item.data()).map_err(fault)?;
        let start = item.key.offset;
        let end = extent.end(FileOffset(start), self.geometry.sector_size).ok_or_else(|| {
            fault(Corrupt::field("file extent", "length", extent.length(), "reaches past the largest offset"))
        })?;
        let inode = self.inode_of(&item.key)?;
        let tree = self.live.tree();
        let is_inline = matches!(extent.content, FileExtentContent::Inline(_));
        if !is_inline && tree.get(&item.key)?.is_some_and(|old| old.data() == item.data()) {
            return Ok(());
        }
        let mut changes = ExtentChanges::new(self.id(), number, &self.geometry, self.handle.generation());
        changes.drop_range(&tree, start, end.0, usize::MAX)?;
        drop(tree);
        let part = on_disk(&extent);
        match part {
            Some(part) => {
                let new = self.space.take(part.disk_address);
                changes.insert(start, &extent, new);
            }
            None if is_inline => changes.insert(start, &extent, false),
            None => changes.insert_hole(start, end.0),
        }
        changes.publish(&self.live, self.handle, inode)?;
        let Some(part) = part else { return Ok(()) };
        let (from, length) = match extent.compression {
            Compression::None => (part.disk_address.0 + part.offset, part.length),
            _ => (part.disk_address.0, part.disk_length),
        };
        self.copy_sums(LogicalAddress(from), LogicalAddress(from + length))
    }

    /// Copies the checksums that the log has of a range into the checksum tree.
    fn copy_sums(&self, start: LogicalAddress, end: LogicalAddress) -> Result<()> {
        let sums = logged_sums(&self.log, &self.geometry, start, end)?;
        if sums.is_empty() {
            return Ok(());
        }
        let tree = self.handle.live_tree(objectid::CSUM_TREE)?;
        insert_checksums(&mut tree.edit(self.handle), sums)
    }
}

/// The checksums that a log has of a range.
fn logged_sums(
    log: &Tree,
    geometry: &Geometry,
    start: LogicalAddress,
    end: LogicalAddress,
) -> Result<ChecksumRuns> {
    let mut sums = ChecksumRuns::new(geometry);
    let is_sums = |key: &Key| (key.objectid, key.item_type) == (objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM);
    let first = CsumItem::key(start);
    let before = log.last_up_to(&first)?.map(|item| item.key).filter(is_sums);
    let mut next = start;
    for item in log.range(before.unwrap_or(first)..=CsumItem::key(LogicalAddress(end.0.saturating_sub(1)))) {
        let item = item?;
        let fault = |reason| Error::Item { tree: log.id(), key: item.key, reason };
        let view = CsumItem::parse(&item.key, item.data(), geometry).map_err(fault)?;
        // Items of logs may overlap: an extent may have been logged twice, in different parts.
        let (from, to) = (view.start().max(next), view.end().min(end));
        if from >= to {
            continue;
        }
        let size = geometry.checksum_type.size();
        let sector = u64::from(geometry.sector_size);
        let byte = |address: LogicalAddress| ((address.0 - view.start().0) / sector) as usize * size;
        sums.add(from, &view.as_bytes()[byte(from)..byte(to)]);
        next = to;
    }
    Ok(sums)
}

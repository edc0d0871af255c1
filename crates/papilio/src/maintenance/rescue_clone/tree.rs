//! The items of one subvolume, copied into the clone.
//!
//! Owns [`TreeCopy`]. Items are collected in batches; a batch, its checksums and its references to
//! data become part of one transaction.
//!
//! **Invariants**
//! - Items keep their keys. Only file extents, entries of lost subvolumes and the sizes of inodes
//!   that lost data change.
//! - A reference to a data extent is counted in the transaction that inserts its item.
//!
//! **Locks**, in a batch: the subvolume's writer, then the checksum tree's.

use super::extents::{Copied, Extents, Fault, check_extent};
use super::inodes::Current;
use super::loss::CloneLoss;
use super::report::Listener;
use super::roots::{Gap, Walk};
use crate::btree::{Change, LiveTree, Tree};
use crate::data::csum_edit::{ChecksumRuns, insert_checksums};
use crate::errors::Result;
use crate::transaction::{DataReference, Transactions};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem, inode_key};
use papilio_format::{FileOffset, Geometry, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::ops::Range;
use std::sync::Arc;

/// The most bytes of items in a batch.
const BATCH_BYTES: usize = 256 << 10;
/// The most bytes of data whose checksums are in a batch.
const BATCH_DATA: u64 = 64 << 20;

/// The copy of one subvolume.
pub(super) struct TreeCopy<'a, 'l> {
    source: &'a Tree,
    target: &'a Arc<LiveTree>,
    transactions: &'a Arc<Transactions>,
    extents: &'a mut Extents<'l>,
    listener: &'a mut Listener<'l>,
    geometry: Geometry,
    changes: Vec<Change>,
    references: Vec<(DataReference, bool)>,
    sums: ChecksumRuns,
    bytes: usize,
    data_before: u64,
    inode: Current,
}

impl<'a, 'l> TreeCopy<'a, 'l> {
    pub(super) fn new(
        source: &'a Tree,
        target: &'a Arc<LiveTree>,
        transactions: &'a Arc<Transactions>,
        extents: &'a mut Extents<'l>,
        listener: &'a mut Listener<'l>,
        geometry: Geometry,
    ) -> Self {
        let data_before = extents.bytes;
        Self {
            source,
            target,
            transactions,
            extents,
            listener,
            geometry,
            changes: Vec::new(),
            references: Vec::new(),
            sums: ChecksumRuns::new(&geometry),
            bytes: 0,
            data_before,
            inode: Current::new(InodeNumber(0)),
        }
    }

    /// Copies all items.
    ///
    /// # Errors
    /// Those of the clone: no space, or a device that fails.
    pub(super) fn run(mut self) -> Result<()> {
        let mut walk = Walk::new(self.source);
        loop {
            match walk.next() {
                Ok(Some((key, data))) => self.item(key, data)?,
                Ok(None) => break,
                Err(gap) => self.lose_items(&gap),
            }
            if self.bytes > BATCH_BYTES || self.extents.bytes - self.data_before > BATCH_DATA {
                self.flush()?;
            }
        }
        self.end_inode()?;
        self.flush()
    }

    fn lose_items(&mut self, gap: &Gap) {
        let to = match gap.behind {
            Some(key) => format!("to {}", key.objectid),
            None => "and after".to_owned(),
        };
        let path = self.listener.subvolume_path(self.source.id());
        let reason = format!("inodes {} {to}: {}", gap.from.objectid, gap.error);
        self.listener.lose(CloneLoss::of(path, reason));
    }

    fn item(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if key.objectid == objectid::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM {
            self.put(key, data.to_vec());
            return Ok(());
        }
        if !(objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&key.objectid) {
            return Ok(());
        }
        if key.objectid != self.inode.number.0 {
            self.end_inode()?;
            self.inode = Current::new(InodeNumber(key.objectid));
        }
        if self.inode.item.is_none() && key.item_type != ItemType::INODE_ITEM {
            let made = self.inode.make(self.source, &key);
            self.put(inode_key(self.inode.number), made.to_bytes().to_vec());
            let path = self.listener.path(self.source, self.inode.number);
            let reason = "its inode item is lost: owner, mode and times are unknown";
            self.listener.lose(CloneLoss::of(path, reason));
        }
        if !self.inode.can_have(&key) {
            let path = self.listener.path(self.source, self.inode.number);
            let reason = format!("an inode of another kind has the item {key}");
            self.listener.lose(CloneLoss::of(path, reason));
            return Ok(());
        }
        self.inode.count(&key, data, self.geometry.sector_size);
        match key.item_type {
            ItemType::INODE_ITEM => {
                self.inode.item = InodeItem::parse(data).ok();
                self.put(key, data.to_vec());
            }
            ItemType::INODE_REF
            | ItemType::INODE_EXTREF
            | ItemType::XATTR_ITEM
            | ItemType::VERITY_DESC_ITEM
            | ItemType::VERITY_MERKLE_ITEM => self.put(key, data.to_vec()),
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => self.entries(key, data),
            ItemType::EXTENT_DATA => self.extent(key, data)?,
            _ => {}
        }
        Ok(())
    }

    fn put(&mut self, key: Key, data: Vec<u8>) {
        self.bytes += data.len() + 25;
        self.changes.push(Change::Put { key, data });
    }

    /// Copies directory entries, except for those of subvolumes that the clone does not get.
    fn entries(&mut self, key: Key, data: &[u8]) {
        let Ok(entries) = DirEntries::parse(data) else {
            let path = self.listener.path(self.source, InodeNumber(key.objectid));
            self.listener.lose(CloneLoss::of(path, "a damaged directory entry"));
            return;
        };
        let mut kept = Vec::with_capacity(data.len());
        for entry in entries {
            let child = TreeId(entry.location.objectid);
            if entry.location.item_type == ItemType::ROOT_ITEM
                && !self.listener.has_subvolume(child)
                && self.listener.is_entry_of(self.source.id(), child)
            {
                if key.item_type == ItemType::DIR_INDEX {
                    let mut path = self.listener.path(self.source, InodeNumber(key.objectid));
                    path.extend([b"/", entry.name].concat());
                    self.listener.lose(CloneLoss::of(path, "the subvolume cannot be read"));
                }
                continue;
            }
            entry.append_to(&mut kept);
        }
        if !kept.is_empty() {
            self.put(key, kept);
        }
    }

    fn extent(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let item = match FileExtentItem::parse(data) {
            Ok(item) => item,
            Err(reason) => {
                let path = self.listener.path(self.source, InodeNumber(key.objectid));
                let reason = format!("the extent at {}: {reason}", key.offset);
                self.listener.lose(CloneLoss::of(path, reason));
                return Ok(());
            }
        };
        let (part, written) = match item.content {
            FileExtentContent::Regular(part) if !part.is_hole() => (part, true),
            FileExtentContent::Prealloc(part) if !part.is_hole() => (part, false),
            _ => {
                self.put(key, data.to_vec());
                return Ok(());
            }
        };
        let whole = key.offset..key.offset.saturating_add(part.length);
        if let Err(error) = check_extent(part.disk_length, &self.geometry) {
            self.lose_range(key, &item, part, whole, &error.to_string());
            return Ok(());
        }
        let before = self.extents.bytes;
        let copied = self.extents.copy(part.disk_address, part.disk_length, written, &mut self.sums)?;
        let is_compressed = item.compression != Compression::None;
        // The bytes of the extent on disk that this part of it needs.
        let needs = match is_compressed {
            true => 0..part.disk_length,
            false => part.offset..part.offset.saturating_add(part.length).min(part.disk_length),
        };
        let (lost, is_hole) = missing_of(copied, &needs, is_compressed);
        if is_hole || copied.address.is_none() {
            let reason = lost.first().map_or_else(String::new, |(_, reason)| reason.clone());
            self.lose_range(key, &item, part, whole, &reason);
            return Ok(());
        }
        let has_sums = !self.inode.item.is_some_and(|item| item.flags.contains(InodeFlags::NODATASUM));
        let address = copied.address.expect("seen above");
        let fresh = !std::mem::replace(&mut copied.is_referenced, true);
        let mut unverified = Vec::new();
        if written && has_sums {
            for range in Extents::mark_unverified(copied, &needs) {
                self.extents.add_new_sums(address, range, &mut self.sums)?;
            }
            unverified = self.unverified(part, &needs);
        }
        for (range, reason) in lost {
            let start = key.offset + (range.start - part.offset);
            self.tell(key, start..start + (range.end - range.start), &reason, false);
        }
        for range in unverified {
            let (start, end) = match is_compressed {
                true => (whole.start, whole.end),
                false => (key.offset + range.start - part.offset, key.offset + range.end - part.offset),
            };
            self.tell(key, start..end, "there is no checksum", true);
        }
        self.insert_part(key, &item, ExtentPart { disk_address: address, ..part }, fresh);
        if self.extents.bytes > before {
            self.listener.copied(self.extents.bytes);
        }
        Ok(())
    }

    /// Returns the parts of an extent that were copied without a checksum, if the others had some.
    fn unverified(&mut self, part: ExtentPart, needs: &Range<u64>) -> Vec<Range<u64>> {
        if !self.extents.verifies() {
            return Vec::new();
        }
        let faults = self.extents.faults(part.disk_address, part.disk_length);
        let inside = |range: &Range<u64>| range.start.max(needs.start)..range.end.min(needs.end);
        let found = faults.iter().filter(|run| run.fault == Fault::Unverified);
        found.map(|run| inside(&run.range)).filter(|range| !range.is_empty()).collect()
    }

    /// Adds the item of a part of an extent, and the reference that it makes.
    fn insert_part(&mut self, key: Key, item: &FileExtentItem<'_>, part: ExtentPart, fresh: bool) {
        let content = match item.content {
            FileExtentContent::Prealloc(_) => FileExtentContent::Prealloc(part),
            _ => FileExtentContent::Regular(part),
        };
        let reference = DataReference {
            address: part.disk_address,
            length: part.disk_length,
            tree: self.target.id(),
            inode: InodeNumber(key.objectid),
            offset: FileOffset(key.offset.wrapping_sub(part.offset)),
        };
        self.references.push((reference, fresh));
        self.put(key, FileExtentItem { content, ..*item }.to_bytes());
    }

    /// Leaves a hole in place of a part of an extent.
    fn lose_range(
        &mut self,
        key: Key,
        item: &FileExtentItem<'_>,
        part: ExtentPart,
        range: Range<u64>,
        reason: &str,
    ) {
        self.tell(key, range, reason, false);
        self.inode.less += part.length;
        if !self.geometry.incompat.contains(IncompatFeatures::NO_HOLES) {
            let hole = ExtentPart {
                disk_address: LogicalAddress(0),
                disk_length: 0,
                offset: 0,
                length: part.length,
            };
            let item = FileExtentItem {
                ram_bytes: part.length,
                compression: Compression::None,
                content: FileExtentContent::Regular(hole),
                ..*item
            };
            self.put(key, item.to_bytes());
        }
    }

    fn tell(&mut self, key: Key, range: Range<u64>, reason: &str, is_unverified: bool) {
        let path = self.listener.path(self.source, InodeNumber(key.objectid));
        let size = self.inode.item.map_or(u64::MAX, |item| item.size);
        if range.start >= size {
            // Nothing reads it.
            return;
        }
        let range = Some(range.start..range.end.min(size));
        self.listener.lose(CloneLoss { path, range, reason: reason.to_owned(), is_unverified });
    }

    /// Corrects the item of an inode that lost data, or that was made.
    fn end_inode(&mut self) -> Result<()> {
        let Some(item) = self.inode.corrected() else { return Ok(()) };
        self.flush()?;
        self.put(inode_key(self.inode.number), item.to_bytes().to_vec());
        self.flush()
    }

    /// Makes the batch part of the running transaction.
    fn flush(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        let references = std::mem::take(&mut self.references);
        let mut sums = std::mem::replace(&mut self.sums, ChecksumRuns::new(&self.geometry));
        sums.remove_duplicates();
        let node_size = self.geometry.node_size as usize;
        let sum_bytes = sums.size_of((self.extents.bytes - self.data_before) as usize);
        // Sorted items fill blocks one after the other.
        let items = 8 + (self.bytes + sum_bytes).div_ceil(node_size) as u64;
        (self.bytes, self.data_before) = (0, self.extents.bytes);
        let csum_tree = self.transactions.live().get(objectid::CSUM_TREE)?;
        self.transactions.change(items, |handle| {
            self.target.edit(handle).apply(&changes)?;
            if !sums.is_empty() {
                insert_checksums(&mut csum_tree.edit(handle), sums.clone())?;
            }
            references.iter().try_for_each(|(reference, fresh)| handle.add_data_ref(reference, *fresh))
        })
    }
}

/// Returns the lost parts of what a file extent needs, and whether nothing is left of it.
fn missing_of(copied: &Copied, needs: &Range<u64>, is_compressed: bool) -> (Vec<(Range<u64>, String)>, bool) {
    let mut lost = Vec::new();
    for run in &copied.faults {
        let (from, to) = (run.range.start.max(needs.start), run.range.end.min(needs.end));
        if let Fault::Lost(reason) = &run.fault
            && from < to
        {
            lost.push((from..to, reason.clone()));
        }
    }
    let bytes: u64 = lost.iter().map(|(range, _)| range.end - range.start).sum();
    let is_hole = !lost.is_empty() && (is_compressed || bytes == needs.end - needs.start);
    (lost, is_hole)
}

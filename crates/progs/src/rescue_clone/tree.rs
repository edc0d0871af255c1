//! The items of one subvolume, copied into the clone.
//!
//! Owns [`TreeCopy`]. Items are collected in batches; a batch, its checksums and its references to
//! data become part of one transaction. A subvolume may begin as a snapshot of another clone: then
//! only ranges of keys are copied, and of the clone's items there those change that differ.
//!
//! **Invariants**
//! - Items keep their keys. Only file extents, entries of lost subvolumes and the sizes of inodes
//!   that lost data change.
//! - A reference to a data extent is counted in the transaction that inserts its item, and dropped
//!   in the one that removes it.
//!
//! **Locks**, in a batch: the subvolume's writer, then the checksum tree's.

use super::extents::{Copied, Extents, Fault, check_extent};
use super::inodes::Current;
use super::loss::CloneLoss;
use super::report::Listener;
use super::roots::{Gap, ItemWalk, KeyRange};
use super::shared::LostInodes;
use papilio_engine::btree::{Change, Item, LiveTree, Tree};
use papilio_engine::data::csum_edit::{ChecksumRuns, insert_checksums};
use papilio_engine::errors::Result;
use papilio_engine::items::{inode, item_error};
use papilio_engine::transaction::{DataReference, Transactions};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem, inode_key};
use papilio_format::{FileOffset, Geometry, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::collections::HashSet;
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
    batch: Batch,
    sums: ChecksumRuns,
    data_before: u64,
    inode: Current,
    lost: LostInodes,
    /// The first key whose item the clone may still have from its base; `None` without a base.
    stale: Option<Key>,
    is_filled: bool,
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
            batch: Batch::default(),
            sums: ChecksumRuns::new(&geometry),
            data_before,
            inode: Current::new(InodeNumber(0)),
            lost: LostInodes::default(),
            stale: None,
            is_filled: false,
        }
    }

    /// Copies the items in ranges of keys. The clone `is_filled` if it began as a snapshot. Returns
    /// the inodes that lost something.
    ///
    /// # Errors
    /// Those of the clone: no space, or a device that fails.
    pub(super) fn run(mut self, ranges: &[KeyRange], is_filled: bool) -> Result<LostInodes> {
        self.is_filled = is_filled;
        let mut reached = Key::MIN;
        for &(from, mut to) in ranges {
            let mut from = from.max(reached);
            if to.is_some_and(|to| to <= from) {
                continue;
            }
            self.stale = is_filled.then_some(from);
            while let Some(behind) = self.walk((from, to))? {
                // The gap reaches an inode of a shared leaf, whose own item may be lost.
                let Some(after) = self.end_of_inode_without_item(behind) else { break };
                (from, to) = (behind, after);
            }
            self.flush()?;
            self.reconcile(to, &mut Batch::default())?;
            self.end_inode()?;
            self.transactions.commit_if_full()?;
            let Some(to) = to else { break };
            reached = to;
        }
        Ok(self.lost)
    }

    /// Copies the items in a range. If the range ends in a gap, returns the key behind it.
    fn walk(&mut self, range: KeyRange) -> Result<Option<Key>> {
        let mut walk = ItemWalk::within(self.source, range);
        let mut behind = None;
        loop {
            match walk.next() {
                Ok(Some((key, data))) => self.item(key, data)?,
                Ok(None) => return Ok(behind),
                Err(gap) => {
                    self.lose_items(&gap);
                    behind = gap.behind.filter(|behind| range.1.is_some_and(|end| *behind >= end));
                }
            }
            if self.batch.bytes > BATCH_BYTES || self.extents.bytes - self.data_before > BATCH_DATA {
                self.flush()?;
            }
        }
    }

    /// Returns the first key after the inode whose items begin at `key` or behind it, if the inode
    /// has no item of its own.
    fn end_of_inode_without_item(&self, key: Key) -> Option<Option<Key>> {
        let (first, _) = ItemWalk::within(self.source, (key, None)).next().ok()??;
        let number = InodeNumber(first.objectid);
        let has_item = matches!(inode::inode(self.source, number), Ok(Some(_)));
        if first.item_type == ItemType::INODE_ITEM || has_item {
            return None;
        }
        Some(first.objectid.checked_add(1).map(Key::first_of))
    }

    /// Compares the items of the clone, up to a key, with those of a batch. Removes the ones that
    /// are not in the batch, and takes from the batch those that are there already.
    fn reconcile(&mut self, to: Option<Key>, batch: &mut Batch) -> Result<()> {
        let Some(mut from) = self.stale else { return Ok(()) };
        let mut kept = HashSet::new();
        let mut wanted = batch.changes.iter().peekable();
        'again: loop {
            let mut gone = Batch::default();
            // An inode's own item goes last: no leaf is valid that has others without it.
            let mut held: Option<Key> = None;
            let tree = self.target.tree();
            for item in tree.range(from..=Key::MAX) {
                let item = item?;
                if to.is_some_and(|to| item.key >= to) {
                    break;
                }
                if held.is_some_and(|held| held.objectid != item.key.objectid) {
                    gone.changes.extend(held.take().map(|key| Change::Remove { key }));
                }
                if gone.bytes > BATCH_BYTES {
                    from = held.unwrap_or(item.key);
                    gone.changes.sort_by_key(Change::key);
                    self.apply(gone, &ChecksumRuns::new(&self.geometry))?;
                    continue 'again;
                }
                while wanted.next_if(|change| change.key() < item.key).is_some() {}
                let reference = self.reference_in(&tree, &item)?;
                match wanted.peek() {
                    Some(Change::Put { key, data }) if *key == item.key => {
                        if data[..] == *item.data() {
                            kept.insert(item.key);
                        } else {
                            batch.dropped.extend(reference);
                        }
                    }
                    _ if item.key.item_type == ItemType::INODE_ITEM => held = Some(item.key),
                    _ => {
                        gone.bytes += item.data().len() + 25;
                        gone.changes.push(Change::Remove { key: item.key });
                        gone.dropped.extend(reference);
                    }
                }
            }
            gone.changes.extend(held.map(|key| Change::Remove { key }));
            gone.changes.sort_by_key(Change::key);
            self.apply(gone, &ChecksumRuns::new(&self.geometry))?;
            break;
        }
        batch.changes.retain(|change| !kept.contains(&change.key()));
        batch.added.retain(|(key, ..)| !kept.contains(key));
        self.stale = to;
        Ok(())
    }

    /// Returns the reference of an item of the clone to a data extent.
    fn reference_in(&self, tree: &Tree, item: &Item) -> Result<Option<DataReference>> {
        if item.key.item_type != ItemType::EXTENT_DATA {
            return Ok(None);
        }
        let extent = FileExtentItem::parse(item.data()).map_err(|reason| item_error(tree, item, reason))?;
        Ok(match extent.content {
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if !part.is_hole() => {
                Some(self.reference_of(item.key, part))
            }
            _ => None,
        })
    }

    /// Tells that an inode lost something.
    fn lose(&mut self, inode: u64, loss: CloneLoss) {
        self.lost.add(inode, inode);
        self.listener.lose(loss);
    }

    fn lose_items(&mut self, gap: &Gap) {
        let to = match gap.behind {
            Some(key) => format!("to {}", key.objectid),
            None => "and after".to_owned(),
        };
        let last = gap.behind.map_or(u64::MAX, |key| key.objectid);
        self.lost.add(gap.from.objectid, last);
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
            if key.item_type != ItemType::INODE_ITEM {
                // The item may be in a leaf that is shared.
                self.inode.item = inode::inode(self.source, self.inode.number).ok().flatten();
            }
        }
        if self.inode.item.is_none() && key.item_type != ItemType::INODE_ITEM {
            let made = self.inode.make(self.source, &key);
            self.put(inode_key(self.inode.number), made.to_bytes().to_vec());
            let path = self.listener.path(self.source, self.inode.number);
            let reason = "its inode item is lost: owner, mode and times are unknown";
            self.lose(key.objectid, CloneLoss::of(path, reason));
        }
        if !self.inode.can_have(&key) {
            let path = self.listener.path(self.source, self.inode.number);
            let reason = format!("an inode of another kind has the item {key}");
            self.lose(key.objectid, CloneLoss::of(path, reason));
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
        self.batch.bytes += data.len() + 25;
        self.batch.changes.push(Change::Put { key, data });
    }

    /// Copies directory entries, except for those of subvolumes that the clone does not get.
    fn entries(&mut self, key: Key, data: &[u8]) {
        let Ok(entries) = DirEntries::parse(data) else {
            let path = self.listener.path(self.source, InodeNumber(key.objectid));
            self.lose(key.objectid, CloneLoss::of(path, "a damaged directory entry"));
            return;
        };
        let mut kept = Vec::with_capacity(data.len());
        for entry in entries {
            let child = TreeId(entry.location.objectid);
            if entry.location.item_type == ItemType::ROOT_ITEM
                && !self.listener.has_subvolume(child)
                && self.listener.is_entry_of(self.source.id(), child)
            {
                self.lost.add(key.objectid, key.objectid);
                if key.item_type == ItemType::DIR_INDEX {
                    let mut path = self.listener.path(self.source, InodeNumber(key.objectid));
                    path.extend([b"/", entry.name].concat());
                    self.lose(key.objectid, CloneLoss::of(path, "the subvolume cannot be read"));
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
                self.lose(key.objectid, CloneLoss::of(path, reason));
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
        self.batch.added.push((key, self.reference_of(key, part), fresh));
        self.put(key, FileExtentItem { content, ..*item }.to_bytes());
    }

    /// Returns the reference of the clone's file extent `key` to a part of an extent.
    fn reference_of(&self, key: Key, part: ExtentPart) -> DataReference {
        DataReference {
            address: part.disk_address,
            length: part.disk_length,
            tree: self.target.id(),
            inode: InodeNumber(key.objectid),
            offset: FileOffset(key.offset.wrapping_sub(part.offset)),
        }
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
        self.lost.add(key.objectid, key.objectid);
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
        // The clone has the item already.
        let stale = self.stale.take();
        self.put(inode_key(self.inode.number), item.to_bytes().to_vec());
        self.flush()?;
        self.stale = stale;
        Ok(())
    }

    /// Makes the batch part of the running transaction.
    fn flush(&mut self) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(last) = batch.changes.last().and_then(|change| change.key().successor()) {
            self.reconcile(Some(last), &mut batch)?;
        }
        let mut sums = std::mem::replace(&mut self.sums, ChecksumRuns::new(&self.geometry));
        sums.remove_duplicates();
        self.apply(batch, &sums)?;
        self.data_before = self.extents.bytes;
        Ok(())
    }

    fn apply(&self, batch: Batch, sums: &ChecksumRuns) -> Result<()> {
        if batch.changes.is_empty() && batch.added.is_empty() && sums.is_empty() {
            return Ok(());
        }
        let node_size = self.geometry.node_size as usize;
        let sum_bytes = sums.size_of((self.extents.bytes - self.data_before) as usize);
        // Sorted items fill blocks one after the other. Changes of a snapshot are further apart.
        let spread = if self.is_filled { 4 } else { 1 };
        let blocks = 8 + (spread * batch.bytes + sum_bytes).div_ceil(node_size) as u64;
        let csum_tree = self.transactions.live().get(objectid::CSUM_TREE)?;
        self.transactions.change(blocks, |handle| {
            self.target.edit(handle).apply(&batch.changes)?;
            if !sums.is_empty() {
                insert_checksums(&mut csum_tree.edit(handle), sums.clone())?;
            }
            batch
                .added
                .iter()
                .try_for_each(|(_, reference, fresh)| handle.add_data_ref(reference, *fresh))?;
            batch.dropped.iter().try_for_each(|reference| handle.drop_data_ref(reference))
        })
    }
}

/// Changes of a clone that are made together.
#[derive(Default)]
struct Batch {
    /// In the order of their keys.
    changes: Vec<Change>,
    /// The references to data of each item, and whether it is the first of the extent.
    added: Vec<(Key, DataReference, bool)>,
    dropped: Vec<DataReference>,
    /// Bytes of the items.
    bytes: usize,
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

//! The extents of a unit, and the checksums of its data.
//!
//! Owns [`UnitExtents`], a copy of the extent items and checksums of a range of addresses, and
//! [`BegunExtent`], a data extent with one of its users.
//!
//! **Invariant**: the pin is taken before the trees. Space that one of these extents has is not
//! reused while the value lives, so that good bytes stay good, and mending never writes over new
//! ones. (Data that is overwritten in place has no checksums.)
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `scrub_find_fill_first_stripe` (`fs/btrfs/scrub.c`).

use crate::btree::{ReadPin, Tree};
use crate::data::checksum::DataChecksums;
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::items::extent::{ExtentFlags, ExtentItem, extent_end};
use papilio_format::{Generation, Geometry, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::ops::Range;

/// A part of an extent in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitExtent {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: ExtentContent,
}

/// The content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentContent {
    Data,
    /// A tree block that was written by this transaction.
    TreeBlock(Generation),
}

/// One user of a data extent, as its first back reference names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentUser {
    /// A file, and the offset that the extent's first byte has there.
    File { tree: TreeId, inode: InodeNumber, offset: u64 },
    /// A leaf.
    Leaf(LogicalAddress),
}

/// A data extent that begins in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BegunExtent {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) user: Option<ExtentUser>,
}

/// The extents of a range.
#[derive(Debug)]
pub(super) struct UnitExtents {
    range: Range<u64>,
    geometry: Geometry,
    pub(super) extents: Vec<UnitExtent>,
    /// The data extents that begin in the range.
    pub(super) begun: Vec<BegunExtent>,
    /// The checksums of all sectors of the range; those of sectors without one are undefined.
    sums: Vec<u8>,
    /// For each sector of the range whether it has a checksum.
    summed: Vec<bool>,
    /// The reason why the data is left out.
    pub(super) left_out: Option<Error>,
    _pin: Option<ReadPin>,
}

impl UnitExtents {
    /// Reads the extents and checksums of a range as they are now.
    ///
    /// # Errors
    /// A tree block or an item of the extent tree that cannot be read.
    pub(super) fn read(info: &FsInfo, range: Range<u64>) -> Result<Self> {
        let (pin, extents, sums) = match info.trees.transactions() {
            None => (None, info.trees.find(objectid::EXTENT_TREE)?, info.trees.find(objectid::CSUM_TREE)?),
            // Between two commits all blocks that the extent tree has are on the devices.
            Some(transactions) => transactions.between_commits(|_| {
                let pin = transactions.pin();
                let extents = info.trees.find(objectid::EXTENT_TREE)?;
                Ok::<_, Error>((Some(pin), extents, info.trees.find(objectid::CSUM_TREE)?))
            })?,
        };
        let geometry = info.volume().geometry();
        let mut found = Self {
            range,
            geometry,
            extents: Vec::new(),
            begun: Vec::new(),
            sums: Vec::new(),
            summed: Vec::new(),
            left_out: None,
            _pin: pin,
        };
        if let Some(extents) = extents {
            found.read_extents(&extents.tree)?;
        }
        if info.volume().superblock().raw.flags.is_metadata_dump() {
            found.extents.retain(|extent| extent.kind != ExtentContent::Data);
            found.begun.clear();
        }
        if found.extents.iter().any(|extent| extent.kind == ExtentContent::Data)
            && let Some(sums) = sums
            && let Err(error) = found.read_sums(&sums.tree)
        {
            found.leave_out_unknown(&sums.tree);
            found.left_out = Some(error);
        }
        Ok(found)
    }

    fn read_extents(&mut self, tree: &Tree) -> Result<()> {
        let (start, end) = (self.range.start, self.range.end);
        let first = Key::new(start, ItemType::EXTENT_ITEM, 0);
        // The extent before the range may reach into it. Other items of it lie in between.
        let mut cursor = tree.seek(&first)?;
        cursor.step_back()?;
        while let Some(key) = cursor.key() {
            if is_extent(&key) {
                self.add(tree, &key, cursor.data().unwrap_or_default())?;
                break;
            }
            cursor.step_back()?;
        }
        let last = Key::new(end - 1, ItemType::METADATA_ITEM, u64::MAX);
        for item in tree.range(first..=last) {
            let item = item?;
            self.add(tree, &item.key, item.data())?;
        }
        Ok(())
    }

    /// Adds the extent of an item, if it is one and overlaps the range.
    fn add(&mut self, tree: &Tree, key: &Key, data: &[u8]) -> Result<()> {
        if !is_extent(key) {
            self.add_user(key, data);
            return Ok(());
        }
        let fault = |reason| Error::Item { tree: tree.id(), key: *key, reason };
        let item = ExtentItem::parse(key.item_type, data).map_err(fault)?;
        let end = extent_end(key, &self.geometry).unwrap_or(key.objectid);
        if item.header.flags.contains(ExtentFlags::DATA) && key.objectid >= self.range.start {
            let user = item.inline_refs().map_while(std::result::Result::ok).find_map(|it| user_of(&it));
            self.begun.push(BegunExtent { start: key.objectid, length: key.offset, user });
        }
        let (start, end) = (key.objectid.max(self.range.start), end.min(self.range.end));
        let overlaps = self.extents.last().is_some_and(|last| last.end > start);
        if start >= end || overlaps {
            return Ok(());
        }
        let kind = if item.header.flags.contains(ExtentFlags::DATA) {
            ExtentContent::Data
        } else {
            ExtentContent::TreeBlock(item.header.generation)
        };
        self.extents.push(UnitExtent { start, end, kind });
        Ok(())
    }

    /// Takes the user of the last data extent from a reference outside its item, if it has none.
    fn add_user(&mut self, key: &Key, data: &[u8]) {
        if let Some(last) = self.begun.last_mut().filter(|last| last.start == key.objectid)
            && last.user.is_none()
            && matches!(key.item_type, ItemType::EXTENT_DATA_REF | ItemType::SHARED_DATA_REF)
        {
            last.user = KeyedRefs::parse(key, data).into_iter().flatten().find_map(|it| user_of(&it));
        }
    }

    fn read_sums(&mut self, tree: &Tree) -> Result<()> {
        let (sector, size) = (u64::from(self.geometry.sector_size), self.geometry.checksum_type.size());
        let sectors = ((self.range.end - self.range.start) / sector) as usize;
        self.sums = vec![0; sectors * size];
        self.summed = vec![false; sectors];
        let mut lookup = DataChecksums::new(tree, self.geometry);
        let (sums, summed) = (&mut self.sums, &mut self.summed);
        for extent in self.extents.iter().filter(|extent| extent.kind == ExtentContent::Data) {
            let before = ((extent.start - self.range.start) / sector) as usize;
            let count = ((extent.end - extent.start) / sector) as usize;
            lookup.for_each_run(LogicalAddress(extent.start), count, |first, count, found| {
                if let Some(found) = found {
                    let at = before + first;
                    sums[at * size..][..found.len()].copy_from_slice(found);
                    summed[at..at + count].fill(true);
                }
                true
            })?;
        }
        Ok(())
    }

    /// Leaves out the data whose checksums cannot be read, in pieces of 64 KiB: nothing tells
    /// whether it is good. Tree blocks have their checksums in them.
    fn leave_out_unknown(&mut self, tree: &Tree) {
        let sector = u64::from(self.geometry.sector_size);
        let mut known = Vec::new();
        for extent in &self.extents {
            if extent.kind != ExtentContent::Data {
                known.push(*extent);
                continue;
            }
            let mut start = extent.start;
            while start < extent.end {
                let next = start - (start - self.range.start) % STRIPE_LENGTH + STRIPE_LENGTH;
                let end = next.min(extent.end);
                // Only the blocks on the way to the piece's own checksums may be bad.
                let mut lookup = DataChecksums::new(tree, self.geometry);
                let sectors = ((end - start) / sector) as usize;
                if lookup.for_each_run(LogicalAddress(start), sectors, |_, _, _| true).is_ok() {
                    known.push(UnitExtent { start, end, ..*extent });
                }
                start = end;
            }
        }
        self.extents = known;
        if self.read_sums(tree).is_err() {
            self.extents.retain(|extent| extent.kind != ExtentContent::Data);
        }
    }

    /// Returns the checksum of the sector of data at `address`, if it has one.
    pub(super) fn sum(&self, address: u64) -> Option<&[u8]> {
        let at = ((address - self.range.start) / u64::from(self.geometry.sector_size)) as usize;
        let size = self.geometry.checksum_type.size();
        self.summed.get(at).filter(|summed| **summed).map(|_| &self.sums[at * size..][..size])
    }

    /// Returns the addresses of the unit.
    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns the geometry at the time of the read.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

fn is_extent(key: &Key) -> bool {
    matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
}

fn user_of(reference: &BackRef) -> Option<ExtentUser> {
    match *reference {
        BackRef::Data { root, inode, offset, .. } => {
            Some(ExtentUser::File { tree: root, inode, offset: offset.0 })
        }
        BackRef::SharedData { parent, .. } => Some(ExtentUser::Leaf(parent)),
        _ => None,
    }
}

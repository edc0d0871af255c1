//! Writing whole sectors of checksummed files without changing trees.
//!
//! Owns the fast path of copy-on-write writes. Data goes to the device and is recorded as the
//! file's [ordered extents](crate::data::ordered_extents); a flush publishes many of them at once
//! ([`super::ordered_flush`]). A write goes:
//! 1. over an ordered extent,
//! 2. or into a preallocated extent that only this file refers to,
//! 3. or else to new space.
//!
//! Threads write at once unless their ranges overlap. [`super::write`] handles all other writes,
//! also where there is no space; it flushes first.
//!
//! Locks, in this order: `sharing` (shared), the file's data lock (shared), the written range,
//! leaves. Reserving metadata takes a commit's locks. Kernel counterparts: `btrfs_direct_write`
//! (`fs/btrfs/direct-io.c`), `btrfs_finish_one_ordered` (`fs/btrfs/inode.c`).

use crate::btree::LiveTree;
use crate::data::nocow::InPlaceParts;
use crate::data::ordered_extents::{MAX_PARTS, OrderedPart, OrderedParts};
use crate::data::overlap::ChecksumBytes;
use crate::data::write_data::{Placed, write_data};
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::options::CompressionChoice;
use crate::space::{LogicalRange, Space};
use arrayvec::ArrayVec;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{InodeFlags, InodeItem};
use std::ops::Range;

/// The most bytes of a write on this path. A longer one spends little on trees for each byte.
const MAX_WRITE: u64 = 8 << 20;
/// The most ordered extents that a write goes over. Where there are more, one new extent is better.
const MAX_OVERWRITTEN: usize = 4;
/// Bytes of data that metadata is reserved for at once.
const CREDIT: u64 = 16 << 20;
/// Bytes of data for each reserved byte of metadata.
pub(super) const DATA_PER_METADATA: u64 = 16;
/// Tree blocks that are reserved in addition: those of a small flush step.
pub(super) const BLOCKS: u64 = 96;

impl OpenInode {
    /// Drops all ordered extents and releases their space. The caller holds the data lock
    /// exclusively, or drops the last handle.
    pub(super) fn forget_ordered(&self, fs: &FsInfo) {
        if let Some(transactions) = fs.trees.transactions() {
            release(transactions.space(), self.ordered.forget());
        }
    }

    /// Writes `data`, whole sectors inside the file as the tree has it, and returns `true`; or
    /// returns `false` if this path cannot. The caller holds the lock on `sharing` and the file's
    /// data lock, both shared, and has checked that the file may change.
    pub(super) fn write_ordered(
        &self,
        fs: &FsInfo,
        live: &LiveTree,
        item: &InodeItem,
        data: &[u8],
        offset: u64,
        epoch: u64,
    ) -> Result<bool> {
        let geometry = fs.volume().geometry();
        let (sector, length) = (u64::from(geometry.sector_size), data.len() as u64);
        let inside = offset.checked_add(length).is_some_and(|end| end <= item.size);
        if !inside
            || length == 0
            || length > MAX_WRITE
            || !offset.is_multiple_of(sector)
            || !length.is_multiple_of(sector)
        {
            return Ok(false);
        }
        fs.transactions()?.check_running()?;
        let range = offset..offset + length;
        let (lock, found) = self.ordered.lock_to_write(range.clone());
        match self.place_ordered_write(fs, live, item, (&range, &found, epoch))? {
            PlacedWrite::There(parts) => {
                // After an error the old data may be lost; its checksums reveal that.
                let checksums = fs.write_parts(&parts, data, offset)?;
                lock.record_overwrite(&parts, &range, &checksums);
            }
            PlacedWrite::New(space) => {
                let checksums = fs.write_parts(&space.parts, data, offset)?;
                let replaced = lock.record_new(&space.parts, &checksums);
                space.disarm();
                release(fs.transactions()?.space(), replaced);
            }
            PlacedWrite::Impossible => return Ok(false),
        }
        Ok(true)
    }

    /// Finds where a write goes. Its range is locked, and `found` are the ordered extents there.
    pub(super) fn place_ordered_write<'f>(
        &self,
        fs: &'f FsInfo,
        live: &LiveTree,
        item: &InodeItem,
        (range, found, epoch): (&Range<u64>, &[OrderedPart], u64),
    ) -> Result<PlacedWrite<'f>> {
        let (sector, length) = (fs.sector_size(), range.end - range.start);
        let covered: u64 = found.iter().map(|part| part.range.end - part.range.start).sum();
        if covered == length && found.len() <= MAX_OVERWRITTEN {
            return Ok(PlacedWrite::There(found.iter().cloned().collect()));
        }
        let bytes = (length - covered).max(sector);
        match self.reserve_metadata(fs, bytes) {
            Err(Error::NoSpace { .. }) => return Ok(PlacedWrite::Impossible),
            result => result?,
        }
        if let Some(parts) = self.preallocated(fs, live, item, range, found, epoch)? {
            return Ok(PlacedWrite::There(parts));
        }
        Ok(fs.allocate_ordered(range, sector)?.map_or(PlacedWrite::Impossible, PlacedWrite::New))
    }

    /// Reserves metadata for `bytes` bytes of new ordered extents.
    fn reserve_metadata(&self, fs: &FsInfo, bytes: u64) -> Result<()> {
        while !self.ordered.take_credit(bytes) {
            let transactions = fs.transactions()?;
            let base = if self.ordered.is_empty() { BLOCKS * transactions.node_size() } else { 0 };
            // Without commits: where there is too little, the write takes another path.
            let metadata = transactions.reserve_metadata(base + CREDIT / DATA_PER_METADATA)?;
            self.ordered.add_reservation(CREDIT, metadata);
        }
        Ok(())
    }

    /// Returns the parts of a range, if all of it that is not in ordered extents is preallocated
    /// and may be overwritten in place.
    fn preallocated(
        &self,
        fs: &FsInfo,
        live: &LiveTree,
        item: &InodeItem,
        range: &Range<u64>,
        found: &[OrderedPart],
        epoch: u64,
    ) -> Result<Option<OrderedParts>> {
        if !item.flags.contains(InodeFlags::PREALLOC) || found.len() == MAX_PARTS {
            return Ok(None);
        }
        let mut parts = OrderedParts::new();
        let mut at = range.start;
        for next in found.iter().map(Some).chain([None]) {
            let gap = at..next.map_or(range.end, |part| part.range.start);
            if !gap.is_empty() && !self.add_preallocated(fs, live, &gap, epoch, &mut parts)? {
                return Ok(None);
            }
            if let Some(part) = next {
                if !add(&mut parts, part.clone()) {
                    return Ok(None);
                }
                at = part.range.end;
            }
        }
        Ok(Some(parts))
    }

    /// Adds the parts of a gap between ordered extents. Returns `false` if not all of it is
    /// preallocated and may be overwritten.
    fn add_preallocated(
        &self,
        fs: &FsInfo,
        live: &LiveTree,
        gap: &Range<u64>,
        epoch: u64,
        parts: &mut OrderedParts,
    ) -> Result<bool> {
        let reaches = |parts: &InPlaceParts| {
            parts.last().is_some_and(|last| last.range.end == gap.end)
                && parts.iter().all(|part| part.preallocated)
        };
        let mut found = self.in_place.parts(gap, epoch);
        if !reaches(&found) {
            self.check_overwritable(fs, live, gap, true, epoch)?;
            found = self.in_place.parts(gap, epoch);
        }
        Ok(reaches(&found)
            && found
                .into_iter()
                .all(|part| add(parts, OrderedPart { range: part.range, disk: part.disk, new: false })))
    }
}

impl FsInfo {
    /// Returns whether a file's data is written on this path: it is checksummed, copied on write,
    /// and not compressed.
    pub(super) fn is_ordered(&self, item: &InodeItem) -> bool {
        let is_one = |choice: CompressionChoice| choice.algorithm() != Compression::None;
        let others = InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::COMPRESS;
        !item.flags.intersects(others) && !self.write_options.compression.is_some_and(is_one)
    }

    /// Releases the space of ordered extents that were replaced.
    pub(super) fn release_ordered(&self, ranges: Vec<LogicalRange>) {
        if let Some(transactions) = self.trees.transactions() {
            release(transactions.space(), ranges);
        }
    }

    /// Releases the space of a write that failed.
    pub(super) fn release_parts(&self, parts: &[OrderedPart]) {
        let ranges = parts
            .iter()
            .map(|part| LogicalRange { start: part.disk, length: part.range.end - part.range.start });
        if let Some(transactions) = self.trees.transactions() {
            release(transactions.space(), ranges);
        }
    }

    /// Allocates space for a range; `None` if there is too little, or in too many parts.
    fn allocate_ordered(&self, range: &Range<u64>, sector: u64) -> Result<Option<NewSpace<'_>>> {
        let transactions = self.transactions()?;
        let mut new = NewSpace { space: transactions.space(), parts: OrderedParts::new() };
        let mut at = range.start;
        while at < range.end {
            if new.parts.is_full() {
                return Ok(None);
            }
            let got = match transactions.allocate_data(sector, range.end - at) {
                Err(Error::NoSpace { .. }) => return Ok(None),
                result => result?,
            };
            let end = at + got.length;
            new.parts.push(OrderedPart { range: at..end, disk: got.start, new: true });
            at = end;
        }
        Ok(Some(new))
    }

    /// Writes `data`, which starts at file offset `offset`, to `parts`, and returns its checksums.
    fn write_parts(&self, parts: &[OrderedPart], data: &[u8], offset: u64) -> Result<ChecksumBytes> {
        let bytes = |of: &Range<u64>| &data[(of.start - offset) as usize..(of.end - offset) as usize];
        let placed: ArrayVec<_, MAX_PARTS> =
            parts.iter().map(|part| Placed { address: part.disk, bytes: bytes(&part.range) }).collect();
        write_data(self.volume(), &self.write_rules(), true, &placed)
    }
}

/// Releases space that nothing refers to.
fn release(space: &Space, ranges: impl IntoIterator<Item = LogicalRange>) {
    ranges.into_iter().for_each(|range| space.release(range));
}

/// Where a write of this path goes.
pub(super) enum PlacedWrite<'a> {
    /// To these parts, which are there.
    There(OrderedParts),
    /// To new space.
    New(NewSpace<'a>),
    /// It cannot be written on this path.
    Impossible,
}

/// Allocated space that nothing refers to yet. Dropping it releases the space.
pub(super) struct NewSpace<'a> {
    space: &'a Space,
    parts: OrderedParts,
}

impl NewSpace<'_> {
    /// Returns its parts.
    pub(super) fn parts(&self) -> &[OrderedPart] {
        &self.parts
    }

    /// Keeps the space: ordered extents refer to it now, or a request in flight does.
    pub(super) fn disarm(mut self) {
        self.parts.clear();
    }
}

impl Drop for NewSpace<'_> {
    fn drop(&mut self) {
        let ranges = self
            .parts
            .iter()
            .map(|part| LogicalRange { start: part.disk, length: part.range.end - part.range.start });
        release(self.space, ranges);
    }
}

/// Adds a part, merged with the last one if it continues it. Returns `false` if `parts` is full.
fn add(parts: &mut OrderedParts, part: OrderedPart) -> bool {
    if let Some(last) = parts.last_mut()
        && last.new == part.new
        && last.disk.0 + (last.range.end - last.range.start) == part.disk.0
    {
        last.range.end = part.range.end;
        return true;
    }
    parts.try_push(part).is_ok()
}

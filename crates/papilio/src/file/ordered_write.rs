//! Writing whole sectors of files with checksums, past the trees.
//!
//! Owns the fast way of writing data that is copied on write: it goes to the device and into the file's
//! [ordered extents](crate::data::ordered_extents), and the trees are told by a flush ([`super::ordered_flush`]), of many at once. Where it
//! goes: over an ordered extent, into a preallocated one that is this file's alone, or else into new room.
//! Any number of threads write at once; only those whose ranges overlap wait for one another. What cannot be
//! done so, for want of room too, is left to [`super::file_write`], which flushes first.
//!
//! Locks, in this order: sharing (shared), the file's data lock (shared), the written range, leaves; where room
//! is promised, those of a commit. Kernel counterparts: `btrfs_direct_write` (`fs/btrfs/direct-io.c`),
//! `btrfs_finish_one_ordered` (`fs/btrfs/inode.c`).

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

/// Bytes of one write that is done so; what is longer has little of trees for each byte.
const MAX_WRITE: u64 = 8 << 20;
/// Ordered extents that a write goes over at most; where there are more, new room in one part is better.
const MAX_OVERWRITTEN: usize = 4;
/// Bytes of data that metadata is promised for at once.
const CREDIT: u64 = 16 << 20;
/// One byte of metadata is promised for so many of data.
pub(super) const DATA_PER_METADATA: u64 = 16;
/// Tree blocks promised besides: those of a small step of a flush.
pub(super) const BLOCKS: u64 = 96;

impl OpenInode {
    /// Drops all ordered extents and releases their space. The caller holds the data lock exclusively, or drops the
    /// last handle.
    pub(super) fn forget_ordered(&self, fs: &FsInfo) {
        if let Some(transactions) = fs.trees.transactions() {
            release(transactions.space(), self.ordered.forget());
        }
    }

    /// Writes `data`, whole sectors inside the file as the tree has it; says whether it did. The caller holds the
    /// lock on sharing and the file's data lock, both shared, and knows that the file may change.
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
        let covered: u64 = found.iter().map(|part| part.range.end - part.range.start).sum();
        // Where it lies already, if all of it may be overwritten.
        let there = if covered == length && found.len() <= MAX_OVERWRITTEN {
            Some(found)
        } else {
            match self.reserve_metadata(fs, (length - covered).max(sector)) {
                Err(Error::NoSpace { .. }) => return Ok(false),
                result => result?,
            }
            self.preallocated(fs, live, item, &range, &found, epoch)?
        };
        match there {
            Some(parts) => {
                // After an error the old data may be lost, which its checksums tell.
                let checksums = fs.write_parts(&parts, data, offset)?;
                lock.record_overwrite(&parts, &range, &checksums);
            }
            None => {
                let Some(space) = fs.allocate_ordered(&range, sector)? else { return Ok(false) };
                let checksums = fs.write_parts(&space.parts, data, offset)?;
                let replaced = lock.record_new(&space.parts, &checksums);
                space.disarm();
                release(fs.transactions()?.space(), replaced);
            }
        }
        Ok(true)
    }

    /// Promises metadata for what is to be entered.
    fn reserve_metadata(&self, fs: &FsInfo, bytes: u64) -> Result<()> {
        while !self.ordered.take_credit(bytes) {
            let transactions = fs.transactions()?;
            let base = if self.ordered.is_empty() { BLOCKS * transactions.node_size() } else { 0 };
            let (_, metadata) = transactions.reserve(0, base + CREDIT / DATA_PER_METADATA)?;
            self.ordered.add_reservation(CREDIT, metadata);
        }
        Ok(())
    }

    /// The parts of a range, if all that is not in ordered extents is preallocated and may be written where it
    /// lies.
    fn preallocated(
        &self,
        fs: &FsInfo,
        live: &LiveTree,
        item: &InodeItem,
        range: &Range<u64>,
        found: &OrderedParts,
        epoch: u64,
    ) -> Result<Option<OrderedParts>> {
        if !item.flags.contains(InodeFlags::PREALLOC) || found.is_full() {
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

    /// Adds the parts of a gap between ordered extents; says whether it is such.
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
    /// Whether data of a file is written so: it is checksummed and copied on write, and not compressed.
    pub(super) fn is_ordered(&self, item: &InodeItem) -> bool {
        let is_one = |choice: CompressionChoice| choice.algorithm() != Compression::None;
        let others = InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::COMPRESS;
        !item.flags.intersects(others) && !self.write_options.compression.is_some_and(is_one)
    }

    /// New room for a range, if there is some.
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

    /// Writes `data`, which starts at file offset `offset`, to its parts, and returns its checksums.
    fn write_parts(&self, parts: &[OrderedPart], data: &[u8], offset: u64) -> Result<ChecksumBytes> {
        let bytes = |of: &Range<u64>| &data[(of.start - offset) as usize..(of.end - offset) as usize];
        let placed: ArrayVec<_, MAX_PARTS> =
            parts.iter().map(|part| Placed { address: part.disk, bytes: bytes(&part.range) }).collect();
        write_data(self.volume(), &self.write_rules(), true, &placed)
    }
}

/// Gives back room that nothing leads to.
fn release(space: &Space, ranges: impl IntoIterator<Item = LogicalRange>) {
    ranges.into_iter().for_each(|range| space.release(range));
}

/// Room that was allocated; given back when dropped.
struct NewSpace<'a> {
    space: &'a Space,
    parts: OrderedParts,
}

impl NewSpace<'_> {
    /// Others know of it now.
    fn disarm(mut self) {
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

/// Adds a part, joined to the last one if it goes on there; says whether there was room for it.
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

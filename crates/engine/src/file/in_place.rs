//! Overwriting a file's data in place.
//!
//! Owns the writes to files whose data is neither copied on write nor checksummed (`NODATACOW`),
//! where no other file or snapshot shares the extent. They change the device and memory; a flush
//! updates the tree.
//!
//! Locks, in this order: `sharing` and the file's data lock, both held by the caller; the leaves of
//! [`crate::data::nocow`]. Kernel counterpart: `btrfs_get_blocks_direct_write`
//! (`fs/btrfs/direct-io.c`).

use crate::btree::LiveTree;
use crate::data::nocow::{self, InPlacePart, InPlaceParts, MAX_IN_PLACE_PARTS, OverwriteCheck};
use crate::data::write_data::{Placed, write_data};
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::{OpenInode, check_mutable};
use arrayvec::ArrayVec;
use papilio_format::items::inode::InodeFlags;
use smallvec::SmallVec;
use std::ops::Range;

/// Flags of a file whose data is neither copied on write nor checksummed.
pub(super) const IN_PLACE: InodeFlags = InodeFlags::NODATACOW.union(InodeFlags::NODATASUM);

impl OpenInode {
    /// Overwrites as many of the first bytes of `data` as may be overwritten in place, and returns
    /// their number. The caller holds the lock on `sharing`, and the file's data lock.
    pub(super) fn overwrite_pages(&self, fs: &FsInfo, data: &[u8], offset: u64, epoch: u64) -> Result<usize> {
        let sector = u64::from(fs.volume().geometry().sector_size);
        let aligned = offset.is_multiple_of(sector) && (data.len() as u64).is_multiple_of(sector);
        let Some(end) = offset.checked_add(data.len() as u64).filter(|_| aligned) else { return Ok(0) };
        let transactions = fs.transactions()?;
        let live = transactions.live().get(self.place().tree)?;
        let item = self.item(&live)?;
        // The sector that contains the end of the file may be overwritten whole. If memory has a
        // larger size, the rest of that sector must be zeroed first.
        let grows = self.as_seen(item).size > item.size;
        let limit = if grows { item.size } else { item.size.next_multiple_of(sector) };
        if !item.flags.contains(IN_PLACE) || end > limit {
            return Ok(0);
        }
        transactions.check_running()?;
        check_mutable(&fs.write_options, self.place(), &item)?;
        let mut at = offset;
        while at < end {
            let mut parts = self.in_place.parts(&(at..end), epoch);
            if parts.is_empty() {
                self.check_overwritable(fs, &live, &(at..end), false, epoch)?;
                parts = self.in_place.parts(&(at..end), epoch);
            }
            let Some(last) = parts.last() else { break };
            let next = last.range.end;
            self.overwrite(fs, &data[(at - offset) as usize..(next - offset) as usize], at, &parts)?;
            at = next;
        }
        Ok((at - offset) as usize)
    }

    /// Returns the parts of a range that may be overwritten in place: all of it, or what of its
    /// start is known.
    pub(super) fn place_in_place(
        &self,
        fs: &FsInfo,
        live: &LiveTree,
        range: &Range<u64>,
        epoch: u64,
    ) -> Result<SmallVec<[InPlacePart; 1]>> {
        let mut parts = self.in_place.parts(range, epoch);
        if parts.is_empty() {
            self.check_overwritable(fs, live, range, false, epoch)?;
            parts = self.in_place.parts(range, epoch);
        }
        Ok(parts.into_iter().collect())
    }

    /// Checks which extents of a range may be overwritten, or which preallocated ones may be.
    pub(super) fn check_overwritable(
        &self,
        fs: &FsInfo,
        live: &LiveTree,
        range: &Range<u64>,
        preallocated_only: bool,
        epoch: u64,
    ) -> Result<()> {
        let transactions = fs.transactions()?;
        let clears = self.in_place.clears();
        let pin = transactions.pin();
        let tree = live.tree().pinned(pin);
        let checksums = nocow::checksum_tree(transactions)?;
        let check = OverwriteCheck {
            transactions,
            live,
            tree: &tree,
            checksums: checksums.as_ref(),
            inode: self.place().inode,
            check: fs.tuning.nocow_check,
            preallocated_only,
            epoch,
            clears,
        };
        self.in_place.check(&check, range)
    }

    /// Writes `data`, which starts at file offset `start`, to `parts`, which cover it.
    fn overwrite(&self, fs: &FsInfo, data: &[u8], start: u64, parts: &InPlaceParts) -> Result<()> {
        let bytes = |of: &Range<u64>| &data[(of.start - start) as usize..(of.end - start) as usize];
        let placed: ArrayVec<_, MAX_IN_PLACE_PARTS> =
            parts.iter().map(|part| Placed { address: part.disk, bytes: bytes(&part.range) }).collect();
        write_data(fs.volume(), &fs.write_rules(), false, &placed)?;
        for part in parts.iter().filter(|part| part.preallocated) {
            self.in_place.set_written(&part.range);
        }
        Ok(())
    }
}

//! Writing beside others who write the same file, and overwriting a file's data in place.
//!
//! Owns the fast ways of [`File::write_at`]: whole sectors of files with checksums, for which see
//! [`super::ordered_write`]; and those of a file whose data is neither copied on write nor summed
//! (`NODATACOW`), where nobody else refers to them. Any number of threads do so at
//! once, under the shared data lock; only memory is changed besides the device, and the trees are told by a
//! flush. Locks, in this order: sharing (shared), the file's data lock (shared), the leaves of
//! [`crate::data::nocow`] and of the open inode. Kernel counterpart: `btrfs_direct_write` with
//! `btrfs_get_blocks_direct_write` (`fs/btrfs/direct-io.c`).

use crate::btree::LiveTree;
use crate::data::nocow::{self, MAX_PIECES, Pieces, Question};
use crate::errors::{Error, PathError, Result};
use crate::fs::open_inodes::OpenInode;
use crate::fs::{File, FileSystem};
use crate::namespace::Place;
use crate::volume::LogicalWrite;
use arrayvec::ArrayVec;
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_pagecache::Invalidate;
use std::ops::Range;

/// Flags of a file whose data is neither copied on write nor summed.
const IN_PLACE: InodeFlags = InodeFlags::NODATACOW.union(InodeFlags::NODATASUM);

impl File {
    /// Writes as many of the first bytes as may be beside others who write the file, and says how many.
    pub(super) fn write_shared(&self, data: &[u8], offset: u64) -> Result<usize> {
        let Some(open) = self.open_arc() else { return Ok(0) };
        let fs = self.inode().file_system();
        let range = offset..offset.saturating_add(data.len() as u64);
        let live = fs.transactions()?.live().get(open.place().tree)?;
        let item = open.item(&live)?;
        let ordered = fs.is_ordered(&item);
        if !ordered && !item.flags.contains(IN_PLACE) || range.end > open.as_seen(item).size {
            return Ok(0);
        }
        let epoch = fs.mounted.sharing.read();
        if let Some(mapping) = &open.mapping
            && mapping.has_dirty(range.clone())
        {
            let _exclusive = open.data.write();
            fs.flush_locked(open, *epoch)?;
        }
        let shared = open.data.read();
        fs.check_changeable(self.inode().tree())?;
        let done = if ordered {
            let item = open.item(&live)?;
            check_mutable(open.place(), &item)?;
            let done = fs.is_ordered(&item) && fs.write_ordered(open, &live, &item, data, offset, *epoch)?;
            if done { data.len() } else { 0 }
        } else {
            fs.overwrite_pages(open, data, offset, *epoch)?
        };
        if done > 0 {
            fs.mounted.dirty_inodes.touch(open, fs.transactions()?.now(), 0);
        }
        if let Some(mapping) = &open.mapping
            && mapping.invalidate(range.clone(), Invalidate::All).kept > 0
        {
            // A folio reaches out of the range, and is dirty there.
            drop(shared);
            let _exclusive = open.data.write();
            fs.flush_locked(open, *epoch)?;
            mapping.invalidate(range, Invalidate::All);
        } else {
            drop(shared);
        }
        drop(epoch);
        if open.ordered.is_full() {
            fs.relieve(open)?;
        }
        Ok(done)
    }
}

impl FileSystem {
    /// Overwrites in place as many of the first bytes as may be, and says how many. The caller holds the
    /// lock on sharing, and the file's data lock.
    pub(super) fn overwrite_pages(
        &self,
        open: &OpenInode,
        data: &[u8],
        offset: u64,
        epoch: u64,
    ) -> Result<usize> {
        let sector = u64::from(self.mounted.volume().geometry().sector_size);
        let aligned = offset.is_multiple_of(sector) && (data.len() as u64).is_multiple_of(sector);
        let Some(end) = offset.checked_add(data.len() as u64).filter(|_| aligned) else { return Ok(0) };
        let transactions = self.transactions()?;
        let live = transactions.live().get(open.place().tree)?;
        let item = open.item(&live)?;
        // The sector that holds the end of the file belongs to it whole, unless the file is about to grow:
        // then what lies behind its present end is filled up first.
        let grows = open.as_seen(item).size > item.size;
        let limit = if grows { item.size } else { item.size.next_multiple_of(sector) };
        if !item.flags.contains(IN_PLACE) || end > limit {
            return Ok(0);
        }
        transactions.check_running()?;
        check_mutable(open.place(), &item)?;
        let mut at = offset;
        while at < end {
            let mut pieces = open.in_place.pieces(&(at..end), epoch);
            if pieces.is_empty() {
                self.ask(open, &live, &(at..end), false, epoch)?;
                pieces = open.in_place.pieces(&(at..end), epoch);
            }
            let Some(last) = pieces.last() else { break };
            let next = last.range.end;
            self.overwrite(open, &data[(at - offset) as usize..(next - offset) as usize], at, &pieces)?;
            at = next;
        }
        Ok((at - offset) as usize)
    }

    /// Asks which extents of a range may be overwritten, or which preallocated ones.
    pub(super) fn ask(
        &self,
        open: &OpenInode,
        live: &LiveTree,
        range: &Range<u64>,
        preallocated_only: bool,
        epoch: u64,
    ) -> Result<()> {
        let transactions = self.transactions()?;
        let forgotten = open.in_place.forgotten();
        let pin = transactions.pin();
        let tree = live.tree().pinned(pin);
        let sums = nocow::checksum_tree(transactions)?;
        let question = Question {
            transactions,
            live,
            tree: &tree,
            sums: sums.as_ref(),
            inode: open.place().inode,
            check: self.mounted.tuning.nocow_check,
            preallocated_only,
            epoch,
            forgotten,
        };
        open.in_place.ask(&question, range)
    }

    /// Overwrites pieces that lie one behind the other from `start` on.
    fn overwrite(&self, open: &OpenInode, data: &[u8], start: u64, pieces: &Pieces) -> Result<()> {
        let part = |of: &Range<u64>| &data[(of.start - start) as usize..(of.end - start) as usize];
        match &pieces[..] {
            [piece] => self.mounted.volume().write(piece.disk, part(&piece.range))?,
            pieces => {
                let mut writes: ArrayVec<_, MAX_PIECES> =
                    pieces.iter().map(|piece| LogicalWrite::new(piece.disk, part(&piece.range))).collect();
                self.mounted.volume().write_many(&mut writes);
                writes.into_iter().try_for_each(|write| write.result)?;
            }
        }
        for piece in pieces.iter().filter(|piece| piece.preallocated) {
            open.in_place.set_written(&piece.range);
        }
        Ok(())
    }
}

/// # Errors
/// [`PathError::NotPermitted`] for a file whose data may not change.
pub(super) fn check_mutable(place: Place, item: &InodeItem) -> Result<()> {
    if item.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
        let path = format!("subvolume {}, inode {}", place.tree, place.inode);
        return Err(Error::path(path.as_bytes(), PathError::NotPermitted));
    }
    Ok(())
}

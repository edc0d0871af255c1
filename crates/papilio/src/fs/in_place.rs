//! Overwriting a file's data in place.
//!
//! Owns the fast way of [`File::write_at`]: a file whose data is neither copied on write nor summed
//! (`NODATACOW`), and whole sectors that lie where nobody else refers to them. Any number of threads do so at
//! once, under the shared data lock; only memory is changed besides the device, and the trees are told by a
//! flush. Locks, in this order: sharing (shared), the file's data lock (shared), the leaves of
//! [`crate::data::nocow`] and of the open inode. Kernel counterpart: `btrfs_direct_write` with
//! `btrfs_get_blocks_direct_write` (`fs/btrfs/direct-io.c`).

use crate::btree::LiveTree;
use crate::data::nocow::{self, Pieces, Question};
use crate::errors::Result;
use crate::fs::File;
use crate::fs::open_inodes::OpenInode;
use crate::volume::LogicalWrite;
use papilio_format::items::inode::InodeFlags;
use std::ops::Range;
use std::sync::Arc;

impl File {
    /// Overwrites in place as many of the first bytes as may be, and says how many.
    pub(super) fn write_in_place(&self, data: &[u8], offset: u64) -> Result<usize> {
        let flags = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        let Some(open) = self.open_arc() else { return Ok(0) };
        let sector = u64::from(self.sector_size());
        let aligned = offset.is_multiple_of(sector) && (data.len() as u64).is_multiple_of(sector);
        let Some(end) = offset.checked_add(data.len() as u64).filter(|_| aligned) else { return Ok(0) };
        let fs = self.inode().file_system();
        let epoch = fs.mounted.sharing.read();
        let _shared = open.data.read();
        let transactions = fs.transactions()?;
        let live = transactions.live().get(self.inode().tree())?;
        let item = open.item(&live)?;
        if !item.flags.contains(flags) || end > item.size {
            return Ok(0);
        }
        transactions.check_running()?;
        fs.check_changeable(self.inode().tree())?;
        self.check_mutable(&item)?;
        let mut at = offset;
        while at < end {
            let mut pieces = open.in_place.pieces(&(at..end), *epoch);
            if pieces.is_empty() {
                self.ask(open, &live, &(at..end), *epoch)?;
                pieces = open.in_place.pieces(&(at..end), *epoch);
            }
            let Some(last) = pieces.last() else { break };
            let next = last.range.end;
            self.overwrite(open, &data[(at - offset) as usize..(next - offset) as usize], at, &pieces)?;
            at = next;
        }
        Ok((at - offset) as usize)
    }

    /// Asks which extents of a range may be overwritten.
    fn ask(&self, open: &OpenInode, live: &LiveTree, range: &Range<u64>, epoch: u64) -> Result<()> {
        let mounted = &self.inode().file_system().mounted;
        let transactions = self.inode().file_system().transactions()?;
        let pin = transactions.pin();
        let tree = live.tree().pinned(pin);
        let sums = nocow::checksum_tree(transactions)?;
        let question = Question {
            transactions,
            live,
            tree: &tree,
            sums: sums.as_ref(),
            inode: self.inode().number(),
            check: mounted.tuning.nocow_check,
            epoch,
        };
        open.in_place.ask(&question, range)
    }

    /// Overwrites pieces that lie one behind the other from `start` on.
    fn overwrite(&self, open: &Arc<OpenInode>, data: &[u8], start: u64, pieces: &Pieces) -> Result<()> {
        let fs = self.inode().file_system();
        let part = |of: &Range<u64>| &data[(of.start - start) as usize..(of.end - start) as usize];
        match &pieces[..] {
            [piece] => fs.mounted.volume().write(piece.disk, part(&piece.range))?,
            pieces => {
                let mut writes: Vec<_> =
                    pieces.iter().map(|piece| LogicalWrite::new(piece.disk, part(&piece.range))).collect();
                fs.mounted.volume().write_many(&mut writes);
                writes.into_iter().try_for_each(|write| write.result)?;
            }
        }
        for piece in pieces.iter().filter(|piece| piece.preallocated) {
            open.in_place.set_written(&piece.range);
        }
        if open.touch(fs.transactions()?.now()) {
            fs.mounted.dirty_inodes.insert(open);
        }
        Ok(())
    }
}

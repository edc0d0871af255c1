//! Moving extents while files are open.
//!
//! Owns the switch to the new places of extents ([`FsInfo::switch_extents`],
//! [`FsInfo::merge_extents`], [`FsInfo::recompress_extents`]) and the reads that go on beside it
//! ([`FsInfo::read_until_unmoved`]).
//!
//! Invariants:
//! - No thread changes a file's data, or shares it, while extents move: the mover holds `sharing`
//!   exclusively.
//! - Readers are not held up. A read during which extents moved is done again, so what it read at
//!   an old place never reaches the caller.
//! - The places where extents were stay as they are until readers can know of the move.
//!
//! Locks, in this order: `sharing` (exclusively); [`FsInfo::moving`]; those of a commit; under them
//! the table of open inodes and the leaves of each. A reader holds its file's data lock and may
//! lock [`FsInfo::moving`]. Kernel counterpart: `replace_file_extents` (`fs/btrfs/relocation.c`).

use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::transaction::{CopiedExtent, MergedExtent, Recompressed, RecompressedExtent};
use papilio_format::LogicalAddress;

/// How often a read is tried before it keeps extents from moving.
const TRIES: usize = 2;

impl FsInfo {
    /// Lets everything that refers to the extents in `data`, and to tree blocks at `blocks`, refer
    /// to their copies. That is durable on return. The caller holds no lock.
    ///
    /// # Errors
    /// As [`crate::transaction::Transactions::relocate`].
    pub(crate) fn switch_extents(&self, blocks: &[LogicalAddress], data: &[CopiedExtent]) -> Result<()> {
        let transactions = self.transactions()?;
        // Dropped last: dropping an inode may delete it, which takes the locks below.
        let mut open = Vec::new();
        let _sharing = self.sharing.write();
        let _moving = self.moving.lock();
        transactions.retry_after_commits(|| {
            transactions.relocate(blocks, data, &mut || {
                open = self.open_inodes.forget_extents();
                self.reader.count_move();
            })
        })
    }

    /// Lets everything that refers to parts of extents refer to new extents that consist of these
    /// parts, if these are still shared alike. Returns for each whether they are; unless all are,
    /// nothing has changed. Durable on return. The caller holds no lock.
    ///
    /// # Errors
    /// As [`crate::transaction::Transactions::merge`].
    pub(crate) fn merge_extents(&self, merged: &[MergedExtent]) -> Result<Vec<bool>> {
        let transactions = self.transactions()?;
        // Dropped last, as above.
        let mut open = Vec::new();
        let _sharing = self.sharing.write();
        let _moving = self.moving.lock();
        transactions.retry_after_commits(|| {
            transactions.merge(merged, &mut || {
                open = self.open_inodes.forget_extents();
                self.reader.count_move();
            })
        })
    }

    /// Lets everything that refers to extents refer to pieces of them that are stored in another
    /// way, if they are still used alike. Makes at most `most_more_blocks` tree blocks more than
    /// there were. Durable on return. The caller holds no lock.
    ///
    /// # Errors
    /// As [`crate::transaction::Transactions::recompress`].
    pub(crate) fn recompress_extents(
        &self,
        extents: &[RecompressedExtent],
        most_more_blocks: u64,
    ) -> Result<Recompressed> {
        let transactions = self.transactions()?;
        // Dropped last, as above.
        let mut open = Vec::new();
        let _sharing = self.sharing.write();
        let _moving = self.moving.lock();
        transactions.retry_after_commits(|| {
            transactions.recompress(extents, most_more_blocks, &mut || {
                open = self.open_inodes.forget_extents();
                self.reader.count_move();
            })
        })
    }

    /// Keeps the data of a block group from being written in place, and runs `begin` before any
    /// writer begins again.
    pub(crate) fn stop_writing_in_place<R>(&self, begin: impl FnOnce() -> R) -> R {
        let mut sharing = self.sharing.write();
        // Writers ask afresh whether they may write in place.
        *sharing += 1;
        begin()
    }

    /// Runs `read`, which looks extents up and reads their data, until none moved meanwhile. The
    /// caller may hold the file's data lock.
    ///
    /// # Errors
    /// Errors of `read`.
    pub fn read_until_unmoved<R>(&self, mut read: impl FnMut() -> Result<R>) -> Result<R> {
        for _ in 0..TRIES {
            let moves = self.reader.moves();
            let result = read();
            if self.reader.moves() == moves {
                return result;
            }
        }
        let _still = self.moving.hold_off();
        read()
    }
}

//! Moving everything out of one block group, which the commit then removes.
//!
//! Owns [`FsInfo::relocate_block_group`]. It makes the block group read-only and moves its extents
//! in batches. Data is copied before the batch's transaction, and verified on the way. Each batch
//! is committed, so that every state on disk is a complete file system.
//!
//! **Invariants**
//! - Data without a good copy ends the relocation; its old extent stays.
//! - Nothing is allocated in the block group, and none of its data is overwritten in place: then a
//!   copy stays equal to its extent. [`crate::file::moved_extents`] says how open files follow.
//!
//! **Locks:** those of [`FsInfo::switch_extents`]; none while data is copied.
//!
//! Kernel counterpart: `btrfs_relocate_block_group` (`fs/btrfs/relocation.c`).

use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::space::{NewBlockGroup, SpaceKind};
use crate::transaction::{CopiedExtent, DataExtent, ExtentRefs, Transactions};
use papilio_format::items::block_group::BlockGroupFlags;
use std::time::{Duration, Instant};

/// Most extents of a batch.
const BATCH_EXTENTS: usize = 1024;
/// Most bytes of a batch, unless one extent is larger.
const BATCH_BYTES: u64 = 32 << 20;
/// How long readers of earlier states may keep a block group from being removed.
const READERS_WAIT: Duration = Duration::from_secs(60);
/// How often, and how long each time, a relocation waits for promises of space to be redeemed.
const PROMISE_WAITS: usize = 100;
const PROMISE_WAIT: Duration = Duration::from_millis(10);
/// Tree blocks that must be at hand beside those that move.
const SPARE_BLOCKS: u64 = 64;
/// New chunks for one block group, at most.
const NEW_CHUNKS: usize = 64;

impl FsInfo {
    /// Moves all extents of a block group to others and removes it. Calls `progress` with the bytes
    /// of each batch that is on disk, and now and then with 0; `false` stops. Returns whether the
    /// block group is gone. Files may be open, read and written meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; data without a good copy; a tree block that cannot be read;
    /// [`Error::Invalid`] if a reader does not leave the block group.
    pub fn relocate_block_group(
        &self,
        group: &NewBlockGroup,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool> {
        let transactions = self.transactions()?;
        let space = transactions.space();
        if !self.begin(transactions, group)? {
            return Ok(true);
        }
        let moved = self.move_extents(group, progress);
        if !matches!(moved, Ok(true)) {
            space.end_relocation(group.range.start);
        }
        moved
    }

    /// Takes the block group out of service. Returns whether it is still there.
    fn begin(&self, transactions: &Transactions, group: &NewBlockGroup) -> Result<bool> {
        let space = transactions.space();
        if kind_of(group) == SpaceKind::Data && space.is_only_for_data(group.range.start) {
            // Without any block group for data, nothing tells which profile new data is to have.
            transactions.chunks().allocate(transactions.volume(), space, SpaceKind::Data)?;
        }
        let mut tries = 0;
        loop {
            let begun = self.stop_writing_in_place(|| space.begin_relocation(group.range.start));
            if tries == PROMISE_WAITS || !matches!(begun, Err(Error::NoSpace { .. })) {
                return begun;
            }
            if tries > 0 {
                // Requests under way hold most promises, and only for a moment.
                transactions.commit()?;
                std::thread::sleep(PROMISE_WAIT);
            }
            // A commit may have removed the chunk of the last try, because it was empty.
            let made = transactions.chunks().allocate(transactions.volume(), space, kind_of(group));
            if tries == 0 {
                made?;
            }
            tries += 1;
        }
    }

    fn move_extents(&self, group: &NewBlockGroup, progress: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let transactions = self.transactions()?;
        // Then the trees know of all that was written into the block group.
        self.sync()?;
        prepare_space(transactions, group)?;
        let range = group.range.start..group.range.end();
        let mut waiting = None;
        while transactions.volume().chunk_map().find(group.range.start).is_some() {
            let batch = transactions.extents_in(&range, BATCH_EXTENTS, BATCH_BYTES)?;
            if !batch.is_empty() {
                self.move_batch(transactions, &batch)?;
            } else if waiting.get_or_insert_with(Instant::now).elapsed() < READERS_WAIT {
                // An extent that was dropped stays until the readers of its trees are gone.
                transactions.wait_for_readers()?;
                transactions.commit_anyway()?;
            } else {
                let start = group.range.start;
                return Err(Error::Invalid(format!("block group {start} stays in use by a reader")));
            }
            if !progress(batch.iter().map(|extent| extent.length).sum()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn move_batch(&self, transactions: &Transactions, batch: &[ExtentRefs]) -> Result<()> {
        let blocks: Vec<_> =
            batch.iter().filter(|extent| !extent.is_data()).map(|extent| extent.address).collect();
        let mut copied = Vec::new();
        let placed = batch.iter().filter(|extent| extent.is_data()).try_for_each(|extent| {
            let length = extent.length;
            let new = transactions.retry_after_commits(|| transactions.allocate_data(length, length))?;
            let (from, to, checksums) = (extent.address, new.start, Vec::new());
            copied.push(CopiedExtent { from, to, length, checksums });
            Ok(())
        });
        let copies = placed.and_then(|()| self.copy_extents(&mut copied));
        let result = copies.and_then(|()| self.switch_extents(&blocks, &copied));
        if result.is_err() && transactions.check_running().is_ok() {
            for extent in &copied {
                transactions.release_extent(DataExtent { address: extent.to, length: extent.length });
            }
        }
        result
    }
}

/// Returns the kind of space that a block group serves; metadata if it is mixed.
fn kind_of(group: &NewBlockGroup) -> SpaceKind {
    match group.flags {
        flags if flags.contains(BlockGroupFlags::METADATA) => SpaceKind::Metadata,
        flags if flags.contains(BlockGroupFlags::SYSTEM) => SpaceKind::System,
        _ => SpaceKind::Data,
    }
}

/// Makes sure that metadata has enough space once the block group takes no more of it.
fn prepare_space(transactions: &Transactions, group: &NewBlockGroup) -> Result<()> {
    let space = transactions.space();
    let node_size = u64::from(transactions.volume().geometry().node_size);
    let kind = kind_of(group);
    let need = group.used + SPARE_BLOCKS * node_size;
    let need = match kind {
        SpaceKind::Data => return Ok(()),
        SpaceKind::Metadata => need + space.global_reserve(),
        SpaceKind::System => need,
    };
    for _ in 0..NEW_CHUNKS {
        if space.unpromised(kind) >= need {
            return Ok(());
        }
        let made = transactions.chunks().allocate(transactions.volume(), space, kind);
        if let Err(error) = made {
            // The reserve stays promised to commits; the moved blocks need only their own room.
            let least = group.used + SPARE_BLOCKS * node_size;
            return if space.unpromised(kind) >= least { Ok(()) } else { Err(error) };
        }
    }
    Err(Error::NoSpace { what: "metadata while a block group moves" })
}

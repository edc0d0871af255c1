//! Flushing: publishing the changes of open files that only memory and device have.
//!
//! Owns the flush of one file, of a subvolume's files, and of all files in
//! [`DirtyInodes`](super::dirty_inodes).
//!
//! Invariants:
//! - A thread that changes a file's extents, size or times in the tree flushes the file first, in
//!   the same exclusive hold of its data lock. [`super::ordered_flush`] is the exception.
//! - A commit of the transaction by itself flushes nothing. A caller that promises durable data
//!   (`sync`, `fsync`, a snapshot of the subvolume, closing) flushes before it commits.
//!
//! Locks, in this order: `sharing` (shared), a file's data lock, the transaction's locks. The table
//! of dirty inodes is a leaf. Kernel counterparts: `btrfs_start_delalloc_roots`
//! (`fs/btrfs/inode.c`), `btrfs_writepages` (`fs/btrfs/extent_io.c`).

use crate::data::convert::{STEP_RANGES, convert_step};
use crate::data::progress::Progress;
use crate::data::write::PreparedWrite;
use crate::errors::{ErrorKind, PathError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::namespace::Place;
use crate::transaction::ReservedData;
use papilio_format::{Generation, TreeId};
use papilio_pagecache::Dirty;
use std::ops::Range;
use std::sync::Arc;

/// The most bytes that are written back and published at once.
const WRITE_STEP: u64 = 8 << 20;

impl OpenInode {
    /// Publishes all changes of the file that only memory and device have.
    pub(super) fn flush(&self, fs: &FsInfo) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        let published = self.publish_ordered(fs)?;
        let epoch = fs.sharing.read();
        let _exclusive = self.data.write();
        self.flush_rest(fs, *epoch, published)
    }

    /// As [`OpenInode::flush_locked`]. If the ordered extents that the caller has to flush were
    /// `published` and no page is dirty, later ordered extents are left where there are many.
    fn flush_rest(&self, fs: &FsInfo, epoch: u64, published: bool) -> Result<()> {
        // Dirty pages are newer than ordered extents, which must be published before them.
        let has_pages = self.mapping.as_ref().is_some_and(|mapping| mapping.has_dirty(0..u64::MAX));
        if !published || !self.ordered.is_many() || has_pages {
            return self.flush_locked(fs, epoch);
        }
        match self.write_back_items(fs) {
            // The file was deleted with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => Ok(()),
            result => result,
        }
    }

    /// Flushes a file. The caller holds its data lock exclusively, and the lock on `sharing`,
    /// shared or exclusively.
    pub(super) fn flush_locked(&self, fs: &FsInfo, epoch: u64) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        // In this order: dirty pages are newer than ordered extents.
        let written = self.publish_ordered_exclusively(fs);
        let written = written.and_then(|()| self.write_back_pages(fs, epoch));
        let written = written.and_then(|()| self.write_back_items(fs));
        match written {
            // The file was deleted with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {}
            result => result?,
        }
        self.set_clean();
        fs.dirty_inodes.remove(self.place());
        Ok(())
    }

    /// Writes dirty pages back, neighbours together.
    fn write_back_pages(&self, fs: &FsInfo, epoch: u64) -> Result<()> {
        let Some(mapping) = &self.mapping else { return Ok(()) };
        while let Some(run) = mapping.start_writeback(0..u64::MAX, WRITE_STEP, Dirty::Any) {
            let pages: Vec<&[u8]> = run.slices().collect();
            match self.write_back_run(fs, run.range(), &pages, epoch) {
                Ok(()) => {
                    drop(pages);
                    run.finish();
                }
                Err(error) => {
                    drop(pages);
                    run.fail();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn write_back_run(&self, fs: &FsInfo, range: Range<u64>, pages: &[&[u8]], epoch: u64) -> Result<()> {
        let place = self.place();
        let mut at = range.start;
        let mut left = pages;
        // In place, from the front, as far as possible.
        while let Some((page, rest)) = left.split_first() {
            if self.overwrite_pages(fs, page, at, epoch)? < page.len() {
                break;
            }
            at += page.len() as u64;
            left = rest;
        }
        if left.is_empty() {
            return Ok(());
        }
        let touched = self.touched();
        let bytes = range.end - at;
        let reservation = self.take_reservation(bytes);
        let reserved = ReservedData::new(fs.transactions()?, reservation.data);
        let trees = fs.data_trees(place)?;
        let context = trees.context(&reserved);
        let mut write = trees.prepare(|file| {
            let size = file.item.size.max(touched.map_or(0, |touched| touched.size));
            PreparedWrite::of_pages(&context, file, at, left, size)
        })?;
        let changed = self.changed_range(fs, at, bytes)?;
        // The transaction handle reserves metadata itself.
        drop(reservation.metadata);
        fs.change_data(place, EXTENT_ITEMS + (bytes >> 17), |context, file| {
            self.note_changed(&fs.changed_files, context.space.generation(), &changed);
            file.touched = touched.map(|touched| touched.touch);
            write.publish(context, file)
        })
    }

    /// Returns whether the tree has the inode item with all changes; after writing data back it
    /// mostly has.
    fn has_all(&self, fs: &FsInfo) -> bool {
        let item = fs.transactions().and_then(|transactions| {
            let live = transactions.live().get(self.place().tree)?;
            self.item(&live)
        });
        // An error of reading it shows again when it is written.
        item.is_ok_and(|item| self.as_seen(item) == item)
    }

    /// Publishes written preallocated ranges, the size and the times.
    fn write_back_items(&self, fs: &FsInfo) -> Result<()> {
        let place = self.place();
        let written = self.in_place.written().read().clone();
        if written.is_empty() && self.has_all(fs) {
            return Ok(());
        }
        let touched = self.touched();
        let mut from = 0;
        loop {
            let items = EXTENT_ITEMS + written.len().min(STEP_RANGES) as u64;
            let (progress, next) = fs.change_handle(place.tree, items, |handle, _| {
                fs.edit_data(handle, place, |context, file| {
                    let item = self.as_seen(context.stamped(file));
                    if written.is_empty() && touched.is_none() {
                        return Ok((Progress::Done, 0));
                    }
                    for range in written.iter() {
                        self.note_changed(&fs.changed_files, context.space.generation(), &range);
                    }
                    convert_step(context, file, &written, from, item)
                })
            })?;
            if progress == Progress::Done {
                return Ok(());
            }
            from = next;
        }
    }
}

impl FsInfo {
    /// Flushes all files.
    pub(crate) fn flush_all(&self) -> Result<()> {
        for open in self.dirty_inodes.of_tree(None) {
            let published = !open.is_unlinked() && open.publish_ordered(self)?;
            let epoch = self.sharing.read();
            self.flush_or_forget(&open, *epoch, published)?;
        }
        Ok(())
    }

    /// Makes everything that changed before the call durable: flushes all files and commits.
    pub(crate) fn sync(&self) -> Result<()> {
        let transactions = self.transactions()?;
        self.flush_all()?;
        transactions.commit()
    }

    /// Publishes all ordered extents and commits. Without the first step, data of calls that have
    /// returned would not be in the committed trees.
    pub(crate) fn commit(&self) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit()
    }

    /// As [`FsInfo::commit`], unless transaction `generation` is committed already.
    pub(crate) fn commit_transaction(&self, generation: Generation) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit_transaction(generation)
    }

    fn write_back_all_ordered(&self) -> Result<()> {
        for open in self.dirty_inodes.of_tree(None) {
            open.publish_all_ordered(self)?;
        }
        Ok(())
    }

    /// Frees space for a change that found none: publishes the ordered extents of files that no
    /// thread has locked, so that a commit frees the extents they replace. Returns whether there
    /// were any. The caller may hold data locks.
    pub(super) fn free_by_publishing(&self) -> bool {
        let Some(_one) = self.dirty_inodes.freeing.try_lock() else { return false };
        let mut any = false;
        for open in self.dirty_inodes.of_tree(None) {
            if open.is_unlinked() {
                self.dirty_inodes.forget_unlinked(&open);
            } else if !open.ordered.is_empty()
                && let Some(_exclusive) = open.data.try_write()
            {
                any |= open.publish_ordered_exclusively(self).is_ok();
            }
        }
        any
    }

    /// Flushes the files of a subvolume. The caller holds `sharing`, so that nothing is shared or
    /// overwritten in place meanwhile.
    pub(crate) fn flush_tree(&self, tree: TreeId, epoch: u64) -> Result<()> {
        for open in self.dirty_inodes.of_tree(Some(tree)) {
            self.flush_or_forget(&open, epoch, false)?;
        }
        Ok(())
    }

    /// Publishes the ordered extents of those files of a subvolume that have many, while other
    /// threads write. A later flush that blocks writers then has less to do.
    pub(crate) fn publish_ordered_of_tree(&self, tree: TreeId) -> Result<()> {
        for open in self.dirty_inodes.of_tree(Some(tree)) {
            if !open.is_unlinked() {
                open.publish_ordered_if_many(self)?;
            }
        }
        Ok(())
    }

    fn flush_or_forget(&self, open: &Arc<OpenInode>, epoch: u64, published: bool) -> Result<()> {
        let _exclusive = open.data.write();
        // Only the table and the caller have a reference: no handle can read the file again.
        if open.is_unlinked() && Arc::strong_count(open) == 2 {
            self.dirty_inodes.remove(open.place());
            return Ok(());
        }
        open.flush_rest(self, epoch, published)
    }

    /// Flushes the file at `place`, if it has changes in memory.
    pub(crate) fn flush_place(&self, place: Place) -> Result<()> {
        match self.dirty_inodes.get(place) {
            Some(open) => open.flush(self),
            None => Ok(()),
        }
    }
}

//! What open files keep in memory goes to the trees.
//!
//! Owns [`DirtyInodes`], the files that have something to bring there, and the ways to make them do so: one
//! file, those of a subvolume, all. Invariants: whoever changes a file's extents, size or times in the tree
//! has flushed it before, in the same exclusive hold of its data lock, but for who brings ordered extents there
//! ([`super::ordered_flush`]); a file is in the table from its first change in memory until it is flushed, and is
//! kept open by that. A commit by itself does not flush: who promises that data is durable (`sync`, `fsync`, a
//! snapshot of the subvolume, closing) does so first.
//!
//! Locks: a file's data lock, then those of a transaction, or the table's: a leaf, under which no [`OpenInode`] is let go.

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

/// Bytes that are written back at once, and published together.
const WRITE_STEP: u64 = 8 << 20;

impl OpenInode {
    /// Flushes a file.
    pub(super) fn flush(&self, fs: &FsInfo) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        let published = self.publish_ordered(fs)?;
        let epoch = fs.sharing.read();
        let _exclusive = self.data.write();
        self.flush_rest(fs, *epoch, published)
    }

    /// As [`FileSystem::flush_locked`], where ordered extents that the caller is to flush were `published` up: what
    /// others have written since is left, if that is much and nothing else depends on it.
    fn flush_rest(&self, fs: &FsInfo, epoch: u64, published: bool) -> Result<()> {
        // Pages are newer than what is on the device.
        let has_pages = self.mapping.as_ref().is_some_and(|mapping| mapping.has_dirty(0..u64::MAX));
        if !published || !self.ordered.is_many() || has_pages {
            return self.flush_locked(fs, epoch);
        }
        match self.write_back_items(fs) {
            // It went with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => Ok(()),
            result => result,
        }
    }

    /// Flushes a file whose data lock the caller holds exclusively, and the lock on sharing anyhow.
    pub(super) fn flush_locked(&self, fs: &FsInfo, epoch: u64) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        // In this order: what pages hold is newer than what is on the device.
        let written = self.publish_ordered_exclusively(fs);
        let written = written.and_then(|()| self.write_back_pages(fs, epoch));
        let written = written.and_then(|()| self.write_back_items(fs));
        match written {
            // It went with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {}
            result => result?,
        }
        self.set_clean();
        fs.dirty_inodes.remove(self.place());
        Ok(())
    }

    /// Writes dirty pages, neighbours together.
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
        // In place, from the front, as long as that may be.
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
        // The handle reserves metadata itself.
        drop(reservation.metadata);
        fs.change_data(place, EXTENT_ITEMS + (bytes >> 17), |context, file| {
            self.note_changed(&fs.changed_files, context.space.generation(), &changed);
            file.touched = touched.map(|touched| (touched.time, touched.sequence));
            write.publish(context, file)
        })
    }

    /// Whether the tree has the inode as it is to be seen: with what was written back, it mostly is.
    fn has_all(&self, fs: &FsInfo) -> bool {
        let item = fs.transactions().and_then(|transactions| {
            let live = transactions.live().get(self.place().tree)?;
            self.item(&live)
        });
        // What stands in the way of reading it shows when it is written.
        item.is_ok_and(|item| self.as_seen(item) == item)
    }

    /// Brings the conversion of preallocated ranges, the size and the times to the tree.
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

    /// Commits, with what calls that returned have written to the device: it is not in the trees before.
    pub(crate) fn commit(&self) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit()
    }

    /// As [`FileSystem::commit`], unless that transaction is committed already.
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

    /// Where there is no room for a change: brings what is in no tree yet to the trees, of files that nobody uses
    /// just now, so that a commit frees what it takes the place of. Says whether there was any. The caller may
    /// hold data locks.
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

    /// Flushes the files of a subvolume, while nothing else is shared or overwritten in place.
    pub(crate) fn flush_tree(&self, tree: TreeId, epoch: u64) -> Result<()> {
        for open in self.dirty_inodes.of_tree(Some(tree)) {
            self.flush_or_forget(&open, epoch, false)?;
        }
        Ok(())
    }

    /// Where files of a subvolume have many ordered extents, brings them to the trees beside others who write: a
    /// flush that follows, while nobody may, has little to do.
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
        // Nobody will read it again: the table, and who calls.
        if open.is_unlinked() && Arc::strong_count(open) == 2 {
            self.dirty_inodes.remove(open.place());
            return Ok(());
        }
        open.flush_rest(self, epoch, published)
    }

    /// Flushes the file at a place, if it is open and has changes.
    pub(crate) fn flush_place(&self, place: Place) -> Result<()> {
        match self.dirty_inodes.get(place) {
            Some(open) => open.flush(self),
            None => Ok(()),
        }
    }
}

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
use crate::data::truncate::Progress;
use crate::data::write::write_back;
use crate::errors::{ErrorKind, PathError, Result};
use crate::fs::FileSystem;
use crate::fs::change::EXTENT_ITEMS;
use crate::fs::open_inodes::OpenInode;
use crate::namespace::Place;
use papilio_format::items::inode::Timespec;
use papilio_format::{Generation, TreeId};
use papilio_locks::{Mutex, might_lock};
use papilio_pagecache::Dirty;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are written back at once, and published together.
const WRITE_STEP: u64 = 8 << 20;

/// Files with changes that the trees do not have.
#[derive(Debug, Default)]
pub(crate) struct DirtyInodes {
    table: Mutex<BTreeMap<Place, Arc<OpenInode>>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
    /// Held by who makes room, one at a time.
    making_room: Mutex<()>,
}

impl DirtyInodes {
    #[cfg(all(test, feature = "lock-order"))]
    pub(super) fn lock_table(&self) -> papilio_locks::MutexGuard<'_, impl Sized> {
        self.table.lock()
    }

    /// What the caller does may ask for the table.
    #[inline]
    pub(super) fn might_lock(&self) {
        might_lock(&self.table);
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn insert(&self, open: &Arc<OpenInode>) {
        let _replaced = {
            let mut table = self.table.lock();
            let replaced = table.insert(open.place(), Arc::clone(open));
            self.count.store(table.len(), Ordering::Release);
            // Let go of without the table locked.
            replaced
        };
    }

    /// Notes a change of a file in memory that reaches to byte `end`. The caller holds its data lock, shared.
    pub(super) fn touch(&self, open: &Arc<OpenInode>, now: Timespec, end: u64) {
        // In this order: who finds it dirty leaves it to others to enter it here, and whoever flushes all after that
        // must find it.
        if !open.is_dirty() {
            self.insert(open);
        }
        open.touch_to(now, end);
    }

    fn remove(&self, place: Place) -> Option<Arc<OpenInode>> {
        let mut table = self.table.lock();
        let removed = table.remove(&place);
        self.count.store(table.len(), Ordering::Release);
        removed
    }

    /// Lets go of a file that has no name, if nobody but the caller has it open: what memory holds of it is not
    /// to be flushed.
    pub(super) fn forget_unlinked(&self, open: Arc<OpenInode>) {
        let mut table = self.table.lock();
        // The table's and the caller's.
        if open.is_unlinked() && Arc::strong_count(&open) == 2 && table.contains_key(&open.place()) {
            let removed = table.remove(&open.place());
            self.count.store(table.len(), Ordering::Release);
            drop(table);
            drop(removed);
        }
    }

    /// The file at a place, if it has changes in memory.
    pub(super) fn get(&self, place: Place) -> Option<Arc<OpenInode>> {
        if self.is_empty() {
            return None;
        }
        self.table.lock().get(&place).cloned()
    }

    fn those_of(&self, tree: Option<TreeId>) -> Vec<Arc<OpenInode>> {
        if self.is_empty() {
            return Vec::new();
        }
        let table = self.table.lock();
        table.values().filter(|open| tree.is_none_or(|tree| open.place().tree == tree)).cloned().collect()
    }
}

impl FileSystem {
    /// Flushes all files.
    pub(super) fn flush_all(&self) -> Result<()> {
        for open in self.mounted.dirty_inodes.those_of(None) {
            let swept = !open.is_unlinked() && self.sweep_ordered(&open)?;
            let epoch = self.mounted.sharing.read();
            self.flush_or_forget(&open, *epoch, swept)?;
        }
        Ok(())
    }

    /// Commits, with what calls that returned have written to the device: it is not in the trees before.
    pub(super) fn commit(&self) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit()
    }

    /// As [`FileSystem::commit`], unless that transaction is committed already.
    pub(super) fn commit_transaction(&self, generation: Generation) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit_transaction(generation)
    }

    fn write_back_all_ordered(&self) -> Result<()> {
        for open in self.mounted.dirty_inodes.those_of(None) {
            self.flush_ordered(&open)?;
        }
        Ok(())
    }

    /// Where there is no room for a change: brings what is in no tree yet to the trees, of files that nobody uses
    /// just now, so that a commit frees what it takes the place of. Says whether there was any. The caller may
    /// hold data locks.
    pub(super) fn make_room(&self) -> bool {
        let Some(_one) = self.mounted.dirty_inodes.making_room.try_lock() else { return false };
        let mut any = false;
        for open in self.mounted.dirty_inodes.those_of(None) {
            if open.is_unlinked() {
                self.mounted.dirty_inodes.forget_unlinked(open);
            } else if !open.ordered.is_empty()
                && let Some(_exclusive) = open.data.try_write()
            {
                any |= self.write_back_ordered(&open).is_ok();
            }
        }
        any
    }

    /// Flushes the files of a subvolume, while nothing else is shared or overwritten in place.
    pub(super) fn flush_tree(&self, tree: TreeId, epoch: u64) -> Result<()> {
        for open in self.mounted.dirty_inodes.those_of(Some(tree)) {
            self.flush_or_forget(&open, epoch, false)?;
        }
        Ok(())
    }

    /// Where files of a subvolume have many ordered extents, brings them to the trees beside others who write: a
    /// flush that follows, while nobody may, has little to do.
    pub(super) fn thin_out(&self, tree: TreeId) -> Result<()> {
        for open in self.mounted.dirty_inodes.those_of(Some(tree)) {
            if open.ordered.is_many() && !open.is_unlinked() {
                self.sweep_ordered(&open)?;
            }
        }
        Ok(())
    }

    fn flush_or_forget(&self, open: &Arc<OpenInode>, epoch: u64, swept: bool) -> Result<()> {
        let _exclusive = open.data.write();
        // Nobody will read it again: the table, and who calls.
        if open.is_unlinked() && Arc::strong_count(open) == 2 {
            self.mounted.dirty_inodes.remove(open.place());
            return Ok(());
        }
        self.flush_rest(open, epoch, swept)
    }

    /// Flushes the file at a place, if it is open and has changes.
    pub(super) fn flush_place(&self, place: Place) -> Result<()> {
        match self.mounted.dirty_inodes.get(place) {
            Some(open) => self.flush(&open),
            None => Ok(()),
        }
    }

    /// Flushes a file.
    pub(super) fn flush(&self, open: &OpenInode) -> Result<()> {
        if !open.is_dirty() {
            return Ok(());
        }
        let swept = self.sweep_ordered(open)?;
        let epoch = self.mounted.sharing.read();
        let _exclusive = open.data.write();
        self.flush_rest(open, *epoch, swept)
    }

    /// As [`FileSystem::flush_locked`], where ordered extents that the caller is to flush were `swept` up: what
    /// others have written since is left, if that is much and nothing else depends on it.
    fn flush_rest(&self, open: &OpenInode, epoch: u64, swept: bool) -> Result<()> {
        // Pages are newer than what is on the device.
        let has_pages = open.mapping.as_ref().is_some_and(|mapping| mapping.has_dirty(0..u64::MAX));
        if !swept || !open.ordered.is_many() || has_pages {
            return self.flush_locked(open, epoch);
        }
        match self.write_back_items(open) {
            // It went with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => Ok(()),
            result => result,
        }
    }

    /// Flushes a file whose data lock the caller holds exclusively, and the lock on sharing anyhow.
    pub(super) fn flush_locked(&self, open: &OpenInode, epoch: u64) -> Result<()> {
        if !open.is_dirty() {
            return Ok(());
        }
        // In this order: what pages hold is newer than what is on the device.
        let written = self.write_back_ordered(open);
        let written = written.and_then(|()| self.write_back_pages(open, epoch));
        let written = written.and_then(|()| self.write_back_items(open));
        match written {
            // It went with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {}
            result => result?,
        }
        open.set_clean();
        self.mounted.dirty_inodes.remove(open.place());
        Ok(())
    }

    /// Writes dirty pages, neighbours together.
    fn write_back_pages(&self, open: &OpenInode, epoch: u64) -> Result<()> {
        let Some(mapping) = &open.mapping else { return Ok(()) };
        while let Some(run) = mapping.start_writeback(0..u64::MAX, WRITE_STEP, Dirty::Any) {
            let pages: Vec<&[u8]> = run.slices().collect();
            match self.write_back_run(open, run.range(), &pages, epoch) {
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

    fn write_back_run(&self, open: &OpenInode, range: Range<u64>, pages: &[&[u8]], epoch: u64) -> Result<()> {
        let place = open.place();
        let mut at = range.start;
        let mut left = pages;
        // In place, from the front, as long as that may be.
        while let Some((page, rest)) = left.split_first() {
            if self.overwrite_pages(open, page, at, epoch)? < page.len() {
                break;
            }
            at += page.len() as u64;
            left = rest;
        }
        if left.is_empty() {
            return Ok(());
        }
        let touched = open.touched();
        let bytes = range.end - at;
        let promised = open.take_promise(bytes);
        drop(promised.metadata);
        let promise = RefCell::new(promised.data);
        let changed = self.changed_range(open, at, bytes)?;
        self.change_handle(place.tree, EXTENT_ITEMS + (bytes >> 17), |handle, _| {
            handle.lend(promise.take());
            let result = self.edit_data(handle, place, |context, file| {
                open.note_changed(&self.mounted.changed_files, context.space.generation(), &changed);
                file.touched = touched.map(|touched| (touched.time, touched.sequence));
                let size = file.item.size.max(touched.map_or(0, |touched| touched.size));
                write_back(context, file, at, left, size)
            });
            promise.replace(handle.lend(None));
            result
        })
    }

    /// Whether the tree has the inode as it is to be seen: with what was written back, it mostly is.
    fn has_all(&self, open: &OpenInode) -> bool {
        let item = self.transactions().and_then(|transactions| {
            let live = transactions.live().get(open.place().tree)?;
            open.item(&live)
        });
        // What stands in the way of reading it shows when it is written.
        item.is_ok_and(|item| open.as_seen(item) == item)
    }

    /// Brings the conversion of preallocated ranges, the size and the times to the tree.
    fn write_back_items(&self, open: &OpenInode) -> Result<()> {
        let place = open.place();
        let written = open.in_place.written().read().clone();
        if written.is_empty() && self.has_all(open) {
            return Ok(());
        }
        let touched = open.touched();
        let mut from = 0;
        loop {
            let items = EXTENT_ITEMS + written.len().min(STEP_RANGES) as u64;
            let (progress, next) = self.change_handle(place.tree, items, |handle, _| {
                self.edit_data(handle, place, |context, file| {
                    let item = open.as_seen(context.stamped(file));
                    if written.is_empty() && touched.is_none() {
                        return Ok((Progress::Done, 0));
                    }
                    for range in written.iter() {
                        open.note_changed(&self.mounted.changed_files, context.space.generation(), &range);
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

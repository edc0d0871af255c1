//! What open files keep in memory goes to the trees.
//!
//! Owns [`DirtyInodes`], the files that have something to bring there, and the ways to make them do so: one
//! file, those of a subvolume, all. Invariants: whoever changes a file's extents, size or times in the tree
//! has flushed it before, in the same exclusive hold of its data lock; a file is in the table from its first
//! change in memory until it is flushed, and is kept open by that. A commit by itself does not flush: who
//! promises that data is durable (`sync`, `fsync`, a snapshot of the subvolume, closing) does so first.
//!
//! Locks: a file's data lock, then the table's or those of a transaction.

use crate::data::convert::{STEP_RANGES, convert_step};
use crate::data::truncate::Progress;
use crate::errors::{ErrorKind, PathError, Result};
use crate::fs::FileSystem;
use crate::fs::change::EXTENT_ITEMS;
use crate::fs::open_inodes::OpenInode;
use crate::namespace::Place;
use papilio_format::TreeId;
use papilio_format::items::inode::InodeItem;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files with changes that the trees do not have.
#[derive(Debug, Default)]
pub(crate) struct DirtyInodes {
    table: Mutex<BTreeMap<Place, Arc<OpenInode>>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
}

impl DirtyInodes {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn insert(&self, open: &Arc<OpenInode>) {
        let mut table = self.table.lock();
        table.insert(open.place(), Arc::clone(open));
        self.count.store(table.len(), Ordering::Release);
    }

    fn remove(&self, place: Place) -> Option<Arc<OpenInode>> {
        let mut table = self.table.lock();
        let removed = table.remove(&place);
        self.count.store(table.len(), Ordering::Release);
        removed
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
        self.flush_those_of(None)
    }

    /// Flushes the files of a subvolume.
    pub(super) fn flush_tree(&self, tree: TreeId) -> Result<()> {
        self.flush_those_of(Some(tree))
    }

    fn flush_those_of(&self, tree: Option<TreeId>) -> Result<()> {
        for open in self.mounted.dirty_inodes.those_of(tree) {
            let _exclusive = open.data.write();
            // Nobody will read it again: the table, and this.
            if open.is_unlinked() && Arc::strong_count(&open) == 2 {
                self.mounted.dirty_inodes.remove(open.place());
                continue;
            }
            self.flush_locked(&open)?;
        }
        Ok(())
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
        let _exclusive = open.data.write();
        self.flush_locked(open)
    }

    /// Flushes a file whose data lock the caller holds exclusively.
    pub(super) fn flush_locked(&self, open: &OpenInode) -> Result<()> {
        if !open.is_dirty() {
            return Ok(());
        }
        match self.write_back_items(open) {
            // It went with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {}
            result => result?,
        }
        open.set_clean();
        self.mounted.dirty_inodes.remove(open.place());
        Ok(())
    }

    fn write_back_items(&self, open: &OpenInode) -> Result<()> {
        let place = open.place();
        let written = open.in_place.written().read().clone();
        let touched = open.touched();
        let mut from = 0;
        loop {
            let items = EXTENT_ITEMS + written.len().min(STEP_RANGES) as u64;
            let (progress, next) = self.change_handle(place.tree, items, |handle, _| {
                self.edit_data(handle, place, |context, file| {
                    let mut item = context.stamped(file);
                    if let Some(touched) = &touched {
                        item = InodeItem {
                            mtime: touched.time,
                            ctime: touched.time,
                            sequence: item.sequence.max(touched.sequence),
                            ..item
                        };
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

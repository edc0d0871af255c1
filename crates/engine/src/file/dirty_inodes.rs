//! The table of open files with changes that their trees do not have yet.
//!
//! Owns [`DirtyInodes`].
//!
//! Invariant: a file is in the table from its first change in memory until a flush has published
//! all of it. The table's reference keeps it open.
//!
//! Lock: the table's, a leaf. No [`OpenInode`] is dropped under it.

use crate::file::open_inode::OpenInode;
use crate::namespace::Place;
use papilio_format::TreeId;
use papilio_format::items::inode::Timespec;
use papilio_locks::{Mutex, might_lock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files with changes that the trees do not have.
#[derive(Debug, Default)]
pub struct DirtyInodes {
    table: Mutex<BTreeMap<Place, Arc<OpenInode>>>,
    /// The number of files in the table, readable without the lock.
    count: AtomicUsize,
    /// Held by the one thread that publishes ordered extents to free space.
    pub(super) freeing: Mutex<()>,
}

impl DirtyInodes {
    /// Locks the table, for tests of the order of locks.
    #[cfg(feature = "lock-order")]
    pub fn lock_table(&self) -> papilio_locks::MutexGuard<'_, impl Sized> {
        self.table.lock()
    }

    /// Tells the lock-order checker that the caller may lock the table.
    #[inline]
    pub(crate) fn might_lock(&self) {
        might_lock(&self.table);
    }

    /// Returns whether the table is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn insert(&self, open: &Arc<OpenInode>) {
        let _replaced = {
            let mut table = self.table.lock();
            let replaced = table.insert(open.place(), Arc::clone(open));
            self.count.store(table.len(), Ordering::Release);
            // Dropped after the table is unlocked.
            replaced
        };
    }

    /// Notes a change of a file in memory at `time` that reaches to byte `end`; without a `time`,
    /// mtime and ctime stay. The caller holds its data lock, shared.
    pub(crate) fn touch(&self, open: &Arc<OpenInode>, time: Option<Timespec>, end: u64) {
        // In this order: a thread that finds the file dirty relies on it being in the table, where
        // a later flush of all files must find it.
        if !open.is_dirty() {
            self.insert(open);
        }
        open.touch_to(time, end);
    }

    pub(super) fn remove(&self, place: Place) -> Option<Arc<OpenInode>> {
        let mut table = self.table.lock();
        let removed = table.remove(&place);
        self.count.store(table.len(), Ordering::Release);
        removed
    }

    /// Drops the table's reference to a file without a name, if the caller's is the only other one:
    /// its data need not be written any more.
    pub(crate) fn forget_unlinked(&self, open: &Arc<OpenInode>) {
        let mut table = self.table.lock();
        // Two references: the table's and the caller's.
        if open.is_unlinked() && Arc::strong_count(open) == 2 && table.contains_key(&open.place()) {
            let removed = table.remove(&open.place());
            self.count.store(table.len(), Ordering::Release);
            drop(table);
            drop(removed);
        }
    }

    /// Returns the file at `place`, if it has changes in memory.
    pub fn get(&self, place: Place) -> Option<Arc<OpenInode>> {
        if self.is_empty() {
            return None;
        }
        self.table.lock().get(&place).cloned()
    }

    pub(super) fn of_tree(&self, tree: Option<TreeId>) -> Vec<Arc<OpenInode>> {
        if self.is_empty() {
            return Vec::new();
        }
        let table = self.table.lock();
        table.values().filter(|open| tree.is_none_or(|tree| open.place().tree == tree)).cloned().collect()
    }
}

//! The table of open inodes.
//!
//! Owns [`OpenInodes`] and the memory budgets that all open inodes share.
//!
//! Invariant: an inode has one [`OpenInode`] for as long as any handle has it open.
//!
//! Lock: the table's, held for one operation on the map. Under it only leaves are taken (the tables
//! of changed files and of mappings), and no [`OpenInode`] is dropped: dropping one locks this
//! table.

use crate::file::memory_budgets::MemoryBudgets;
use crate::file::open_inode::OpenInode;
use crate::namespace::Place;
use papilio_locks::{Mutex, might_lock};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Open inodes by subvolume and number.
#[derive(Debug)]
pub(crate) struct OpenInodes {
    table: Mutex<HashMap<Place, Weak<OpenInode>>>,
    budgets: MemoryBudgets,
}

impl OpenInodes {
    /// Creates an empty table. Cached checksums may take `checksum_bytes` of memory, ordered
    /// extents about `ordered_bytes`.
    pub(crate) fn new(checksum_bytes: usize, ordered_bytes: usize) -> Self {
        Self { table: Mutex::default(), budgets: MemoryBudgets::new(checksum_bytes, ordered_bytes) }
    }

    /// Returns the bytes of memory of cached checksums, and of ordered extents.
    pub(crate) fn memory(&self) -> (usize, usize) {
        self.budgets.used()
    }

    /// Returns the open inode at `place`, created by `make` if no handle has it open.
    pub(super) fn open(
        &self,
        place: Place,
        make: impl FnOnce(&MemoryBudgets) -> OpenInode,
    ) -> Arc<OpenInode> {
        let mut table = self.table.lock();
        if let Some(open) = table.get(&place).and_then(Weak::upgrade) {
            return open;
        }
        let open = Arc::new(make(&self.budgets));
        table.insert(place, Arc::downgrade(&open));
        open
    }

    /// Returns the inode at `place`, if a handle has it open.
    pub(crate) fn get(&self, place: Place) -> Option<Arc<OpenInode>> {
        // The lock is released before the caller can drop the inode.
        self.table.lock().get(&place).and_then(Weak::upgrade)
    }

    /// Forgets where the extents of all open inodes are, because extents moved. The caller drops
    /// the inodes that this returns once it holds no lock.
    pub(super) fn forget_extents(&self) -> Vec<Arc<OpenInode>> {
        let open: Vec<_> = self.table.lock().values().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|open| open.forget_extents());
        open
    }

    /// Removes the entry of an inode whose last handle is gone, unless it was opened again
    /// meanwhile.
    pub(super) fn remove(&self, place: Place) {
        let mut table = self.table.lock();
        if table.get(&place).is_some_and(|open| open.strong_count() == 0) {
            table.remove(&place);
        }
    }

    /// Tells the lock-order checker that the caller may lock the table.
    pub(super) fn might_lock(&self) {
        might_lock(&self.table);
    }

    #[cfg(all(test, feature = "lock-order"))]
    pub(crate) fn lock_table(&self) -> papilio_locks::MutexGuard<'_, impl Sized> {
        self.table.lock()
    }
}

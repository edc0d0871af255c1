//! The table of open inodes.
//!
//! Owns [`OpenInodes`] and the memory budgets that all open inodes share.
//!
//! Invariants:
//! - An inode has one [`OpenInode`] for as long as any handle has it open.
//! - No thread changes the data of an inode beside its deletion. A deletion begins only if no
//!   handle has the inode open. A handle that opens it meanwhile finds no file to change.
//!
//! Lock: the table's, held for one operation on the map. Under it only leaves are taken (the tables
//! of changed files and of mappings), and no [`OpenInode`] is dropped: dropping one locks this
//! table.

use crate::file::memory_budgets::MemoryBudgets;
use crate::file::open_inode::OpenInode;
use crate::namespace::Place;
use papilio_format::TreeId;
use papilio_locks::{Mutex, might_lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Open inodes by subvolume and number.
#[derive(Debug)]
pub struct OpenInodes {
    table: Mutex<OpenTable>,
    /// Deletions that run, changed under the table's lock.
    deletions: AtomicUsize,
    budgets: MemoryBudgets,
}

#[derive(Debug, Default)]
struct OpenTable {
    open: HashMap<Place, Weak<OpenInode>>,
    /// Open inodes of each subvolume whose release has not ended.
    uses: HashMap<TreeId, u64>,
    /// Inodes whose deletion runs, with the number of threads that delete each.
    deleting: HashMap<Place, u32>,
}

impl OpenInodes {
    /// Creates an empty table. Cached checksums may take `checksum_bytes` of memory, ordered
    /// extents about `ordered_bytes`.
    pub(crate) fn new(checksum_bytes: usize, ordered_bytes: usize) -> Self {
        Self {
            table: Mutex::default(),
            deletions: AtomicUsize::new(0),
            budgets: MemoryBudgets::new(checksum_bytes, ordered_bytes),
        }
    }

    /// Returns the bytes of memory of cached checksums, and of ordered extents.
    pub fn memory(&self) -> (usize, usize) {
        self.budgets.used()
    }

    /// Returns the open inode at `place`, created by `make` if no handle has it open.
    pub(super) fn open(
        &self,
        place: Place,
        make: impl FnOnce(&MemoryBudgets) -> OpenInode,
    ) -> Arc<OpenInode> {
        let mut table = self.table.lock();
        if let Some(open) = table.open.get(&place).and_then(Weak::upgrade) {
            return open;
        }
        let open = Arc::new(make(&self.budgets));
        if table.deleting.contains_key(&place) {
            open.set_deleted();
        }
        table.open.insert(place, Arc::downgrade(&open));
        *table.uses.entry(place.tree).or_insert(0) += 1;
        open
    }

    /// Returns whether inodes of a subvolume are open, or their release has not ended.
    pub(super) fn has_uses(&self, tree: TreeId) -> bool {
        self.table.lock().uses.contains_key(&tree)
    }

    /// Notes that the release of an inode has ended. Returns whether it was the last one of its
    /// subvolume.
    pub(super) fn end_use(&self, tree: TreeId) -> bool {
        let mut table = self.table.lock();
        let uses = table.uses.get_mut(&tree).expect("an open inode is counted");
        *uses -= 1;
        let last = *uses == 0;
        if last {
            table.uses.remove(&tree);
        }
        last
    }

    /// Returns the open inodes of a subvolume. The caller drops them once it holds no lock.
    pub(super) fn of_tree(&self, tree: TreeId) -> Vec<Arc<OpenInode>> {
        let table = self.table.lock();
        table
            .open
            .iter()
            .filter(|(place, _)| place.tree == tree)
            .filter_map(|(_, open)| open.upgrade())
            .collect()
    }

    /// Returns the inode at `place`, if a handle has it open.
    pub fn get(&self, place: Place) -> Option<Arc<OpenInode>> {
        // The lock is released before the caller can drop the inode.
        self.table.lock().open.get(&place).and_then(Weak::upgrade)
    }

    /// Forgets where the extents of all open inodes are, because extents moved. The caller drops
    /// the inodes that this returns once it holds no lock.
    pub(super) fn forget_extents(&self) -> Vec<Arc<OpenInode>> {
        let open: Vec<_> = self.table.lock().open.values().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|open| open.forget_extents());
        open
    }

    /// Removes the entry of an inode whose last handle is gone, unless it was opened again
    /// meanwhile.
    pub(super) fn remove(&self, place: Place) {
        let mut table = self.table.lock();
        if table.open.get(&place).is_some_and(|open| open.strong_count() == 0) {
            table.open.remove(&place);
        }
    }

    /// Begins the deletion of an inode that has neither names nor handles. If a thread opened it
    /// meanwhile, marks it as unlinked and returns `false`: its last handle deletes it.
    pub(super) fn begin_deletion(&self, place: Place) -> bool {
        let mut table = self.table.lock();
        let Some(open) = table.open.get(&place).and_then(Weak::upgrade) else {
            *table.deleting.entry(place).or_insert(0) += 1;
            self.deletions.fetch_add(1, Ordering::AcqRel);
            return true;
        };
        open.set_deleted();
        drop(table);
        // Outside the lock: this may be the last handle by now.
        drop(open);
        false
    }

    /// Returns whether the deletion of the inode at `place`, which the caller has open, runs.
    pub(super) fn is_deleting(&self, place: Place) -> bool {
        // A deletion that runs began before the caller's inode was opened.
        self.deletions.load(Ordering::Acquire) > 0 && self.table.lock().deleting.contains_key(&place)
    }

    /// Ends a deletion that [`OpenInodes::begin_deletion`] began.
    pub(super) fn end_deletion(&self, place: Place) {
        let mut table = self.table.lock();
        let threads = table.deleting.get_mut(&place).expect("the deletion was begun before");
        *threads -= 1;
        if *threads == 0 {
            table.deleting.remove(&place);
        }
        self.deletions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Tells the lock-order checker that the caller may lock the table.
    pub(super) fn might_lock(&self) {
        might_lock(&self.table);
    }

    /// Locks the table, for tests of the order of locks.
    #[cfg(feature = "lock-order")]
    pub fn lock_table(&self) -> papilio_locks::MutexGuard<'_, impl Sized> {
        self.table.lock()
    }
}

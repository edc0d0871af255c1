//! Files that are open: what keeps reading and writing of one file apart, and an unlinked file alive.
//!
//! Owns [`OpenInodes`] and [`OpenInode`]. Invariants: one [`OpenInode`] for an inode as long as anybody has
//! it open; an inode that lost its last name is deleted when the last of them goes, and if nobody has it
//! open, at once. A crash in between leaves an orphan item, by which the next mount finds it.
//!
//! Locks: the table's, for one operation on the map; an inode's, shared by readers of its data and
//! exclusive for who changes it, taken before a transaction is joined. Kernel counterpart: the inode
//! cache, `btrfs_evict_inode` (`fs/btrfs/inode.c`).

use crate::fs::FileSystem;
use crate::fs::mount::Mounted;
use crate::namespace::Place;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Inodes that are open, by place.
#[derive(Debug, Default)]
pub(crate) struct OpenInodes {
    table: Mutex<HashMap<Place, Weak<OpenInode>>>,
}

/// An inode that somebody has open.
#[derive(Debug)]
pub(crate) struct OpenInode {
    place: Place,
    mounted: Weak<Mounted>,
    /// Shared while data is read, exclusive while it changes.
    pub(super) data: RwLock<()>,
    /// Its last name is gone.
    unlinked: AtomicBool,
    /// It was made without a name and never had one: only then may it get one.
    linkable: AtomicBool,
}

impl OpenInodes {
    /// Opens an inode.
    pub(super) fn open(&self, mounted: &Arc<Mounted>, place: Place) -> Arc<OpenInode> {
        let mut table = self.table.lock();
        if let Some(open) = table.get(&place).and_then(Weak::upgrade) {
            return open;
        }
        let open = Arc::new(OpenInode {
            place,
            mounted: Arc::downgrade(mounted),
            data: RwLock::new(()),
            unlinked: AtomicBool::new(false),
            linkable: AtomicBool::new(false),
        });
        table.insert(place, Arc::downgrade(&open));
        open
    }

    /// The last name of an inode is gone; it goes with the last who has it open.
    pub(super) fn unlinked(&self, mounted: &Arc<Mounted>, place: Place) {
        // Opened here too, so that exactly one is the last.
        self.open(mounted, place).unlinked.store(true, Ordering::Release);
    }

    /// An inode without a name has one now.
    pub(super) fn named(&self, place: Place) {
        if let Some(open) = self.table.lock().get(&place).and_then(Weak::upgrade) {
            open.unlinked.store(false, Ordering::Release);
            open.linkable.store(false, Ordering::Release);
        }
    }

    /// Whether an inode was made without a name and never had one (`I_LINKABLE`).
    pub(super) fn is_linkable(&self, place: Place) -> bool {
        let open = self.table.lock().get(&place).and_then(Weak::upgrade);
        open.is_some_and(|open| open.linkable.load(Ordering::Acquire))
    }
}

impl OpenInode {
    /// It was made without a name: it is deleted when the last who has it open is gone.
    pub(super) fn set_unnamed(&self) {
        self.unlinked.store(true, Ordering::Release);
        self.linkable.store(true, Ordering::Release);
    }
}

impl Drop for OpenInode {
    fn drop(&mut self) {
        let Some(mounted) = self.mounted.upgrade() else { return };
        {
            let mut table = mounted.open_inodes.table.lock();
            // Somebody may have opened it anew in between.
            if table.get(&self.place).is_some_and(|open| open.strong_count() == 0) {
                table.remove(&self.place);
            }
        }
        if self.unlinked.load(Ordering::Acquire)
            && let Err(error) = (FileSystem { mounted }).evict(self.place)
        {
            tracing::warn!("{:?}: an unlinked file is left to the next mount: {error}", self.place);
        }
    }
}

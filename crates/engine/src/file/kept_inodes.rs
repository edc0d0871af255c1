//! The inodes that callers keep without having them open.
//!
//! Owns [`KeptInodes`]: a count for each such inode. An inode that has names needs nothing else, so
//! a FUSE server can keep each inode that its kernel knows at the price of a table entry.
//!
//! Invariant: a kept inode without names has an [`OpenInode`] here, which delays its deletion. It
//! gets here when the inode is kept or when it loses its last name, whichever is later.
//!
//! Locks: a shard's, for one operation on its maps. No [`OpenInode`] is dropped under it, because
//! dropping one may delete the inode.

use crate::file::open_inode::OpenInode;
use crate::namespace::Place;
use papilio_format::TreeId;
use papilio_locks::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// Shards of the table. Inodes of one directory usually have consecutive numbers, and land in
/// different ones.
const SHARDS: usize = 64;

/// The kept inodes, with the number of their keepers.
#[derive(Debug)]
pub(crate) struct KeptInodes {
    shards: Box<[Mutex<KeeperShard>]>,
}

#[derive(Debug, Default)]
struct KeeperShard {
    keepers: HashMap<Place, u32>,
    /// Kept inodes of each subvolume.
    uses: HashMap<TreeId, u64>,
    /// The kept inodes that have no name.
    unnamed: HashMap<Place, Arc<OpenInode>>,
}

/// The keeper that [`KeptInodes::remove`] removed.
pub(crate) enum RemovedKeeper {
    /// Others keep the inode.
    OneOfSeveral,
    /// It was the last one. Of an inode without names, there is the reference to it.
    Last(Option<Arc<OpenInode>>),
}

impl Default for KeptInodes {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl KeptInodes {
    /// Adds a keeper. The caller then passes the inode to [`KeptInodes::keep_unnamed`] if it is
    /// open and has no name.
    pub(crate) fn add(&self, place: Place) {
        let mut shard = self.shard(place);
        let keepers = shard.keepers.entry(place).or_insert(0);
        *keepers += 1;
        if *keepers == 1 {
            *shard.uses.entry(place.tree).or_insert(0) += 1;
        }
    }

    /// Delays the deletion of an open inode without names for as long as it has keepers. Returns
    /// whether this began a delay: it has keepers, and was not here before.
    pub(crate) fn keep_unnamed(&self, open: &Arc<OpenInode>) -> bool {
        let place = open.place();
        let replaced = {
            let mut shard = self.shard(place);
            if !shard.keepers.contains_key(&place) {
                return false;
            }
            // Dropped after the shard is unlocked; it is the same inode.
            shard.unnamed.insert(place, Arc::clone(open))
        };
        replaced.is_none()
    }

    /// Removes a keeper. If it was the last one, the caller ends the use
    /// ([`KeptInodes::end_use`]), and gets the reference that delayed the deletion of an inode
    /// without names.
    pub(crate) fn remove(&self, place: Place) -> RemovedKeeper {
        let mut shard = self.shard(place);
        let keepers = shard.keepers.get_mut(&place).expect("a keeper was added before");
        *keepers -= 1;
        if *keepers > 0 {
            return RemovedKeeper::OneOfSeveral;
        }
        shard.keepers.remove(&place);
        RemovedKeeper::Last(shard.unnamed.remove(&place))
    }

    /// Notes that the release of an inode has ended, which [`KeptInodes::remove`] began by removing
    /// its last keeper. Returns whether it was the last one of its subvolume in one shard.
    pub(crate) fn end_use(&self, place: Place) -> bool {
        let mut shard = self.shard(place);
        let uses = shard.uses.get_mut(&place.tree).expect("a kept inode is counted");
        *uses -= 1;
        let last = *uses == 0;
        if last {
            shard.uses.remove(&place.tree);
        }
        last
    }

    /// Returns whether inodes of a subvolume are kept, or their release has not ended.
    pub(crate) fn has_uses(&self, tree: TreeId) -> bool {
        self.shards.iter().any(|shard| shard.lock().uses.contains_key(&tree))
    }

    fn shard(&self, place: Place) -> MutexGuard<'_, KeeperShard> {
        self.shards[place.inode.0 as usize % SHARDS].lock()
    }
}

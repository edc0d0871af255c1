//! Reservations: promises that an allocation made later will find room.
//!
//! Owns [`Reservation`] and the ledger's rules. A change takes a reservation before it begins, so
//! that "no space" is its answer and not an event in its middle:
//!
//! - Bytes of metadata that can still be had are those free in block groups that serve, and those
//!   that unallocated device space would give ([`Space::set_unallocated`]). An ordinary reservation
//!   is granted if it, all others that are alive and the global reserve fit in.
//! - An emergency reservation (deleting, truncating, committing) may use the global reserve too, so
//!   that a full file system can be emptied; what deleting frees comes back with the next commit.
//! - Data counts only what is free: a block group for data is made before data is promised, and
//!   only where [`Space::metadata_shortfall`] leaves the device space for it.
//! - Whoever allocates holds a reservation, and [`Reservation::spend`]s what it got. An allocation
//!   without one eats what was promised to others.
//!
//! Pinned bytes count for nothing here: after a refusal a commit may free them, and the caller may
//! ask again. Kernel counterparts: `btrfs_reserve_metadata_bytes`, `btrfs_can_overcommit`
//! (`fs/btrfs/space-info.c`), `struct btrfs_block_rsv` (`fs/btrfs/block-rsv.h`).
//!
//! Lock: [`Space`]'s, for one sum at a time.

use super::{Space, SpaceKind};
use std::sync::Arc;

/// A promise of so many bytes; what is not spent is given back when it is dropped.
#[derive(Debug)]
#[must_use = "a reservation that is dropped reserves nothing"]
pub(crate) struct Reservation {
    space: Arc<Space>,
    kind: SpaceKind,
    bytes: u64,
}

impl Reservation {
    /// Of bytes that the ledger has counted.
    pub(super) fn new(space: Arc<Space>, kind: SpaceKind, bytes: u64) -> Self {
        Self { space, kind, bytes }
    }

    /// Bytes that are still promised.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many bytes were allocated, and need no promise any more.
    pub(crate) fn spend(&mut self, bytes: u64) {
        let spent = bytes.min(self.bytes);
        self.bytes -= spent;
        self.space.return_promise(self.kind, spent);
    }

    /// Parts with up to `bytes` of the promise, for somebody who lives longer.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { space: Arc::clone(&self.space), kind: self.kind, bytes }
    }

    /// Takes over the promise of another.
    ///
    /// # Panics
    /// Where the two are not of the same space and kind.
    pub(crate) fn merge(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.space, &other.space) && self.kind == other.kind, "of different kinds");
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.space.return_promise(self.kind, self.bytes);
        }
    }
}

//! Reservations: guarantees that a later allocation finds space.
//!
//! Owns [`Reservation`] and the rules of accounting. A change makes its reservation before it
//! starts, so that it fails with "no space" before it changes anything:
//!
//! - Available metadata is the free space of block groups in service, plus what unallocated device
//!   space could provide ([`Space::set_unallocated`]). An ordinary reservation is granted if it
//!   fits together with all existing ones and the global reserve.
//! - An emergency reservation (for deletion, truncation and commit) may use the global reserve as
//!   well, so that a full file system can be emptied. Deletion returns space with the next commit.
//! - A data reservation counts only free space. A data block group is created before the
//!   reservation, and only if [`Space::metadata_shortfall`] leaves device space for it.
//! - An allocator holds a reservation and [`Reservation::spend`]s the bytes it allocates. An
//!   allocation without a reservation consumes bytes reserved by others.
//!
//! Pinned bytes do not count here. A commit may free them, so after a refusal the caller may commit
//! and retry.
//!
//! **Locks**: [`Space`]'s, for one addition at a time.
//!
//! Kernel counterparts: `btrfs_reserve_metadata_bytes`, `btrfs_can_overcommit`
//! (`fs/btrfs/space-info.c`), `struct btrfs_block_rsv` (`fs/btrfs/block-rsv.h`).

use super::{Space, SpaceKind};
use crate::errors::Result;
use std::sync::Arc;

/// Reserved bytes. Dropping it releases the unspent ones.
#[derive(Debug)]
#[must_use = "a reservation that is dropped reserves nothing"]
pub(crate) struct Reservation {
    space: Arc<Space>,
    kind: SpaceKind,
    bytes: u64,
}

impl Reservation {
    fn new(space: &Arc<Space>, kind: SpaceKind, bytes: u64, emergency: bool) -> Result<Self> {
        space.promise(kind, bytes, emergency)?;
        Ok(Self { space: Arc::clone(space), kind, bytes })
    }

    /// Returns the bytes still reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Consumes the reservation of bytes that were allocated.
    pub(crate) fn spend(&mut self, bytes: u64) {
        let spent = bytes.min(self.bytes);
        self.bytes -= spent;
        self.space.return_promise(self.kind, spent);
    }

    /// Splits off up to `bytes` into a reservation with its own lifetime.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { space: Arc::clone(&self.space), kind: self.kind, bytes }
    }

    /// Adds the bytes of another reservation to this one.
    ///
    /// # Panics
    /// If the two belong to different spaces or kinds.
    pub(crate) fn merge(&mut self, mut other: Self) {
        assert!(
            Arc::ptr_eq(&self.space, &other.space) && self.kind == other.kind,
            "reservations of different spaces or kinds are not merged"
        );
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

impl Space {
    /// Reserves metadata. An `emergency` may use the global reserve (see the module's
    /// documentation).
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; a commit may help if bytes are pinned.
    pub(crate) fn reserve_metadata(self: &Arc<Self>, bytes: u64, emergency: bool) -> Result<Reservation> {
        Reservation::new(self, SpaceKind::Metadata, bytes, emergency)
    }

    /// Reserves data.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; a new chunk may help, or a commit if bytes are pinned.
    pub(crate) fn reserve_data(self: &Arc<Self>, bytes: u64) -> Result<Reservation> {
        Reservation::new(self, SpaceKind::Data, bytes, false)
    }
}

//! The lock between writers in place and everything that makes extents shared.
//!
//! Owns [`Sharing`].
//!
//! Invariants:
//! - The number inside counts the times that extents became shared since the mount (the *sharing
//!   epoch*). A snapshot or a reflink holds the lock exclusively and adds one.
//! - A writer holds it shared, or its request in flight does ([`Sharing::enter`]).
//!
//! Locks: this one is taken before any file's data lock. Kernel counterpart: `snapshot_lock`
//! (`fs/btrfs/ctree.h`).

use crate::data::in_flight::InFlight;
use papilio_locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock, with the sharing epoch.
#[derive(Debug, Default)]
pub struct Sharing {
    epoch: RwLock<u64>,
    /// Requests that hold the lock shared without a thread.
    in_flight: InFlight,
}

impl Sharing {
    /// Locks it shared.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, u64> {
        self.epoch.read()
    }

    /// As [`Sharing::read`], but returns `None` instead of waiting.
    pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, u64>> {
        self.epoch.try_read()
    }

    /// Locks it exclusively. Waits for requests in flight, too.
    pub fn write(&self) -> RwLockWriteGuard<'_, u64> {
        let exclusive = self.epoch.write();
        self.in_flight.drain();
        exclusive
    }

    /// Lets a request hold the lock shared after its thread has released it.
    pub(super) fn enter(&self, _held: &RwLockReadGuard<'_, u64>) {
        self.in_flight.enter();
    }

    /// Ends what [`Sharing::enter`] began.
    pub(super) fn leave(&self) {
        self.in_flight.leave();
    }
}

//! The lock between the mover of extents and readers that it outran.
//!
//! Owns [`Moving`]. Lock: this one, after `sharing` or a file's data lock. [`super::moved_extents`]
//! says how it is used.

use papilio_locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock that a mover holds exclusively. A reader that found no gap between two moves holds it
/// shared.
#[derive(Debug, Default)]
pub(crate) struct Moving(RwLock<()>);

impl Moving {
    /// Locks it for the mover.
    pub(super) fn lock(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }

    /// Keeps extents from moving.
    pub(super) fn hold_off(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read()
    }
}

//! Whether a caller builds the Merkle tree of a file's data, and whether the data stays.
//!
//! Owns [`BuildingTree`]. Locks: none; an atomic number.

use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const BUILDING: u8 = 1;
const CHANGED: u8 = 2;

/// The state of one file.
#[derive(Debug, Default)]
pub(super) struct BuildingTree(AtomicU8);

/// Marks a file for as long as its tree is being built.
#[derive(Debug)]
pub(super) struct Building<'a>(&'a BuildingTree);

impl BuildingTree {
    /// Begins; `None` if another caller has begun.
    pub(super) fn begin(&self) -> Option<Building<'_>> {
        let begun = self.0.compare_exchange(IDLE, BUILDING, Ordering::SeqCst, Ordering::SeqCst);
        begun.is_ok().then(|| Building(self))
    }

    /// Notes that the data changes.
    #[inline]
    pub(super) fn note_change(&self) {
        if self.0.load(Ordering::SeqCst) != IDLE {
            // A builder that ended meanwhile is not concerned.
            let _ = self.0.compare_exchange(BUILDING, CHANGED, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

impl Building<'_> {
    /// Returns whether the data has changed since the beginning.
    pub(super) fn has_changed(&self) -> bool {
        self.0.0.load(Ordering::SeqCst) == CHANGED
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.0.0.store(IDLE, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_builder_at_a_time_hears_of_changes() {
        let tree = BuildingTree::default();
        tree.note_change();
        let building = tree.begin().unwrap();
        assert!(tree.begin().is_none() && !building.has_changed());
        tree.note_change();
        assert!(building.has_changed() && tree.begin().is_none());
        drop(building);
        assert!(!tree.begin().unwrap().has_changed());
    }
}

//! How much may be written past the trees before some of it is brought there.
//!
//! Owns [`OrderedBudget`], one for a file system, and the limits of a file that follow from it. The more extents a
//! flush brings to the trees at once, the more of them share a leaf that is copied for it; the fewer, the less an
//! fsync has to do. Locks: none.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Extents of a file at most, however much memory there is: what an fsync may have to bring to the trees.
const MOST_EXTENTS: usize = 1 << 18;
/// Bytes of the budget for each extent that a file may have; most is for sums, of which few may be in use.
const BYTES_PER_EXTENT: usize = 1 << 10;
/// The part of its limits that a file has once the budget is spent.
const SHARE_WHEN_SPENT: usize = 16;
/// The part of a file's limits that a step of a flush brings to the trees.
const STEP_SHARE: usize = 8;
/// And at most, and at least.
const STEP_MOST: usize = 512;
const STEP_LEAST: usize = 16;

/// Memory that extents of all open files may take. Each file may have a little beyond it.
#[derive(Debug)]
pub(crate) struct OrderedBudget {
    bytes: usize,
    used: AtomicUsize,
}

/// What one file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) extents: usize,
    /// Bytes of memory.
    pub(super) memory: usize,
}

impl OrderedBudget {
    /// Of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, used: AtomicUsize::new(0) }
    }

    /// Bytes that are taken.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A file takes `now` bytes, and took `before`.
    pub(super) fn changed(&self, before: usize, now: usize) {
        if now == before {
            return;
        }
        if now > before {
            self.used.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// What a file may have, as much as others have just now.
    pub(super) fn limits(&self) -> Limits {
        let whole =
            Limits { extents: (self.bytes / BYTES_PER_EXTENT).min(MOST_EXTENTS), memory: self.bytes * 3 / 8 };
        if self.used.load(Ordering::Relaxed) <= self.bytes {
            return whole;
        }
        Limits { extents: whole.extents / SHARE_WHEN_SPENT, memory: whole.memory / SHARE_WHEN_SPENT }
    }

    /// Extents that a step brings to the trees.
    pub(super) fn step(&self) -> usize {
        (self.bytes / BYTES_PER_EXTENT / STEP_SHARE).clamp(STEP_LEAST, STEP_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_when_it_is_spent_has_a_share() {
        let budget = OrderedBudget::new(128 << 20);
        let whole = Limits { extents: 128 << 10, memory: 48 << 20 };
        assert_eq!((budget.limits(), budget.step()), (whole, 512));
        budget.changed(0, 100 << 20);
        assert_eq!(budget.limits(), whole);
        budget.changed(1 << 20, 40 << 20);
        assert_eq!(budget.limits(), Limits { extents: 8 << 10, memory: 3 << 20 });
        budget.changed(100 << 20, 0);
        assert_eq!(budget.limits(), whole);
        assert_eq!(OrderedBudget::new(0).step(), 16);
        assert_eq!(OrderedBudget::new(8 << 30).limits().extents, MOST_EXTENTS);
    }
}

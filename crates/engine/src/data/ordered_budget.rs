//! The budget of ordered extents: how many may exist before some are published.
//!
//! Owns [`OrderedBudget`], one for each file system, and the limits of a file that follow from it.
//! The more extents a flush publishes at once, the more of them share a copied leaf. The fewer
//! there are, the less an fsync has to publish.
//!
//! Locks: none.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The most extents of a file, however large the budget: an fsync may have to publish them all.
const MOST_EXTENTS: usize = 1 << 18;
/// Bytes of the budget for each extent of a file. Most of them are for checksums, of which few
/// extents may need many.
const BYTES_PER_EXTENT: usize = 1 << 10;
/// The divisor of a file's limits once the budget is spent.
const SHARE_WHEN_SPENT: usize = 16;
/// The divisor of a file's limits that gives the extents of one flush step.
const STEP_SHARE: usize = 8;
/// The bounds of the extents of one flush step.
const STEP_MOST: usize = 512;
const STEP_LEAST: usize = 16;

/// The memory for the ordered extents of all open files. Each file may exceed it a little.
#[derive(Debug)]
pub(crate) struct OrderedBudget {
    bytes: usize,
    used: AtomicUsize,
}

/// The limits of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderedLimits {
    pub(super) extents: usize,
    /// Bytes of memory.
    pub(super) memory: usize,
}

impl OrderedBudget {
    /// Creates a budget of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, used: AtomicUsize::new(0) }
    }

    /// Returns the bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Records that a file's use changed from `before` to `now` bytes.
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

    /// Returns the current limits of a file.
    pub(super) fn limits(&self) -> OrderedLimits {
        let whole = OrderedLimits {
            extents: (self.bytes / BYTES_PER_EXTENT).min(MOST_EXTENTS),
            memory: self.bytes * 3 / 8,
        };
        if self.used.load(Ordering::Relaxed) <= self.bytes {
            return whole;
        }
        OrderedLimits { extents: whole.extents / SHARE_WHEN_SPENT, memory: whole.memory / SHARE_WHEN_SPENT }
    }

    /// Returns the extents that one flush step publishes.
    pub(super) fn step(&self) -> usize {
        (self.bytes / BYTES_PER_EXTENT / STEP_SHARE).clamp(STEP_LEAST, STEP_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_leaves_each_file_a_share() {
        let budget = OrderedBudget::new(128 << 20);
        let whole = OrderedLimits { extents: 128 << 10, memory: 48 << 20 };
        assert_eq!((budget.limits(), budget.step()), (whole, 512));
        budget.changed(0, 100 << 20);
        assert_eq!(budget.limits(), whole);
        budget.changed(1 << 20, 40 << 20);
        assert_eq!(budget.limits(), OrderedLimits { extents: 8 << 10, memory: 3 << 20 });
        budget.changed(100 << 20, 0);
        assert_eq!(budget.limits(), whole);
        assert_eq!(OrderedBudget::new(0).step(), 16);
        assert_eq!(OrderedBudget::new(8 << 30).limits().extents, MOST_EXTENTS);
    }
}

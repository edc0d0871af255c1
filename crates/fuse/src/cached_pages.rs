//! Whether the kernel may have pages of a file in its cache.
//!
//! Owns [`CachedPages`]: a count of the accesses that bring pages in, and how many of them a drop
//! of all pages has undone. A direct write has the kernel drop the pages that it made stale. Where
//! no page came in since the last direct write, it has all of them dropped, and the next direct
//! writes have none to drop.
//!
//! Invariant: an access is counted before the server reads or writes data for it. The kernel holds
//! its pages locked until it has the reply, and a drop waits for them. So a drop that began after
//! the count also undoes the access.
//!
//! Locks: none.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kernel's cached pages of a file.
#[derive(Debug, Default)]
pub(crate) struct CachedPages {
    /// Accesses that brought pages in, or may have.
    accesses: AtomicU64,
    /// Accesses whose pages were dropped since.
    dropped: AtomicU64,
    /// The accesses that the last direct write found.
    found: AtomicU64,
}

/// Pages that a direct write made stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StalePages {
    /// Those of the write.
    Written,
    /// All of the file. Once they are dropped, [`CachedPages::dropped`] gets this number.
    All(u64),
}

impl CachedPages {
    /// Counts an access that brings pages in.
    pub(crate) fn note_pages(&self) {
        self.accesses.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether there may be any.
    pub(crate) fn may_exist(&self) -> bool {
        self.accesses.load(Ordering::SeqCst) != self.dropped.load(Ordering::SeqCst)
    }

    /// Returns the pages to drop after a direct write, if there may be any.
    pub(crate) fn stale(&self) -> Option<StalePages> {
        let accesses = self.accesses.load(Ordering::SeqCst);
        if accesses == self.dropped.load(Ordering::SeqCst) {
            return None;
        }
        match self.found.swap(accesses, Ordering::Relaxed) == accesses {
            true => Some(StalePages::All(accesses)),
            false => Some(StalePages::Written),
        }
    }

    /// Notes that all pages of the first `accesses` accesses were dropped.
    pub(crate) fn dropped(&self, accesses: u64) {
        self.dropped.fetch_max(accesses, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_writes_in_a_row_drop_all_pages_once() {
        let pages = CachedPages::default();
        assert_eq!((pages.may_exist(), pages.stale()), (false, None));
        pages.note_pages();
        assert_eq!(pages.stale(), Some(StalePages::Written));
        assert_eq!(pages.stale(), Some(StalePages::All(1)));
        // Before the kernel has dropped them, another write has them dropped, too.
        assert_eq!(pages.stale(), Some(StalePages::All(1)));
        pages.dropped(1);
        assert_eq!((pages.may_exist(), pages.stale()), (false, None));
    }

    #[test]
    fn pages_that_came_in_meanwhile_are_not_forgotten() {
        let pages = CachedPages::default();
        pages.note_pages();
        pages.stale();
        assert_eq!(pages.stale(), Some(StalePages::All(1)));
        pages.note_pages();
        pages.dropped(1);
        assert!(pages.may_exist());
        assert_eq!(pages.stale(), Some(StalePages::Written));
        // An earlier drop that ends late undoes nothing.
        pages.dropped(2);
        pages.dropped(1);
        assert!(!pages.may_exist());
    }
}

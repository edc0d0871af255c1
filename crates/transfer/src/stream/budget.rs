//! The memory that the trees of streams may take.
//!
//! Owns [`Budget`] and [`Charge`]. A stream of a few megabytes may describe a tree that takes many
//! gigabytes: a clone doubles a file's extents, and a snapshot doubles what it changes. So every
//! node is charged with an estimate of its bytes, and each command is followed by a look at the
//! sum. One command adds at most one node or copies one, so the limit is exceeded by no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes in use, and the limit.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    used: Arc<AtomicU64>,
    /// Bytes.
    limit: u64,
}

/// A part of a budget. It is given back when it is dropped, and charged again when it is cloned.
#[derive(Debug)]
pub(super) struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Returns the limit in bytes.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit
    }

    pub(super) fn charge(&self, bytes: u64) -> Charge {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Charge { used: Arc::clone(&self.used), bytes }
    }
}

impl Charge {
    /// Replaces the number of bytes.
    pub(super) fn set(&mut self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// Charges `bytes` more to the same budget, in a charge of its own.
    pub(super) fn another(&self, bytes: u64) -> Self {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Self { used: Arc::clone(&self.used), bytes }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.set(self.bytes.saturating_add(bytes));
    }

    pub(super) fn subtract(&mut self, bytes: u64) {
        self.set(self.bytes.saturating_sub(bytes));
    }
}

impl Clone for Charge {
    fn clone(&self) -> Self {
        self.used.fetch_add(self.bytes, Ordering::Relaxed);
        Self { used: Arc::clone(&self.used), bytes: self.bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_given_back() {
        let budget = Budget::new(100);
        let mut first = budget.charge(60);
        assert!(!budget.is_exceeded());
        let second = first.clone();
        assert!(budget.is_exceeded());
        drop(second);
        first.add(40);
        assert!(!budget.is_exceeded());
        first.add(1);
        assert!(budget.is_exceeded());
        first.subtract(50);
        assert!(!budget.is_exceeded());
    }
}

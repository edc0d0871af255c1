//! Locks on byte ranges of a file: shared for readers, exclusive for a writer.
//!
//! Owns [`RangeLocks`], plain memory protected by its owner's mutex. The owner waits and wakes
//! waiters.
//!
//! Invariants:
//! - Requests for overlapping ranges are granted in the order they were made, so that no thread
//!   starves.
//! - Requests for disjoint ranges never wait for each other.
//!
//! Each thread has at most one request, so that a list is fast enough. Locks: none. Kernel
//! counterpart: `btrfs_lock_extent` (`fs/btrfs/extent-io-tree.c`).

use std::ops::Range;

/// The granted and the waiting requests.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    /// In the order they were made.
    entries: Vec<LockedRange>,
    next: u64,
}

#[derive(Debug)]
struct LockedRange {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
}

impl RangeLocks {
    /// Requests a range. Its ticket is held once [`RangeLocks::is_granted`] returns `true`.
    pub(super) fn request(&mut self, range: Range<u64>, exclusive: bool) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries.push(LockedRange { ticket, range, exclusive });
        ticket
    }

    /// Returns whether no earlier request conflicts with the ticket's.
    pub(super) fn is_granted(&self, ticket: u64) -> bool {
        let index = self.index(ticket);
        let (before, own) = (&self.entries[..index], &self.entries[index]);
        !before.iter().any(|other| {
            (other.exclusive || own.exclusive)
                && other.range.start < own.range.end
                && own.range.start < other.range.end
        })
    }

    /// Releases the ticket's range. Returns whether a later request may now be granted.
    pub(super) fn release(&mut self, ticket: u64) -> bool {
        let index = self.index(ticket);
        self.entries.remove(index);
        index < self.entries.len()
    }

    fn index(&self, ticket: u64) -> usize {
        self.entries
            .iter()
            .position(|entry| entry.ticket == ticket)
            .expect("the ticket was not released before")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_requests_are_granted_in_order() {
        let mut locks = RangeLocks::default();
        let reader = locks.request(0..100, false);
        let other_reader = locks.request(50..150, false);
        let writer = locks.request(100..200, true);
        let behind = locks.request(150..160, false);
        let elsewhere = locks.request(200..300, true);
        let granted = |locks: &RangeLocks, tickets: &[u64]| -> Vec<bool> {
            tickets.iter().map(|ticket| locks.is_granted(*ticket)).collect()
        };
        assert_eq!(
            granted(&locks, &[reader, other_reader, writer, behind, elsewhere]),
            [true, true, false, false, true]
        );
        assert!(locks.release(other_reader));
        assert_eq!(granted(&locks, &[reader, writer, behind]), [true, true, false]);
        assert!(locks.release(writer));
        assert!(locks.is_granted(behind));
        assert!(!locks.release(elsewhere));
    }
}

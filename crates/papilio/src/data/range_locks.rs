//! Locks on byte ranges of a file: readers share them, a writer has its own alone.
//!
//! Owns [`RangeLocks`], plain memory below somebody's mutex, who waits and wakes. Invariant: who came first is
//! served first where ranges overlap, so that nobody starves; those that do not overlap never wait for one
//! another. Few are held at a time, one for each thread at most, so that a list is all it takes. Kernel
//! counterpart: `btrfs_lock_extent` (`fs/btrfs/extent-io-tree.c`).

use std::ops::Range;

/// Who has, or waits for, what.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    /// In the order of their coming.
    entries: Vec<Entry>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
}

impl RangeLocks {
    /// Comes for a range. The ticket is good for it once [`RangeLocks::is_granted`].
    pub(super) fn enter(&mut self, range: Range<u64>, exclusive: bool) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries.push(Entry { ticket, range, exclusive });
        ticket
    }

    /// Whether nobody who came before has, or waits for, what conflicts with the ticket's range.
    pub(super) fn is_granted(&self, ticket: u64) -> bool {
        let place = self.place(ticket);
        let (before, own) = (&self.entries[..place], &self.entries[place]);
        !before.iter().any(|other| {
            (other.exclusive || own.exclusive)
                && other.range.start < own.range.end
                && own.range.start < other.range.end
        })
    }

    /// Lets go of the ticket's range. Says whether anybody is left whom that may concern.
    pub(super) fn leave(&mut self, ticket: u64) -> bool {
        let place = self.place(ticket);
        self.entries.remove(place);
        place < self.entries.len()
    }

    fn place(&self, ticket: u64) -> usize {
        self.entries
            .iter()
            .position(|entry| entry.ticket == ticket)
            .expect("a ticket is good until it leaves")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_is_served_first() {
        let mut locks = RangeLocks::default();
        let reader = locks.enter(0..100, false);
        let other_reader = locks.enter(50..150, false);
        let writer = locks.enter(100..200, true);
        let behind = locks.enter(150..160, false);
        let elsewhere = locks.enter(200..300, true);
        let granted = |locks: &RangeLocks, tickets: &[u64]| -> Vec<bool> {
            tickets.iter().map(|ticket| locks.is_granted(*ticket)).collect()
        };
        assert_eq!(
            granted(&locks, &[reader, other_reader, writer, behind, elsewhere]),
            [true, true, false, false, true]
        );
        assert!(locks.leave(other_reader));
        assert_eq!(granted(&locks, &[reader, writer, behind]), [true, true, false]);
        assert!(locks.leave(writer));
        assert!(locks.is_granted(behind));
        assert!(!locks.leave(elsewhere));
    }
}

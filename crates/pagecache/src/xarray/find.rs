//! Searches: next and previous entries, and holes.
//!
//! Each search for an entry descends from the top and uses the nodes' bitmaps to skip unwanted
//! slots. It costs one walk, however wide the gap. A search for a hole takes a walk for each entry
//! in front of the hole.

use super::entry::{Entry, Found, Slot};
use super::node::{NONE, SHIFT, SLOTS, last_of};
use super::{Mark, XArray};
use std::ops::RangeInclusive;

/// The kind of entry that a search looks for.
#[derive(Clone, Copy)]
enum Want {
    Any,
    Item,
    Marked(Mark),
}

impl XArray {
    /// Returns the first entry that overlaps the range.
    pub fn next(&self, range: RangeInclusive<u64>) -> Option<Found> {
        self.search(range, Want::Any)
    }

    /// Returns the first item that overlaps the range.
    pub fn next_item(&self, range: RangeInclusive<u64>) -> Option<Found> {
        self.search(range, Want::Item)
    }

    /// Returns the first marked entry that overlaps the range.
    pub fn next_marked(&self, range: RangeInclusive<u64>, mark: Mark) -> Option<Found> {
        self.search(range, Want::Marked(mark))
    }

    /// Iterates over all entries that overlap the range, in ascending order.
    pub fn iter(&self, range: RangeInclusive<u64>) -> Iter<'_> {
        self.iterate(range, Want::Any)
    }

    /// Iterates over all marked entries that overlap the range, in ascending order.
    pub fn iter_marked(&self, range: RangeInclusive<u64>, mark: Mark) -> Iter<'_> {
        self.iterate(range, Want::Marked(mark))
    }

    fn iterate(&self, range: RangeInclusive<u64>, want: Want) -> Iter<'_> {
        let (next, last) = range.into_inner();
        Iter { array: self, next: (next <= last).then_some(next), last, want }
    }

    /// Returns the last entry that overlaps the range.
    pub fn previous(&self, range: RangeInclusive<u64>) -> Option<Found> {
        let (first, mut index) = range.into_inner();
        let Slot::Node { mut id, mut shift } = self.root.head().slot() else {
            return self.found(&self.walk(0)).filter(|_| first == 0);
        };
        index = index.min(last_of(shift));
        while index >= first {
            let node = self.node(id);
            let at = (index >> shift) as u32 & (SLOTS - 1);
            let bits = node.present() & u64::MAX >> (SLOTS - 1 - at);
            if bits == 0 {
                // Nothing more in this node: continue in front of it, in the nearest ancestor that
                // has slots there.
                index = (index & !last_of(shift)).checked_sub(1)?;
                loop {
                    let node = self.node(id);
                    (id, shift) = (node.parent(), shift + SHIFT);
                    if (index >> shift) as u32 & (SLOTS - 1) != SLOTS - 1 {
                        break;
                    }
                }
                continue;
            }
            let offset = bits.ilog2();
            if offset < at {
                let slot = (index & !last_of(shift)) | u64::from(offset) << shift;
                index = slot | ((1 << shift) - 1);
            }
            let canonical = node.canonical(offset);
            match node.slot(canonical).slot() {
                Slot::Node { id: child, shift: below } => (id, shift) = (child, below),
                Slot::Entry(entry) if index >= first => {
                    let first = (index & !last_of(shift)) | u64::from(canonical) << shift;
                    let order = (shift + node.width(canonical).ilog2()) as u8;
                    return Some(Found { index: first, order, entry });
                }
                Slot::Entry(_) => return None,
                _ => unreachable!("the bitmap says that the slot is occupied"),
            }
        }
        None
    }

    /// Returns the first index of the range without an entry.
    pub fn next_hole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        self.next_without(range, |_| false)
    }

    /// Returns the first index of the range without an item; values count as holes.
    pub fn next_miss(&self, range: RangeInclusive<u64>) -> Option<u64> {
        self.next_without(range, |entry| !entry.is_item())
    }

    fn next_without(&self, range: RangeInclusive<u64>, as_none: impl Fn(Entry) -> bool) -> Option<u64> {
        let (mut index, last) = range.into_inner();
        while index <= last {
            let walked = self.walk(index);
            match walked.raw.slot() {
                Slot::Entry(entry) if !as_none(entry) => index = walked.last.checked_add(1)?,
                _ => return Some(index),
            }
        }
        None
    }

    /// Returns the last index of the range without an entry.
    pub fn previous_hole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let (first, mut index) = range.into_inner();
        while index >= first {
            let walked = self.walk(index);
            match walked.raw.slot() {
                Slot::Entry(_) => index = walked.first.checked_sub(1)?,
                _ => return Some(index),
            }
        }
        None
    }

    fn search(&self, range: RangeInclusive<u64>, want: Want) -> Option<Found> {
        let (mut index, last) = range.into_inner();
        if index > last {
            return None;
        }
        let head = self.root.head();
        let Slot::Node { mut id, mut shift } = head.slot() else {
            let found = self.found(&self.walk(index))?;
            let wanted = match want {
                Want::Any => true,
                Want::Item => found.entry.is_item(),
                Want::Marked(mark) => self.any_marked(mark),
            };
            return wanted.then_some(found);
        };
        if index > last_of(shift) {
            return None;
        }
        loop {
            let node = self.node(id);
            let at = (index >> shift) as u32 & (SLOTS - 1);
            let bits = match want {
                Want::Any => node.present(),
                Want::Item => node.present() & !node.values(),
                Want::Marked(mark) => {
                    // A mark lies on the slot that holds the entry, which may precede this one.
                    let bits = node.marks(mark as usize);
                    bits | (bits >> node.canonical(at) & 1) << at
                }
            };
            let bits = bits >> at;
            if bits == 0 {
                // Nothing more in this node: continue after it, in the nearest ancestor with slots
                // left.
                index = (index | last_of(shift)).checked_add(1)?;
                loop {
                    let node = self.node(id);
                    (id, shift) = (node.parent(), shift + SHIFT);
                    if id == NONE {
                        return None;
                    }
                    if (index >> shift) & u64::from(SLOTS - 1) != 0 {
                        break;
                    }
                }
                if index > last {
                    return None;
                }
                continue;
            }
            let offset = at + bits.trailing_zeros();
            if offset > at {
                index = (index & !last_of(shift)) | u64::from(offset) << shift;
                if index > last {
                    return None;
                }
            }
            let canonical = node.canonical(offset);
            match node.slot(canonical).slot() {
                Slot::Node { id: child, shift: below } => (id, shift) = (child, below),
                Slot::Entry(entry) => {
                    let first = (index & !last_of(shift)) | u64::from(canonical) << shift;
                    let order = (shift + node.width(canonical).ilog2()) as u8;
                    return Some(Found { index: first, order, entry });
                }
                _ => unreachable!("the bitmap says that the slot is occupied"),
            }
        }
    }
}

/// Iterator over entries in ascending order.
pub struct Iter<'a> {
    array: &'a XArray,
    next: Option<u64>,
    last: u64,
    want: Want,
}

impl Iterator for Iter<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let found = self.array.search(self.next?..=self.last, self.want);
        self.next = found.and_then(|found| found.last().checked_add(1));
        found
    }
}

impl std::fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter").field("next", &self.next).field("last", &self.last).finish_non_exhaustive()
    }
}

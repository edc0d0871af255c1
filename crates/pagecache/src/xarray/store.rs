//! Replacing, erasing, removing ranges.
//!
//! Owns how the tree shrinks: an empty node is released, and so is a top node that uses only its
//! first slot.

use super::entry::{MARKS, Raw, Slot};
use super::insert::{InsertError, Target};
use super::node::{NONE, last_of};
use super::{Entry, Found, Place, XArray, check_range};
use std::ops::RangeInclusive;
use std::sync::Arc;

impl XArray {
    /// Stores `entry` over 2^`order` indices from `index` on, without marks. Existing entries are
    /// replaced; a larger entry keeps its remaining indices.
    ///
    /// # Panics
    /// If `index` is not aligned to the order, or the order is above [`super::MAX_ORDER`].
    pub fn store(&mut self, index: u64, order: u8, entry: Entry) {
        check_range(index, order);
        let pool = Arc::clone(&self.pool);
        let mut preload = pool.preload(0);
        loop {
            match self.descend(index, order, &mut preload, false) {
                Ok(Target::Ready { place, .. }) => return self.fill(place, order, Raw::entry(entry)),
                Ok(Target::Larger { place, found }) => {
                    preload.fill(Self::split_around_nodes(place, order));
                    self.split_place_around(place, found, index, order, &mut preload);
                }
                Err(InsertError::NeedNodes(count)) => preload.fill(count),
                Err(InsertError::Occupied(_)) => unreachable!("storing refuses nothing"),
            }
        }
    }

    /// Replaces the entry at `index` by `new` if it is `expected`; `new` gets its range and marks.
    /// `None` means no entry: as `expected` for an insertion, in which case `new` has order 0, and
    /// as `new` for a removal.
    ///
    /// # Errors
    /// Returns the entry that is there instead.
    pub fn compare_exchange(
        &mut self,
        index: u64,
        expected: Option<Entry>,
        new: Option<Entry>,
    ) -> Result<(), Option<Found>> {
        let walked = self.walk(index);
        let found = self.found(&walked);
        if found.map(|found| found.entry) != expected {
            return Err(found);
        }
        match (found, new) {
            (None, None) => {}
            (None, Some(entry)) => self.store(index, 0, entry),
            (Some(_), None) => self.erase_place(walked.place),
            (Some(_), Some(entry)) => {
                let raw = Raw::entry(entry);
                if walked.place.node == NONE {
                    self.set_head(raw);
                } else {
                    let node = self.node(walked.place.node);
                    node.put_entry(walked.place.offset, node.width(walked.place.offset), raw);
                }
            }
        }
        Ok(())
    }

    /// Replaces the item that covers `index` by a value with its range and marks, in one walk.
    /// Returns whether the node then holds only values, or `None` if there is no item.
    pub fn replace_item(&mut self, index: u64, value: u64) -> Option<bool> {
        let walked = self.walk(index);
        self.found(&walked).filter(|found| found.entry.is_item())?;
        let (place, raw) = (walked.place, Raw::entry(Entry::Value(value)));
        if place.node == NONE {
            self.set_head(raw);
            return Some(false);
        }
        let node = self.node(place.node);
        node.put_entry(place.offset, node.width(place.offset), raw);
        Some(node.present() == node.values())
    }

    /// Removes the entry at `index` with its whole range.
    pub fn erase(&mut self, index: u64) -> Option<Found> {
        let walked = self.walk(index);
        let found = self.found(&walked)?;
        self.erase_place(walked.place);
        Some(found)
    }

    /// Removes every entry that overlaps the range, whole, in ascending order, and passes each to
    /// `each`.
    pub fn remove_range(&mut self, range: RangeInclusive<u64>, mut each: impl FnMut(Found)) {
        let (mut next, last) = range.into_inner();
        while next <= last {
            let Some(found) = self.next(next..=last) else { break };
            self.erase(found.index);
            each(found);
            match found.last().checked_add(1) {
                Some(after) => next = after,
                None => break,
            }
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        let head = self.root.head();
        self.head_marks = 0;
        self.set_head(Raw::EMPTY);
        if let Slot::Node { id, .. } = head.slot() {
            self.release_below(id);
        }
    }

    /// Returns the range of the node that holds the entry at `index` if it holds only values.
    pub fn values_only(&self, index: u64) -> Option<RangeInclusive<u64>> {
        let walked = self.walk(index);
        self.found(&walked)?;
        if walked.place.node == NONE {
            return None;
        }
        let node = self.node(walked.place.node);
        let span = last_of(walked.place.shift);
        (node.present() == node.values()).then_some(index & !span..=index | span)
    }

    fn erase_place(&mut self, place: Place) {
        if place.node == NONE {
            self.head_marks = 0;
            self.set_head(Raw::EMPTY);
            return;
        }
        let width = self.node(place.node).width(place.offset);
        self.unmark_slots(place, width);
        let node = self.node(place.node);
        node.put_entry(place.offset, width, Raw::EMPTY);
        let mut id = place.node;
        while self.node(id).present() == 0 {
            let (parent, offset) = (self.node(id).parent(), self.node(id).offset());
            if parent == NONE {
                self.set_head(Raw::EMPTY);
                self.pool.release(id);
                return;
            }
            self.node(parent).put(offset, Raw::EMPTY, false);
            self.pool.release(id);
            id = parent;
        }
        self.shrink();
    }

    /// Removes top nodes that use only their first slot.
    pub(super) fn shrink(&mut self) {
        while let Slot::Node { id, shift } = self.root.head().slot() {
            let node = self.node(id);
            if node.present() != 1 {
                return;
            }
            let raw = node.slot(0);
            match raw.slot() {
                Slot::Node { id: child, shift: below } => self.node(child).attach(NONE, 0, below),
                Slot::Entry(_) if shift == 0 => {
                    self.head_marks = (0..MARKS).map(|mark| (node.marks(mark) as u8 & 1) << mark).sum();
                }
                _ => return,
            }
            self.set_head(raw);
            self.pool.release(id);
        }
    }

    /// Releases a node and all its descendants.
    pub(super) fn release_below(&self, id: u32) {
        let node = self.node(id);
        let mut left = node.present();
        while left != 0 {
            let offset = left.trailing_zeros();
            left &= left - 1;
            if let Slot::Node { id, .. } = node.slot(offset).slot() {
                self.release_below(id);
            }
        }
        self.pool.release(id);
    }
}

//! Marks on entries, and on every slot above a marked entry.
//!
//! Owns their propagation. **Invariant**: a slot that leads to a node is marked if and only if an
//! entry below it is.

use super::node::NONE;
use super::{Mark, Place, XArray};

impl XArray {
    /// Marks the entry at `index`. Returns false if there is none.
    pub fn set_mark(&mut self, index: u64, mark: Mark) -> bool {
        let walked = self.walk(index);
        if self.found(&walked).is_none() {
            return false;
        }
        self.mark_place(walked.place, mark);
        true
    }

    /// Clears a mark of the entry at `index`. Returns false if there is no entry.
    pub fn clear_mark(&mut self, index: u64, mark: Mark) -> bool {
        let walked = self.walk(index);
        if self.found(&walked).is_none() {
            return false;
        }
        self.unmark_place(walked.place, mark);
        true
    }

    /// Returns whether the entry at `index` is marked.
    pub fn is_marked(&self, index: u64, mark: Mark) -> bool {
        let walked = self.walk(index);
        self.found(&walked).is_some() && self.place_is_marked(walked.place, mark)
    }

    /// Returns whether any entry is marked.
    pub fn any_marked(&self, mark: Mark) -> bool {
        match self.root.head().slot() {
            super::Slot::Node { id, .. } => self.node(id).marks(mark as usize) != 0,
            _ => self.head_marks & 1 << mark as u8 != 0,
        }
    }

    pub(super) fn place_is_marked(&self, place: Place, mark: Mark) -> bool {
        if place.node == NONE {
            return self.head_marks & 1 << mark as u8 != 0;
        }
        self.node(place.node).marks(mark as usize) >> place.offset & 1 != 0
    }

    pub(super) fn mark_place(&mut self, place: Place, mark: Mark) {
        if place.node == NONE {
            self.head_marks |= 1 << mark as u8;
            return;
        }
        let (mut id, mut offset) = (place.node, place.offset);
        while id != NONE {
            let node = self.node(id);
            let before = node.marks(mark as usize);
            node.set_marks(mark as usize, before | 1 << offset);
            if before != 0 {
                // Another slot here was marked already, so all ancestors are.
                break;
            }
            (id, offset) = (node.parent(), node.offset());
        }
    }

    pub(super) fn unmark_place(&mut self, place: Place, mark: Mark) {
        if place.node == NONE {
            self.head_marks &= !(1 << mark as u8);
            return;
        }
        let (mut id, mut offset) = (place.node, place.offset);
        while id != NONE {
            let node = self.node(id);
            let before = node.marks(mark as usize);
            let after = before & !(1 << offset);
            if before == after {
                break;
            }
            node.set_marks(mark as usize, after);
            if after != 0 {
                break;
            }
            (id, offset) = (node.parent(), node.offset());
        }
    }

    /// Clears all marks of `count` slots.
    pub(super) fn unmark_slots(&mut self, place: Place, count: u32) {
        for mark in Mark::ALL {
            for offset in place.offset..place.offset + count {
                let place = Place { offset, ..place };
                if self.place_is_marked(place, mark) {
                    self.unmark_place(place, mark);
                }
            }
        }
    }
}

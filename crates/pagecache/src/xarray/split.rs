//! Splitting a large entry into smaller ones.
//!
//! Owns the two shapes of a split:
//! - *All* pieces have one order, as for the split of a folio.
//! - *Around* an index: the piece at the index has the wanted order and the others stay as large as
//!   possible. An order-9 shadow split around one page leaves pieces of orders 0 to 8. This needs
//!   one new node at most, whatever the order.
//!
//! Kernel counterparts: `xas_split` and `xas_try_split`.

use super::entry::{MARKS, Raw};
use super::node::{NONE, Preload, SHIFT, SLOTS};
use super::{Entry, Found, Mark, Place, XArray, check_range, level_of};

/// The reason why nothing was split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// There is no entry.
    Missing,
    /// The entry is no larger than the wanted order.
    NotLarger(Found),
    /// The preload must hold this many nodes.
    NeedNodes(usize),
}

/// Slots of one node that one entry covers, with that entry's marks.
#[derive(Clone, Copy)]
struct SplitPiece {
    place: Place,
    order: u32,
    marks: u8,
}

impl XArray {
    /// Splits the entry around `index` into pieces of `order`, each with the entry that `piece`
    /// returns for its first index. Every piece inherits the marks. Returns the original entry.
    ///
    /// # Errors
    /// See [`SplitError`]; nothing has changed then.
    ///
    /// # Panics
    /// If the preload belongs to another pool.
    pub fn try_split(
        &mut self,
        index: u64,
        order: u8,
        preload: &mut Preload<'_>,
        mut piece: impl FnMut(u64) -> Entry,
    ) -> Result<Found, SplitError> {
        let (place, found) = self.splittable(index, order, preload)?;
        let marks = self.marks_of(place);
        let width = self.node(place.node).width(place.offset);
        if u32::from(order) >= place.shift {
            self.put_pieces(place, width, order, found.index, marks, &mut piece);
            return Ok(found);
        }
        if preload.len() < width as usize {
            return Err(SplitError::NeedNodes(width as usize));
        }
        for offset in place.offset..place.offset + width {
            let slot = Place { offset, ..place };
            let first = found.index + (u64::from(offset - place.offset) << place.shift);
            let child = self.new_child(slot, preload);
            let below = Place { node: child, shift: place.shift - SHIFT, offset: 0 };
            self.put_pieces(below, SLOTS, order, first, marks, &mut piece);
            self.hang(slot, child, marks);
        }
        self.shrink();
        Ok(found)
    }

    /// Splits the entry around `index` so that the piece there has `order` and the others are as
    /// large as possible. Every piece inherits entry and marks. Returns the original entry.
    ///
    /// # Errors
    /// See [`SplitError`]; nothing has changed then.
    ///
    /// # Panics
    /// If `index` is not aligned to the order, the order is above [`super::MAX_ORDER`], or the
    /// preload belongs to another pool.
    pub fn try_split_around(
        &mut self,
        index: u64,
        order: u8,
        preload: &mut Preload<'_>,
    ) -> Result<Found, SplitError> {
        check_range(index, order);
        let (place, found) = self.splittable(index, order, preload)?;
        let needed = Self::split_around_nodes(place, order);
        if preload.len() < needed {
            return Err(SplitError::NeedNodes(needed));
        }
        self.split_place_around(place, found, index, order, preload);
        Ok(found)
    }

    fn splittable(&self, index: u64, order: u8, preload: &Preload<'_>) -> Result<(Place, Found), SplitError> {
        assert!(preload.belongs_to(&self.pool), "the preload belongs to another pool");
        let walked = self.walk(index);
        let found = self.found(&walked).ok_or(SplitError::Missing)?;
        if found.order <= order {
            return Err(SplitError::NotLarger(found));
        }
        Ok((walked.place, found))
    }

    /// Returns the number of nodes that a split around an index needs.
    pub(super) fn split_around_nodes(place: Place, order: u8) -> usize {
        (place.shift.saturating_sub(level_of(order)) / SHIFT) as usize
    }

    /// Splits the entry `found` at `place`; the preload suffices.
    pub(super) fn split_place_around(
        &mut self,
        place: Place,
        found: Found,
        index: u64,
        order: u8,
        preload: &mut Preload<'_>,
    ) {
        debug_assert!(place.node != NONE && found.order > order);
        let marks = self.marks_of(place);
        self.halve(
            SplitPiece { place, order: u32::from(found.order), marks },
            found.entry,
            index,
            order,
            preload,
        );
        self.shrink();
    }

    /// Halves a piece until the one around `index` has the wanted order. If it shrinks to one slot
    /// first, continues in a child node.
    fn halve(&mut self, piece: SplitPiece, entry: Entry, index: u64, order: u8, preload: &mut Preload<'_>) {
        let SplitPiece { mut place, order: mut here, marks } = piece;
        let target = (index >> place.shift) as u32 & (SLOTS - 1);
        let wanted = u32::from(order).max(place.shift);
        while here > wanted {
            here -= 1;
            let half = 1 << (here - place.shift);
            let upper = place.offset + half;
            let other = if target < upper { upper } else { place.offset };
            self.put_piece(SplitPiece { place: Place { offset: other, ..place }, order: here, marks }, entry);
            if target >= upper {
                place.offset = upper;
            }
        }
        if u32::from(order) >= place.shift {
            return self.put_piece(SplitPiece { place, order: here, marks }, entry);
        }
        let child = self.new_child(place, preload);
        let below = Place { node: child, shift: place.shift - SHIFT, offset: 0 };
        self.halve(SplitPiece { place: below, order: here, marks }, entry, index, order, preload);
        self.hang(place, child, marks);
    }

    fn put_pieces(
        &mut self,
        place: Place,
        width: u32,
        order: u8,
        first: u64,
        marks: u8,
        piece: &mut impl FnMut(u64) -> Entry,
    ) {
        let order = u32::from(order);
        let each = 1 << (order - place.shift);
        for number in 0..width / each {
            let place = Place { offset: place.offset + number * each, ..place };
            self.put_piece(SplitPiece { place, order, marks }, piece(first + (u64::from(number) << order)));
        }
    }

    /// Stores a piece. The ancestors have its marks already, because the original entry had them.
    fn put_piece(&mut self, piece: SplitPiece, entry: Entry) {
        let node = self.node(piece.place.node);
        node.put_entry(piece.place.offset, 1 << (piece.order - piece.place.shift), Raw::entry(entry));
        self.or_marks(piece.place, piece.marks);
    }

    fn or_marks(&self, place: Place, marks: u8) {
        let node = self.node(place.node);
        for mark in 0..MARKS {
            node.set_marks(mark, node.marks(mark) | u64::from(marks >> mark & 1) << place.offset);
        }
    }

    fn marks_of(&self, place: Place) -> u8 {
        Mark::ALL.iter().map(|mark| u8::from(self.place_is_marked(place, *mark)) << *mark as u8).sum()
    }

    fn new_child(&self, slot: Place, preload: &mut Preload<'_>) -> u32 {
        let child = preload.take();
        self.node(child).attach(slot.node, slot.offset, slot.shift - SHIFT);
        child
    }

    fn hang(&self, slot: Place, child: u32, marks: u8) {
        self.node(slot.node).put(slot.offset, Raw::node(child, slot.shift - SHIFT), false);
        self.or_marks(slot, marks);
    }
}

//! Insertion, in one walk or in several.
//!
//! Owns the two ways to insert an entry where no item may be. Both give the same results.
//! - [`CacheInsert::OneWalk`] finds a conflicting item, the shadow with its order, and the slot in
//!   one descent, and stores there. It walks again only to split a shadow larger than the new
//!   entry.
//! - `CacheInsert::ManyWalks` answers each of these questions by a walk of its own, as Linux did
//!   before 6.10. Only the feature `ablation` has it.
//!
//! Neither allocates. Nodes come from a [`Preload`]. If it holds too few, nothing changes and
//! [`InsertError::NeedNodes`] gives the number. The caller then releases its lock, fills the
//! preload and retries; the second walk sees entries inserted meanwhile.
//!
//! Kernel counterpart: `__filemap_add_folio` in mm/filemap.c.

use super::entry::{MARKS, Raw, Slot};
use super::node::{NONE, Preload, SHIFT, SLOTS, last_of};
use super::{Entry, Found, Place, XArray, check_range, level_of};
use arrayvec::ArrayVec;
use std::fmt;

/// The way in which the page cache inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheInsert {
    /// One descent finds conflict, shadow, order and slot.
    #[default]
    OneWalk,
    /// A descent for each.
    #[cfg(feature = "ablation")]
    ManyWalks,
}

impl CacheInsert {
    /// The ways that this build has, the fastest first.
    pub const ALL: &[Self] = &[
        Self::OneWalk,
        #[cfg(feature = "ablation")]
        Self::ManyWalks,
    ];
}

impl fmt::Display for CacheInsert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneWalk => "one-walk",
            #[cfg(feature = "ablation")]
            Self::ManyWalks => "many-walks",
        })
    }
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// The shadow that was replaced (the last, if several), as it was before a split.
    pub shadow: Option<Found>,
    /// Whether a larger shadow was split.
    pub split: bool,
}

/// The reason why an insertion failed; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// This item is in the way.
    Occupied(Found),
    /// The preload must hold this many nodes.
    NeedNodes(usize),
}

/// The result of a descent for insertion.
pub(super) enum Target {
    /// The slot to store in, and the entry that is replaced (the last, if several).
    Ready { place: Place, replaced: Option<Found> },
    /// An entry of a larger order surrounds the slot.
    Larger { place: Place, found: Found },
}

impl XArray {
    /// Inserts `entry` over 2^`order` indices from `index` on. Only values may be there. They are
    /// replaced; a larger value keeps its remaining indices.
    ///
    /// # Errors
    /// Fails if an item is in the way or the preload holds too few nodes. Nothing has changed then.
    ///
    /// # Panics
    /// If `index` is not aligned to the order, the order is above [`super::MAX_ORDER`], or the
    /// preload belongs to another pool.
    pub fn try_insert(
        &mut self,
        index: u64,
        order: u8,
        entry: Entry,
        how: CacheInsert,
        preload: &mut Preload<'_>,
    ) -> Result<Inserted, InsertError> {
        check_range(index, order);
        assert!(preload.belongs_to(&self.pool), "the preload belongs to another pool");
        match how {
            CacheInsert::OneWalk => self.insert_one_walk(index, order, entry, preload),
            #[cfg(feature = "ablation")]
            CacheInsert::ManyWalks => self.insert_many_walks(index, order, entry, preload),
        }
    }

    /// [`XArray::try_insert`] in one walk, with nodes from the array's own pool.
    ///
    /// # Errors
    /// Returns the item that is in the way.
    ///
    /// # Panics
    /// See [`XArray::try_insert`].
    pub fn insert(&mut self, index: u64, order: u8, entry: Entry) -> Result<Inserted, Found> {
        let pool = std::sync::Arc::clone(&self.pool);
        let mut preload = pool.preload(0);
        loop {
            match self.try_insert(index, order, entry, CacheInsert::OneWalk, &mut preload) {
                Ok(inserted) => return Ok(inserted),
                Err(InsertError::Occupied(found)) => return Err(found),
                Err(InsertError::NeedNodes(count)) => preload.fill(count),
            }
        }
    }

    fn insert_one_walk(
        &mut self,
        index: u64,
        order: u8,
        entry: Entry,
        preload: &mut Preload<'_>,
    ) -> Result<Inserted, InsertError> {
        let mut shadow = None;
        loop {
            match self.descend(index, order, preload, true)? {
                Target::Ready { place, replaced } => {
                    self.fill(place, order, Raw::entry(entry));
                    return Ok(Inserted { shadow: shadow.or(replaced), split: shadow.is_some() });
                }
                Target::Larger { place, found } => {
                    let needed = Self::split_around_nodes(place, order);
                    if preload.len() < needed {
                        return Err(InsertError::NeedNodes(needed));
                    }
                    self.split_place_around(place, found, index, order, preload);
                    shadow = Some(found);
                }
            }
        }
    }

    #[cfg(feature = "ablation")]
    fn insert_many_walks(
        &mut self,
        index: u64,
        order: u8,
        entry: Entry,
        preload: &mut Preload<'_>,
    ) -> Result<Inserted, InsertError> {
        if self.order(index) > order {
            let needed = Self::split_around_nodes(self.walk(index).place, order);
            if preload.len() < needed {
                return Err(InsertError::NeedNodes(needed));
            }
        }
        let mut shadow = None;
        for found in self.iter(index..=index + ((1 << order) - 1)) {
            if found.entry.is_item() {
                return Err(InsertError::Occupied(found));
            }
            shadow = Some(found);
        }
        let mut split = false;
        if let Some(found) = shadow
            && self.order(index) > order
        {
            let place = self.walk(index).place;
            self.split_place_around(place, found, index, order, preload);
            split = true;
        }
        match self.descend(index, order, preload, false)? {
            Target::Ready { place, .. } => self.fill(place, order, Raw::entry(entry)),
            Target::Larger { .. } => unreachable!("a larger entry has been split"),
        }
        Ok(Inserted { shadow, split })
    }

    /// Descends to the slot for an entry of this order, creating missing nodes on the way. With
    /// `refuse`, an item in the way is an error. Readers see no change.
    pub(super) fn descend(
        &mut self,
        index: u64,
        order: u8,
        preload: &mut Preload<'_>,
        refuse: bool,
    ) -> Result<Target, InsertError> {
        let target = level_of(order);
        let last = index + ((1 << order) - 1);
        let head = self.root.head();
        if last == 0 && !matches!(head.slot(), Slot::Node { .. }) {
            let place = Place { node: NONE, shift: 0, offset: 0 };
            let replaced = match head.slot() {
                Slot::Entry(entry) => Some(Found { index: 0, order: 0, entry }),
                _ => None,
            };
            return self.ready(place, replaced, refuse);
        }
        let mut top = target;
        while last > last_of(top) {
            top += SHIFT;
        }
        let (mut id, mut shift) = match head.slot() {
            Slot::Node { id, shift } if shift >= top => (id, shift),
            _ => (self.grow(index, order, top, preload, refuse)?, top),
        };
        while shift > target {
            let node = self.node(id);
            let offset = (index >> shift) as u32 & (SLOTS - 1);
            let canonical = node.canonical(offset);
            match node.slot(canonical).slot() {
                Slot::Node { id: child, shift: below } => (id, shift) = (child, below),
                Slot::Empty => {
                    let needed = ((shift - target) / SHIFT) as usize;
                    if preload.len() < needed {
                        return Err(InsertError::NeedNodes(needed));
                    }
                    let place = self.make_path(Place { node: id, shift, offset }, index, target, preload);
                    return Ok(Target::Ready { place, replaced: None });
                }
                _ => return self.larger(Place { node: id, shift, offset: canonical }, index, refuse),
            }
        }
        self.at_level(
            Place { node: id, shift, offset: (index >> shift) as u32 & (SLOTS - 1) },
            index,
            order,
            refuse,
        )
    }

    /// Ends a descent at the entry's level: examines its slots.
    fn at_level(&self, place: Place, index: u64, order: u8, refuse: bool) -> Result<Target, InsertError> {
        let node = self.node(place.node);
        let count = 1 << (u32::from(order) - place.shift);
        let mut replaced = None;
        let mut offset = place.offset;
        while offset < place.offset + count {
            let here = Place { offset, ..place };
            match node.slot(offset).slot() {
                Slot::Empty => offset += 1,
                Slot::Sibling(of) => return self.larger(Place { offset: of, ..place }, index, refuse),
                Slot::Node { id, .. } => {
                    let below = self.below(id, self.found_at(here, index).index);
                    if refuse && let Some(item) = below.0 {
                        return Err(InsertError::Occupied(item));
                    }
                    replaced = below.1.or(below.0).or(replaced);
                    offset += 1;
                }
                Slot::Entry(entry) => {
                    let found = self.found_at(here, index);
                    if refuse && entry.is_item() {
                        return Err(InsertError::Occupied(found));
                    }
                    if found.order > order {
                        return Ok(Target::Larger { place: here, found });
                    }
                    replaced = Some(found);
                    offset += node.width(offset);
                }
            }
        }
        Ok(Target::Ready { place, replaced })
    }

    fn ready(&self, place: Place, replaced: Option<Found>, refuse: bool) -> Result<Target, InsertError> {
        match replaced {
            Some(found) if refuse && found.entry.is_item() => Err(InsertError::Occupied(found)),
            _ => Ok(Target::Ready { place, replaced }),
        }
    }

    fn larger(&self, place: Place, index: u64, refuse: bool) -> Result<Target, InsertError> {
        let found = self.found_at(place, index);
        if refuse && found.entry.is_item() {
            return Err(InsertError::Occupied(found));
        }
        Ok(Target::Larger { place, found })
    }

    /// Returns the entry at `place`, on the way to `index`. For a node, only the range is
    /// meaningful.
    fn found_at(&self, place: Place, index: u64) -> Found {
        let node = self.node(place.node);
        let first = (index & !last_of(place.shift)) | u64::from(place.offset) << place.shift;
        let order = (place.shift + node.width(place.offset).ilog2()) as u8;
        let entry = match node.slot(place.offset).slot() {
            Slot::Entry(entry) => entry,
            _ => Entry::Value(0),
        };
        Found { index: first, order, entry }
    }

    /// Returns the first item and the last value below a node whose first index is `base`.
    fn below(&self, id: u32, base: u64) -> (Option<Found>, Option<Found>) {
        let node = self.node(id);
        let shift = node.shift();
        let (mut item, mut value) = (None, None);
        let mut left = node.present();
        while left != 0 {
            let offset = left.trailing_zeros();
            left &= left - 1;
            let first = base + (u64::from(offset) << shift);
            match node.slot(offset).slot() {
                Slot::Node { id, .. } => {
                    let below = self.below(id, first);
                    item = item.or(below.0);
                    value = below.1.or(value);
                }
                Slot::Entry(entry) => {
                    let found = self.found_at(Place { node: id, shift, offset }, first);
                    if entry.is_item() {
                        item = item.or(Some(found));
                    } else {
                        value = Some(found);
                    }
                }
                _ => {}
            }
        }
        (item, value)
    }

    /// Creates nodes from an empty slot down to the level `target`. Returns the slot there.
    fn make_path(&mut self, from: Place, index: u64, target: u32, preload: &mut Preload<'_>) -> Place {
        let Place { node: mut id, mut shift, mut offset } = from;
        while shift > target {
            let child = preload.take();
            self.node(child).attach(id, offset, shift - SHIFT);
            self.node(id).put(offset, Raw::node(child, shift - SHIFT), false);
            id = child;
            shift -= SHIFT;
            offset = (index >> shift) as u32 & (SLOTS - 1);
        }
        Place { node: id, shift, offset }
    }

    /// Adds nodes above the head until the top one has the shift `top`. Returns that node. Fails
    /// unless the preload also suffices for the path from there down.
    fn grow(
        &mut self,
        index: u64,
        order: u8,
        top: u32,
        preload: &mut Preload<'_>,
        refuse: bool,
    ) -> Result<u32, InsertError> {
        let head = self.root.head();
        if refuse
            && index == 0
            && let Some(found) = self.next_item(0..=(1 << order) - 1)
        {
            // Only here can the new entry's range contain the old head's entries.
            return Err(InsertError::Occupied(found));
        }
        let above = match head.slot() {
            Slot::Empty => 1,
            Slot::Node { shift, .. } => (top - shift) / SHIFT,
            _ => top / SHIFT + 1,
        };
        let below = if index >> top == 0 && head != Raw::EMPTY { 0 } else { (top - level_of(order)) / SHIFT };
        let needed = (above + below) as usize;
        if preload.len() < needed {
            return Err(InsertError::NeedNodes(needed));
        }
        let (mut id, mut shift) = match head.slot() {
            Slot::Node { id, shift } => (id, shift),
            Slot::Empty => {
                let id = preload.take();
                self.node(id).attach(NONE, 0, top);
                (id, top)
            }
            _ => {
                let id = preload.take();
                let node = self.node(id);
                node.attach(NONE, 0, 0);
                node.put(0, head, head.is_value());
                for mark in 0..MARKS {
                    node.set_marks(mark, u64::from(self.head_marks >> mark & 1));
                }
                (id, 0)
            }
        };
        while shift < top {
            let above = preload.take();
            let (child, node) = (self.node(id), self.node(above));
            node.attach(NONE, 0, shift + SHIFT);
            node.put(0, Raw::node(id, shift), false);
            for mark in 0..MARKS {
                node.set_marks(mark, u64::from(child.marks(mark) != 0));
            }
            child.attach(above, 0, shift);
            (id, shift) = (above, shift + SHIFT);
        }
        self.head_marks = 0;
        self.set_head(Raw::node(id, shift));
        Ok(id)
    }

    /// Stores over the slots of `place`, without marks. Releases nodes that were there.
    pub(super) fn fill(&mut self, place: Place, order: u8, raw: Raw) {
        if place.node == NONE {
            self.head_marks = 0;
            self.set_head(raw);
            return;
        }
        let count = 1 << (u32::from(order) - place.shift);
        self.unmark_slots(place, count);
        let mut gone = ArrayVec::<u32, { SLOTS as usize }>::new();
        let node = self.node(place.node);
        for offset in place.offset..place.offset + count {
            if let Slot::Node { id, .. } = node.slot(offset).slot() {
                gone.push(id);
            }
        }
        node.put_entry(place.offset, count, raw);
        for id in gone {
            self.release_below(id);
        }
    }
}

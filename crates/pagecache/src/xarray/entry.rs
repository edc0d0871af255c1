//! The contents of a slot: empty, an item, a value, a sibling of an earlier slot, or a node.
//!
//! Owns the encoding of a slot's 64 bits. The two low bits are the tag:
//!
//! | tag | meaning | the other bits |
//! |---|---|---|
//! | 00 | empty | 0 |
//! | 01 | value | payload |
//! | 10 | item | payload |
//! | 11 | bit 2 clear: sibling | the slot that holds the entry |
//! | 11 | bit 2 set: node | bits 3 to 8: the node's shift; from bit 9: its number |
//!
//! Also owns what the array's users see of it: [`Entry`], [`Found`] and [`Mark`].
//!
//! Kernel counterpart: `xa_mk_value`, `xa_mk_sibling` and `xa_mk_node` in include/linux/xarray.h.

/// The entry stored at an index.
///
/// Both kinds carry a number of at most [`Entry::MAX_PAYLOAD`]. They differ only in insertion,
/// which refuses to replace an [`Entry::Item`] and replaces an [`Entry::Value`]. In a page cache
/// the items are folios, and the values are shadows of evicted folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A present object.
    Item(u64),
    /// The shadow of an object that was present.
    Value(u64),
}

impl Entry {
    /// The largest payload.
    pub const MAX_PAYLOAD: u64 = u64::MAX >> 2;

    /// Returns the payload.
    pub fn payload(self) -> u64 {
        match self {
            Self::Item(payload) | Self::Value(payload) => payload,
        }
    }

    /// Returns whether this is an item.
    pub fn is_item(self) -> bool {
        matches!(self, Self::Item(_))
    }
}

/// An entry and the range that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// First index, aligned to the order.
    pub index: u64,
    /// The entry covers 2^order indices.
    pub order: u8,
    /// The entry.
    pub entry: Entry,
}

impl Found {
    /// Returns the last index covered.
    pub fn last(&self) -> u64 {
        self.index + ((1 << self.order) - 1)
    }
}

/// Number of kinds of marks.
pub(super) const MARKS: usize = 3;

/// A mark on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Changed since it was last written.
    Dirty = 0,
    /// Under writeback.
    Writeback = 1,
    /// Tagged for the writeback under way.
    ToWrite = 2,
}

impl Mark {
    /// All marks.
    pub const ALL: [Self; MARKS] = [Self::Dirty, Self::Writeback, Self::ToWrite];
}

/// The bits of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw(pub u64);

/// A decoded slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Empty,
    Entry(Entry),
    Sibling(u32),
    Node { id: u32, shift: u32 },
}

impl Raw {
    pub const EMPTY: Self = Self(0);

    pub fn entry(entry: Entry) -> Self {
        assert!(entry.payload() <= Entry::MAX_PAYLOAD, "an entry carries at most 62 bits");
        match entry {
            Entry::Value(payload) => Self(payload << 2 | 1),
            Entry::Item(payload) => Self(payload << 2 | 2),
        }
    }

    pub fn sibling(of: u32) -> Self {
        Self(u64::from(of) << 3 | 3)
    }

    pub fn node(id: u32, shift: u32) -> Self {
        Self(u64::from(id) << 9 | u64::from(shift) << 3 | 7)
    }

    #[inline]
    pub fn slot(self) -> Slot {
        match self.0 & 3 {
            0 => Slot::Empty,
            1 => Slot::Entry(Entry::Value(self.0 >> 2)),
            2 => Slot::Entry(Entry::Item(self.0 >> 2)),
            _ if self.0 & 4 == 0 => Slot::Sibling((self.0 >> 3) as u32 & 63),
            _ => Slot::Node { id: (self.0 >> 9) as u32, shift: (self.0 >> 3) as u32 & 63 },
        }
    }

    pub fn is_value(self) -> bool {
        self.0 & 3 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_round_trip() {
        for payload in [0, 1, 2, 12345, Entry::MAX_PAYLOAD] {
            for entry in [Entry::Item(payload), Entry::Value(payload)] {
                assert!(Raw::entry(entry).slot() == Slot::Entry(entry));
                assert_eq!(Raw::entry(entry).is_value(), !entry.is_item());
            }
        }
        assert!(Raw::EMPTY.slot() == Slot::Empty);
        for of in 0..64 {
            assert!(Raw::sibling(of).slot() == Slot::Sibling(of));
            assert!(!Raw::sibling(of).is_value());
        }
        for (id, shift) in [(0, 0), (1, 6), (u32::MAX - 1, 60)] {
            assert!(Raw::node(id, shift).slot() == Slot::Node { id, shift });
            assert!(!Raw::node(id, shift).is_value());
        }
    }

    #[test]
    #[should_panic(expected = "62 bits")]
    fn payloads_above_62_bits_panic() {
        Raw::entry(Entry::Item(Entry::MAX_PAYLOAD + 1));
    }
}

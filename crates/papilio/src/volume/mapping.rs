//! From a range of a chunk to places on its stripes.
//!
//! Owns the arithmetic of all profiles: [`Elements`] cuts a range where it goes to another stripe,
//! [`Chunk::direct`] says where a copy of a piece lies, [`Chunk::column_place`] where any column of
//! a row of parity lies. It allocates nothing.
//!
//! Terms: a *stripe* is a chunk's extent on one device; an *element* is 64 KiB of it; a *row* is the
//! elements of the same number on all stripes; a *column* is the role of an element in its row:
//! data 0, 1, ..., then P, then Q. RAID5 and RAID6 turn the columns by one stripe each row.
//!
//! Takes no lock. Kernel counterpart: `btrfs_map_block` and the `map_blocks_*` functions
//! (`fs/btrfs/volumes.c`).

use super::chunk_map::Chunk;
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use papilio_format::{LogicalAddress, PhysicalAddress};

/// A piece of a range that lies in one piece on each of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// The data column: 0 where every stripe holds the same.
    pub(crate) column: usize,
    /// The row: 0 where every stripe holds the same.
    pub(crate) row: u64,
    /// Bytes from the start of the row's element.
    pub(crate) within: u64,
    /// Bytes of the piece.
    pub(crate) length: usize,
}

/// The elements of a range, in order.
#[derive(Clone, Debug)]
pub(crate) struct Elements<'a> {
    chunk: &'a Chunk,
    offset: u64,
    remaining: usize,
}

impl Iterator for Elements<'_> {
    type Item = Element;

    #[inline]
    fn next(&mut self) -> Option<Element> {
        if self.remaining == 0 {
            return None;
        }
        let element = self.chunk.element(self.offset, self.remaining);
        self.offset += element.length as u64;
        self.remaining -= element.length;
        Some(element)
    }
}

impl Chunk {
    /// The elements of `length` bytes from `logical`.
    ///
    /// # Panics
    /// Where the range does not lie within the chunk.
    pub(crate) fn elements(&self, logical: LogicalAddress, length: usize) -> Elements<'_> {
        let offset = logical.checked_since(self.start()).expect("the chunk covers the address");
        assert!(
            offset <= self.length() && length as u64 <= self.length() - offset,
            "the chunk covers the range"
        );
        Elements { chunk: self, offset, remaining: length }
    }

    /// Ways to read an address: copies, or for parity 1 and what `btrfs_num_copies` counts as
    /// further ones: rebuilt by P, rebuilt by Q, and for each other data stripe one on the
    /// assumption that it is bad too.
    pub(crate) fn copies(&self) -> usize {
        match self.profile() {
            RaidProfile::Raid5 => 2,
            RaidProfile::Raid6 => self.stripes().len(),
            profile => profile.copies(),
        }
    }

    /// Columns that hold data in each row.
    #[inline]
    pub(crate) fn data_columns(&self) -> usize {
        self.profile().data_stripes(self.stripes().len())
    }

    /// Where copy `copy` of an element lies: a stripe's number and the place on its device. `None`
    /// for a copy that only a rebuild gives.
    ///
    /// # Panics
    /// With a copy that the chunk does not have.
    #[inline]
    pub(crate) fn direct(&self, element: &Element, copy: usize) -> Option<(usize, PhysicalAddress)> {
        assert!(copy < self.copies(), "the chunk has that copy");
        let stripe = match self.profile() {
            RaidProfile::Single | RaidProfile::Raid0 => element.column,
            RaidProfile::Dup | RaidProfile::Raid1 | RaidProfile::Raid1c3 | RaidProfile::Raid1c4 => copy,
            RaidProfile::Raid10 => element.column * RaidProfile::Raid10.copies() + copy,
            RaidProfile::Raid5 | RaidProfile::Raid6 if copy == 0 => {
                return Some(self.column_place(element, element.column));
            }
            RaidProfile::Raid5 | RaidProfile::Raid6 => return None,
        };
        Some((stripe, self.physical(stripe, element)))
    }

    /// Where in the row of `element` the same bytes of column `column` lie; data columns come
    /// first, then P, then Q. Only parity turns the columns.
    #[inline]
    pub(crate) fn column_place(&self, element: &Element, column: usize) -> (usize, PhysicalAddress) {
        debug_assert!(self.profile().parity() > 0);
        let stripes = self.stripes().len();
        let turn = (element.row % stripes as u64) as usize;
        let stripe = (turn + column) % stripes;
        (stripe, self.physical(stripe, element))
    }

    /// The element of the byte `offset` bytes into the chunk, at most `limit` bytes of it.
    #[inline]
    fn element(&self, offset: u64, limit: usize) -> Element {
        let columns = self.data_columns() as u64;
        if columns == 1 && self.profile().parity() == 0 {
            // One column that never turns is contiguous on its device.
            return Element { column: 0, row: 0, within: offset, length: limit };
        }
        let number = offset / STRIPE_LENGTH;
        let within = offset % STRIPE_LENGTH;
        // At most 64 KiB, so that it fits any usize.
        let length = limit.min((STRIPE_LENGTH - within) as usize);
        Element { column: (number % columns) as usize, row: number / columns, within, length }
    }

    /// Cannot overflow for an element of this chunk: [`Chunk::new`] saw to it.
    #[inline]
    fn physical(&self, stripe: usize, element: &Element) -> PhysicalAddress {
        let start = self.stripes()[stripe].offset;
        PhysicalAddress(start.0 + element.row * STRIPE_LENGTH + element.within)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{CHUNK_START, chunk_item};
    use super::*;

    const ELEMENT: u64 = STRIPE_LENGTH;

    /// Of the element `number` of a chunk (stripe `n` of which starts at `n` GiB): for each copy the
    /// stripe and the row it is on.
    fn places(profile: RaidProfile, stripes: usize, number: u64) -> Vec<(usize, u64)> {
        let chunk = chunk(profile, stripes);
        let start = LogicalAddress(CHUNK_START.0 + number * ELEMENT);
        let [element] = chunk.elements(start, ELEMENT as usize).collect::<Vec<_>>()[..] else {
            panic!("one element is one piece");
        };
        (0..chunk.copies())
            .filter_map(|copy| chunk.direct(&element, copy))
            .map(|(stripe, physical)| {
                assert_eq!(physical.0 >> 30, stripe as u64 + 1, "the place is on its stripe");
                (stripe, (physical.0 - ((stripe as u64 + 1) << 30)) / ELEMENT)
            })
            .collect()
    }

    fn chunk(profile: RaidProfile, stripes: usize) -> Chunk {
        let mut item = chunk_item(profile, stripes, 12 * ELEMENT * profile.data_stripes(stripes) as u64);
        for (number, stripe) in item.stripes.iter_mut().enumerate() {
            stripe.offset = PhysicalAddress((number as u64 + 1) << 30);
        }
        Chunk::new(CHUNK_START, &item).unwrap()
    }

    /// Where P (and Q) of each row are.
    fn parity_stripes(profile: RaidProfile, stripes: usize, row: u64) -> Vec<usize> {
        let chunk = chunk(profile, stripes);
        let columns = chunk.data_columns();
        let element = Element { column: 0, row, within: 0, length: 1 };
        (columns..stripes).map(|column| chunk.column_place(&element, column).0).collect()
    }

    #[test]
    fn copies_without_striping() {
        for (profile, stripes) in [
            (RaidProfile::Single, 1),
            (RaidProfile::Dup, 2),
            (RaidProfile::Raid1, 2),
            (RaidProfile::Raid1c3, 3),
            (RaidProfile::Raid1c4, 4),
        ] {
            let expected: Vec<_> = (0..stripes).map(|stripe| (stripe, 7)).collect();
            assert_eq!(places(profile, stripes, 7), expected, "{profile}");
            // No matter how long, it is one piece.
            let chunk = chunk(profile, stripes);
            assert_eq!(chunk.elements(CHUNK_START, 12 * ELEMENT as usize).count(), 1, "{profile}");
        }
    }

    #[test]
    fn raid0_goes_around() {
        let table: Vec<_> = (0..7).map(|number| places(RaidProfile::Raid0, 3, number)).collect();
        let expected = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)];
        assert_eq!(table, expected.map(|place| vec![place]));
        // On one device nothing is striped.
        assert_eq!(places(RaidProfile::Raid0, 1, 5), [(0, 5)]);
        let chunk = chunk(RaidProfile::Raid0, 1);
        assert_eq!(chunk.elements(CHUNK_START, 3 * ELEMENT as usize).count(), 1);
    }

    #[test]
    fn raid10_goes_around_pairs() {
        let table: Vec<_> = (0..4).map(|number| places(RaidProfile::Raid10, 4, number)).collect();
        let expected = [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(0, 1), (1, 1)], [(2, 1), (3, 1)]];
        assert_eq!(table, expected);
        assert_eq!(places(RaidProfile::Raid10, 2, 5), [(0, 5), (1, 5)]);
    }

    #[test]
    fn raid5_turns_by_one_stripe_each_row() {
        // Rows of three stripes: D0 D1 P, then P D0 D1, then D1 P D0, and again.
        let table: Vec<_> = (0..8).map(|number| places(RaidProfile::Raid5, 3, number)).collect();
        let expected = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (0, 2), (0, 3), (1, 3)];
        assert_eq!(table, expected.map(|place| vec![place]));
        let parity: Vec<_> = (0..4).map(|row| parity_stripes(RaidProfile::Raid5, 3, row)).collect();
        assert_eq!(parity, [[2], [0], [1], [2]]);
        // With two stripes the parity is a copy, and still turns.
        assert_eq!(places(RaidProfile::Raid5, 2, 0), [(0, 0)]);
        assert_eq!(places(RaidProfile::Raid5, 2, 1), [(1, 1)]);
    }

    #[test]
    fn raid6_turns_by_one_stripe_each_row() {
        // Rows of four stripes: D0 D1 P Q, Q D0 D1 P, P Q D0 D1, D1 P Q D0.
        let table: Vec<_> = (0..8).map(|number| places(RaidProfile::Raid6, 4, number)).collect();
        let expected = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (0, 3)];
        assert_eq!(table, expected.map(|place| vec![place]));
        let parity: Vec<_> = (0..4).map(|row| parity_stripes(RaidProfile::Raid6, 4, row)).collect();
        assert_eq!(parity, [[2, 3], [3, 0], [0, 1], [1, 2]]);
    }

    #[test]
    fn ways_to_read() {
        let copies = |profile, stripes| chunk(profile, stripes).copies();
        assert_eq!(copies(RaidProfile::Single, 1), 1);
        assert_eq!(copies(RaidProfile::Raid0, 4), 1);
        assert_eq!(copies(RaidProfile::Dup, 2), 2);
        assert_eq!(copies(RaidProfile::Raid10, 6), 2);
        assert_eq!(copies(RaidProfile::Raid1c4, 4), 4);
        assert_eq!(copies(RaidProfile::Raid5, 5), 2);
        assert_eq!(copies(RaidProfile::Raid6, 3), 3);
        assert_eq!(copies(RaidProfile::Raid6, 6), 6);
    }

    #[test]
    fn a_range_is_cut_at_element_borders() {
        let chunk = chunk(RaidProfile::Raid0, 2);
        let start = LogicalAddress(CHUNK_START.0 + ELEMENT - 4096);
        let pieces: Vec<_> = chunk.elements(start, (ELEMENT + 8192) as usize).collect();
        let expected = [
            Element { column: 0, row: 0, within: ELEMENT - 4096, length: 4096 },
            Element { column: 1, row: 0, within: 0, length: ELEMENT as usize },
            Element { column: 0, row: 1, within: 0, length: 4096 },
        ];
        assert_eq!(pieces, expected);
        assert_eq!(chunk.elements(chunk.end(), 0).count(), 0);
    }

    #[test]
    #[should_panic(expected = "the chunk covers the range")]
    fn a_range_past_the_chunk_is_a_broken_promise() {
        let chunk = chunk(RaidProfile::Single, 1);
        let _ = chunk.elements(LogicalAddress(chunk.end().0 - 1), 2);
    }
}

//! Mapping a range of a chunk to locations on its stripes.
//!
//! Owns the arithmetic of all profiles. [`Elements`] splits a range at element boundaries,
//! [`Chunk::direct`] locates a copy of a piece, and [`Chunk::column_place`] locates any column of a
//! parity row. Nothing here allocates.
//!
//! Terms:
//! - a *stripe* is a chunk's extent on one device;
//! - an *element* is 64 KiB of a stripe;
//! - a *row* is the elements with the same number on all stripes;
//! - a *column* is the role of an element in its row: data 0, 1, ..., then P, then Q. RAID5 and
//!   RAID6 rotate the columns by one stripe per row.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `btrfs_map_block` and the `map_blocks_*` functions (`fs/btrfs/volumes.c`).

use super::chunk_map::Chunk;
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use papilio_format::{LogicalAddress, PhysicalAddress};

/// A part of a range that is contiguous in each of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The data column; 0 if all stripes hold the same data.
    pub column: usize,
    /// The row; 0 if all stripes hold the same data.
    pub row: u64,
    /// Byte offset from the start of the row's element.
    pub within: u64,
    /// Length in bytes.
    pub length: usize,
}

/// Iterator over the elements of a range, in order.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
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
    /// Splits `length` bytes from `logical` into elements.
    ///
    /// # Panics
    /// If the range does not lie within the chunk.
    pub fn elements(&self, logical: LogicalAddress, length: usize) -> Elements<'_> {
        let offset = logical.checked_since(self.start()).expect("the chunk covers the address");
        assert!(
            offset <= self.length() && length as u64 <= self.length() - offset,
            "the chunk covers the range"
        );
        Elements { chunk: self, offset, remaining: length }
    }

    /// Returns the first logical address of an element.
    pub(super) fn address_of(&self, element: &Element) -> LogicalAddress {
        let number = element.row * self.data_columns() as u64 + element.column as u64;
        LogicalAddress(self.start().0 + number * STRIPE_LENGTH + element.within)
    }

    /// Returns the number of ways to read an address.
    ///
    /// Without parity that is the number of copies. With parity it follows `btrfs_num_copies`: one
    /// direct read, one rebuild from P, one from Q, and one for each other data stripe on the
    /// assumption that it is bad too.
    pub fn copies(&self) -> usize {
        match self.profile() {
            RaidProfile::Raid5 => 2,
            RaidProfile::Raid6 => self.stripes().len(),
            profile => profile.copies(),
        }
    }

    /// Returns the number of data columns in each row.
    #[inline]
    pub fn data_columns(&self) -> usize {
        self.profile().data_stripes(self.stripes().len())
    }

    /// Returns the stripe number and device offset of copy `copy` of an element; `None` for a copy
    /// that needs a rebuild.
    ///
    /// # Panics
    /// If the chunk does not have that copy.
    #[inline]
    pub fn direct(&self, element: &Element, copy: usize) -> Option<(usize, PhysicalAddress)> {
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

    /// Returns the location of column `column` in the row of `element`, for the same bytes. Data
    /// columns come first, then P, then Q. Only parity rotates the columns.
    #[inline]
    pub fn column_place(&self, element: &Element, column: usize) -> (usize, PhysicalAddress) {
        debug_assert!(self.profile().parity() > 0);
        let stripes = self.stripes().len();
        let turn = (element.row % stripes as u64) as usize;
        let stripe = (turn + column) % stripes;
        (stripe, self.physical(stripe, element))
    }

    /// Returns the element that contains the byte at `offset` in the chunk, cut to `limit` bytes.
    #[inline]
    fn element(&self, offset: u64, limit: usize) -> Element {
        let columns = self.data_columns() as u64;
        if columns == 1 && self.profile().parity() == 0 {
            // A single column that never rotates is contiguous on its device.
            return Element { column: 0, row: 0, within: offset, length: limit };
        }
        let number = offset / STRIPE_LENGTH;
        let within = offset % STRIPE_LENGTH;
        // At most 64 KiB, so it fits any usize.
        let length = limit.min((STRIPE_LENGTH - within) as usize);
        Element { column: (number % columns) as usize, row: number / columns, within, length }
    }

    /// Cannot overflow for an element of this chunk, as [`Chunk::new`] checked.
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

    /// Returns stripe and row of each copy of element `number` of a chunk. Stripe `n` starts at `n`
    /// GiB.
    fn places(profile: RaidProfile, stripes: usize, number: u64) -> Vec<(usize, u64)> {
        let chunk = chunk(profile, stripes);
        let start = LogicalAddress(CHUNK_START.0 + number * ELEMENT);
        let [element] = chunk.elements(start, ELEMENT as usize).collect::<Vec<_>>()[..] else {
            panic!("one element is one piece");
        };
        (0..chunk.copies())
            .filter_map(|copy| chunk.direct(&element, copy))
            .map(|(stripe, physical)| {
                assert_eq!(physical.0 >> 30, stripe as u64 + 1, "the location is on its stripe");
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

    /// Returns the stripes of P (and Q) in a row.
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
            // It is one piece whatever its length.
            let chunk = chunk(profile, stripes);
            assert_eq!(chunk.elements(CHUNK_START, 12 * ELEMENT as usize).count(), 1, "{profile}");
        }
    }

    #[test]
    fn raid0_cycles_through_stripes() {
        let table: Vec<_> = (0..7).map(|number| places(RaidProfile::Raid0, 3, number)).collect();
        let expected = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)];
        assert_eq!(table, expected.map(|place| vec![place]));
        // Nothing is striped on one device.
        assert_eq!(places(RaidProfile::Raid0, 1, 5), [(0, 5)]);
        let chunk = chunk(RaidProfile::Raid0, 1);
        assert_eq!(chunk.elements(CHUNK_START, 3 * ELEMENT as usize).count(), 1);
    }

    #[test]
    fn raid10_cycles_through_pairs() {
        let table: Vec<_> = (0..4).map(|number| places(RaidProfile::Raid10, 4, number)).collect();
        let expected = [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(0, 1), (1, 1)], [(2, 1), (3, 1)]];
        assert_eq!(table, expected);
        assert_eq!(places(RaidProfile::Raid10, 2, 5), [(0, 5), (1, 5)]);
    }

    #[test]
    fn raid5_rotates_by_one_stripe_per_row() {
        // Rows of three stripes: D0 D1 P, then P D0 D1, then D1 P D0, and again.
        let table: Vec<_> = (0..8).map(|number| places(RaidProfile::Raid5, 3, number)).collect();
        let expected = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (0, 2), (0, 3), (1, 3)];
        assert_eq!(table, expected.map(|place| vec![place]));
        let parity: Vec<_> = (0..4).map(|row| parity_stripes(RaidProfile::Raid5, 3, row)).collect();
        assert_eq!(parity, [[2], [0], [1], [2]]);
        // With two stripes the parity is a copy, and still rotates.
        assert_eq!(places(RaidProfile::Raid5, 2, 0), [(0, 0)]);
        assert_eq!(places(RaidProfile::Raid5, 2, 1), [(1, 1)]);
    }

    #[test]
    fn raid6_rotates_by_one_stripe_per_row() {
        // Rows of four stripes: D0 D1 P Q, Q D0 D1 P, P Q D0 D1, D1 P Q D0.
        let table: Vec<_> = (0..8).map(|number| places(RaidProfile::Raid6, 4, number)).collect();
        let expected = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (0, 3)];
        assert_eq!(table, expected.map(|place| vec![place]));
        let parity: Vec<_> = (0..4).map(|row| parity_stripes(RaidProfile::Raid6, 4, row)).collect();
        assert_eq!(parity, [[2, 3], [3, 0], [0, 1], [1, 2]]);
    }

    #[test]
    fn copies_counts_ways_to_read() {
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
    fn ranges_are_split_at_element_boundaries() {
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
    fn a_range_past_the_chunk_panics() {
        let chunk = chunk(RaidProfile::Single, 1);
        let _ = chunk.elements(LogicalAddress(chunk.end().0 - 1), 2);
    }
}

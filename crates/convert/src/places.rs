//! From places on the device to logical addresses.
//!
//! Owns [`PlaceMap`]. In data chunks both are equal; the content of reserved ranges has moved.

use crate::error::{ConvertError, Result};
use crate::layout::EXTENT_MAX;
use std::ops::Range;

/// Content that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The place that it had on the device.
    pub(crate) place: u64,
    pub(crate) length: u64,
    pub(crate) logical: u64,
}

/// The map.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaceMap {
    /// Data chunks, in order.
    pub(crate) data: Vec<Range<u64>>,
    /// In order.
    pub(crate) reserved: Vec<Range<u64>>,
    /// In the order of places.
    pub(crate) moved: Vec<Moved>,
}

impl PlaceMap {
    /// Returns the logical address of a place, and how many of `length` bytes follow one another
    /// there and may be one extent.
    ///
    /// # Errors
    /// A place that the source does not use.
    pub(crate) fn find(&self, place: u64, length: u64) -> Result<(u64, u64)> {
        let lost = || ConvertError::Invalid(format!("byte {place} of the device has no place in a chunk"));
        let length = length.min(EXTENT_MAX);
        if self.reserved.iter().any(|range| range.contains(&place)) {
            let moved =
                self.moved.iter().find(|moved| (moved.place..moved.place + moved.length).contains(&place));
            let moved = moved.ok_or_else(lost)?;
            let into = place - moved.place;
            return Ok((moved.logical + into, length.min(moved.length - into)));
        }
        let at = self.data.partition_point(|range| range.start <= place);
        let chunk = self.data[..at].last().filter(|range| range.contains(&place)).ok_or_else(lost)?;
        let next = self.reserved.iter().map(|range| range.start).find(|start| *start > place);
        let end = next.map_or(chunk.end, |next| next.min(chunk.end));
        Ok((place, length.min(end - place)))
    }

    /// Returns the parts of a range: place, logical address and length of each.
    ///
    /// # Errors
    /// As [`PlaceMap::find`].
    pub(crate) fn parts(&self, place: u64, length: u64) -> impl Iterator<Item = Result<Moved>> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= length {
                return None;
            }
            let at = place + done;
            let found = self.find(at, length - done);
            done = match &found {
                Ok((_, part)) => done + part,
                Err(_) => length,
            };
            Some(found.map(|(logical, length)| Moved { place: at, length, logical }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_their_addresses_jump() {
        const MIB: u64 = 1 << 20;
        let map = PlaceMap {
            data: vec![MIB..64 * MIB, 64 * MIB..300 * MIB],
            reserved: vec![0..MIB, 64 * MIB..64 * MIB + 65536],
            moved: vec![
                Moved { place: 0, length: 8192, logical: 100 * MIB },
                Moved { place: 8192, length: MIB - 8192, logical: 120 * MIB },
                Moved { place: 64 * MIB, length: 65536, logical: 130 * MIB },
            ],
        };
        let parts = |place, length| -> Vec<_> {
            map.parts(place, length)
                .map(|part| part.unwrap())
                .map(|part| (part.logical, part.length))
                .collect()
        };
        assert_eq!(parts(4096, 8192), [(100 * MIB + 4096, 4096), (120 * MIB, 4096)]);
        assert_eq!(parts(MIB - 4096, 8192), [(121 * MIB - 12288, 4096), (MIB, 4096)]);
        assert_eq!(
            parts(63 * MIB, 2 * MIB),
            [(63 * MIB, MIB), (130 * MIB, 65536), (64 * MIB + 65536, MIB - 65536)]
        );
        assert_eq!(parts(70 * MIB, 200 * MIB), [(70 * MIB, 128 * MIB), (198 * MIB, 72 * MIB)]);
        assert!(map.parts(299 * MIB, 2 * MIB).last().unwrap().is_err());
    }
}

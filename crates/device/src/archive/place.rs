//! Where the bytes of a device are in the logical address space: the mapping of chunks, backwards.
//!
//! Owns [`StripeTable`]. `papilio-engine`'s `volume/mapping.rs` has the mapping forwards, and
//! explains elements, rows and columns.

use super::map::ArchiveMap;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH};

/// The content of a range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The bytes from a logical address on.
    Logical(u64),
    /// The parity of a row: the sum of all data columns, or with `q` that of RAID6. `first` is the
    /// address of the first column's bytes.
    Parity { first: u64, columns: usize, q: bool },
    /// Nothing.
    Free,
}

/// The stripes on one device.
#[derive(Debug)]
pub(super) struct StripeTable {
    /// By their start: start and length on the device, the index of the chunk, and that of the
    /// stripe in the chunk.
    stripes: Vec<(u64, u64, usize, usize)>,
}

impl StripeTable {
    /// Collects the stripes of a device. Those that overlap stay: the first one is used.
    pub(super) fn new(map: &ArchiveMap, device: usize) -> Self {
        let devid = map.devices()[device].devid;
        let mut stripes = Vec::new();
        for (index, (_, chunk)) in map.chunks().iter().enumerate() {
            for (number, stripe) in chunk.stripes.iter().enumerate().filter(|(_, own)| own.devid == devid) {
                stripes.push((stripe.offset.0, chunk.stripe_bytes().unwrap_or(0), index, number));
            }
        }
        stripes.sort_unstable();
        Self { stripes }
    }

    /// Returns what a range from `offset` on holds, and how many of its `length` bytes, at least 1.
    pub(super) fn find(&self, map: &ArchiveMap, offset: u64, length: u64) -> (Place, u64) {
        let after = self.stripes.partition_point(|(start, ..)| *start <= offset);
        let until_next = self.stripes.get(after).map_or(length, |(start, ..)| length.min(start - offset));
        let Some((start, bytes, chunk, stripe)) = after.checked_sub(1).map(|at| self.stripes[at]) else {
            return (Place::Free, until_next);
        };
        let within = offset - start;
        if within >= bytes {
            return (Place::Free, until_next);
        }
        let limit = until_next.min(bytes - within);
        let (address, item) = &map.chunks()[chunk];
        place_in(address.0, item, stripe, within, limit)
    }
}

fn place_in(start: u64, chunk: &ChunkItem, stripe: usize, within: u64, limit: u64) -> (Place, u64) {
    let Ok(profile) = chunk.profile() else { return (Place::Free, limit) };
    let stripes = chunk.stripes.len();
    let columns = profile.data_stripes(stripes);
    if columns <= 1 && profile.parity() == 0 {
        return (Place::Logical(start.saturating_add(within)), limit);
    }
    let (row, inside) = (within / STRIPE_LENGTH, within % STRIPE_LENGTH);
    let limit = limit.min(STRIPE_LENGTH - inside);
    // A hostile map may have a chunk at the end of the address space.
    let address = |column: usize| {
        let number = (row * columns as u64).saturating_add(column as u64);
        start.saturating_add(number.saturating_mul(STRIPE_LENGTH)).saturating_add(inside)
    };
    let column = match profile {
        RaidProfile::Raid10 => stripe / RaidProfile::Raid10.copies(),
        RaidProfile::Raid5 | RaidProfile::Raid6 => {
            let turn = (row % stripes as u64) as usize;
            (stripe + stripes - turn) % stripes
        }
        _ => stripe,
    };
    match column < columns {
        true => (Place::Logical(address(column)), limit),
        false => (Place::Parity { first: address(0), columns, q: column > columns }, limit),
    }
}

/// Adds a data column to parity, from the last column to the first.
pub(super) fn add_column(sum: &mut [u8], column: &[u8], q: bool) {
    for (sum, byte) in sum.iter_mut().zip(column) {
        // Multiplication by 2 in the field of RAID6, whose polynomial is 0x11d.
        let doubled = (*sum << 1) ^ ((*sum >> 7).wrapping_neg() & 0x1d);
        *sum = if q { doubled } else { *sum } ^ byte;
    }
}

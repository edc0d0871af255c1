//! The table of blocks of a VHDX file (BAT).
//!
//! Owns [`BlockTable`]. An entry has eight bytes: a state, and the place of the block in MiB. After
//! each [`Layout::ratio`] entries of blocks follows one of a sector bitmap, which only images with
//! parents use ([MS-VHDX] 2.5).

use super::super::blocks::read_range;
use super::super::sparse::{Tables, Units};
use super::header::{Header, fault, u64_at};
use super::layout::{Layout, MIB};
use super::log::Log;
use crate::device::Device;
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use std::io;

/// The state of a block whose bytes are in the file.
const FULLY_PRESENT: u64 = 6;
/// The greatest state of a block that reads as zeros: not present, undefined, zero, unmapped.
const LAST_ABSENT: u64 = 3;
const STATE: u64 = 7;
/// The place in an entry, in MiB, is above this many bits.
const PLACE_SHIFT: u32 = 20;

/// The table, and the header that a writer renews.
#[derive(Debug)]
pub(super) struct BlockTable {
    header: Header,
    place: u64,
    ratio: u64,
}

/// The entry of a block.
fn entry(block: u64, ratio: u64) -> u64 {
    block + block / ratio
}

impl BlockTable {
    pub(super) fn new(header: Header, layout: &Layout) -> Self {
        Self { header, place: layout.table.0, ratio: layout.ratio }
    }

    /// Reads the places of all blocks.
    pub(super) fn read(file: &dyn Device, log: &Log, layout: &Layout) -> Result<Units, OpenErrorKind> {
        let count = layout.size.div_ceil(layout.block);
        let length = count.checked_sub(1).map_or(0, |last| (entry(last, layout.ratio) + 1) * 8);
        if length > layout.table.1 {
            return Err(fault("its table of blocks is too small"));
        }
        let bytes = read_range(file, layout.table.0, length);
        let mut bytes = bytes.map_err(|_| fault("its table of blocks is outside of the file"))?;
        log.patch(layout.table.0, &mut bytes);
        let mut places = Vec::with_capacity(count as usize);
        for block in 0..count {
            let value = u64_at(&bytes, 8 * entry(block, layout.ratio) as usize);
            let place = u32::try_from(value >> PLACE_SHIFT);
            places.push(match (value & STATE, place) {
                (..=LAST_ABSENT, _) => 0,
                (FULLY_PRESENT, Ok(place @ 1..)) => place,
                _ => return Err(fault(format!("its entry of block {block} is damaged: {value:#x}"))),
            });
        }
        Ok(Units { size: layout.size, unit: layout.block, granule: MIB, places })
    }
}

impl Tables for BlockTable {
    fn begin(&self, file: &dyn Device) -> io::Result<()> {
        self.header.renew(file)
    }

    fn record(&self, file: &dyn Device, placed: &[(u64, u32)]) -> io::Result<()> {
        placed.iter().try_for_each(|(block, place)| {
            let value = u64::from(*place) << PLACE_SHIFT | FULLY_PRESENT;
            let at = PhysicalAddress(self.place + 8 * entry(*block, self.ratio));
            file.write_at(&value.to_le_bytes(), at)
        })
    }

    fn end(&self, _: &dyn Device) -> io::Result<()> {
        Ok(())
    }
}

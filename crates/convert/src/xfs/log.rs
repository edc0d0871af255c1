//! The log: whether it is clean.
//!
//! Owns [`XfsFs::check_log`]. The log is a ring of blocks of 512 bytes. Each begins with the number
//! of the turn in which it was written, except for headers of records, which have it behind their
//! magic number. A log is clean if its newest record says "unmounted", and nothing newer follows.
//!
//! Source: "XFS Algorithms & Data Structures", chapter "Journaling Log".

use super::fields::{u32_at, u64_at};
use super::reader::XfsFs;
use crate::error::{ConvertError, Result};

const UNIT: usize = 512;
/// Bytes that are read at once.
const STEP: u64 = 1 << 20;
/// The magic number of a record's header.
const RECORD: u32 = 0xfeed_babe;
/// The flag of the operation that an unmount writes.
const UNMOUNT: u8 = 0x20;
/// Bytes of a record for each header of version 2.
const HEADER_COVERS: u32 = 32 << 10;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogRecord {
    turn: u32,
    /// The block of the log that it begins in.
    block: u64,
    /// Blocks of its headers, and of its content.
    headers: u64,
    blocks: u64,
    operations: u32,
}

impl LogRecord {
    fn parse(unit: &[u8], block: u64) -> Option<Self> {
        let turn = u32_at(unit, 4);
        let (version, length, size) = (u32_at(unit, 8), u32_at(unit, 12), u32_at(unit, 320));
        // Its place is a part of its sequence number.
        if u32_at(unit, 0) != RECORD || u64_at(unit, 16) != u64::from(turn) << 32 | block {
            return None;
        }
        let headers = if version & 2 != 0 { size.div_ceil(HEADER_COVERS).max(1) } else { 1 };
        Some(Self {
            turn,
            block,
            headers: headers.into(),
            blocks: u64::from(length).div_ceil(UNIT as u64),
            operations: u32_at(unit, 40),
        })
    }
}

impl XfsFs {
    /// Refuses a log that has to be replayed.
    ///
    /// # Errors
    /// A log that is not clean; damage; the device's errors.
    pub(crate) fn check_log(&self) -> Result<()> {
        let superblock = &self.superblock;
        let place = superblock.place_of(superblock.log_start);
        let place = place.filter(|(_, left)| u64::from(superblock.log_blocks) <= *left);
        let (Some((place, _)), true) = (place, superblock.log_blocks > 0) else {
            return Err(self.damaged("the superblock", "its log lies outside"));
        };
        let start = place * superblock.block_size;
        let length = u64::from(superblock.log_blocks) * superblock.block_size;
        match self.newest_is_unmount(start, length)? {
            None => Ok(()),
            Some(reason) => Err(ConvertError::Dirty {
                device: self.profile.device.clone(),
                reason: format!(
                    "its log needs a replay ({reason}): mount it once and unmount it, then try again"
                ),
            }),
        }
    }

    /// Returns why the log is not clean, if so.
    fn newest_is_unmount(&self, start: u64, length: u64) -> Result<Option<&'static str>> {
        let mut newest: Option<LogRecord> = None;
        // The newest block of the log: its turn, and its number.
        let mut last = (0, 0);
        let mut bytes = vec![0; STEP as usize];
        for at in (0..length).step_by(STEP as usize) {
            let part = &mut bytes[..STEP.min(length - at) as usize];
            self.read(part, start + at)?;
            for (slot, unit) in part.chunks_exact(UNIT).enumerate() {
                let block = at / UNIT as u64 + slot as u64;
                let is_header = u32_at(unit, 0) == RECORD;
                let turn = u32_at(unit, if is_header { 4 } else { 0 });
                last = last.max((turn, block));
                if let Some(record) = LogRecord::parse(unit, block)
                    && newest.is_none_or(|known| (known.turn, known.block) < (record.turn, record.block))
                {
                    newest = Some(record);
                }
            }
        }
        let Some(record) = newest else {
            return Ok((last.0 != 0).then_some("it has no record"));
        };
        let total = length / UNIT as u64;
        let end = record.block + record.headers + record.blocks;
        // Content may continue at the start of the ring, in the next turn.
        let (turn, final_block) = match end > total {
            true => (record.turn.wrapping_add(1), end - total - 1),
            false => (record.turn, end - 1),
        };
        if last != (turn, final_block) {
            return Ok(Some("something follows its last whole record"));
        }
        let mut unit = [0; UNIT];
        let first = (record.block + record.headers) % total;
        self.read(&mut unit, start + first * UNIT as u64)?;
        if record.operations != 1 || unit[9] & UNMOUNT == 0 {
            return Ok(Some("it was not unmounted"));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_records_know_their_place() {
        let mut unit = vec![0; UNIT];
        let mut put = |at: usize, field: &[u8]| unit[at..at + field.len()].copy_from_slice(field);
        put(0, &RECORD.to_be_bytes());
        put(4, &3u32.to_be_bytes());
        put(8, &2u32.to_be_bytes());
        put(12, &512u32.to_be_bytes());
        put(16, &(3u64 << 32 | 40).to_be_bytes());
        put(40, &1u32.to_be_bytes());
        put(320, &(256u32 << 10).to_be_bytes());
        let record = LogRecord::parse(&unit, 40).unwrap();
        assert_eq!(record, LogRecord { turn: 3, block: 40, headers: 8, blocks: 1, operations: 1 });
        assert_eq!(LogRecord::parse(&unit, 41), None);
        unit[0] = 0;
        assert_eq!(LogRecord::parse(&unit, 40), None);
    }
}

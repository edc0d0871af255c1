//! The record of a switch, which makes a torn one whole.
//!
//! Owns [`SwitchRecord`]. The superblock at 64 KiB lies where the source may have a block, so that
//! the switch overwrites one with the other. A device may write a part of these 4 KiB only. The
//! record has all contents that the block takes on, one after the other, and lies in space that is
//! free in the source and in Btrfs.
//!
//! **Pointers.** The Btrfs superblock of a switch says in each of its sectors where the record is
//! ([`point_to`]), in bytes that nothing reads. A torn block has a sector of that superblock, since
//! it would be whole otherwise: it leads to the record, wherever that is.
//!
//! **Trust.** A record counts only if
//! - its checksum is right, and it says its own place;
//! - each sector of the block is from one or the other of two contents that follow one another,
//!   and the block is neither of them as a whole;
//! - the source on the device has the UUID that the record names.
//!
//! The caller also asks whether the first 64 KiB of the device are those that the record knows:
//! else the source was used since. The last times and counts of the source are among them, so that
//! a user of the source cannot forge a record that will match.

use crate::error::Result;
use crate::io::write;
use crate::layout::DEVICE_RESERVED;
use crate::source::read;
use papilio_device::Device;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{ChecksumType, Superblock, Uuid};

/// The part of the device before the first superblock, which has the superblock of the source.
pub(crate) const HEAD_BYTES: u64 = 64 << 10;
/// The unit that a device writes in any case.
pub(crate) const SECTOR: usize = 512;
/// Bytes of a record: a head, and at most three contents.
pub(crate) const RECORD_BYTES: u64 = 4 * SUPERBLOCK_SIZE as u64;
/// The most contents of a record.
const CONTENTS_MAX: usize = 3;
/// Where each sector of a superblock has the pointer to the record: in the transaction of the log,
/// which was never used, the last reserved word, the rest of the array of system chunks, and the
/// padding.
const POINTERS: [usize; SUPERBLOCK_SIZE / SECTOR] = [0x68, 803, 1528, 2040, 2552, 2851, 3576, 4088];
/// The first byte of the array of system chunks.
const ARRAY_START: usize = 811;
/// Where the array of system chunks has the first pointer.
const FIRST_IN_ARRAY: usize = POINTERS[2];
/// The upper 16 bits of a pointer. The lower ones are the place in units of 4 KiB.
const TAG: u64 = 0x7043;
const PLACE_BITS: u32 = 48;
const MAGIC: &[u8; 16] = b"Papilio switch\x01\n";
const SUM: ChecksumType = ChecksumType::Blake2b;
/// Where the head has its checksum.
const SUM_AT: usize = SUPERBLOCK_SIZE - 32;

/// The way that a switch leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the source to Btrfs: the contents are the block of the source and the superblock.
    Conversion,
    /// From Btrfs to the source: the contents are the superblock as it was, with pointers, and
    /// the block of the source.
    Rollback,
}

/// The contents that the block at 64 KiB takes on in a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwitchRecord {
    pub(crate) way: Way,
    /// The UUID of the source.
    pub(crate) uuid: Uuid,
    /// The checksum of the first 64 KiB, which do not change in a switch.
    head_sum: [u8; 32],
    /// In the order in which they are written. Each has [`SUPERBLOCK_SIZE`] bytes.
    pub(crate) contents: Vec<Vec<u8>>,
}

/// A record whose switch was torn.
pub(crate) struct TornSwitch {
    pub(crate) record: SwitchRecord,
    pub(crate) place: u64,
    /// The number of the content that was being written.
    pub(crate) step: usize,
    /// Whether the first 64 KiB are as they were.
    pub(crate) is_unchanged: bool,
}

impl TornSwitch {
    /// Makes the record invalid.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn erase(&self, device: &dyn Device) -> Result<()> {
        write(device, &[0; SUPERBLOCK_SIZE], self.place)
    }
}

fn sum_of(bytes: &[u8]) -> [u8; 32] {
    *SUM.compute(bytes).padded()
}

impl SwitchRecord {
    /// Makes the record of a switch on a device that begins with `head`.
    pub(crate) fn new(way: Way, uuid: Uuid, head: &[u8], contents: Vec<Vec<u8>>) -> Self {
        Self { way, uuid, head_sum: sum_of(head), contents }
    }

    /// Encodes the record for a place.
    fn to_bytes(&self, place: u64) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_BYTES as usize];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..24].copy_from_slice(&place.to_le_bytes());
        bytes[24] = match self.way {
            Way::Conversion => 1,
            Way::Rollback => 2,
        };
        bytes[25] = self.contents.len() as u8;
        bytes[32..48].copy_from_slice(self.uuid.as_bytes());
        bytes[48..80].copy_from_slice(&self.head_sum);
        for (at, content) in self.contents.iter().enumerate() {
            let start = (at + 1) * SUPERBLOCK_SIZE;
            bytes[start..start + SUPERBLOCK_SIZE].copy_from_slice(content);
        }
        let sum = sum_of(&bytes);
        bytes[SUM_AT..SUM_AT + 32].copy_from_slice(&sum);
        bytes
    }

    /// Decodes the record at a place; `None` if there is none.
    fn parse(bytes: &[u8], place: u64) -> Option<Self> {
        if !bytes.starts_with(MAGIC) || bytes[16..24] != place.to_le_bytes() {
            return None;
        }
        let mut plain = bytes.to_vec();
        plain[SUM_AT..SUM_AT + 32].fill(0);
        if sum_of(&plain) != bytes[SUM_AT..SUM_AT + 32] {
            return None;
        }
        let way = match (bytes[24], bytes[25]) {
            (1, 2) => Way::Conversion,
            (2, 3) => Way::Rollback,
            _ => return None,
        };
        let contents = bytes.chunks_exact(SUPERBLOCK_SIZE).skip(1).take(usize::from(bytes[25]));
        Some(Self {
            way,
            uuid: Uuid::from_slice(&bytes[32..48]).ok()?,
            head_sum: bytes[48..80].try_into().ok()?,
            contents: contents.map(<[u8]>::to_vec).collect(),
        })
    }

    /// Writes the record. It counts when the caller has flushed.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn write(&self, device: &dyn Device, place: u64) -> Result<()> {
        debug_assert!(self.contents.len() <= CONTENTS_MAX);
        write(device, &self.to_bytes(place), place)
    }

    /// Returns the number of the content that was being written when `block` was torn: the last,
    /// if several are possible.
    fn torn_step(&self, block: &[u8]) -> Option<usize> {
        let is_torn = |old: &[u8], new: &[u8]| {
            let sectors =
                block.chunks_exact(SECTOR).zip(old.chunks_exact(SECTOR).zip(new.chunks_exact(SECTOR)));
            block != old && block != new && sectors.into_iter().all(|(is, (old, new))| is == old || is == new)
        };
        (1..self.contents.len()).rev().find(|step| is_torn(&self.contents[step - 1], &self.contents[*step]))
    }

    /// The block of the source.
    pub(crate) fn source_block(&self) -> &[u8] {
        match self.way {
            Way::Conversion => &self.contents[0],
            Way::Rollback => &self.contents[2],
        }
    }
}

/// Lets a superblock say in each sector where the record is. Returns `None` if the array of system
/// chunks leaves no room for that.
pub(crate) fn point_to(superblock: &[u8], place: u64) -> Option<Vec<u8>> {
    let primary = superblock_offset(0);
    let array = Superblock::parse(superblock, primary).ok()?.raw.sys_chunk_array_size as usize;
    if ARRAY_START + array > FIRST_IN_ARRAY {
        return None;
    }
    let pointer = (TAG << PLACE_BITS) | (place / SUPERBLOCK_SIZE as u64);
    let mut bytes = superblock.to_vec();
    for at in POINTERS {
        bytes[at..at + 8].copy_from_slice(&pointer.to_le_bytes());
    }
    let pointing = Superblock::parse_unverified(&bytes).ok()?.to_bytes(primary);
    Superblock::parse(&pointing, primary).ok()?;
    Some(pointing.to_vec())
}

/// Returns the records to which a block at 64 KiB points, with their places.
fn records_of(device: &dyn Device, block: &[u8]) -> Result<Vec<(u64, SwitchRecord)>> {
    let mut places: Vec<u64> = POINTERS
        .iter()
        .filter_map(|at| {
            let pointer = u64::from_le_bytes(block[*at..at + 8].try_into().ok()?);
            let place = (pointer & ((1 << PLACE_BITS) - 1)).checked_mul(SUPERBLOCK_SIZE as u64)?;
            let is_inside = place.checked_add(RECORD_BYTES).is_some_and(|end| end <= device.size());
            let is_behind = place >= DEVICE_RESERVED;
            (pointer >> PLACE_BITS == TAG && is_inside && is_behind).then_some(place)
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    let mut records = Vec::new();
    let mut bytes = vec![0; RECORD_BYTES as usize];
    for place in places {
        read(device, &mut bytes, place)?;
        records.extend(SwitchRecord::parse(&bytes, place).map(|record| (place, record)));
    }
    Ok(records)
}

/// Finds the switch that left `block` at 64 KiB torn, on a device that begins with `head` and has
/// the source `uuid` there.
///
/// # Errors
/// The device's.
pub(crate) fn find_torn(
    device: &dyn Device,
    head: &[u8],
    uuid: Uuid,
    block: &[u8],
) -> Result<Option<TornSwitch>> {
    let found = records_of(device, block)?.into_iter().find_map(|(place, record)| {
        let step = record.torn_step(block).filter(|_| record.uuid == uuid)?;
        let is_unchanged = record.head_sum == sum_of(head);
        Some(TornSwitch { record, place, step, is_unchanged })
    });
    Ok(found)
}

/// Makes the records invalid to which a block at 64 KiB points.
///
/// # Errors
/// The device's.
pub(crate) fn erase_records(device: &dyn Device, block: &[u8]) -> Result<()> {
    for (place, _) in records_of(device, block)? {
        write(device, &[0; SUPERBLOCK_SIZE], place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::MemoryDevice;
    use papilio_progs::mkfs::{MkfsOptions, mkfs_device};

    const PLACE: u64 = 3 << 20;

    /// A superblock of an empty file system.
    fn superblock() -> Vec<u8> {
        let device: std::sync::Arc<dyn Device> = std::sync::Arc::new(MemoryDevice::new(128 << 20));
        mkfs_device(&device, &MkfsOptions::new()).unwrap();
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        read(&*device, &mut bytes, superblock_offset(0).0).unwrap();
        bytes
    }

    fn mixed(old: &[u8], new: &[u8], pattern: u32) -> Vec<u8> {
        let sectors = old.chunks_exact(SECTOR).zip(new.chunks_exact(SECTOR)).enumerate();
        sectors.flat_map(|(at, (old, new))| if pattern >> at & 1 == 1 { new } else { old }).copied().collect()
    }

    #[test]
    fn every_torn_block_leads_to_its_record_and_no_other_does() {
        let device = MemoryDevice::new(4 << 20);
        let plain = superblock();
        let pointing = point_to(&plain, PLACE).unwrap();
        let (uuid, head) = (Uuid::from_bytes([3; 16]), vec![1; HEAD_BYTES as usize]);
        let source: Vec<u8> = (0..SUPERBLOCK_SIZE).map(|at| (at % 251) as u8).collect();
        let conversion = vec![source.clone(), pointing.clone()];
        let rollback = vec![plain.clone(), pointing.clone(), source.clone()];
        for (way, contents) in [(Way::Conversion, conversion), (Way::Rollback, rollback)] {
            let record = SwitchRecord::new(way, uuid, &head, contents);
            record.write(&device, PLACE).unwrap();
            assert_eq!(record.source_block(), source);
            for step in 1..record.contents.len() {
                let (old, new) = (&record.contents[step - 1], &record.contents[step]);
                for pattern in 0..256 {
                    let block = mixed(old, new, pattern);
                    let find = |head: &[u8], uuid| find_torn(&device, head, uuid, &block).unwrap();
                    let is_torn = block != *old && block != *new;
                    let found = find(&head, uuid);
                    assert_eq!(found.is_some(), is_torn, "{way:?}, step {step}, pattern {pattern:#x}");
                    let Some(found) = found else { continue };
                    assert!(found.record == record && found.place == PLACE && found.step >= step);
                    assert!(found.is_unchanged && !find(&[2; 65536], uuid).unwrap().is_unchanged);
                    assert!(find(&head, Uuid::from_bytes([4; 16])).is_none());
                    let mut other = block.clone();
                    other[700] ^= 1;
                    assert!(find_torn(&device, &head, uuid, &other).unwrap().is_none());
                }
            }
        }
        // A record at another place, or with a changed byte, is none.
        let block = mixed(&source, &pointing, 0x55);
        let mut bytes = vec![0; RECORD_BYTES as usize];
        read(&device, &mut bytes, PLACE).unwrap();
        for at in [0, 20, 24, 25, 40, 60, 100, SUM_AT, 5000, RECORD_BYTES as usize - 1] {
            bytes[at] ^= 1;
            write(&device, &bytes, PLACE).unwrap();
            assert!(find_torn(&device, &head, uuid, &block).unwrap().is_none(), "byte {at}");
            bytes[at] ^= 1;
        }
        write(&device, &bytes, PLACE).unwrap();
        erase_records(&device, &pointing).unwrap();
        assert!(find_torn(&device, &head, uuid, &block).unwrap().is_none());
    }

    #[test]
    fn pointers_past_the_end_lead_nowhere() {
        let device = MemoryDevice::new(4 << 20);
        for place in [0, 4096, 65536, 1 << 19, (4 << 20) - 4096, 4 << 20, u64::MAX >> 4] {
            let block = point_to(&superblock(), place / 4096 * 4096).unwrap();
            assert!(records_of(&device, &block).unwrap().is_empty(), "{place}");
        }
    }

    #[test]
    fn a_full_array_of_system_chunks_has_no_room_for_pointers() {
        let plain = superblock();
        let mut parsed = Superblock::parse(&plain, superblock_offset(0)).unwrap();
        let size = parsed.raw.sys_chunk_array_size as usize;
        let first = parsed.raw.sys_chunk_array[..size].to_vec();
        let count = 800 / size + 1;
        for copy in 1..count {
            parsed.raw.sys_chunk_array[copy * size..(copy + 1) * size].copy_from_slice(&first);
        }
        parsed.raw.sys_chunk_array_size = (count * size) as u32;
        assert!(point_to(&parsed.to_bytes(superblock_offset(0)), PLACE).is_none());
    }
}

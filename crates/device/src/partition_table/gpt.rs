//! The GUID partition table (UEFI specification 2.10, chapter 5).
//!
//! Owns [`read`]. A header is believed only if its checksum, its own address and the checksum of
//! its entries are right; the backup at the end of the disk stands in for a bad one.

use super::types::{Partition, PartitionTable, PartitionType, TableKind, le32, le64, read_bytes};
use crate::device::Device;
use papilio_format::{PhysicalAddress, Uuid};
use std::io;

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of the header that the specification defines.
const HEADER_SIZE: usize = 92;
/// The most bytes of entries: 32 times the 128 entries of 128 bytes that disks have.
const MAX_ENTRIES_SIZE: u64 = 512 * 1024;

/// Byte offsets in the header.
mod header {
    pub const SIZE: usize = 12;
    pub const CRC: usize = 16;
    pub const OWN_SECTOR: usize = 24;
    pub const ENTRIES_SECTOR: usize = 72;
    pub const ENTRY_COUNT: usize = 80;
    pub const ENTRY_SIZE: usize = 84;
    pub const ENTRIES_CRC: usize = 88;
}

/// Byte offsets in an entry.
mod entry {
    pub const UUID: usize = 16;
    pub const FIRST_SECTOR: usize = 32;
    pub const LAST_SECTOR: usize = 40;
    pub const NAME: usize = 56;
    pub const SIZE: usize = 128;
}

/// Reads the table, or its backup if the first one is damaged.
pub(super) fn read(disk: &dyn Device, sector_size: u64) -> io::Result<Option<PartitionTable>> {
    let first = read_at(disk, sector_size, 1)?;
    let fault = match first {
        Read::Good(partitions) => return Ok(Some(table(sector_size, partitions, Vec::new()))),
        Read::Nothing => "it has no header".to_owned(),
        Read::Damaged(fault) => fault,
    };
    let Some(last) = (disk.size() / sector_size).checked_sub(1).filter(|last| *last > 1) else {
        return Ok(None);
    };
    match read_at(disk, sector_size, last)? {
        Read::Good(partitions) => {
            let faults =
                vec![format!("the GPT at the start of the disk is damaged ({fault}): using its backup")];
            Ok(Some(table(sector_size, partitions, faults)))
        }
        _ => Ok(None),
    }
}

/// Returns whether there is the signature of a header, good or not, where the first one belongs.
pub(crate) fn has_signature(start_of_disk: &[u8]) -> bool {
    [512, 4096].iter().any(|at| start_of_disk.get(*at..).is_some_and(|bytes| bytes.starts_with(SIGNATURE)))
}

fn table(sector_size: u64, partitions: Vec<Partition>, faults: Vec<String>) -> PartitionTable {
    PartitionTable { kind: TableKind::Gpt, sector_size, partitions, faults }
}

/// The outcome of reading one of the two copies.
enum Read {
    Good(Vec<Partition>),
    Nothing,
    Damaged(String),
}

fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

fn read_at(disk: &dyn Device, sector_size: u64, sector: u64) -> io::Result<Read> {
    let Some(bytes) = read_bytes(disk, sector * sector_size, sector_size as usize)? else {
        return Ok(Read::Nothing);
    };
    if !bytes.starts_with(SIGNATURE) {
        return Ok(Read::Nothing);
    }
    let damaged = |fault: &str| Ok(Read::Damaged(fault.to_owned()));
    let size = le32(&bytes, header::SIZE) as usize;
    if !(HEADER_SIZE..=bytes.len()).contains(&size) {
        return damaged("the size of its header is wrong");
    }
    let mut summed = bytes[..size].to_vec();
    summed[header::CRC..header::CRC + 4].fill(0);
    if crc32(&summed) != le32(&bytes, header::CRC) {
        return damaged("the checksum of its header is wrong");
    }
    if le64(&bytes, header::OWN_SECTOR) != sector {
        return damaged("its header belongs elsewhere");
    }
    let count = u64::from(le32(&bytes, header::ENTRY_COUNT));
    let entry_size = u64::from(le32(&bytes, header::ENTRY_SIZE));
    if entry_size < entry::SIZE as u64 || !entry_size.is_power_of_two() {
        return damaged("the size of its entries is wrong");
    }
    // Both factors are below 2^32.
    let length = count * entry_size;
    if length > MAX_ENTRIES_SIZE {
        return damaged("it has too many entries");
    }
    let place = le64(&bytes, header::ENTRIES_SECTOR).checked_mul(sector_size);
    let Some(place) = place else { return damaged("its entries are outside of the disk") };
    let Some(entries) = read_bytes(disk, place, length as usize)? else {
        return damaged("its entries are outside of the disk");
    };
    if crc32(&entries) != le32(&bytes, header::ENTRIES_CRC) {
        return damaged("the checksum of its entries is wrong");
    }
    let parsed = entries
        .chunks_exact(entry_size as usize)
        .zip(1..)
        .filter_map(|(bytes, number)| parse(bytes, number, sector_size))
        .collect();
    Ok(Read::Good(parsed))
}

/// Parses an entry; `None` for an unused one.
fn parse(bytes: &[u8], number: u32, sector_size: u64) -> Option<Partition> {
    let guid = |at: usize| Uuid::from_bytes_le(std::array::from_fn(|index| bytes[at + index]));
    let kind = guid(0);
    if kind.is_nil() {
        return None;
    }
    let (first, last) = (le64(bytes, entry::FIRST_SECTOR), le64(bytes, entry::LAST_SECTOR));
    let units = bytes[entry::NAME..entry::SIZE].chunks_exact(2);
    let name: Vec<u16> =
        units.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).take_while(|unit| *unit != 0).collect();
    // A product that overflows is past the end of every disk.
    let start = first.saturating_mul(sector_size);
    let sectors = last.checked_sub(first).map_or(0, |between| between.saturating_add(1));
    Some(Partition {
        number,
        start: PhysicalAddress(start),
        length: sectors.saturating_mul(sector_size),
        kind: PartitionType::Guid(kind),
        label: String::from_utf16_lossy(&name),
        uuid: guid(entry::UUID).to_string(),
    })
}

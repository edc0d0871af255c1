//! The master boot record, and the chain of boot records of logical partitions.
//!
//! Owns [`read`]. Sectors have 512 bytes: a table of 4096-byte sectors looks the same, and an image
//! file does not say which it is.
//!
//! Each boot record of the chain must lie within the extended partition and after the one before,
//! so that a chain ends.

use super::types::{Partition, PartitionTable, PartitionType, TableKind, le32, read_bytes};
use crate::device::Device;
use papilio_format::PhysicalAddress;
use std::io;

const SECTOR: u64 = 512;
/// The offset of the four entries.
const ENTRIES: usize = 446;
const ENTRY_SIZE: usize = 16;
/// The offset of the disk's signature, which names partitions.
const DISK_SIGNATURE: usize = 440;
/// The types of extended partitions: DOS, with LBA, and Linux.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The type of the one partition of a protective MBR.
const PROTECTIVE: u8 = 0xee;
/// The number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// The most logical partitions; the kernel has minor numbers for fewer.
const MAX_LOGICAL: u32 = 256;

/// An entry as it is on disk, in sectors.
#[derive(Clone, Copy, Debug)]
struct MbrEntry {
    kind: u8,
    start: u64,
    sectors: u64,
}

impl MbrEntry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors > 0
    }

    fn is_extended(&self) -> bool {
        self.is_used() && EXTENDED.contains(&self.kind)
    }
}

/// Parses the four entries of a boot record; `None` if it has no signature, or is none.
fn parse(bytes: &[u8]) -> Option<[MbrEntry; 4]> {
    if bytes.len() < SECTOR as usize || bytes[510..512] != [0x55, 0xaa] {
        return None;
    }
    let entry = |index: usize| &bytes[ENTRIES + index * ENTRY_SIZE..][..ENTRY_SIZE];
    // The active flag is the one byte that has two values only: a boot sector of a file system has
    // code or text in its place.
    if (0..4).any(|index| entry(index)[0] & 0x7f != 0) {
        return None;
    }
    Some(std::array::from_fn(|index| {
        let bytes = entry(index);
        MbrEntry { kind: bytes[4], start: le32(bytes, 8).into(), sectors: le32(bytes, 12).into() }
    }))
}

/// Returns whether the bytes of a first sector are a boot record with a partition.
pub(crate) fn is_table(first_sector: &[u8]) -> bool {
    parse(first_sector).is_some_and(|entries| entries.iter().any(MbrEntry::is_used))
}

/// Reads the table.
pub(super) fn read(disk: &dyn Device) -> io::Result<Option<PartitionTable>> {
    let Some(bytes) = read_bytes(disk, 0, SECTOR as usize)? else { return Ok(None) };
    let Some(entries) = parse(&bytes) else { return Ok(None) };
    if !entries.iter().any(MbrEntry::is_used) {
        return Ok(None);
    }
    let signature = le32(&bytes, DISK_SIGNATURE);
    let mut table = PartitionTable {
        kind: TableKind::Mbr,
        sector_size: SECTOR,
        partitions: Vec::new(),
        faults: Vec::new(),
    };
    for (entry, number) in entries.iter().zip(1..) {
        if entry.kind == PROTECTIVE {
            table
                .faults
                .push("the MBR says that there is a GPT, and neither of its copies is good".to_owned());
        } else if entry.is_used() && !entry.is_extended() {
            table.partitions.push(partition(*entry, 0, number, signature));
        }
    }
    if let Some(extended) = entries.iter().find(|entry| entry.is_extended()) {
        add_logical(disk, *extended, signature, &mut table)?;
    }
    Ok(Some(table))
}

/// Follows the chain of boot records in the extended partition.
fn add_logical(
    disk: &dyn Device,
    extended: MbrEntry,
    signature: u32,
    table: &mut PartitionTable,
) -> io::Result<()> {
    let mut at = extended.start;
    let mut number = FIRST_LOGICAL;
    for _ in 0..MAX_LOGICAL {
        let Some(bytes) = read_bytes(disk, at * SECTOR, SECTOR as usize)? else {
            table.faults.push(format!("the boot record at sector {at} is past the end of the disk"));
            return Ok(());
        };
        let Some(entries) = parse(&bytes) else {
            // An extended partition without logical ones may have none.
            if at != extended.start {
                table.faults.push(format!("there is no boot record at sector {at}"));
            }
            return Ok(());
        };
        // The first entry is relative to this record, the next record to the extended partition.
        let [first, next, ..] = entries;
        if first.is_used() && !first.is_extended() {
            table.partitions.push(partition(first, at, number, signature));
            number += 1;
        }
        if !next.is_extended() {
            return Ok(());
        }
        let following = extended.start + next.start;
        if following <= at || next.start >= extended.sectors {
            table.faults.push(format!(
                "the boot record at sector {at} names sector {following} as the next one, which is before it or \
                 outside of the extended partition"
            ));
            return Ok(());
        }
        at = following;
    }
    table.faults.push(format!("there are more than {MAX_LOGICAL} logical partitions"));
    Ok(())
}

/// Returns the partition of an entry whose start counts from sector `base`.
fn partition(entry: MbrEntry, base: u64, number: u32, signature: u32) -> Partition {
    Partition {
        number,
        // All are below 2^34 sectors.
        start: PhysicalAddress((base + entry.start) * SECTOR),
        length: entry.sectors * SECTOR,
        kind: PartitionType::Byte(entry.kind),
        label: String::new(),
        uuid: format!("{signature:08x}-{number:02x}"),
    }
}

//! Partition tables: GPT and MBR with logical partitions.
//!
//! Owns [`PartitionTable`] and [`Partition`]. The tables are read only, never written.
//!
//! **Invariants**
//! - Each partition lies within the disk when the table has been read; others are left out and
//!   reported as a fault.
//! - Reading takes bounded memory and a bounded number of requests, whatever the disk says.
//!
//! Kernel counterparts: block/partitions/efi.c, block/partitions/msdos.c.

mod gpt;
mod mbr;

use crate::device::Device;
use papilio_format::{PhysicalAddress, Uuid};
use std::fmt;
use std::io;

/// The sector sizes that tables are looked for with, in bytes.
const SECTOR_SIZES: [u64; 2] = [512, 4096];

/// The kind of a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// A GUID partition table.
    Gpt,
    /// A master boot record, with the chain of logical partitions.
    Mbr,
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        })
    }
}

/// The type of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartitionType {
    /// The type's GUID, of a GPT partition.
    Guid(Uuid),
    /// The system byte, of an MBR partition.
    Byte(u8),
}

impl fmt::Display for PartitionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guid(guid) => write!(f, "{guid}"),
            Self::Byte(byte) => write!(f, "0x{byte:02x}"),
        }
    }
}

/// A partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The kernel's number, from 1 on. Logical partitions of an MBR start at 5.
    pub number: u32,
    /// The start, in bytes from the start of the disk.
    pub start: PhysicalAddress,
    /// The length in bytes.
    pub length: u64,
    /// The type.
    pub kind: PartitionType,
    /// The partition's name in a GPT; empty in an MBR.
    pub label: String,
    /// The partition's UUID as `PARTUUID=` has it: of an MBR, the disk's signature and the number.
    pub uuid: String,
}

/// The partitions of a disk, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// The kind of the table.
    pub kind: TableKind,
    /// The size of the disk's sectors in bytes.
    pub sector_size: u64,
    /// The partitions, without empty entries.
    pub partitions: Vec<Partition>,
    /// What is wrong with the table, one line each. It can be used nevertheless.
    pub faults: Vec<String>,
}

impl PartitionTable {
    /// Reads the partition table of a disk; returns `None` if there is none. An MBR without
    /// partitions is none, since a boot sector looks the same.
    ///
    /// # Errors
    /// The host's error.
    pub fn read(disk: &dyn Device) -> io::Result<Option<Self>> {
        for sector_size in SECTOR_SIZES {
            if let Some(table) = gpt::read(disk, sector_size)? {
                return Ok(Some(table.checked(disk.size())));
            }
        }
        Ok(mbr::read(disk)?.map(|table| table.checked(disk.size())))
    }

    /// Leaves out the partitions that do not lie within the disk, and reports those that overlap.
    fn checked(mut self, disk_size: u64) -> Self {
        let mut kept: Vec<Partition> = Vec::new();
        for partition in self.partitions {
            let number = partition.number;
            let end = partition.start.checked_add(partition.length);
            if partition.length == 0 {
                self.faults.push(format!("partition {number} ends before it starts"));
            } else if end.is_none_or(|end| end.get() > disk_size) {
                self.faults
                    .push(format!("partition {number} reaches past the end of the disk at {disk_size}"));
            } else {
                if let Some(other) = kept.iter().find(|other| other.overlaps(&partition)) {
                    self.faults.push(format!("partitions {} and {number} overlap", other.number));
                }
                kept.push(partition);
            }
        }
        kept.sort_by_key(|partition| partition.number);
        self.partitions = kept;
        self
    }
}

impl Partition {
    fn overlaps(&self, other: &Self) -> bool {
        let end = |partition: &Self| partition.start.get().saturating_add(partition.length);
        self.start.get() < end(other) && other.start.get() < end(self)
    }
}

/// Reads `length` bytes at an offset; `None` if the disk ends before.
fn read_bytes(disk: &dyn Device, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    if offset.checked_add(length as u64).is_none_or(|end| end > disk.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    disk.read_at(&mut bytes, PhysicalAddress(offset))?;
    Ok(Some(bytes))
}

/// Returns whether the start of a disk has the signature of a GPT, good or not.
pub(crate) fn gpt_signature(start: &[u8]) -> bool {
    gpt::has_signature(start)
}

/// Returns whether the start of a disk is an MBR with a partition.
pub(crate) fn is_mbr(start: &[u8]) -> bool {
    mbr::is_table(start)
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests;

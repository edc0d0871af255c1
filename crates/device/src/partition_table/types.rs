//! The types of partition tables, and their checks against the disk.
//!
//! Owns [`PartitionTable`], [`Partition`] and their parts.

use crate::device::Device;
use papilio_format::{PhysicalAddress, Uuid};
use std::fmt;
use std::io;

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
    /// The faults of the table, one line each. It can be used nevertheless.
    pub faults: Vec<String>,
}

impl PartitionTable {
    /// Leaves out the partitions that do not lie within the disk, and reports those that overlap.
    pub(super) fn checked(mut self, disk_size: u64) -> Self {
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
pub(super) fn read_bytes(disk: &dyn Device, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    if offset.checked_add(length as u64).is_none_or(|end| end > disk.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    disk.read_at(&mut bytes, PhysicalAddress(offset))?;
    Ok(Some(bytes))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

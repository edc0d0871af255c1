//! Partition tables: GPT and MBR with logical partitions.
//!
//! Owns [`PartitionTable`] and [`Partition`]. The tables are read only, never written.
//!
//! **Invariants**
//! - Each partition lies within the disk when the table has been read; others are left out and
//!   reported as a fault.
//! - Reading takes bounded memory and a bounded number of requests, even of a bad disk.
//!
//! Kernel counterparts: block/partitions/efi.c, block/partitions/msdos.c.

mod gpt;
mod mbr;
mod types;

pub use types::{Partition, PartitionTable, PartitionType, TableKind};

use crate::device::Device;
use std::io;

/// The sector sizes that tables are looked for with, in bytes.
const SECTOR_SIZES: [u64; 2] = [512, 4096];

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
}

/// Returns whether the start of a disk has the signature of a GPT, good or not.
pub(crate) fn gpt_signature(start: &[u8]) -> bool {
    gpt::has_signature(start)
}

/// Returns whether the start of a disk is an MBR with a partition.
pub(crate) fn is_mbr(start: &[u8]) -> bool {
    mbr::is_table(start)
}

#[cfg(test)]
mod tests;

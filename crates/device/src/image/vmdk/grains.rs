//! Changes of a sparse VMDK file when grains are added.
//!
//! Owns [`GrainTables`]: the places of the tables, and those of the two marks that change with the
//! content, the content identifier and the mark of an unclean shutdown.

use super::super::sparse::Tables;
use super::content::{ContentId, fault};
use super::header::{SECTOR, SparseHeader};
use crate::device::Device;
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use std::io;

/// The offset of `uncleanShutdown` in the header: 1 while a program has the file open for writing.
const UNCLEAN: PhysicalAddress = PhysicalAddress(72);

/// The tables of a sparse file.
#[derive(Debug)]
pub(super) struct GrainTables {
    entries_per_table: u64,
    /// The sectors of the tables of each copy, the redundant copy first.
    copies: Vec<Vec<u32>>,
    /// The descriptor inside of the file, if there is one.
    content: Option<ContentId>,
}

impl GrainTables {
    /// Reads the places that a writer changes. `tables` are those of the first directory.
    pub(super) fn new(
        file: &dyn Device,
        header: &SparseHeader,
        tables: Vec<u32>,
    ) -> Result<Self, OpenErrorKind> {
        let redundant = header.redundant.map(|sector| header.directory(file, sector)).transpose()?;
        let copies: Vec<_> = redundant.into_iter().chain([tables]).collect();
        let mut sectors: Vec<u64> = copies.iter().flatten().map(|sector| u64::from(*sector)).collect();
        sectors.sort_unstable();
        if sectors.first() == Some(&0) {
            return Err(fault("some of its grain tables are absent, so it can only be opened for reading"));
        }
        let length = (u64::from(header.entries_per_table) * 4).div_ceil(SECTOR);
        let apart = sectors.windows(2).all(|pair| pair[1] - pair[0] >= length);
        if !apart || sectors.last().is_some_and(|last| last + length > header.overhead) {
            return Err(fault("its grain tables overlap, or are behind its first grains"));
        }
        let content = match header.descriptor {
            Some((place, length)) => ContentId::find(file, place, length)?,
            None => None,
        };
        Ok(Self { entries_per_table: header.entries_per_table.into(), copies, content })
    }
}

impl Tables for GrainTables {
    fn begin(&self, file: &dyn Device) -> io::Result<()> {
        if let Some(content) = &self.content {
            content.renew(file)?;
        }
        file.write_at(&[1], UNCLEAN)?;
        file.flush()
    }

    fn record(&self, file: &dyn Device, placed: &[(u64, u32)]) -> io::Result<()> {
        // One write for grains that follow one another in one table.
        let follow = |a: &(u64, u32), b: &(u64, u32)| {
            b.0 == a.0 + 1 && b.0 / self.entries_per_table == a.0 / self.entries_per_table
        };
        for tables in &self.copies {
            for run in placed.chunk_by(follow) {
                let (table, entry) = (run[0].0 / self.entries_per_table, run[0].0 % self.entries_per_table);
                let place = u64::from(tables[table as usize]) * SECTOR + entry * 4;
                let bytes: Vec<u8> = run.iter().flat_map(|(_, sector)| sector.to_le_bytes()).collect();
                file.write_at(&bytes, PhysicalAddress(place))?;
            }
        }
        Ok(())
    }

    fn end(&self, file: &dyn Device) -> io::Result<()> {
        file.write_at(&[0], UNCLEAN)
    }
}

//! The header of a sparse VMDK file, and its grain directory and tables.
//!
//! Owns [`SparseHeader`]. A grain directory names grain tables, and their entries name grains of
//! usually 64 KiB. The tables are read once, when the image is opened.
//!
//! **Invariant**: grains have 4 KiB to 1 MiB, and the tables at most [`MAX_TABLES`] bytes.

use super::super::blocks::read_range;
use super::super::sparse::MAX_TABLES;
use super::content::{fault, refuse_parents};
use crate::device::Device;
use crate::error::OpenErrorKind;

pub(super) const SECTOR: u64 = 512;
const HEADER_SIZE: u64 = 512;
/// Sizes of grains that are accepted, in sectors.
const GRAIN_SECTORS: std::ops::RangeInclusive<u64> = 8..=2048;
/// The value of `gdOffset` that says that the true header is at the end of the file.
const AT_END: u64 = u64::MAX;
/// The entry of a grain that reads as zeros.
pub(super) const ZERO_GRAIN: u32 = 1;
/// There is a second copy of directory and tables.
const FLAG_REDUNDANT: u32 = 1 << 1;
const FLAG_COMPRESSED: u32 = 1 << 16;
/// The most bytes of a descriptor that are read.
const MAX_DESCRIPTOR: u64 = 64 << 10;

/// The header of a sparse file.
#[derive(Debug)]
pub(super) struct SparseHeader {
    flags: u32,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a grain.
    pub grain: u64,
    /// Place and length in bytes of the descriptor inside of the file, if there is one.
    pub descriptor: Option<(u64, u64)>,
    pub entries_per_table: u32,
    /// Sector of the grain directory.
    directory: u64,
    /// Sector of the second directory, if there is one.
    pub redundant: Option<u64>,
    /// Sectors in front of the first grain.
    pub overhead: u64,
    /// Whether the true header is at the end of the file.
    pub at_end: bool,
}

/// The entries of all grain tables.
pub(super) struct Grains {
    /// The sector of each grain; 0 or [`ZERO_GRAIN`] for one without data.
    pub places: Vec<u32>,
    /// The sector of each table; 0 for an absent one.
    pub tables: Vec<u32>,
}

impl SparseHeader {
    /// Reads the header of an image and checks it. Refuses an image that needs a parent.
    pub(super) fn open(file: &dyn Device) -> Result<Self, OpenErrorKind> {
        let mut header = Self::read(file, 0)?;
        if let Some((place, length)) = header.descriptor {
            let bytes = read_range(file, place, length.min(MAX_DESCRIPTOR));
            let bytes = bytes.map_err(|_| fault("its descriptor is outside of the file"))?;
            refuse_parents(&String::from_utf8_lossy(&bytes))?;
        }
        if header.directory == AT_END {
            // A footer and the marker of the end of the stream are last.
            let footer = file.size().checked_sub(2 * SECTOR).ok_or_else(|| fault("it is truncated"))?;
            header = Self { at_end: true, ..Self::read(file, footer)? };
        }
        Ok(header)
    }

    fn read(file: &dyn Device, offset: u64) -> Result<Self, OpenErrorKind> {
        let bytes = read_range(file, offset, HEADER_SIZE).map_err(|_| fault("it is truncated"))?;
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let version = u32_at(4);
        if !bytes.starts_with(b"KDMV") || !(1..=3).contains(&version) {
            return Err(fault(format!("its header is damaged, or its version {version} is not known")));
        }
        let (flags, grain_sectors, entries_per_table) = (u32_at(8), u64_at(20), u32_at(44));
        let compression = u16::from_le_bytes([bytes[77], bytes[78]]);
        if !GRAIN_SECTORS.contains(&grain_sectors)
            || !grain_sectors.is_power_of_two()
            || !(1..=4096).contains(&entries_per_table)
            || flags & FLAG_COMPRESSED != 0 && compression != 1
        {
            return Err(fault("its header has unusual sizes, or another compression than deflate"));
        }
        let in_bytes = |sectors: u64, of: &str| {
            sectors.checked_mul(SECTOR).ok_or_else(|| fault(format!("the size of its {of} is wrong")))
        };
        let size = in_bytes(u64_at(12), "disk")?;
        let place = (in_bytes(u64_at(28), "descriptor")?, in_bytes(u64_at(36), "descriptor")?);
        in_bytes(u64_at(64), "header")?;
        Ok(Self {
            flags,
            size,
            grain: grain_sectors * SECTOR,
            descriptor: (place.0 != 0 && place.1 != 0).then_some(place),
            entries_per_table,
            directory: u64_at(56),
            redundant: (flags & FLAG_REDUNDANT != 0).then(|| u64_at(48)),
            overhead: u64_at(64),
            at_end: false,
        })
    }

    /// Returns whether the grains are compressed.
    pub(super) fn compressed(&self) -> bool {
        self.flags & FLAG_COMPRESSED != 0
    }

    /// Returns the number of grains, whose tables have at most [`MAX_TABLES`] bytes.
    fn count(&self) -> Result<u64, OpenErrorKind> {
        let count = self.size.div_ceil(self.grain);
        match count.checked_mul(4) {
            Some(bytes) if bytes <= MAX_TABLES => Ok(count),
            _ => Err(fault("its grain tables are too large")),
        }
    }

    /// Reads a grain directory: the sector of each table.
    pub(super) fn directory(&self, file: &dyn Device, sector: u64) -> Result<Vec<u32>, OpenErrorKind> {
        entries(file, sector, self.count()?.div_ceil(self.entries_per_table.into()))
    }

    /// Reads all tables.
    pub(super) fn grains(&self, file: &dyn Device) -> Result<Grains, OpenErrorKind> {
        let count = self.count()?;
        let tables = self.directory(file, self.directory)?;
        let mut places = Vec::new();
        for table in &tables {
            let wanted = u64::from(self.entries_per_table).min(count - places.len() as u64);
            match *table {
                0 => places.resize(places.len() + wanted as usize, 0),
                sector => places.extend(entries(file, sector.into(), wanted)?),
            }
        }
        Ok(Grains { places, tables })
    }
}

fn entries(file: &dyn Device, sector: u64, count: u64) -> Result<Vec<u32>, OpenErrorKind> {
    let outside = || fault("its grain tables are outside of the file");
    let place = sector.checked_mul(SECTOR).ok_or_else(outside)?;
    let bytes = read_range(file, place, count * 4).map_err(|_| outside())?;
    Ok(bytes
        .chunks_exact(4)
        .map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
        .collect())
}

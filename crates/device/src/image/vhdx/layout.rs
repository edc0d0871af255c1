//! The regions of a VHDX file, and the sizes of its disk.
//!
//! Owns [`Layout`], from the region tables and the metadata. The source is [MS-VHDX] 2.2.3 and 2.6.
//!
//! **Invariants**
//! - A region table with a wrong checksum is not used; there is a second copy.
//! - Blocks have 1 to 256 MiB, and the table of blocks at most [`MAX_TABLES`] bytes.

use super::super::blocks::read_range;
use super::super::sparse::MAX_TABLES;
use super::header::{Guid, Header, fault, guid_at, is_valid, u32_at, u64_at};
use super::log::Log;
use crate::device::Device;
use crate::error::OpenErrorKind;

pub(super) const MIB: u64 = 1 << 20;
/// The offsets of the two region tables, and their size.
const REGION_TABLES: [u64; 2] = [192 << 10, 256 << 10];
const REGION_TABLE_SIZE: u64 = 64 << 10;
/// The most bytes of metadata that are read: the table and the small items.
const METADATA_SIZE: u64 = 1 << 20;
/// The largest disk, in bytes.
const MAX_DISK: u64 = 64 << 40;

const fn guid(text: u128) -> Guid {
    // The first three fields are stored as little-endian numbers.
    let b = text.to_be_bytes();
    [b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]
}

const BLOCK_TABLE: Guid = guid(0x2DC2_7766_F623_4200_9D64_115E_9BFD_4A08);
const METADATA: Guid = guid(0x8B7C_A206_4790_4B9A_B8FE_575F_050F_886E);
const FILE_PARAMETERS: Guid = guid(0xCAA1_6737_FA36_4D43_B3B6_33F0_AA44_E76B);
const DISK_SIZE: Guid = guid(0x2FA5_4224_CD1B_4876_B211_5DBE_D83B_F4B8);
const SECTOR_SIZE: Guid = guid(0x8141_BF1D_A96F_4709_BA47_F233_A8FA_AB5F);
const PHYSICAL_SECTOR_SIZE: Guid = guid(0xCDA3_48C7_445D_4471_9CC9_E988_5251_C556);
const DISK_ID: Guid = guid(0xBECA_12AB_B2E6_4523_93EF_C309_E000_C746);
const PARENT_LOCATOR: Guid = guid(0xA8D3_5F2D_B30B_454D_ABF7_D3D8_4834_AB0C);

/// The regions of the file, and the sizes of the disk.
#[derive(Debug)]
pub(super) struct Layout {
    /// Place and length in bytes.
    pub table: (u64, u64),
    metadata: (u64, u64),
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a block.
    pub block: u64,
    /// Table entries of blocks between two of sector bitmaps.
    pub ratio: u64,
}

impl Layout {
    /// Reads the region tables and the metadata.
    pub(super) fn read(file: &dyn Device, log: &Log) -> Result<Self, OpenErrorKind> {
        let mut regions = None;
        for place in REGION_TABLES {
            let mut bytes =
                read_range(file, place, REGION_TABLE_SIZE).map_err(|_| fault("it is truncated"))?;
            log.patch(place, &mut bytes);
            if regions.is_none() && is_valid(&bytes, b"regi") {
                regions = Some(bytes);
            }
        }
        let regions = regions.ok_or_else(|| fault("both of its region tables are damaged"))?;
        let (mut table, mut metadata) = (None, None);
        let count = u32_at(&regions, 8) as usize;
        if count > 2047 {
            return Err(fault("its region table is damaged"));
        }
        for entry in regions[16..].chunks_exact(32).take(count) {
            let place = (u64_at(entry, 16), u64::from(u32_at(entry, 24)));
            match guid_at(entry, 0) {
                BLOCK_TABLE => table = Some(place),
                METADATA => metadata = Some(place),
                _ if entry[28] & 1 != 0 => return Err(fault("it needs a region that is not known")),
                _ => {}
            }
        }
        let (Some(table), Some(metadata)) = (table, metadata) else {
            return Err(fault("it has no table of blocks, or no metadata"));
        };
        if table.1 > MAX_TABLES {
            return Err(fault("its table of blocks is too large"));
        }
        let length = metadata.1.min(METADATA_SIZE);
        let mut bytes =
            read_range(file, metadata.0, length).map_err(|_| fault("its metadata is outside of the file"))?;
        log.patch(metadata.0, &mut bytes);
        let (size, block, ratio) = sizes(&bytes)?;
        Ok(Self { table, metadata, size, block, ratio })
    }

    /// Returns the regions that have no blocks, as place and length in bytes.
    pub(super) fn regions(&self, header: &Header) -> [(u64, u64); 4] {
        [(0, MIB), self.table, self.metadata, header.log]
    }
}

/// Reads the sizes from the metadata: of the disk, of a block, and the ratio of a chunk.
fn sizes(metadata: &[u8]) -> Result<(u64, u64, u64), OpenErrorKind> {
    let damaged = || fault("its metadata is damaged");
    if metadata.len() < 64 << 10 || !metadata.starts_with(b"metadata") {
        return Err(damaged());
    }
    let count = usize::from(u16::from_le_bytes([metadata[10], metadata[11]]));
    let (mut parameters, mut size, mut sector) = (None, None, None);
    for entry in metadata[32..64 << 10].chunks_exact(32).take(count) {
        let (place, length) = (u32_at(entry, 16) as usize, u32_at(entry, 20) as usize);
        let item = |wanted: usize| match metadata.get(place..place.saturating_add(wanted)) {
            Some(item) if length >= wanted => Ok(item),
            _ => Err(damaged()),
        };
        match guid_at(entry, 0) {
            FILE_PARAMETERS => parameters = Some((u32_at(item(8)?, 0), u32_at(item(8)?, 4))),
            DISK_SIZE => size = Some(u64_at(item(8)?, 0)),
            SECTOR_SIZE => sector = Some(u32_at(item(4)?, 0)),
            PHYSICAL_SECTOR_SIZE | DISK_ID | PARENT_LOCATOR => {}
            // Bit 2: a program that does not know the item must not use the file.
            _ if entry[24] & 4 != 0 => return Err(fault("it needs metadata that is not known")),
            _ => {}
        }
    }
    let (Some((block, flags)), Some(size), Some(sector)) = (parameters, size, sector) else {
        return Err(damaged());
    };
    if flags & 2 != 0 {
        return Err(fault("it is the difference to another image, which is not supported"));
    }
    let (block, sector) = (u64::from(block), u64::from(sector));
    let fits = (MIB..=256 * MIB).contains(&block) && block.is_power_of_two();
    if !fits || ![512, 4096].contains(&sector) || size > MAX_DISK || size % sector != 0 {
        return Err(damaged());
    }
    Ok((size, block, (1 << 23) * sector / block))
}

//! Sparse VMDK images with one file, for reading: `monolithicSparse` and `streamOptimized`.
//!
//! Owns [`VmdkDevice`]. A grain directory names grain tables, whose entries name grains of usually
//! 64 KiB (VMware Virtual Disk Format 5.0). The tables are read once, when the image is opened.
//!
//! **Invariants**
//! - Grains have 4 KiB to 1 MiB, and the tables at most [`MAX_TABLES`] bytes.
//! - An image that needs a parent is refused.

use super::blocks::read_range;
use crate::device::{Access, Device, check_read, read_only};
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io::{self, Read};
use std::sync::Arc;

const SECTOR: u64 = 512;
const HEADER_SIZE: u64 = 512;
/// Sizes of grains that are accepted, in sectors.
const GRAIN_SECTORS: std::ops::RangeInclusive<u64> = 8..=2048;
/// The most bytes of grain tables: those of a disk of 4 TiB.
const MAX_TABLES: u64 = 256 << 20;
/// The value of `gdOffset` that says that the true header is at the end of the file.
const AT_END: u64 = u64::MAX;
/// A grain that reads as zeros.
const ZERO_GRAIN: u32 = 1;
const FLAG_COMPRESSED: u32 = 1 << 16;
/// Bytes of a compressed grain before its data: its sector and its size.
const MARKER: u64 = 12;

/// The disk in a sparse VMDK.
#[derive(Debug)]
pub(super) struct VmdkDevice {
    file: Arc<dyn Device>,
    size: u64,
    /// Bytes.
    grain: u64,
    compressed: bool,
    /// The sector of each grain in the file; 0 or 1 for one of zeros.
    grains: Vec<u32>,
    /// The grain that was decompressed last.
    last: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

struct Header {
    flags: u32,
    capacity: u64,
    grain_sectors: u64,
    descriptor: (u64, u64),
    entries_per_table: u32,
    directory: u64,
    compression: u16,
}

fn fault(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Image { format: "vmdk", reason: reason.into() }
}

impl Header {
    fn read(file: &dyn Device, offset: u64) -> Result<Self, OpenErrorKind> {
        let bytes = read_range(file, offset, HEADER_SIZE).map_err(|_| fault("it is truncated"))?;
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let version = u32_at(4);
        if !bytes.starts_with(b"KDMV") || !(1..=3).contains(&version) {
            return Err(fault(format!("its header is damaged, or its version {version} is not known")));
        }
        Ok(Self {
            flags: u32_at(8),
            capacity: u64_at(12),
            grain_sectors: u64_at(20),
            descriptor: (u64_at(28), u64_at(36)),
            entries_per_table: u32_at(44),
            directory: u64_at(56),
            compression: u16::from_le_bytes([bytes[77], bytes[78]]),
        })
    }
}

/// Opens a sparse image.
pub(super) fn open(file: Arc<dyn Device>) -> Result<VmdkDevice, OpenErrorKind> {
    let mut header = Header::read(&*file, 0)?;
    refuse_parents(&*file, header.descriptor)?;
    if header.directory == AT_END {
        // A footer and the marker of the end of the stream are last.
        let footer = file.size().checked_sub(2 * SECTOR).ok_or_else(|| fault("it is truncated"))?;
        header = Header::read(&*file, footer)?;
    }
    let compressed = header.flags & FLAG_COMPRESSED != 0;
    if !GRAIN_SECTORS.contains(&header.grain_sectors)
        || !header.grain_sectors.is_power_of_two()
        || header.entries_per_table == 0
        || header.entries_per_table > 4096
        || compressed && header.compression != 1
    {
        return Err(fault("its header has unusual sizes, or another compression than deflate"));
    }
    let size = header.capacity.checked_mul(SECTOR).ok_or_else(|| fault("its size is wrong"))?;
    let grains = read_tables(&*file, &header)?;
    let grain = header.grain_sectors * SECTOR;
    Ok(VmdkDevice { file, size, grain, compressed, grains, last: Mutex::default() })
}

/// Refuses an image whose descriptor says that it is the difference to another one.
fn refuse_parents(file: &dyn Device, (sector, count): (u64, u64)) -> Result<(), OpenErrorKind> {
    if sector == 0 || count == 0 {
        return Ok(());
    }
    let place = sector.checked_mul(SECTOR).ok_or_else(|| fault("its descriptor is outside of the file"))?;
    let bytes = read_range(file, place, count.min(128) * SECTOR);
    let bytes = bytes.map_err(|_| fault("its descriptor is outside of the file"))?;
    let text = String::from_utf8_lossy(&bytes);
    let parent = text.lines().find_map(|line| line.trim().strip_prefix("parentCID="));
    if parent.is_some_and(|parent| !parent.trim().eq_ignore_ascii_case("ffffffff")) {
        return Err(fault("it is the difference to another image, which is not supported"));
    }
    Ok(())
}

fn read_tables(file: &dyn Device, header: &Header) -> Result<Vec<u32>, OpenErrorKind> {
    let outside = || fault("its grain tables are outside of the file");
    let count = header.capacity.div_ceil(header.grain_sectors);
    if count.checked_mul(4).is_none_or(|bytes| bytes > MAX_TABLES) {
        return Err(fault("its grain tables are too large"));
    }
    let per_table = u64::from(header.entries_per_table);
    let read = |sector: u64, entries: u64| -> Result<Vec<u32>, OpenErrorKind> {
        let place = sector.checked_mul(SECTOR).ok_or_else(outside)?;
        let bytes = read_range(file, place, entries * 4).map_err(|_| outside())?;
        Ok(bytes
            .chunks_exact(4)
            .map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
            .collect())
    };
    let directory = read(header.directory, count.div_ceil(per_table))?;
    let mut grains = Vec::new();
    for table in directory {
        let wanted = per_table.min(count - grains.len() as u64);
        match table {
            0 => grains.resize(grains.len() + wanted as usize, 0),
            sector => grains.extend(read(sector.into(), wanted)?),
        }
    }
    Ok(grains)
}

impl VmdkDevice {
    /// Reads bytes of one grain.
    fn read_grain(&self, index: u64, skip: u64, buffer: &mut [u8]) -> io::Result<()> {
        let sector = self.grains[index as usize];
        if sector <= ZERO_GRAIN {
            buffer.fill(0);
            return Ok(());
        }
        let place = u64::from(sector) * SECTOR;
        if !self.compressed {
            return self.file.read_at(buffer, PhysicalAddress(place + skip));
        }
        let known = self.last.lock().clone().filter(|(known, _)| *known == index);
        let bytes = match known {
            Some((_, bytes)) => bytes,
            None => {
                let bytes = Arc::new(self.inflate(place)?);
                *self.last.lock() = Some((index, Arc::clone(&bytes)));
                bytes
            }
        };
        let skip = skip as usize;
        let found = bytes.get(skip..skip + buffer.len());
        let found =
            found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a grain is too short"))?;
        buffer.copy_from_slice(found);
        Ok(())
    }

    fn inflate(&self, place: u64) -> io::Result<Vec<u8>> {
        let marker = read_range(&*self.file, place, MARKER)?;
        let packed = u64::from(u32::from_le_bytes([marker[8], marker[9], marker[10], marker[11]]));
        if packed > 2 * self.grain {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a compressed grain is too large"));
        }
        let packed = read_range(&*self.file, place + MARKER, packed)?;
        let mut bytes = Vec::with_capacity(self.grain as usize);
        flate2::read::ZlibDecoder::new(&packed[..]).take(self.grain).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Device for VmdkDevice {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.get() + done as u64;
            let skip = at % self.grain;
            let length = ((self.grain - skip) as usize).min(buffer.len() - done);
            self.read_grain(at / self.grain, skip, &mut buffer[done..done + length])?;
            done += length;
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        Err(read_only())
    }
}

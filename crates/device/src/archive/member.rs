//! `ArchiveMember`: a device of the file system in a chain of archives, for reading.
//!
//! Owns the order in which the bytes of a device are looked up: superblocks, the boot area, stripes
//! of chunks, and zeros for the rest. Parity is computed from the data.

use super::chain::ArchiveChain;
use super::error::ArchiveError;
use super::place::{Place, StripeTable, add_column};
use crate::device::{Access, Device, check_read, read_only};
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{LogicalAddress, PhysicalAddress};
use std::io;
use std::sync::Arc;

/// A device that exists in an archive only.
#[derive(Debug)]
struct ArchiveMember {
    chain: Arc<ArchiveChain>,
    name: String,
    size: u64,
    stripes: StripeTable,
    /// Offsets and bytes that come from no stripe: superblocks first, then the boot area.
    fixed: Vec<(u64, Vec<u8>)>,
}

impl ArchiveChain {
    /// Returns the devices of the file system, by their ids. They are open for reading.
    ///
    /// # Errors
    /// A boot area that cannot be read.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<Arc<dyn Device>>, ArchiveError> {
        let count = self.newest().map().devices().len();
        (0..count).map(|device| Ok(Arc::new(ArchiveMember::new(self, device)?) as Arc<dyn Device>)).collect()
    }
}

impl ArchiveMember {
    fn new(chain: &Arc<ArchiveChain>, device: usize) -> Result<Self, ArchiveError> {
        let newest = chain.newest();
        let map = newest.map();
        let item = map.devices()[device];
        let name = match map.devices().len() {
            1 => newest.name().to_owned(),
            _ => format!("{}@{}", newest.name(), item.devid),
        };
        let mut fixed = Vec::new();
        let superblock = map.superblock_of(device);
        for place in (0..SUPERBLOCK_MIRRORS).map(superblock_offset) {
            if place.0 + (SUPERBLOCK_SIZE as u64) < item.total_bytes {
                fixed.push((place.0, superblock.to_bytes(place).to_vec()));
            }
        }
        fixed.extend(newest.boot(device)?);
        let stripes = StripeTable::new(map, device);
        Ok(Self { chain: Arc::clone(chain), name, size: item.total_bytes, stripes, fixed })
    }

    /// Reads from an offset on what comes from one place. Returns the bytes that were read.
    fn read_part(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let mut limit = buffer.len() as u64;
        for (start, bytes) in &self.fixed {
            let end = start + bytes.len() as u64;
            if (*start..end).contains(&offset) {
                let skip = (offset - start) as usize;
                let length = limit.min(end - offset) as usize;
                buffer[..length].copy_from_slice(&bytes[skip..skip + length]);
                return Ok(length);
            }
            if *start > offset {
                limit = limit.min(start - offset);
            }
        }
        let (place, length) = self.stripes.find(self.chain.newest().map(), offset, limit);
        let buffer = &mut buffer[..length as usize];
        match place {
            Place::Free => buffer.fill(0),
            Place::Logical(address) => self.chain.read(LogicalAddress(address), buffer)?,
            Place::Parity { first, columns, q } => {
                buffer.fill(0);
                let mut column = vec![0; buffer.len()];
                for number in (0..columns as u64).rev() {
                    self.chain
                        .read(LogicalAddress(first.saturating_add(number * STRIPE_LENGTH)), &mut column)?;
                    add_column(buffer, &column, q);
                }
            }
        }
        Ok(length as usize)
    }
}

impl Device for ArchiveMember {
    fn name(&self) -> &str {
        &self.name
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
            done += self.read_part(offset.get() + done as u64, &mut buffer[done..])?;
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

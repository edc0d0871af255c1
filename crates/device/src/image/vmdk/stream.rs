//! `StreamDevice`: the disk in a VMDK with compressed grains, `streamOptimized`, for reading.
//!
//! Owns the place of each grain, and the grain that was decompressed last.
//!
//! **Lock**: `last`, held for a lookup or to put a grain there. Grains are decompressed without it,
//! so two threads may decompress one grain.

use super::super::blocks::read_range;
use super::super::sparse::parts;
use super::header::{SECTOR, SparseHeader, ZERO_GRAIN};
use crate::device::{Access, Device, check_read, read_only};
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io::{self, Read};
use std::sync::Arc;

/// Bytes of a compressed grain before its data: its sector and its size.
const MARKER: u64 = 12;

/// The disk in an image with compressed grains.
#[derive(Debug)]
pub(super) struct StreamDevice {
    file: Arc<dyn Device>,
    size: u64,
    /// Bytes.
    grain: u64,
    /// The sector of each grain in the file; 0 or 1 for one of zeros.
    grains: Vec<u32>,
    /// The grain that was decompressed last.
    last: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

impl StreamDevice {
    pub(super) fn new(file: Arc<dyn Device>, header: &SparseHeader, grains: Vec<u32>) -> Self {
        Self { file, size: header.size, grain: header.grain, grains, last: Mutex::default() }
    }

    /// Reads bytes of one grain.
    fn read_grain(&self, index: u64, skip: u64, buffer: &mut [u8]) -> io::Result<()> {
        let sector = self.grains[index as usize];
        if sector <= ZERO_GRAIN {
            buffer.fill(0);
            return Ok(());
        }
        let known = self.last.lock().clone().filter(|(known, _)| *known == index);
        let bytes = match known {
            Some((_, bytes)) => bytes,
            None => {
                let bytes = Arc::new(self.inflate(u64::from(sector) * SECTOR)?);
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

impl Device for StreamDevice {
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
        parts(self.grain, offset, buffer.len() as u64, |grain, skip, done, length| {
            self.read_grain(grain, skip, &mut buffer[done as usize..][..length as usize])
        })
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

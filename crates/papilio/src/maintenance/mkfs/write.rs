//! Writes a new file system to its device.
//!
//! **Order**
//! 1. Wipe old superblocks, and flush.
//! 2. Wipe signatures of other formats, write the tree blocks, and flush.
//! 3. Write the superblock copies, and flush; then write the first copy.
//!
//! A device on which this is interrupted has no file system, and never half of one.
//!
//! Counterparts: btrfs-progs' `btrfs_prepare_device` (`common/device-utils.c`) and
//! `write_all_supers`.

use super::layout::Layout;
use crate::errors::{Error, Result};
use papilio_device::{Device, WriteRequest};
use papilio_format::PhysicalAddress;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use std::io;

/// Bytes wiped at either end of the device: boot sectors, partition tables, volume labels.
const WIPED: u64 = 1 << 20;
/// Bytes that one read checks while wiping.
const STEP: usize = 64 << 10;

/// A device whose errors name it.
struct Target<'a>(&'a dyn Device);

/// Writes the layout; with `discard`, discards the old content of the device first.
pub(super) fn write(device: &dyn Device, layout: &Layout, discard: bool) -> Result<()> {
    let target = Target(device);
    let total_bytes = layout.superblock.raw.total_bytes;
    for mirror in 0..SUPERBLOCK_MIRRORS {
        target.wipe(superblock_offset(mirror).0, SUPERBLOCK_SIZE as u64)?;
    }
    target.flush()?;
    if discard {
        target.discard(total_bytes)?;
    }
    target.wipe(0, WIPED)?;
    // Signatures at the end of the device: backup partition tables, md and ZFS labels. Nothing is
    // wiped after a file system that takes only a part of the device.
    if device.size() - total_bytes < layout.superblock.raw.sector_size.into() {
        target.wipe(device.size() - WIPED, WIPED)?;
    }
    target.write_blocks(layout)?;
    target.flush()?;
    for mirror in (1..SUPERBLOCK_MIRRORS).filter(|mirror| copy_fits(*mirror, total_bytes)) {
        let place = superblock_offset(mirror);
        let bytes = layout.superblock.to_bytes(place);
        device
            .write_at(&bytes, place)
            .map_err(|source| target.failed("write", place, bytes.len(), source))?;
    }
    target.flush()?;
    let place = superblock_offset(0);
    let bytes = layout.superblock.to_bytes(place);
    device.write_fua(&bytes, place).map_err(|source| target.failed("write", place, bytes.len(), source))
}

/// Whether a device of `total_bytes` has this superblock copy.
fn copy_fits(mirror: usize, total_bytes: u64) -> bool {
    superblock_offset(mirror).0 + SUPERBLOCK_SIZE as u64 <= total_bytes
}

impl Target<'_> {
    /// Zeros a range, up to the end of the device. Skips zeros, so that a sparse image stays
    /// sparse.
    fn wipe(&self, start: u64, length: u64) -> Result<()> {
        let end = (start + length).min(self.0.size());
        let mut buffer = vec![0; STEP];
        let mut at = start;
        while at < end {
            let bytes = &mut buffer[..(end - at).min(STEP as u64) as usize];
            let place = PhysicalAddress(at);
            self.0.read_at(bytes, place).map_err(|source| self.failed("read", place, bytes.len(), source))?;
            if bytes.iter().any(|byte| *byte != 0) {
                bytes.fill(0);
                let written = self.0.write_at(bytes, place);
                written.map_err(|source| self.failed("write", place, bytes.len(), source))?;
            }
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn discard(&self, length: u64) -> Result<()> {
        match self.0.discard(PhysicalAddress(0), length) {
            // Discarding is optional.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Err(self.failed("discard", PhysicalAddress(0), length, error))
            }
            _ => Ok(()),
        }
    }

    fn write_blocks(&self, layout: &Layout) -> Result<()> {
        let copies = |(places, bytes)| {
            let places: &Vec<PhysicalAddress> = places;
            let bytes: &Vec<u8> = bytes;
            places.iter().map(|place| WriteRequest::new(*place, bytes)).collect::<Vec<_>>()
        };
        let mut requests: Vec<_> =
            layout.blocks.iter().map(|(places, bytes)| (places, bytes)).flat_map(copies).collect();
        self.0.write_many(&mut requests);
        for request in requests {
            let (place, length) = (request.offset, request.buffer.len());
            request.result.map_err(|source| self.failed("write", place, length, source))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.0.flush().map_err(|source| self.failed("flush", PhysicalAddress(0), 0, source))
    }

    fn failed(
        &self,
        operation: &'static str,
        offset: PhysicalAddress,
        length: usize,
        source: io::Error,
    ) -> Error {
        Error::Device { device: self.0.name().to_owned(), operation, offset, length, source }
    }
}

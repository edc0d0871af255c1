//! Writes a new file system to its devices.
//!
//! **Order**
//! 1. Wipe old superblocks on all devices, and flush.
//! 2. Wipe signatures of other formats, write the tree blocks to all devices, and flush.
//! 3. Write the superblock copies of all devices, and flush.
//! 4. Write the first copy to each device, to the first device last.
//!
//! Devices on which this is interrupted have no file system or one with devices missing, and never
//! half of one: a first copy exists only when all tree blocks are durable.
//!
//! Counterparts: btrfs-progs' `btrfs_prepare_device` (`common/device-utils.c`) and
//! `write_all_supers`.

use super::layout::MkfsLayout;
use papilio_device::{Device, WriteRequest, signatures};
use papilio_engine::errors::{Error, Result};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{PhysicalAddress, Superblock};
use std::io;

/// Bytes wiped at either end of the device: boot sectors, partition tables, volume labels.
const WIPED: u64 = 1 << 20;
/// Bytes of the header of another format.
const SIGNATURE_SIZE: u64 = 4096;
/// Bytes that one read checks while wiping.
const STEP: usize = 64 << 10;

/// A device whose errors name it.
struct Target<'a>(&'a dyn Device);

/// Writes the layout; with `discard`, discards the old content of the devices first.
pub(super) fn write(devices: &[&dyn Device], layout: &MkfsLayout, discard: bool) -> Result<()> {
    let targets: Vec<_> = devices.iter().map(|device| Target(*device)).collect();
    let all = || targets.iter().zip(&layout.superblocks);
    for target in &targets {
        for mirror in 0..SUPERBLOCK_MIRRORS {
            target.wipe(superblock_offset(mirror).0, SUPERBLOCK_SIZE as u64)?;
        }
        target.flush()?;
    }
    for (target, superblock) in all() {
        target.prepare(superblock, discard)?;
    }
    for (at, target) in targets.iter().enumerate() {
        target.write_blocks(layout, at)?;
    }
    targets.iter().try_for_each(Target::flush)?;
    for (target, superblock) in all() {
        let total_bytes = superblock.raw.dev_item.total_bytes;
        for mirror in (1..SUPERBLOCK_MIRRORS).filter(|mirror| copy_fits(*mirror, total_bytes)) {
            target.write_superblock(superblock, mirror, false)?;
        }
        target.flush()?;
    }
    // The first device comes last: until then a device of the set is missing.
    all().rev().try_for_each(|(target, superblock)| target.write_superblock(superblock, 0, true))
}

/// Writes the blocks and the superblock copies of a layout on one device, the first copy last, and
/// nothing else.
pub(super) fn write_only(device: &dyn Device, layout: &MkfsLayout) -> Result<()> {
    let target = Target(device);
    target.write_blocks(layout, 0)?;
    target.flush()?;
    let superblock = &layout.superblocks[0];
    let total_bytes = superblock.raw.dev_item.total_bytes;
    for mirror in (1..SUPERBLOCK_MIRRORS).filter(|mirror| copy_fits(*mirror, total_bytes)) {
        target.write_superblock(superblock, mirror, false)?;
    }
    target.write_superblock(superblock, 0, true)
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

    /// Removes the old content, except for superblocks.
    fn prepare(&self, superblock: &Superblock, discard: bool) -> Result<()> {
        let total_bytes = superblock.raw.dev_item.total_bytes;
        if discard {
            self.discard(total_bytes)?;
        }
        self.wipe(0, WIPED)?;
        // Signatures at the end of the device: backup partition tables, md and ZFS labels.
        if self.0.size() - total_bytes < superblock.raw.sector_size.into() {
            return self.wipe(self.0.size() - WIPED, WIPED);
        }
        // After a file system that takes only a part of the device, nothing else is wiped.
        let place = PhysicalAddress(total_bytes);
        let found = signatures(self.0).map_err(|source| self.failed("read", place, STEP, source))?;
        found
            .iter()
            .filter(|signature| signature.is_at_end)
            .try_for_each(|signature| self.wipe(signature.offset, SIGNATURE_SIZE))
    }

    fn write_superblock(&self, superblock: &Superblock, mirror: usize, durable: bool) -> Result<()> {
        let place = superblock_offset(mirror);
        let bytes = superblock.to_bytes(place);
        let written = match durable {
            true => self.0.write_fua(&bytes, place),
            false => self.0.write_at(&bytes, place),
        };
        written.map_err(|source| self.failed("write", place, bytes.len(), source))
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

    /// Writes the blocks of device number `at`.
    fn write_blocks(&self, layout: &MkfsLayout, at: usize) -> Result<()> {
        let mut requests: Vec<_> = layout
            .blocks
            .iter()
            .flat_map(|(places, bytes)| {
                let here = places.iter().filter(|place| place.device == at);
                here.map(|place| WriteRequest::new(place.offset, bytes)).collect::<Vec<_>>()
            })
            .collect();
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

//! Superblocks that name a log tree: those of the last commit with another log root.
//!
//! Owns [`LogSuperblocks`]: the first superblock copy of each device, encoded and checked once per
//! commit. Each log sync changes only log root, level and checksum in it.
//!
//! **Invariants**
//! - It is valid for the device table it was made from; another table makes it stale.
//! - Nothing is written that a reader would reject.
//!
//! **Locks**: none of its own; the thread that syncs the log has exclusive access.
//!
//! Kernel counterpart: `write_all_supers` (`fs/btrfs/disk-io.c`).

use super::at_once::at_once;
use super::devices::DeviceTable;
use super::superblocks::SuperblockWriter;
use crate::errors::{Error, Result};
use papilio_device::{AlignedBuffer, Device};
use papilio_format::superblock::{EncodedSuperblock, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, LogicalAddress, SuperblockError};
use std::sync::Arc;

/// Superblocks that name successive logs of one commit.
#[derive(Debug)]
pub(crate) struct LogSuperblocks {
    devices: Arc<DeviceTable>,
    copies: Vec<Copy>,
}

/// The first superblock copy of a device.
#[derive(Debug)]
struct Copy {
    devid: DeviceId,
    encoded: EncodedSuperblock,
    /// Where direct I/O takes the bytes from, so that it copies nothing.
    aligned: AlignedBuffer,
}

impl LogSuperblocks {
    /// Converts `writers`, which write to `devices`.
    pub(super) fn new(devices: &Arc<DeviceTable>, writers: Vec<SuperblockWriter<'_>>) -> Self {
        let copy = |writer: SuperblockWriter<'_>| {
            let (devid, encoded) = writer.into_first();
            Copy { devid, encoded, aligned: AlignedBuffer::new(SUPERBLOCK_SIZE, SUPERBLOCK_SIZE) }
        };
        let copies = writers.into_iter().map(copy).collect();
        Self { devices: Arc::clone(devices), copies }
    }

    /// Returns whether these superblocks were made from this very device table.
    pub(super) fn are_of(&self, devices: &Arc<DeviceTable>) -> bool {
        Arc::ptr_eq(&self.devices, devices)
    }

    /// Writes superblocks that name this log, durably on every device. The log must already be
    /// durable.
    ///
    /// # Errors
    /// Fails on a root that readers would reject, before writing anything. Otherwise returns the
    /// devices that failed, with their errors; the others are written nevertheless.
    pub(super) fn write(&mut self, root: LogicalAddress, level: u8) -> Result<Vec<(DeviceId, Error)>> {
        let place = superblock_offset(0);
        for Copy { devid, encoded, aligned } in &mut self.copies {
            encoded.name_log(root, level).map_err(|reason: SuperblockError| Error::Superblock {
                device: device(&self.devices, *devid).name().to_owned(),
                offset: place,
                reason: Box::new(reason),
                good_copies: Vec::new(),
                found: None,
            })?;
            aligned.copy_from_slice(encoded.as_bytes());
        }
        let failed = at_once(&self.copies, self.devices.wait(), |Copy { devid, aligned, .. }| {
            let device = device(&self.devices, *devid);
            let source = device.write_fua(aligned, place).err()?;
            Some((*devid, Error::SuperblockWrite { device: device.name().to_owned(), copy: 0, source }))
        });
        Ok(failed.into_iter().flatten().collect())
    }
}

/// Returns the device with this devid.
fn device(devices: &DeviceTable, devid: DeviceId) -> &dyn Device {
    let slot = devices.iter().find(|slot| slot.devid() == devid);
    slot.and_then(|slot| slot.device.as_deref())
        .expect("every device in the table was present when the superblocks were made")
}

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

use super::devices::DeviceTable;
use super::superblocks::SuperblockWriter;
use crate::{Error, Result};
use papilio_format::superblock::{EncodedSuperblock, superblock_offset};
use papilio_format::{DeviceId, LogicalAddress, SuperblockError};
use std::sync::Arc;

/// Superblocks that name successive logs of one commit.
#[derive(Debug)]
pub(crate) struct LogSuperblocks {
    devices: Arc<DeviceTable>,
    copies: Vec<(DeviceId, EncodedSuperblock)>,
}

impl LogSuperblocks {
    /// Converts `writers`, which write to `devices`.
    pub(super) fn new(devices: &Arc<DeviceTable>, writers: Vec<SuperblockWriter<'_>>) -> Self {
        let copies = writers.into_iter().map(SuperblockWriter::into_first).collect();
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
        let mut failed = Vec::new();
        for (devid, copy) in &mut self.copies {
            let slot = self.devices.iter().find(|slot| slot.devid() == *devid);
            let device = slot
                .and_then(|slot| slot.device.as_deref())
                .expect("every device in the table was present when the superblocks were made");
            let place = superblock_offset(0);
            copy.name_log(root, level).map_err(|reason: SuperblockError| Error::Superblock {
                device: device.name().to_owned(),
                offset: place,
                reason: Box::new(reason),
                good_copies: Vec::new(),
            })?;
            let written = device.write_fua(copy.as_bytes(), place).map_err(|source| Error::SuperblockWrite {
                device: device.name().to_owned(),
                copy: 0,
                source,
            });
            failed.extend(written.err().map(|error| (*devid, error)));
        }
        Ok(failed)
    }
}

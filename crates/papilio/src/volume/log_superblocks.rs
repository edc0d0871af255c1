//! The superblocks that name a log: those of the last commit, but for the log's root.
//!
//! Owns [`LogSuperblocks`], each device's first copy, encoded and checked once for a commit, in which a sync of the
//! log changes the log's root and level and the checksum. Invariants: it stands for the devices as they were when
//! it was made (another device table makes it stale); nothing is written that would not be accepted when read.
//!
//! Takes no lock; whoever syncs the log has it. Kernel counterpart: `write_all_supers` (`fs/btrfs/disk-io.c`).

use super::devices::DeviceTable;
use super::superblocks::SuperblockWriter;
use crate::{Error, Result};
use papilio_format::superblock::{EncodedSuperblock, superblock_offset};
use papilio_format::{DeviceId, LogicalAddress, SuperblockError};
use std::sync::Arc;

/// Superblocks that name one log after another.
#[derive(Debug)]
pub(crate) struct LogSuperblocks {
    devices: Arc<DeviceTable>,
    copies: Vec<(DeviceId, EncodedSuperblock)>,
}

impl LogSuperblocks {
    /// Those of `writers`, which are of `devices`.
    pub(super) fn new(devices: &Arc<DeviceTable>, writers: Vec<SuperblockWriter<'_>>) -> Self {
        let copies = writers.into_iter().map(SuperblockWriter::into_first).collect();
        Self { devices: Arc::clone(devices), copies }
    }

    /// Whether they are of these devices, as they are now.
    pub(super) fn are_of(&self, devices: &Arc<DeviceTable>) -> bool {
        Arc::ptr_eq(&self.devices, devices)
    }

    /// Names a log, and returns when that is durable on every device. What it names must be durable before.
    ///
    /// # Errors
    /// A root that no reader would accept, of which nothing is written; else the first device that failed, the
    /// others were written even so.
    pub(super) fn write(&mut self, root: LogicalAddress, level: u8) -> Result<()> {
        let mut result = Ok(());
        for (devid, copy) in &mut self.copies {
            let slot = self.devices.iter().find(|slot| slot.devid() == *devid);
            let device =
                slot.and_then(|slot| slot.device.as_deref()).expect("a device that was written before");
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
            result = result.and(written);
        }
        result
    }
}

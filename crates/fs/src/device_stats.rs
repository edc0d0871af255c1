//! The error counters of devices.
//!
//! Owns [`DeviceErrors`], [`FileSystem::device_errors`] and [`FileSystem::reset_device_errors`].
//!
//! **Locks**: a leaf for the counters.
//!
//! Kernel counterpart: `btrfs_get_dev_stats` (`fs/btrfs/volumes.c`).

use crate::file_system::FileSystem;
use papilio_engine::errors::{Error, Result};
use papilio_engine::transaction::read_counters;
use papilio_engine::volume::DeviceSlot;
use papilio_format::items::device::DeviceStat;
use papilio_format::{DeviceId, objectid};

/// The errors of one device since its counters were last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceErrors {
    /// The device.
    pub devid: DeviceId,
    /// Its path; `None` if it is missing.
    pub path: Option<String>,
    /// Failed writes.
    pub write_errors: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed flushes.
    pub flush_errors: u64,
    /// Sectors with a wrong checksum, and those of tree blocks that are wrong.
    pub corruption_errors: u64,
    /// Sectors of tree blocks with a wrong generation: lost writes.
    pub generation_errors: u64,
}

impl DeviceErrors {
    fn new(slot: &DeviceSlot, values: [u64; DeviceStat::ALL.len()]) -> Self {
        let [write_errors, read_errors, flush_errors, corruption_errors, generation_errors] = values;
        Self {
            devid: slot.devid(),
            path: slot.name().map(str::to_owned),
            write_errors,
            read_errors,
            flush_errors,
            corruption_errors,
            generation_errors,
        }
    }

    /// Returns the counters with the names that `btrfs device stats` prints, in its order.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let Self { write_errors, read_errors, flush_errors, corruption_errors, generation_errors, .. } =
            *self;
        let values = [write_errors, read_errors, flush_errors, corruption_errors, generation_errors];
        let mut values = values.into_iter();
        DeviceStat::ALL.map(|stat| (stat.name(), values.next().unwrap_or_default()))
    }
}

impl FileSystem {
    /// Returns the error counters of all devices, those since the last commit included. Where
    /// nothing mends copies that reads have found bad, this first reads all copies of them again,
    /// and counts their errors.
    ///
    /// # Errors
    /// The device tree cannot be read.
    pub fn device_errors(&self) -> Result<Vec<DeviceErrors>> {
        self.info.count_bad_copies();
        let devices = self.info.volume().devices();
        let slots = devices.iter().filter(|slot| slot.in_chunk_tree);
        if self.info.trees.transactions().is_some() {
            return Ok(slots
                .map(|slot| DeviceErrors::new(slot, devices.counters().get(slot.devid())))
                .collect());
        }
        let open = self.info.trees.get(objectid::DEV_TREE, "the device tree")?;
        let read = |slot: &DeviceSlot| {
            let mut values = read_counters(&open.tree, slot.devid())?;
            for (value, since) in values.iter_mut().zip(devices.counters().get(slot.devid())) {
                *value = value.saturating_add(since);
            }
            Ok(DeviceErrors::new(slot, values))
        };
        slots.map(read).collect()
    }

    /// Sets the error counters of a device to zero, and returns them as they were. The next commit
    /// makes it durable.
    ///
    /// # Errors
    /// A device that is not part of the file system; a read-only file system.
    pub fn reset_device_errors(&self, devid: DeviceId) -> Result<DeviceErrors> {
        self.info.transactions()?.check_running()?;
        let devices = self.info.volume().devices();
        let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == devid);
        let slot =
            slot.ok_or_else(|| Error::Invalid(format!("device {devid} is not part of the file system")))?;
        Ok(DeviceErrors::new(slot, devices.counters().reset(devid)))
    }

    /// Rewrites copies that reads have found bad, from good ones, and counts their errors. Syncs
    /// and the background thread do so, too. Where
    /// [`OpenOptions::heal_reads`](papilio_engine::OpenOptions::heal_reads) forbids it, they are
    /// counted.
    pub fn heal(&self) {
        self.info.heal();
    }
}

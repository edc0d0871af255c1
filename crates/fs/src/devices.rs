//! Adding and removing devices: the public methods of [`papilio_engine::jobs::devices`].
//!
//! Owns [`FileSystem::add_device`] and [`FileSystem::remove_device`].

use crate::balance::BalanceReport;
use crate::file_system::FileSystem;
use papilio_device::Device;
use papilio_engine::errors::Result;
use papilio_format::DeviceId;
use std::sync::Arc;

impl FileSystem {
    /// Adds a device, and returns its id. The change is durable on return. New chunks may use the
    /// device at once; [`FileSystem::balance`] spreads what is there already.
    ///
    /// # Errors
    /// - [`Error::Occupied`](papilio_engine::Error::Occupied) unless `force`: the device holds
    ///   another file system.
    /// - [`Error::Busy`](papilio_engine::Error::Busy) while another operation runs.
    /// - [`Error::Invalid`](papilio_engine::Error::Invalid): it is one of this file system, is
    ///   read-only or too small.
    /// - As [`FileSystem::sync`].
    pub fn add_device(&self, device: Arc<dyn Device>, force: bool) -> Result<DeviceId> {
        self.info.add_device(device, force, &[])
    }

    /// Moves everything off a device and removes it. Calls `progress` after each batch; where it
    /// returns false, the device stays, with what was not moved. Returns whether it was removed.
    /// Its superblocks are wiped.
    ///
    /// # Errors
    /// - [`Error::Invalid`](papilio_engine::Error::Invalid): it is the last device, or a profile in
    ///   use needs as many as there are.
    /// - [`Error::Busy`](papilio_engine::Error::Busy) while another operation or a send runs.
    /// - [`Error::NoSpace`](papilio_engine::Error::NoSpace): the others have no room. Nothing is
    ///   lost.
    /// - As [`FileSystem::balance`].
    pub fn remove_device(
        &self,
        devid: DeviceId,
        mut progress: impl FnMut(&BalanceReport) -> bool,
    ) -> Result<bool> {
        self.info.remove_device(devid, &mut progress)
    }
}

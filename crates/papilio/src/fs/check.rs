//! Checking: the entry points of [`crate::maintenance::check`].

use crate::errors::Result;
use crate::fs::file_system::FileSystem;
use crate::maintenance::check::{self, CheckOptions, CheckReport};
use crate::mount::open_devices;
use crate::options::OpenOptions;
use crate::volume::Volume;
use papilio_device::{Access, Device};
use std::path::Path;
use std::sync::Arc;

/// What checking keeps of tree blocks that several subvolumes share, in bytes.
const CACHE_BYTES: usize = 256 << 20;

impl FileSystem {
    /// Checks everything: the structure of all trees and every copy of their blocks, back references
    /// both ways, free space, chunks and devices, inodes, directories, link counts, checksums; with
    /// [`CheckOptions::data_csum`] all data as well. Nothing is written. The check reads everything
    /// anew and does not use what the handle has cached.
    ///
    /// # Errors
    /// Devices that are missing. What is wrong with the file system is in the report.
    pub fn check(&self, options: &CheckOptions) -> Result<CheckReport> {
        check::check(self.info.volume(), CACHE_BYTES, options)
    }
}

/// Checks the file system in the image or on the block device at `path` and the other devices that
/// the options name, also where it is too damaged to be opened: all it takes is a superblock whose
/// system chunks can be mapped.
///
/// # Errors
/// Devices that cannot be opened, are no Btrfs, don't belong together or are missing.
pub fn check(path: impl AsRef<Path>, open: &OpenOptions, options: &CheckOptions) -> Result<CheckReport> {
    check_devices(open_devices(path.as_ref(), open, Access::ReadOnly)?, open, options)
}

/// As [`check()`], on devices that the caller made.
///
/// # Errors
/// As [`check()`].
pub fn check_devices(
    devices: Vec<Arc<dyn Device>>,
    open: &OpenOptions,
    options: &CheckOptions,
) -> Result<CheckReport> {
    let volume = Arc::new(Volume::open(devices, open)?);
    check::check(&volume, CACHE_BYTES, options)
}

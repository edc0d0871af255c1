//! Checking a file system: the public functions of [`papilio_progs::check`].
//!
//! Owns [`FileSystem::check`], [`check()`], [`open_devices`] and [`check_devices`].

use crate::file_system::FileSystem;
use crate::salvage::scanned;
use papilio_device::{Access, Device};
use papilio_engine::errors::Result;
use papilio_engine::mount::{self, choose_readable};
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::Volume;
use papilio_progs::check::{self, CheckOptions, CheckReport};
use std::path::Path;
use std::sync::Arc;

/// Bytes of the cache of tree blocks during a check, for blocks shared by several subvolumes.
const CACHE_BYTES: usize = 256 << 20;

impl FileSystem {
    /// Checks all trees and every copy of their blocks, back references in both directions, free
    /// space, chunks and devices, inodes, directories, link counts and checksums; with
    /// [`CheckOptions::data_csum`] all data as well. The check never writes. It reads the devices
    /// and ignores the caches of this handle, so it sees the last commit. Until it ends, the space
    /// of that state is not reused; superblocks that are written meanwhile count as different.
    ///
    /// # Errors
    /// Devices that are missing. Faults of the file system are in the report.
    pub fn check(&self, options: &CheckOptions) -> Result<CheckReport> {
        let Some(transactions) = self.info.trees.transactions() else {
            return check::check(self.info.volume(), CACHE_BYTES, options);
        };
        let (_pin, volume) = transactions.between_commits(|_| {
            let devices = self.info.volume().devices();
            let present = devices.iter().filter_map(|slot| slot.device.clone()).collect();
            let open = OpenOptions::new().degraded(true);
            Ok::<_, papilio_engine::errors::Error>((
                transactions.pin(),
                Arc::new(Volume::open(present, &open)?),
            ))
        })?;
        check::check(&volume, CACHE_BYTES, options)
    }
}

/// Checks the file system on the image or block device at `path` and the other devices named in the
/// options. It may be too damaged to be opened, but needs a superblock with valid system chunks.
///
/// # Errors
/// Devices that cannot be opened, are not Btrfs, don't belong together or are missing.
pub fn check(path: impl AsRef<Path>, open: &OpenOptions, options: &CheckOptions) -> Result<CheckReport> {
    check_devices(mount::open_devices(path.as_ref(), open, Access::ReadOnly)?, open, options)
}

/// Opens the image or block device at `path` and the other devices named in the options, as
/// [`FileSystem::open_with`] does, for [`FileSystem::from_devices`]. Trees are not
/// read, only partitions, layers and formats of disk images.
///
/// # Errors
/// Devices that cannot be opened.
pub fn open_devices(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Vec<Arc<dyn Device>>> {
    let access = if options.write { Access::ReadWrite } else { Access::ReadOnly };
    mount::open_devices(path.as_ref(), options, access)
}

/// Checks as [`check()`], on the given devices.
///
/// # Errors
/// As [`check()`].
pub fn check_devices(
    devices: Vec<Arc<dyn Device>>,
    open: &OpenOptions,
    options: &CheckOptions,
) -> Result<CheckReport> {
    let open = choose_readable(&devices, &scanned(&devices, open)?)?;
    let volume = Arc::new(Volume::open(devices, &open)?);
    check::check(&volume, CACHE_BYTES, options)
}

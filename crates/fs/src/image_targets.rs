//! Image files and devices that are about to be written whole.
//!
//! Owns [`ImageTargets`].
//!
//! **Invariants**
//! - A file that has content, and a device, is opened only by force.
//! - A file that is in use by another program is not emptied: it is locked first.
//! - Files that were made here are removed again unless [`ImageTargets::keep`] is called.

use papilio_device::{Access, Device, FileDevice};
use papilio_engine::errors::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Image files and devices that are about to be written whole, as by a restore.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use papilio::archive::{open_sources, restore_archive, restore_sizes};
///
/// let mut sources = open_sources("sdb1.pbk".as_ref(), &[])?;
/// let mut targets = papilio::ImageTargets::new();
/// for (number, size) in restore_sizes(&sources[0]).into_iter().enumerate() {
///     targets.add(format!("device{number}.img").as_ref(), size, false)?;
/// }
/// restore_archive(&mut sources, targets.devices(), &std::env::temp_dir(), |_| {})?;
/// targets.keep();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct ImageTargets {
    devices: Vec<Arc<dyn Device>>,
    made: Vec<PathBuf>,
}

impl ImageTargets {
    /// Returns no targets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the file or the device at a path. A file gets `size` bytes of zeros, and is made if it
    /// is missing. `force` is needed for a device, and for a file that has content.
    ///
    /// # Errors
    /// [`Error::Host`] with [`io::ErrorKind::AlreadyExists`] without `force`; a path that is
    /// neither file nor device, or in use; the host's errors.
    pub fn add(&mut self, path: &Path, size: u64, force: bool) -> Result<()> {
        let host = |source| Error::Host { path: path.to_path_buf(), source };
        let found = fs::metadata(path).ok();
        let is_device = found.as_ref().is_some_and(|found| found.file_type().is_block_device());
        if !force && (is_device || found.as_ref().is_some_and(|found| found.len() > 0)) {
            let text = "exists; overwriting it needs force";
            return Err(host(io::Error::new(io::ErrorKind::AlreadyExists, text)));
        }
        if !is_device {
            if found.as_ref().is_some_and(|found| !found.is_file()) {
                let text = "neither a file nor a device";
                return Err(host(io::Error::new(io::ErrorKind::InvalidInput, text)));
            }
            // A mount may use the file.
            let in_use = found.filter(|found| found.len() > 0);
            let in_use = in_use.map(|_| FileDevice::open(path, Access::ReadWrite)).transpose()?;
            if in_use.is_none() {
                self.made.push(path.to_owned());
            }
            let file = File::create(path).map_err(host)?;
            drop(in_use);
            file.set_len(size).map_err(host)?;
        }
        self.devices.push(Arc::new(FileDevice::open(path, Access::ReadWrite)?));
        Ok(())
    }

    /// Returns the devices in the order in which they were added.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// Keeps the files that were made.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for ImageTargets {
    fn drop(&mut self) {
        for path in &self.made {
            // The error that led here is the one to report.
            let _ = fs::remove_file(path);
        }
    }
}

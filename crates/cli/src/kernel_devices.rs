//! Tells the kernel of the block devices whose superblocks a command made or changed.
//!
//! Owns [`ChangedDevices`], the list of one run. Without it `mount` of one device of several fails
//! on a machine without udev. Images in files are left out: the kernel knows block devices only.

use crate::devices::siblings;
use anyhow::Context as _;
use papilio::FoundDevice;
use papilio_ioctl::ControlDevice;
use std::cell::RefCell;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The devices that a run made, changed and removed.
#[derive(Debug, Default)]
pub struct ChangedDevices {
    changed: RefCell<Vec<PathBuf>>,
    /// Devices that a search found, and that the run did not change.
    found: RefCell<Vec<PathBuf>>,
    removed: RefCell<Vec<PathBuf>>,
}

impl ChangedDevices {
    /// Notes devices with a new or changed superblock.
    pub fn note(&self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) {
        self.changed.borrow_mut().extend(paths.into_iter().map(Into::into));
    }

    /// Notes devices that a search found. If the kernel refuses one, the run says nothing.
    pub fn note_found(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.found.borrow_mut().extend(paths);
    }

    /// Notes a device that belongs to no file system any more; `None` if it was missing.
    pub fn note_removed(&self, path: Option<PathBuf>) {
        self.removed.borrow_mut().extend(path);
    }

    /// Tells the kernel, once the file systems are closed. `given` are devices that the user named.
    /// Returns the failures, one for each device. A machine without the kernel's Btrfs has none.
    pub fn tell_kernel(&self, given: &[PathBuf]) -> Vec<anyhow::Error> {
        let (changed, mut removed, found) = (self.changed.take(), self.removed.take(), self.found.take());
        let is_device = |path: &&PathBuf| block_device(path).is_some();
        if !changed.iter().chain(&removed).chain(&found).any(|path| is_device(&path)) {
            return Vec::new();
        }
        let control = match ControlDevice::open() {
            Ok(Some(control)) => control,
            Ok(None) => return Vec::new(),
            Err(error) => return vec![error.into()],
        };
        // The command may have removed the very device by which it found the file system.
        let is_erased = |path: &PathBuf| matches!(FoundDevice::read(path), Ok(None));
        let (erased, changed): (Vec<_>, Vec<_>) = changed.into_iter().partition(is_erased);
        removed.extend(erased);
        let mut failures = Vec::new();
        for path in removed.iter().filter_map(|path| block_device(path)) {
            match control.forget(Some(&path)) {
                Ok(()) => {}
                // It was never registered.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failures.push(not_told(&path, error)),
            }
        }
        let mut told = Vec::new();
        for path in changed.iter().filter_map(|path| block_device(path)) {
            if !told.contains(&path) {
                failures.extend(control.scan(&path).err().map(|error| not_told(&path, error)));
                told.push(path);
            }
        }
        let others = siblings_of(&changed, given).into_iter().chain(found);
        for path in others.filter_map(|path| block_device(&path)) {
            if !told.contains(&path)
                && let Err(error) = control.scan(&path)
            {
                tracing::info!("{:#}", not_told(&path, error));
            }
        }
        failures
    }
}

/// Returns the other devices of the file systems on `changed`.
fn siblings_of(changed: &[PathBuf], given: &[PathBuf]) -> Vec<PathBuf> {
    let named = [changed, given].concat();
    let mut all = Vec::new();
    for path in changed {
        // Another failure was reported.
        let Ok(Some(device)) = FoundDevice::read(path) else { continue };
        if device.devices > 1 {
            all.extend(siblings(&device, &named).into_iter().map(|device| device.path));
        }
    }
    all
}

fn not_told(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("{}: the kernel did not register the device", path.display()))
}

/// Returns the path by which the kernel's Btrfs shows a block device: absolute, without symbolic
/// links, by its name if the device mapper made it. Returns `None` for other files.
pub fn block_device(path: &Path) -> Option<PathBuf> {
    let whole = path.canonicalize().ok()?;
    if !whole.metadata().ok()?.file_type().is_block_device() {
        return None;
    }
    let number = whole.file_name()?;
    let name = std::fs::read_to_string(Path::new("/sys/block").join(number).join("dm/name"));
    let mapped = name.ok().map(|name| Path::new("/dev/mapper").join(name.trim_end()));
    Some(mapped.filter(|path| path.exists()).unwrap_or(whole))
}

/// Opens the kernel's control device. Returns `None` if there is none.
///
/// # Errors
/// It exists and cannot be opened.
pub fn control_device() -> anyhow::Result<Option<ControlDevice>> {
    ControlDevice::open().context(papilio_ioctl::CONTROL_DEVICE)
}

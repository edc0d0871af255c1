//! Loop devices: an image file as a block device that the kernel can mount.
//!
//! A device is attached with "autoclear" and held open, so it disappears when its process ends in
//! any way. Kernel counterpart: `drivers/block/loop.c`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::sys;

/// An image attached to a loop device until dropped.
#[derive(Debug)]
pub struct LoopDevice {
    number: i32,
    path: PathBuf,
    /// `None` while it is dropped.
    file: Option<File>,
}

impl LoopDevice {
    /// Attaches `image`.
    ///
    /// # Errors
    /// The image cannot be opened, or no loop device is free.
    pub fn attach(image: &Path, read_only: bool) -> anyhow::Result<Self> {
        Self::attach_with(image, read_only, false)
    }

    /// Attaches `image` for writing, bypassing the page cache of its file system if possible. For
    /// benchmarks.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_direct(image: &Path) -> anyhow::Result<Self> {
        Self::attach_with(image, false, true)
    }

    fn attach_with(image: &Path, read_only: bool, direct: bool) -> anyhow::Result<Self> {
        let backing = File::options()
            .read(true)
            .write(!read_only)
            .open(image)
            .with_context(|| image.display().to_string())?;
        // Another process may take a free device between the query and the attach.
        for _ in 0..64 {
            let number = sys::free_loop_device().context("/dev/loop-control")?;
            if forbids_discards(number) {
                // A program that was killed left it so.
                let _ = sys::remove_loop_device(number);
                continue;
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = open_device(&path, read_only).with_context(|| path.display().to_string())?;
            match sys::configure_loop_device(&file, &backing, read_only, direct) {
                Ok(()) => return Ok(Self { number, path, file: Some(file) }),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) => return Err(error).context(path.display().to_string()),
            }
        }
        bail!("no free loop device for {}", image.display())
    }

    /// Lets the device refuse discards until it is dropped.
    ///
    /// # Errors
    /// The limit cannot be written.
    pub fn forbid_discards(&self) -> anyhow::Result<()> {
        let limit = discard_limit(self.number);
        std::fs::write(&limit, "0").with_context(|| limit.display().to_string())
    }

    /// Returns the path of the device node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The file in which an administrator limits the discards of a device.
fn discard_limit(number: i32) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{number}/queue/discard_max_bytes"))
}

/// Returns whether discards are forbidden on a loop device that could take them. The kernel keeps
/// that limit when the device is detached, and refuses to lift it.
fn forbids_discards(number: i32) -> bool {
    let limit = discard_limit(number);
    let is_zero = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0");
    is_zero(&limit) && !is_zero(&limit.with_file_name("discard_max_hw_bytes"))
}

/// Opens a device, waiting for udev to create the node.
fn open_device(path: &Path, read_only: bool) -> io::Result<File> {
    let open = || File::options().read(true).write(!read_only).open(path);
    for _ in 0..20 {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            result => return result,
        }
    }
    open()
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // The kernel remembers each Btrfs device it has seen. A device that is still mounted stays
        // known, and detaches itself when the mount ends.
        let _ = sys::forget_device(&self.path);
        let Some(file) = self.file.take() else { return };
        let _ = sys::clear_loop_device(&file);
        drop(file);
        if forbids_discards(self.number) {
            // It is busy as long as the kernel detaches it.
            let _ = (0..50).find(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                sys::remove_loop_device(self.number).is_ok()
            });
        }
    }
}

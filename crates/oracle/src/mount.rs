//! A kernel mount that ends when dropped.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::MountFlags;

use crate::scratch;
use crate::scratch::Scratch;

/// A mounted Btrfs. Dropping it unmounts it, with retries, and lazily as a last resort.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    /// Keeps the mount point's folder until after the unmount.
    _scratch: Scratch,
}

impl Mount {
    /// Mounts the Btrfs on `device` in a new folder of `scratch`. It never updates access times,
    /// because a walk must not change the tree.
    ///
    /// # Errors
    /// The kernel refuses the mount; the error includes the options.
    pub fn btrfs(scratch: &Scratch, device: &Path, options: &str, read_only: bool) -> anyhow::Result<Self> {
        let point = scratch.unique("mount");
        std::fs::create_dir(&point)?;
        let mut flags = MountFlags::NOATIME;
        flags.set(MountFlags::RDONLY, read_only);
        let data = CString::new(options)?;
        rustix::mount::mount(device, &point, c"btrfs", flags, data.as_c_str())
            .with_context(|| format!("mount {} with '{options}'", device.display()))?;
        Ok(Self { point, _scratch: scratch.clone() })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Commits all writes.
    ///
    /// # Errors
    /// The file system's.
    pub fn sync(&self) -> std::io::Result<()> {
        Ok(rustix::fs::syncfs(std::fs::File::open(&self.point)?)?)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = scratch::unmount(&self.point) {
            eprintln!("{}: cannot unmount: {error}", self.point.display());
        }
    }
}

//! Unmounting.
//!
//! Owns [`Unmounter`]. Root unmounts with a system call; other users go through `fusermount3`.

use papilio_ioctl::mount_table::MountEntry;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// FUSE's set-user-id program that mounts and unmounts for users.
pub(crate) const HELPER: &str = "fusermount3";

/// A handle that ends a mount from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
    /// The device number of the mount, once it is attached and if the table of mounts shows it; all
    /// clones share it.
    device: Arc<OnceLock<Option<String>>>,
}

impl Unmounter {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, device: Arc::default() }
    }

    /// Unmounts after the kernel has written back its cache. The session ends when the server
    /// notices.
    ///
    /// # Errors
    /// EBUSY if the mount is in use, or another error of the system.
    pub fn unmount(&self) -> io::Result<()> {
        self.end(UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Detaches the mount from the tree of mounts. It ends with its last user.
    ///
    /// # Errors
    /// The system's error.
    pub fn detach(&self) -> io::Result<()> {
        self.end(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
    }

    /// Remembers the device number of the mount, once it is attached.
    pub(crate) fn note_mounted(&self) {
        let mounts = MountEntry::all().unwrap_or_default();
        let mount = mounts.into_iter().rev().find(|mount| mount.point == self.directory);
        let _ = self.device.set(mount.map(|mount| mount.device));
    }

    /// Ends all mounts of the server that this process sees.
    fn end(&self, flags: UnmountFlags, arguments: &[&str]) -> io::Result<()> {
        let Some(device) = self.device.get() else {
            // Another mount may be there.
            return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        };
        let mounts = MountEntry::all().unwrap_or_default();
        let is_ours = |mount: &&MountEntry| device.as_ref() == Some(&mount.device);
        let points: Vec<_> = mounts.iter().rev().filter(is_ours).map(|mount| mount.point.as_path()).collect();
        if points.is_empty() {
            // The table does not show it: the caller hears why it cannot be unmounted.
            return end_one(&self.directory, flags, arguments);
        }
        let mut result = Ok(());
        for point in points {
            result = result.and(end_one(point, flags, arguments));
        }
        result
    }
}

fn end_one(directory: &Path, flags: UnmountFlags, arguments: &[&str]) -> io::Result<()> {
    match rustix::mount::unmount(directory, flags) {
        Err(rustix::io::Errno::PERM) => {}
        result => return Ok(result?),
    }
    let helper = Command::new(HELPER).args(arguments).arg("--").arg(directory).output()?;
    if helper.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&helper.stderr);
    let busy = message.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, message.lines().next().unwrap_or_default().to_owned()))
}

//! Unmounting.
//!
//! Owns [`Unmounter`]. Root unmounts with a system call; other users go through `fusermount3`.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// FUSE's set-user-id program that mounts and unmounts for users.
pub(crate) const HELPER: &str = "fusermount3";

/// A handle that ends a mount from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
}

impl Unmounter {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Unmounts after the kernel has written back its cache. The session ends when the server
    /// notices.
    ///
    /// # Errors
    /// EBUSY if the mount is in use, or another error of the system.
    pub fn unmount(&self) -> io::Result<()> {
        self.end(rustix::mount::UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Detaches the mount from the tree of mounts. It ends with its last user.
    ///
    /// # Errors
    /// The system's error.
    pub fn detach(&self) -> io::Result<()> {
        use rustix::mount::UnmountFlags;
        self.end(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
    }

    fn end(&self, flags: rustix::mount::UnmountFlags, arguments: &[&str]) -> io::Result<()> {
        match rustix::mount::unmount(&self.directory, flags) {
            Err(rustix::io::Errno::PERM) => {}
            result => return Ok(result?),
        }
        let helper = Command::new(HELPER).args(arguments).arg("--").arg(&self.directory).output()?;
        if helper.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&helper.stderr);
        let busy = message.contains("busy");
        let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
        Err(io::Error::new(kind, message.lines().next().unwrap_or_default().to_owned()))
    }
}

//! Unmounting, from any thread.
//!
//! Owns [`Unmounter`]. Root unmounts by a system call; users ask `fusermount3`.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// The program of FUSE that mounts and unmounts for users.
pub(crate) const HELPER: &str = "fusermount3";

/// Ends a mount, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
}

impl Unmounter {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Unmounts. What the kernel holds is written first; the session ends when the server has seen that.
    ///
    /// # Errors
    /// EBUSY where the mount is in use, or what the system says.
    pub fn unmount(&self) -> io::Result<()> {
        self.end(rustix::mount::UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Takes the mount out of sight; it ends when nobody uses it any more.
    ///
    /// # Errors
    /// What the system says.
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

//! Ioctls after which a file system that is open for reading takes changes.
//!
//! Owns [`Switch`]. The server opens the file system anew, in the place of the one that the ioctl
//! came to, so that this is not a change of that one.
//!
//! Kernel counterparts: `btrfs_remount_rw` (`fs/btrfs/super.c`), `btrfs_init_new_device`
//! (`fs/btrfs/volumes.c`).

use super::call::{IoctlCall, Result};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{VolArgs, until_nul};
use papilio_ioctl::number::Command;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A change of a whole server that has its file system open for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// It opens the file system for writing.
    Writable,
    /// It makes a new file system on a device that builds on its own one, a seed.
    Sprout {
        /// The device, as the server sees it.
        device: PathBuf,
        /// Nothing is asked about the content of the device.
        force: bool,
    },
}

/// Returns the switch that an ioctl asks for.
///
/// # Errors
/// EPERM for callers that are not administrators; EINVAL for bad arguments.
pub(crate) fn wanted_switch(call: &IoctlCall<'_>) -> Result<Option<Switch>> {
    if !call.mount.opened_read_only() {
        return Ok(None);
    }
    match Command(call.command) {
        Command::SET_READ_ONLY if call.argument::<u64>()? == 0 => {
            call.must_be_administrator()?;
            Ok(Some(Switch::Writable))
        }
        command @ (Command::ADD_DEV | Command::ADD_DEVICE) if call.fs.is_seed() => {
            call.must_be_administrator()?;
            let arguments = call.argument::<VolArgs>()?;
            let name = until_nul(&arguments.name).ok_or(Errno(libc::EINVAL))?;
            let device = PathBuf::from(OsStr::from_bytes(name));
            if !device.is_absolute() {
                return Err(Errno(libc::EINVAL));
            }
            Ok(Some(Switch::Sprout { device, force: command == Command::ADD_DEV || arguments.fd == 1 }))
        }
        _ => Ok(None),
    }
}

//! `ControlDevice`: tells the kernel's Btrfs which block devices have a file system.
//!
//! The kernel finds the devices of a file system by no search of its own: a mount of one device
//! knows the others only if someone registered them, usually udev. A program that makes or changes
//! superblocks registers the devices itself, because containers, initramfs images and sandboxes
//! have no udev.
//!
//! **Locks**: none. Kernel counterpart: `btrfs_control_ioctl` (`fs/btrfs/super.c`).

use super::host;
use super::layout::{VolArgs, put_name};
use super::number::Command;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The node of the control device.
pub const CONTROL_DEVICE: &str = "/dev/btrfs-control";

/// The control device of the kernel's Btrfs, open.
#[derive(Debug)]
pub struct ControlDevice(File);

impl ControlDevice {
    /// Opens the control device. Returns `None` if there is no node, the kernel has no Btrfs, or
    /// the caller may not open it.
    ///
    /// # Errors
    /// Other errors of the open.
    pub fn open() -> io::Result<Option<Self>> {
        match File::options().read(true).write(true).open(CONTROL_DEVICE) {
            Ok(file) => Ok(Some(Self(file))),
            Err(error) => match error.raw_os_error() {
                Some(
                    libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENXIO | libc::EACCES | libc::EPERM,
                ) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Registers a block device.
    ///
    /// # Errors
    /// EINVAL for a device without a valid superblock; EEXIST if the kernel knows another device in
    /// its place, which is mounted or newer; errors of opening it.
    pub fn scan(&self, device: &Path) -> io::Result<()> {
        self.call(Command::SCAN_DEV, device).map(drop)
    }

    /// Registers a block device, and returns whether the kernel knows all devices of its file
    /// system.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub fn is_complete(&self, device: &Path) -> io::Result<bool> {
        self.call(Command::DEVICES_READY, device).map(|missing| missing == 0)
    }

    /// Makes the kernel forget a block device, or all devices, that no mounted file system uses.
    ///
    /// # Errors
    /// EBUSY for a device that is in use. Newer kernels accept one that they do not know.
    pub fn forget(&self, device: Option<&Path>) -> io::Result<()> {
        self.call(Command::FORGET_DEV, device.unwrap_or(Path::new(""))).map(drop)
    }

    fn call(&self, command: Command, device: &Path) -> io::Result<i32> {
        let mut arguments = VolArgs::default();
        if !put_name(&mut arguments.name, device.as_os_str().as_bytes()) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        // SAFETY: the three commands take a `struct btrfs_ioctl_vol_args`, as their numbers say.
        unsafe { host::ioctl(self.0.as_fd(), command, &raw mut arguments) }
    }
}

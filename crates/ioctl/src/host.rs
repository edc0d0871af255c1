//! The system calls of the client's side. Only Linux has them: elsewhere nothing is mounted, and no
//! file is on a Btrfs.

use super::number::Command;
use std::io;
use std::os::fd::BorrowedFd;

/// Issues an ioctl, and returns its result, which is not negative.
///
/// # Errors
/// The system's; ENOTTY if the file's file system does not know the command.
///
/// # Safety
/// `argument` must be what the command takes: a number, or a pointer to as many bytes as the
/// command's number says, which may be read and written. All that those bytes point to must be
/// valid until the call returns.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn ioctl<T>(file: BorrowedFd<'_>, command: Command, argument: *mut T) -> io::Result<i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open, and the caller answers for the argument.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command.0 as libc::Ioctl, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As on Linux for a file that is not on a Btrfs.
///
/// # Errors
/// ENOTTY, always.
///
/// # Safety
/// None is needed; see the version for Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn ioctl<T>(_: BorrowedFd<'_>, _: Command, _: *mut T) -> io::Result<i32> {
    Err(io::Error::from_raw_os_error(libc::ENOTTY))
}

/// Writes back the cache of the file system that has this file.
///
/// # Errors
/// The system's.
pub fn write_back(file: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    let written = rustix::fs::syncfs(file);
    #[cfg(not(target_os = "linux"))]
    let written = rustix::fs::fsync(file);
    Ok(written?)
}

/// Writes back the data of a file from the kernel's cache, which is not yet durable then.
///
/// # Errors
/// The system's.
pub(crate) fn write_back_data(file: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: the call takes numbers only.
        if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
    #[cfg(not(target_os = "linux"))]
    Ok(rustix::fs::fsync(file)?)
}

/// Returns the inode number of this process's PID namespace, or 0 if it is unknown.
pub fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

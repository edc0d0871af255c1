//! Calls of the host that differ between hosts: modes, special files, extended attributes, mounts.

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Returns a mode with these permission bits. Other bits are dropped.
pub fn mode(bits: u32) -> Mode {
    // Hosts have modes of 16 and of 32 bits.
    Mode::from_raw_mode((bits & 0o7777) as rustix::fs::RawMode)
}

/// The error for an extended attribute that does not exist.
#[cfg(target_os = "linux")]
pub const NO_XATTR: Errno = Errno::NODATA;
#[cfg(not(target_os = "linux"))]
pub const NO_XATTR: Errno = Errno::NOENT;

/// Creates a special file.
///
/// # Errors
/// The host's; OPNOTSUPP on macOS, which creates none beneath an open directory.
pub fn make_node(
    directory: BorrowedFd<'_>,
    name: &[u8],
    kind: FileType,
    mode: Mode,
    (major, minor): (u32, u32),
) -> Result<(), Errno> {
    #[cfg(not(target_vendor = "apple"))]
    return rustix::fs::mknodat(directory, name, kind, mode, rustix::fs::makedev(major, minor));
    #[cfg(target_vendor = "apple")]
    {
        let _ = (directory, name, kind, mode, major, minor);
        Err(Errno::OPNOTSUPP)
    }
}

/// Reads an extended attribute into `value`, and returns its length.
///
/// # Errors
/// The host's; OPNOTSUPP on hosts whose attributes have another form.
pub fn xattr(file: BorrowedFd<'_>, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    return rustix::fs::fgetxattr(file, name, value);
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        let _ = (file, name, value);
        Err(Errno::OPNOTSUPP)
    }
}

/// Sets an extended attribute.
///
/// # Errors
/// As [`xattr`].
pub fn set_xattr(file: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    return rustix::fs::fsetxattr(file, name, value, rustix::fs::XattrFlags::empty());
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        let _ = (file, name, value);
        Err(Errno::OPNOTSUPP)
    }
}

/// Removes an extended attribute.
///
/// # Errors
/// As [`xattr`].
pub fn remove_xattr(file: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    return rustix::fs::fremovexattr(file, name);
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        let _ = (file, name);
        Err(Errno::OPNOTSUPP)
    }
}

/// Returns whether a path belongs to a mount, and not to another one on top of it.
///
/// # Errors
/// The host's.
#[cfg(target_os = "linux")]
pub fn is_in_mount(path: &Path, mount: u64) -> std::io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let found = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id == mount)
}

/// As on Linux. Other hosts have no mounts of Papilio.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn is_in_mount(_: &Path, _: u64) -> std::io::Result<bool> {
    Ok(false)
}

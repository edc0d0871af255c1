//! Calls of the host that differ between hosts: modes, special files, extended attributes, shared
//! data, mounts.

#[cfg(target_os = "linux")]
use rustix::fs::SeekFrom;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Bytes that one call copies from a file to another.
#[cfg(target_os = "linux")]
const COPIED_AT_ONCE: usize = 64 << 20;

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

/// Copies all data of a file into an empty one, with its holes. The two share it where the host's
/// file system can.
///
/// # Errors
/// The host's.
#[cfg(target_os = "linux")]
pub fn share_data(from: &File, to: &File) -> io::Result<()> {
    // Other errors than these come back when the data is copied.
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size);
        copy_range(from, to, start, end)?;
        at = end;
    }
    Ok(())
}

/// Copies the bytes from `start` to `end`.
#[cfg(target_os = "linux")]
fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut at = start;
    while at < end {
        let (mut source, mut target) = (at, at);
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(COPIED_AT_ONCE);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), length) {
            Ok(count) if count > 0 => at += count as u64,
            // No such call for these two files, or an end of the file that moved.
            Ok(_) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                let mut buffer = vec![0; length.min(1 << 20)];
                let count = from.read_at(&mut buffer, at)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                to.write_all_at(&buffer[..count], at)?;
                at += count as u64;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// As on Linux, without sharing.
///
/// # Errors
/// The host's.
#[cfg(not(target_os = "linux"))]
pub fn share_data(mut from: &File, mut to: &File) -> io::Result<()> {
    io::copy(&mut from, &mut to).map(drop)
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

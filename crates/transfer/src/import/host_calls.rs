//! Calls of the host that differ between hosts: [`Stat`], access times and extended attributes.

use super::event::LinkId;
pub(super) use crate::host_calls::NO_XATTR;
use papilio_format::items::inode::Timespec;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// The flag that leaves access times as they are; nothing where the host has none.
#[cfg(target_os = "linux")]
pub(super) const NOATIME: OFlags = OFlags::NOATIME;
#[cfg(not(target_os = "linux"))]
pub(super) const NOATIME: OFlags = OFlags::empty();

/// Attributes of an entry of the host, with the same types on each host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub(super) kind: FileType,
    /// Device and inode number.
    pub(super) id: LinkId,
    pub(super) links: u64,
    /// In bytes.
    pub(super) size: u64,
    /// Units of 512 bytes.
    blocks: u64,
    /// The low 12 bits of the mode.
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timespec,
    pub(super) mtime: Timespec,
    /// Major and minor number of a device node.
    pub(super) device: (u32, u32),
}

impl Stat {
    /// Returns true if the file has fewer blocks than bytes: it has holes, or is compressed.
    pub(super) fn is_sparse(&self) -> bool {
        self.blocks.saturating_mul(512) < self.size
    }
}

/// Returns the attributes of the entry `path`, relative to `directory`.
///
/// # Errors
/// The host's error.
// The fields have other types on other hosts.
#[allow(clippy::unnecessary_cast)]
pub(super) fn stat_at(
    directory: impl AsFd,
    path: impl rustix::path::Arg,
    flags: AtFlags,
) -> Result<Stat, Errno> {
    let stat = rustix::fs::statat(directory, path, flags)?;
    let time = |seconds: i64, nanoseconds: i64| Timespec { seconds, nanoseconds: nanoseconds as u32 };
    Ok(Stat {
        kind: FileType::from_raw_mode(stat.st_mode),
        id: (stat.st_dev as u64, stat.st_ino as u64),
        links: stat.st_nlink as u64,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        permissions: stat.st_mode as u32 & 0o7777,
        uid: stat.st_uid as u32,
        gid: stat.st_gid as u32,
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
        device: (rustix::fs::major(stat.st_rdev) as u32, rustix::fs::minor(stat.st_rdev) as u32),
    })
}

/// Fills `list` with the names of the extended attributes of `file`, or of the entry `path` itself,
/// each with a zero byte at its end. Returns their length.
///
/// # Errors
/// The host's error; `OPNOTSUPP` for FreeBSD, whose attributes are of another kind.
pub(super) fn xattr_list(file: Option<BorrowedFd<'_>>, path: &[u8], list: &mut [u8]) -> Result<usize, Errno> {
    #[cfg(not(target_os = "freebsd"))]
    return match file {
        Some(file) => rustix::fs::flistxattr(file, list),
        None => rustix::fs::llistxattr(path, list),
    };
    #[cfg(target_os = "freebsd")]
    {
        let _ = (file, path, list);
        Err(Errno::OPNOTSUPP)
    }
}

/// Fills `value` with an extended attribute of `file`, or of the entry `path` itself. Returns its
/// length.
///
/// # Errors
/// As [`xattr_list`], or [`NO_XATTR`].
pub(super) fn xattr_value(
    file: Option<BorrowedFd<'_>>,
    path: &[u8],
    name: &[u8],
    value: &mut [u8],
) -> Result<usize, Errno> {
    #[cfg(not(target_os = "freebsd"))]
    return match file {
        Some(file) => rustix::fs::fgetxattr(file, name, value),
        None => rustix::fs::lgetxattr(path, name, value),
    };
    #[cfg(target_os = "freebsd")]
    {
        let _ = (file, path, name, value);
        Err(Errno::OPNOTSUPP)
    }
}

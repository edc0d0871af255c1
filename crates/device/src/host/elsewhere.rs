//! Calls of hosts other than Linux. They do without what they cannot do.

use crate::backing::Backing;
use crate::device::Advice;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// No direct I/O: files go through the host's page cache.
pub(crate) const DIRECT: Option<OFlags> = None;

/// Does nothing: the host has no such flag.
pub(crate) fn leave_access_time(_file: &File, _flags: OFlags) {}

/// Returns false: an open for writing fails there.
pub(crate) fn is_read_only_device(_file: &File) -> bool {
    false
}

/// Returns false: without direct I/O it makes no difference where a file is.
pub(crate) fn is_in_memory(_path: &Path) -> bool {
    false
}

/// Returns 1: no file is open for direct I/O.
pub(crate) fn direct_alignment(_file: &File, _backing: Backing) -> usize {
    1
}

/// Returns `Ok(false)`: the caller writes and flushes.
pub(crate) fn write_dsync(_file: &File, _buffer: &[u8], _offset: u64) -> io::Result<bool> {
    Ok(false)
}

/// Makes no holes.
///
/// # Errors
/// `OPNOTSUPP`.
pub(crate) fn zero_range(
    _file: &File,
    _offset: u64,
    _length: u64,
    _keep_space: bool,
) -> rustix::io::Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Discards nothing.
///
/// # Errors
/// `OPNOTSUPP`.
pub(crate) fn discard_sectors(_file: &File, _offset: u64, _length: u64) -> rustix::io::Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Clones nothing.
///
/// # Errors
/// `OPNOTSUPP`.
pub(crate) fn clone_range(
    _file: &File,
    _source: BorrowedFd<'_>,
    _from: u64,
    _length: u64,
    _to: u64,
) -> rustix::io::Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Has no direct reads.
pub(crate) fn reopen_for_direct_reads(_file: &File) -> Option<File> {
    None
}

/// Does not know.
pub(crate) fn cached_pages(_file: &File, _offset: u64, _length: u64) -> Option<u64> {
    None
}

/// Reads nothing.
pub(crate) fn read_cached(_file: &File, _buffer: &mut [u8], _offset: u64) -> bool {
    false
}

/// Gives no hint.
pub(crate) fn advise(_file: &File, _offset: u64, _length: NonZeroU64, _advice: Advice) {}

/// Acquires no lock.
///
/// # Errors
/// `OPNOTSUPP`.
pub(crate) fn share_byte(_file: BorrowedFd<'_>, _byte: u64) -> rustix::io::Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Has no lock to release.
///
/// # Errors
/// `OPNOTSUPP`.
pub(crate) fn unlock_bytes(_file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Looks for no lock.
///
/// # Errors
/// `OPNOTSUPP`.
pub(crate) fn is_byte_locked(_file: BorrowedFd<'_>, _byte: u64) -> rustix::io::Result<bool> {
    Err(Errno::OPNOTSUPP)
}

//! Changing permissions, owners, times and flags of files.

use crate::arguments::check_flags;
use crate::failure::{Result, guard_unit};
use crate::file_system::{fs_of, papilio_fs};
use crate::stat::{PAPILIO_NOFOLLOW, inode};
use crate::time::{papilio_time, timespec};
use libc::{c_char, c_int};
use papilio::{InodeFlags, SetAttributes, SetTime};

/// Value of papilio_time.nanoseconds for papilio_utimens(): the time of the change.
pub const PAPILIO_TIME_NOW: u32 = 0x3fff_ffff;
/// Value of papilio_time.nanoseconds for papilio_utimens(): the time stays as it is.
pub const PAPILIO_TIME_OMIT: u32 = 0x3fff_fffe;
/// Value of `uid` and `gid` for papilio_chown(): the field stays as it is.
pub const PAPILIO_KEEP: u32 = 0xffff_ffff;

/// Sets the permissions of the file at `path`, NUL-terminated: the twelve low bits of `mode`.
/// Follows symbolic links.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_chmod(fs: *mut papilio_fs, path: *const c_char, mode: u32) -> c_int {
    let set = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(unsafe { inode(&*fs_of(fs)?, path, 0) }?.set_attributes(&set)?))
}

/// Sets owner and group of the file at `path`, NUL-terminated. PAPILIO_KEEP leaves one unchanged.
/// `flags` is 0 or PAPILIO_NOFOLLOW.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_chown(
    fs: *mut papilio_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: u32,
) -> c_int {
    let given = |id: u32| Some(id).filter(|id| *id != PAPILIO_KEEP);
    let set = SetAttributes { uid: given(uid), gid: given(gid), ..SetAttributes::default() };
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(unsafe { inode(&*fs_of(fs)?, path, flags) }?.set_attributes(&set)?))
}

/// Sets the times of the last read and the last change of the file at `path`, NUL-terminated. Their
/// nanoseconds may be PAPILIO_TIME_NOW or PAPILIO_TIME_OMIT. NULL is the same as PAPILIO_TIME_NOW.
/// `flags` is 0 or PAPILIO_NOFOLLOW.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_utimens(
    fs: *mut papilio_fs,
    path: *const c_char,
    atime: *const papilio_time,
    mtime: *const papilio_time,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises pointers that are NULL or point to times.
        let (atime, mtime) = unsafe { (set_time(atime)?, set_time(mtime)?) };
        let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
        // SAFETY: the caller promises a NUL-terminated text.
        Ok(unsafe { inode(&*fs_of(fs)?, path, flags) }?.set_attributes(&set)?)
    })
}

/// # Safety
/// `time` is NULL or points to a time.
unsafe fn set_time(time: *const papilio_time) -> Result<Option<SetTime>> {
    if time.is_null() {
        return Ok(Some(SetTime::Now));
    }
    // SAFETY: the pointer is not NULL, and the caller promises a time.
    let time = unsafe { time.read_unaligned() };
    Ok(match time.nanoseconds {
        PAPILIO_TIME_NOW => Some(SetTime::Now),
        PAPILIO_TIME_OMIT => None,
        _ => Some(SetTime::At(timespec(time.seconds, time.nanoseconds)?)),
    })
}

/// Sets the flags of the inode at `path`, NUL-terminated, that chattr controls: BTRFS_INODE_* of
/// <linux/btrfs_tree.h>, such as NODATACOW. papilio_stat() returns them all. `flags` is 0 or
/// PAPILIO_NOFOLLOW.
///
/// Returns 0 or a negative errno: -EOPNOTSUPP for flags that cannot be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_set_inode_flags(
    fs: *mut papilio_fs,
    path: *const c_char,
    inode_flags: u64,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_NOFOLLOW)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let inode = unsafe { inode(&*fs_of(fs)?, path, flags) }?;
        Ok(inode.set_flags(InodeFlags::from_bits_retain(inode_flags))?)
    })
}

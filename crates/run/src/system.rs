//! System calls that do not pass through functions of the C library.
//!
//! The preloaded library stands in the place of those functions, so it must not call them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Converts the result of a system call.
pub(crate) fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens a file, with the descriptor closed on exec.
///
/// # Errors
/// The system's.
pub fn open_at(directory: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the path is a string that outlives the call.
    let fd = checked(unsafe { libc::syscall(libc::SYS_openat, directory, path.as_ptr(), flags, 0) })?;
    // SAFETY: the call has just opened the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Reads all of a descriptor.
///
/// # Errors
/// The system's.
pub fn read_all(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.len();
        bytes.resize(end + 16384, 0);
        let (place, room) = (bytes[end..].as_mut_ptr(), bytes.len() - end);
        // SAFETY: the buffer has this room.
        let read = checked(unsafe { libc::syscall(libc::SYS_read, file.as_raw_fd(), place, room) });
        bytes.truncate(end + *read.as_ref().unwrap_or(&0) as usize);
        match read {
            Ok(0) => return Ok(bytes),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the status of an open file, or of the file at a path from it. `flags` are those of
/// `fstatat`.
///
/// # Errors
/// The system's.
pub fn status_at(directory: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<libc::stat> {
    // SAFETY: every field may be zero.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let (path, place) = (path.as_ptr(), &raw mut status);
    // SAFETY: the path is a string, and the structure has the layout of the kernel's on 64-bit
    // processors; both outlive the call.
    checked(unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, place, flags) })?;
    Ok(status)
}

/// Returns the status of an open file.
///
/// # Errors
/// The system's.
pub fn status(file: RawFd) -> io::Result<libc::stat> {
    status_at(file, c"", libc::AT_EMPTY_PATH)
}

/// Makes a file in memory with this content, to be read from its start. It is closed on exec if
/// `close_on_exec`.
///
/// # Errors
/// The system's.
pub fn file_in_memory(content: &[u8], close_on_exec: bool) -> io::Result<OwnedFd> {
    let flags = if close_on_exec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the name is a string.
    let fd = checked(unsafe { libc::syscall(libc::SYS_memfd_create, c"mounts".as_ptr(), flags) })?;
    // SAFETY: the call has just opened the descriptor.
    let file = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let mut offset = 0;
    while offset < content.len() {
        let rest = &content[offset..];
        let fd = file.as_raw_fd();
        // SAFETY: the bytes outlive the call.
        let result =
            unsafe { libc::syscall(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), offset as i64) };
        offset += checked(result)? as usize;
    }
    Ok(file)
}

/// Calls `ioctl` with a structure.
///
/// # Errors
/// The system's.
///
/// # Safety
/// `T` has the layout and the size that the request reads and writes.
pub unsafe fn ioctl<T>(file: RawFd, request: u32, argument: &mut T) -> io::Result<libc::c_long> {
    let argument = std::ptr::from_mut(argument);
    // SAFETY: the caller promises the layout, and the structure outlives the call.
    checked(unsafe { libc::syscall(libc::SYS_ioctl, file, libc::c_ulong::from(request), argument) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_are_read_from_the_start() {
        let content: Vec<u8> = (0..40_000u32).map(|number| number as u8).collect();
        let file = file_in_memory(&content, true).unwrap();
        assert_eq!(read_all(&file).unwrap(), content);
        assert_eq!(status(file.as_raw_fd()).unwrap().st_size, 40_000);
        assert!(open_at(libc::AT_FDCWD, c"/no/such/file", libc::O_RDONLY).is_err());
    }
}

//! The process whose system call is answered: its memory and its descriptors.
//!
//! Owns [`Caller`]. For this process itself its descriptors are used as they are; those of another
//! process are copied, which needs the right to trace it.

use crate::system::{self, checked};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const PAGE: u64 = 4096;

/// A process that makes a system call.
#[derive(Debug)]
pub struct Caller {
    process: libc::pid_t,
    /// `None` for this process.
    handle: Option<OwnedFd>,
}

/// A descriptor of a [`Caller`] that this process can use.
#[derive(Debug)]
pub enum Descriptor {
    /// One of this process.
    Own(RawFd),
    /// A copy.
    Copied(OwnedFd),
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Own(fd) => *fd,
            Self::Copied(fd) => fd.as_raw_fd(),
        }
    }
}

impl Caller {
    /// Returns this process.
    pub fn own() -> Self {
        // SAFETY: the call has no conditions.
        Self { process: unsafe { libc::getpid() }, handle: None }
    }

    /// Returns another process, by the id of one of its threads.
    ///
    /// # Errors
    /// The thread is gone, or the system's.
    pub fn of_thread(thread: libc::pid_t) -> io::Result<Self> {
        // `PIDFD_THREAD` (Linux 6.9) is `O_EXCL`. Before it, only the first thread has a handle.
        let open = |flags: libc::c_int| {
            // SAFETY: the call takes numbers only.
            checked(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) })
        };
        let handle = open(libc::O_EXCL).or_else(|_| open(0))?;
        // SAFETY: the call has just opened the descriptor.
        let handle = unsafe { OwnedFd::from_raw_fd(handle as RawFd) };
        Ok(Self { process: thread, handle: Some(handle) })
    }

    /// Returns the id by which /proc knows the caller.
    pub fn id(&self) -> libc::pid_t {
        self.process
    }

    /// Returns one of the caller's descriptors.
    ///
    /// # Errors
    /// EBADF, or EPERM without the right to trace the caller.
    pub fn descriptor(&self, fd: i64) -> io::Result<Descriptor> {
        let fd = RawFd::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        let Some(handle) = &self.handle else {
            return Ok(Descriptor::Own(fd));
        };
        // SAFETY: the call takes numbers only.
        let copy = checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), fd, 0) })?;
        // SAFETY: the call has just opened the descriptor.
        Ok(Descriptor::Copied(unsafe { OwnedFd::from_raw_fd(copy as RawFd) }))
    }

    /// Reads the caller's memory.
    ///
    /// # Errors
    /// EFAULT if a part is not there, or EPERM without the right to trace the caller.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: `local` describes `bytes`; the kernel checks the addresses of the other process.
        let read =
            unsafe { libc::process_vm_readv(self.process, &raw const local, 1, &raw const remote, 1, 0) };
        whole(read, bytes.len())
    }

    /// Writes the caller's memory.
    ///
    /// # Errors
    /// As [`Caller::read`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: `local` describes `bytes`, which the call only reads. The address is one that the
        // caller passed for this answer.
        let written =
            unsafe { libc::process_vm_writev(self.process, &raw const local, 1, &raw const remote, 1, 0) };
        whole(written, bytes.len())
    }

    /// Reads a structure of plain numbers.
    ///
    /// # Errors
    /// As [`Caller::read`].
    ///
    /// # Safety
    /// Every sequence of bytes is a `T`.
    pub(crate) unsafe fn read_plain<T: Copy>(&self, address: u64) -> io::Result<T> {
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        // SAFETY: the slice covers the value, whose bytes are all initialised.
        let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
        self.read(address, bytes)?;
        // SAFETY: the caller promises that any bytes are a value.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes a structure without padding.
    ///
    /// # Errors
    /// As [`Caller::read`].
    pub(crate) fn write_plain<T: Copy>(&self, address: u64, value: &T) -> io::Result<()> {
        // SAFETY: the slice covers the value. The structures of this crate have no padding, and
        // those of the C library were filled by the kernel.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) };
        self.write(address, bytes)
    }

    /// Reads a path.
    ///
    /// # Errors
    /// ENAMETOOLONG, or as [`Caller::read`].
    pub fn read_path(&self, address: u64) -> io::Result<CString> {
        let mut path = Vec::new();
        while path.len() < libc::PATH_MAX as usize {
            // The rest of a page, since the next one may not be there.
            let at = address + path.len() as u64;
            let start = path.len();
            path.resize(start + (PAGE - at % PAGE) as usize, 0);
            self.read(at, &mut path[start..])?;
            if let Some(end) = path[start..].iter().position(|&byte| byte == 0) {
                path.truncate(start + end);
                return CString::new(path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }

    /// Opens a file of the caller in /proc, without rights to its content.
    pub(crate) fn open_in_proc(&self, name: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
        let path = CString::new(format!("/proc/{}/{name}", self.process));
        let path = path.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        system::open_at(libc::AT_FDCWD, &path, libc::O_PATH | flags)
    }
}

/// Converts the count of a transfer that is whole or failed.
fn whole(moved: libc::ssize_t, wanted: usize) -> io::Result<()> {
    match moved {
        moved if moved < 0 => Err(io::Error::last_os_error()),
        moved if moved as usize == wanted => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_reached() {
        let own = Caller::own();
        let mut bytes = *b"before";
        own.write(bytes.as_mut_ptr() as u64, b"behind").unwrap();
        let mut found = [0; 6];
        own.read(bytes.as_ptr() as u64, &mut found).unwrap();
        assert_eq!((found, bytes), (*b"behind", *b"behind"));
        assert_eq!(own.read(8, &mut found).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        let path = c"/a/path";
        assert_eq!(own.read_path(path.as_ptr() as u64).unwrap().as_c_str(), path);
        let long = CString::new(vec![b'x'; 9000]).unwrap();
        let error = own.read_path(long.as_ptr() as u64).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    }

    #[test]
    fn descriptors_of_another_thread_are_copied() {
        let file = tempfile::tempfile().unwrap();
        let own = Caller::of_thread(std::process::id() as libc::pid_t).unwrap();
        let copy = own.descriptor(file.as_raw_fd().into()).unwrap();
        assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
        let inode = |fd| system::status(fd).unwrap().st_ino;
        assert_eq!(inode(copy.as_raw_fd()), inode(file.as_raw_fd()));
        assert!(own.descriptor(-1).is_err() && own.descriptor(1 << 40).is_err());
    }
}

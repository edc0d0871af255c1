//! Files of the kernel's Btrfs by subvolume and inode number, also where no path of the mount leads
//! to them.
//!
//! Owns [`MountedPath::open_inode`].
//!
//! Kernel counterpart: `struct btrfs_fid`, `btrfs_fh_to_dentry` (`fs/btrfs/export.c`).

use super::MountedPath;
use papilio_format::{Generation, InodeNumber, TreeId};
use std::fs::File;
use std::io;

impl MountedPath {
    /// Opens a regular file for reading by its subvolume, its inode number and the transaction that
    /// created it.
    ///
    /// # Errors
    /// EPERM without `CAP_DAC_READ_SEARCH`; ESTALE if there is no such inode, or in a mount that is
    /// not one of the kernel's Btrfs.
    #[cfg(target_os = "linux")]
    pub fn open_inode(&self, tree: TreeId, inode: InodeNumber, generation: Generation) -> io::Result<File> {
        use std::os::fd::{AsRawFd, FromRawFd};

        /// `FILEID_BTRFS_WITHOUT_PARENT`.
        const BTRFS_WITHOUT_PARENT: i32 = 0x4d;
        /// Bytes of a handle without a parent.
        const LENGTH: u32 = 20;
        /// A `struct file_handle`: the length and the type, and the bytes behind it.
        #[repr(C, align(8))]
        struct Handle([u8; 8 + LENGTH as usize]);

        let mut handle = Handle([0; 8 + LENGTH as usize]);
        handle.0[..4].copy_from_slice(&LENGTH.to_ne_bytes());
        handle.0[4..8].copy_from_slice(&BTRFS_WITHOUT_PARENT.to_ne_bytes());
        handle.0[8..16].copy_from_slice(&inode.0.to_ne_bytes());
        handle.0[16..24].copy_from_slice(&tree.0.to_ne_bytes());
        // The kernel compares the lower half only.
        handle.0[24..].copy_from_slice(&(generation.0 as u32).to_ne_bytes());
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the bytes are a `struct file_handle` with as many bytes behind it as its first
        // field says, and aligned for it. They outlive the call, which only reads them.
        let opened = unsafe {
            libc::open_by_handle_at(
                self.file.as_raw_fd(),
                (&raw mut handle).cast::<libc::file_handle>(),
                flags,
            )
        };
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor, which nothing else owns.
        Ok(unsafe { File::from_raw_fd(opened) })
    }

    /// As on Linux, where alone there are such mounts.
    ///
    /// # Errors
    /// ESTALE, always.
    #[cfg(not(target_os = "linux"))]
    pub fn open_inode(&self, _: TreeId, _: InodeNumber, _: Generation) -> io::Result<File> {
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }
}

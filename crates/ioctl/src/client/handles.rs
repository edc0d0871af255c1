//! Files of a mount by subvolume and inode number, also where no path of the mount leads to them.
//!
//! Owns [`MountedPath::open_inode`].
//!
//! Kernel counterparts: `struct btrfs_fid`, `btrfs_fh_to_dentry` (`fs/btrfs/export.c`),
//! `fuse_fh_to_dentry` (`fs/fuse/inode.c`).

use super::MountedPath;
#[cfg(target_os = "linux")]
use crate::shown_number::shown_number;
use papilio_format::{Generation, InodeNumber, TreeId};
use std::fs::File;
use std::io;

/// A `struct file_handle`: the length and the type, and the bytes behind it.
#[cfg(target_os = "linux")]
#[repr(C, align(8))]
struct Handle([u8; 28]);

#[cfg(target_os = "linux")]
impl Handle {
    fn new(kind: u32, content: &[u8]) -> Self {
        let mut handle = Self([0; 28]);
        handle.0[..4].copy_from_slice(&(content.len() as u32).to_ne_bytes());
        handle.0[4..8].copy_from_slice(&kind.to_ne_bytes());
        handle.0[8..8 + content.len()].copy_from_slice(content);
        handle
    }
}

#[cfg(target_os = "linux")]
fn btrfs_handle(tree: TreeId, inode: InodeNumber, generation: u32) -> Handle {
    /// `FILEID_BTRFS_WITHOUT_PARENT`.
    const BTRFS_WITHOUT_PARENT: u32 = 0x4d;
    let parts = [&inode.0.to_ne_bytes()[..], &tree.0.to_ne_bytes(), &generation.to_ne_bytes()];
    Handle::new(BTRFS_WITHOUT_PARENT, &parts.concat())
}

#[cfg(target_os = "linux")]
fn fuse_handle(node: u64, generation: u32) -> Handle {
    /// `FILEID_INO64_GEN`: the upper and the lower half of the node's id, and the generation.
    const INO64_GEN: u32 = 0x81;
    let words = [(node >> 32) as u32, node as u32, generation];
    Handle::new(INO64_GEN, &words.map(u32::to_ne_bytes).concat())
}

impl MountedPath {
    /// Opens a regular file for reading by its subvolume, its inode number and the transaction that
    /// created it.
    ///
    /// # Errors
    /// EPERM without `CAP_DAC_READ_SEARCH`; ESTALE if there is no such inode.
    #[cfg(target_os = "linux")]
    pub fn open_inode(&self, tree: TreeId, inode: InodeNumber, generation: Generation) -> io::Result<File> {
        let stale = || io::Error::from_raw_os_error(libc::ESTALE);
        // Both file systems compare the lower half only.
        let generation = generation.0 as u32;
        match self.state() {
            Ok(state) => {
                // Numbers that only the server knows lead to no handle.
                let shown = if tree == state.root { Some(inode.0) } else { shown_number(tree, inode) };
                self.open_by_handle(fuse_handle(shown.ok_or_else(stale)?, generation))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.open_by_handle(btrfs_handle(tree, inode, generation))
            }
            Err(error) => Err(error),
        }
    }

    #[cfg(target_os = "linux")]
    fn open_by_handle(&self, mut handle: Handle) -> io::Result<File> {
        use std::os::fd::{AsRawFd, FromRawFd};

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

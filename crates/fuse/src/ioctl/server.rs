//! What a server answers to an ioctl.

use crate::{Errno, MountOptions};
use papilio::format::{InodeNumber, TreeId};
use papilio::{FileSystem, Inode};
use std::path::{Path, PathBuf};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as the server's PID namespace numbers it.
    pub pid: u32,
}

/// What ioctls need to know of the mount.
#[derive(Clone, Debug)]
pub struct MountInfo {
    /// What was mounted.
    pub source: PathBuf,
    /// Where, as an absolute path.
    pub directory: PathBuf,
    /// Whether owners may delete their subvolumes (`user_subvol_rm_allowed`).
    pub user_subvol_rm_allowed: bool,
}

impl MountInfo {
    /// Of a mount of `source` on `directory`, which must be absolute.
    pub fn new(source: &Path, directory: &Path, options: &MountOptions) -> Self {
        Self {
            source: source.to_path_buf(),
            directory: directory.to_path_buf(),
            user_subvol_rm_allowed: options.user_subvol_rm_allowed,
        }
    }
}

/// An ioctl that a server has received.
#[derive(Debug)]
pub struct IoctlCall<'a> {
    /// The file system.
    pub fs: &'a FileSystem,
    /// The mount.
    pub mount: &'a MountInfo,
    /// The file or directory that it was called on, as it is now.
    pub inode: &'a Inode,
    /// The command's number.
    pub command: u32,
    /// What the caller passed.
    pub input: &'a [u8],
    /// Bytes that can be returned.
    pub output_size: usize,
    /// Who asks.
    pub caller: Caller,
    /// The caller's umask, where it is known.
    pub umask: u32,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// What `ioctl` returns.
    pub result: i32,
    /// What is copied to the caller.
    pub output: Vec<u8>,
    /// What the kernel may hold in its caches and is no longer true.
    pub changed: Vec<Changed>,
}

/// Something that an ioctl changed behind the kernel's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// An entry of a directory came or went.
    Entry {
        /// The directory.
        directory: (TreeId, InodeNumber),
        /// The entry's name.
        name: Vec<u8>,
    },
    /// The attributes of an inode.
    Inode(TreeId, InodeNumber),
}

/// Answers an ioctl.
///
/// # Errors
/// ENOTTY for what is not known.
pub fn handle(call: &IoctlCall<'_>) -> Result<IoctlReply, Errno> {
    let _ = call;
    Err(Errno(libc::ENOTTY))
}

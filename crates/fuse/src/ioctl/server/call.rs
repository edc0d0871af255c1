//! An ioctl call and its reply.
//!
//! Owns [`IoctlCall`] and [`IoctlReply`], which every command's handler takes and returns.

use crate::errno::Errno;
use crate::ioctl::layout::{PAGE_BYTES, Page};
use crate::ioctl::record::Writer;
use crate::options::MountOptions;
use papilio::format::{InodeNumber, TreeId};
use papilio::{FileSystem, Inode};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
    /// The caller's umask, for where the system does not tell it.
    pub umask: u32,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// What `ioctl` returns; an errno as a negative number where something is returned beside it.
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

pub(super) type Result<T, E = Errno> = std::result::Result<T, E>;

impl<'a> IoctlCall<'a> {
    /// What the caller passed, as a struct.
    pub(super) fn argument<T: FromBytes>(&self) -> Result<T> {
        T::read_from_prefix(self.input).map(|(argument, _)| argument).map_err(|_| Errno(libc::EINVAL))
    }

    /// A reply with a struct, or as much of it as the caller has room for.
    pub(super) fn reply<T: IntoBytes + Immutable>(&self, output: &T) -> Result<IoctlReply> {
        let bytes = output.as_bytes();
        let output = bytes[..bytes.len().min(self.output_size)].to_vec();
        Ok(IoctlReply { output, ..IoctlReply::default() })
    }

    /// Refuses who is neither root nor runs the server.
    pub(super) fn must_be_administrator(&self) -> Result<()> {
        if self.is_administrator() { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }

    pub(super) fn is_administrator(&self) -> bool {
        self.caller.uid == 0 || self.caller.uid == rustix::process::geteuid().as_raw()
    }
}

/// A reply that says only that it was done.
pub(super) fn done(changed: Vec<Changed>) -> Result<IoctlReply> {
    Ok(IoctlReply { changed, ..IoctlReply::default() })
}

/// Fills a page with records from `cursor` on, each made by `write`, as many as fit.
pub(super) fn page<T>(
    call: &IoctlCall<'_>,
    mut page: Page,
    records: &[T],
    write: impl Fn(&mut Writer, &T),
    mut writer: Writer,
) -> Result<IoctlReply> {
    let start = usize::try_from(page.cursor).unwrap_or(usize::MAX).min(records.len());
    let mut next = start;
    for record in &records[start..] {
        let before = writer.0.len();
        write(&mut writer, record);
        if writer.0.len() > PAGE_BYTES {
            writer.0.truncate(before);
            break;
        }
        next += 1;
    }
    if next == start && start < records.len() || writer.0.len() > PAGE_BYTES {
        return Err(Errno(libc::EOVERFLOW));
    }
    page.cursor = next as u64;
    page.more = (next < records.len()).into();
    page.used = writer.0.len() as u32;
    page.bytes.fill(0);
    page.bytes[..writer.0.len()].copy_from_slice(&writer.0);
    call.reply(&page)
}

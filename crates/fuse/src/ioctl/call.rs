//! An ioctl call and its reply.
//!
//! Owns [`IoctlCall`] and [`IoctlReply`], which every command's handler takes and returns.

use crate::jobs::Jobs;
use crate::options::MountOptions;
use crate::ownership::Ownership;
use papilio::format::{InodeNumber, TreeId, objectid};
use papilio::{FileSystem, Inode};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{PAGE_BYTES, Page};
use papilio_ioctl::mount_table::MountEntry;
use papilio_ioctl::record::Writer;
use papilio_locks::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The process that made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Thread id in the server's PID namespace; 0 if it is not visible there.
    pub pid: u32,
}

/// The id in a request that does not tell the caller's, and of no user and no group.
pub(crate) const UNTOLD: u32 = u32::MAX;

/// The properties of a mount that ioctls need.
#[derive(Clone, Debug)]
pub struct MountInfo {
    /// The mounted source.
    pub source: PathBuf,
    /// The mount point, an absolute path.
    pub directory: PathBuf,
    /// Owners may delete their subvolumes (`user_subvol_rm_allowed`).
    pub user_subvol_rm_allowed: bool,
    /// The owners and permissions that the mount shows.
    pub ownership: Ownership,
    /// The option because of which the mount can only be read-only.
    pub needs_read_only: Option<&'static str>,
    /// The kernel's root of the file system is the top level, and the mount shows a directory below
    /// it. Otherwise the root is the mounted subvolume.
    pub from_top_level: bool,
    /// The work that takes long; all clones share it.
    pub jobs: Arc<Jobs>,
    /// The mount was made read-only since; all clones share it.
    read_only: Arc<AtomicBool>,
    /// The file system is open for reading only; all clones share it.
    opened_read_only: Arc<AtomicBool>,
    /// Why the last attempt to allow changes failed; all clones share it.
    refusal: Arc<Mutex<String>>,
}

impl MountInfo {
    /// Describes a mount of `source` on `directory`, which must be absolute.
    pub fn new(source: &Path, directory: &Path, options: &MountOptions) -> Self {
        Self {
            source: source.to_path_buf(),
            directory: directory.to_path_buf(),
            user_subvol_rm_allowed: options.user_subvol_rm_allowed,
            ownership: options.ownership.clone(),
            needs_read_only: options.needs_read_only,
            from_top_level: false,
            jobs: Arc::default(),
            read_only: Arc::default(),
            opened_read_only: Arc::new(AtomicBool::new(options.read_only)),
            refusal: Arc::default(),
        }
    }

    /// Returns the root directory that the kernel knows of `fs`.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn root(&self, fs: &FileSystem) -> papilio::Result<Inode> {
        if self.from_top_level { fs.subvolume_root(objectid::FS_TREE) } else { fs.root() }
    }

    /// Returns whether the mount was made read-only after it was mounted writable.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Returns whether ioctls that change something are refused. mount(8) remounts without the
    /// server where it is given a source, so the kernel's table of mounts decides.
    pub fn refuses_changes(&self) -> bool {
        self.opened_read_only() || self.is_read_only_in_table().unwrap_or_else(|| self.is_read_only())
    }

    /// Returns what the kernel's table of mounts says; `None` if the mount is not in it, as in
    /// another mount namespace.
    fn is_read_only_in_table(&self) -> Option<bool> {
        let mounts = MountEntry::all().ok()?;
        let own = mounts.iter().rev().find(|entry| entry.is_papilio() && entry.point == self.directory)?;
        Some(own.options.split(',').any(|option| option == "ro"))
    }

    /// Returns whether the file system is open for reading only.
    pub fn opened_read_only(&self) -> bool {
        self.opened_read_only.load(Ordering::Acquire)
    }

    /// Notes that the file system is open for writing from now on.
    pub(crate) fn set_opened_for_writing(&self) {
        self.opened_read_only.store(false, Ordering::Release);
    }

    /// Notes why an attempt to allow changes failed.
    pub(crate) fn refuse_writing(&self, why: String) {
        *self.refusal.lock() = why;
    }

    /// Returns why the last attempt to allow changes failed; empty if none did.
    pub(super) fn refusal(&self) -> String {
        self.refusal.lock().clone()
    }

    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Release);
    }
}

/// An ioctl that a server has received.
#[derive(Debug)]
pub struct IoctlCall<'a> {
    /// The file system.
    pub fs: &'a FileSystem,
    /// The mount.
    pub mount: &'a MountInfo,
    /// The file or directory of the call, freshly read.
    pub inode: &'a Inode,
    /// The command's number.
    pub command: u32,
    /// The bytes that the caller passed.
    pub input: &'a [u8],
    /// The address of these bytes in the caller's memory; 0 if it is not known.
    pub address: u64,
    /// Maximum number of bytes to return.
    pub output_size: usize,
    /// The calling process, with the ids of its thread.
    pub caller: Caller,
    /// Where the call may come through an idmapped mount, whose owners are not those of the file
    /// system: the number of the inode that users see.
    pub may_be_mapped: Option<u64>,
    /// The caller's umask, if /proc does not show it.
    pub umask: u32,
}

/// The reply to an ioctl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// The result of `ioctl`; a negative errno if data is returned as well.
    pub result: i32,
    /// The bytes for the caller.
    pub output: Vec<u8>,
    /// Changes that the kernel's caches do not know of.
    pub changed: Vec<Changed>,
}

/// A change that the kernel's caches do not know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A directory entry was added or removed.
    Entry {
        /// The directory.
        directory: (TreeId, InodeNumber),
        /// The entry's name.
        name: Vec<u8>,
    },
    /// A subvolume was deleted. The kernel still keeps what processes use of it.
    Deleted(TreeId),
    /// The attributes of an inode.
    Inode(TreeId, InodeNumber),
    /// Data of a file.
    Data {
        /// The file.
        file: (TreeId, InodeNumber),
        /// File offset of the first byte that changed.
        offset: u64,
        /// Bytes that changed.
        length: u64,
        /// The file's last byte, if its size has grown to the end of these bytes.
        last: Option<u8>,
    },
}

pub(super) type Result<T, E = Errno> = std::result::Result<T, E>;

impl<'a> IoctlCall<'a> {
    /// Reads the caller's bytes as a struct; EINVAL if there are too few.
    pub(super) fn argument<T: FromBytes>(&self) -> Result<T> {
        T::read_from_prefix(self.input).map(|(argument, _)| argument).map_err(|_| Errno(libc::EINVAL))
    }

    /// Replies with a struct, cut to the length that the caller accepts.
    pub(super) fn reply<T: IntoBytes + Immutable>(&self, output: &T) -> Result<IoctlReply> {
        let bytes = output.as_bytes();
        let output = bytes[..bytes.len().min(self.output_size)].to_vec();
        Ok(IoctlReply { output, ..IoctlReply::default() })
    }
}

/// Replies without data.
pub(super) fn done(changed: Vec<Changed>) -> Result<IoctlReply> {
    Ok(IoctlReply { changed, ..IoctlReply::default() })
}

/// Replies with a page of records from index `cursor` on, as many as fit. `write` encodes each
/// record.
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

//! What a server answers to an ioctl.
//!
//! Owns [`IoctlCall`], [`IoctlReply`] and [`handle`], which sends each command to its maker. Invariant: what
//! the kernel lets only an administrator do, only root and whoever runs the server may do here; the rest
//! follows the permissions of files ([`access`]). Kernel counterpart: `btrfs_ioctl` (`fs/btrfs/ioctl.c`).

mod access;
mod caller;
mod devices;
mod files;
mod subvolumes;

use super::layout::{PAGE_BYTES, Page, SERVER_INFO_VERSION, ServerInfo};
use super::number::Command;
use super::record::Writer;
use crate::{Errno, MountOptions};
use papilio::format::{InodeNumber, TreeId};
use papilio::{FileSystem, Inode};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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

type Result<T, E = Errno> = std::result::Result<T, E>;

/// Answers an ioctl.
///
/// # Errors
/// ENOTTY for a command that is not known, EPERM and EACCES for what the caller may not do, EINVAL for
/// arguments without sense; else what the library says, as the kernel's Btrfs would.
pub fn handle(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    match Command(call.command) {
        Command::GET_FLAGS => files::get_flags(call),
        Command::SET_FLAGS => files::set_flags(call),
        Command::GET_VERSION => files::get_version(call),
        Command::GET_ATTRIBUTES => files::get_attributes(call),
        Command::SET_ATTRIBUTES => files::set_attributes(call),
        Command::INO_LOOKUP => files::ino_lookup(call),
        Command::INO_LOOKUP_USER => files::ino_lookup_user(call),

        Command::TRIM => devices::trim(call),
        Command::GET_LABEL => devices::get_label(call),
        Command::SET_LABEL => devices::set_label(call),
        Command::RESIZE => devices::resize(call),
        Command::SYNC => devices::sync(call),
        Command::START_SYNC => devices::start_sync(call),
        Command::WAIT_SYNC => devices::wait_sync(call),
        Command::SPACE_INFO => devices::space_info(call),
        Command::DEV_INFO => devices::dev_info(call),
        Command::FS_INFO => devices::fs_info(call),
        Command::GET_FEATURES => devices::get_features(call),
        Command::USAGE => devices::usage(call),

        Command::SUBVOL_CREATE => subvolumes::create(call),
        Command::SUBVOL_CREATE_V2 => subvolumes::create_v2(call),
        Command::SNAP_CREATE => subvolumes::snapshot(call),
        Command::SNAP_CREATE_V2 => subvolumes::snapshot_v2(call),
        Command::SNAPSHOT_BY_ID => subvolumes::snapshot_by_id(call),
        Command::SNAP_DESTROY => subvolumes::delete(call),
        Command::SNAP_DESTROY_V2 => subvolumes::delete_v2(call),
        Command::SUBVOL_GETFLAGS => subvolumes::get_flags(call),
        Command::SUBVOL_SETFLAGS => subvolumes::set_flags(call),
        Command::DEFAULT_SUBVOL => subvolumes::set_default(call),
        Command::GET_SUBVOL_INFO => subvolumes::info(call),
        Command::GET_SUBVOL_ROOTREF => subvolumes::rootrefs(call),
        Command::SUBVOLUMES => subvolumes::list(call),

        Command::SERVER_INFO => server_info(call),
        _ => Err(Errno(libc::ENOTTY)),
    }
}

impl<'a> IoctlCall<'a> {
    /// What the caller passed, as a struct.
    fn argument<T: FromBytes>(&self) -> Result<T> {
        T::read_from_prefix(self.input).map(|(argument, _)| argument).map_err(|_| Errno(libc::EINVAL))
    }

    /// A reply with a struct, or as much of it as the caller has room for.
    fn reply<T: IntoBytes + Immutable>(&self, output: &T) -> Result<IoctlReply> {
        let bytes = output.as_bytes();
        let output = bytes[..bytes.len().min(self.output_size)].to_vec();
        Ok(IoctlReply { output, ..IoctlReply::default() })
    }

    /// Refuses who is neither root nor runs the server.
    fn must_be_administrator(&self) -> Result<()> {
        if self.is_administrator() { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }

    fn is_administrator(&self) -> bool {
        self.caller.uid == 0 || self.caller.uid == rustix::process::geteuid().as_raw()
    }
}

/// A reply that says only that it was done.
fn done(changed: Vec<Changed>) -> Result<IoctlReply> {
    Ok(IoctlReply { changed, ..IoctlReply::default() })
}

/// Fills a page with records from `cursor` on, each made by `write`, as many as fit.
fn page<T>(
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

fn server_info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut info =
        ServerInfo { version: SERVER_INFO_VERSION, pid: std::process::id(), ..ServerInfo::default() };
    info.pid_namespace = pid_namespace();
    let source = call.mount.source.as_os_str().as_bytes();
    let length = source.len().min(info.source.len());
    info.source[..length].copy_from_slice(&source[..length]);
    info.source_length = length as u64;
    call.reply(&info)
}

/// The inode of this process's PID namespace, or 0.
pub(super) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

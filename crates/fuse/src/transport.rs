//! The interface between a transport and the server.
//!
//! Owns the arguments and replies of the operations of [`Server`](crate::server::Server). They do
//! not say how requests travel, so transports are interchangeable: `/dev/fuse`, and FUSE over
//! io_uring.
//!
//! **Invariants**
//! - A transport calls operations from any number of threads and holds no file-system state.
//! - It answers each request exactly once, also when an operation panics.
//! - It invalidates the kernel's caches where a reply asks for that.

use crate::device_number;

use papilio::{FileKind, RenameMode, SetTime, Timespec};
use papilio_ioctl::Errno;
use std::time::Duration;

/// An inode as the kernel knows it; 1 is the root directory of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of the mount.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectoryHandle(pub u64);

/// The attributes that `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `st_ino`.
    pub number: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: Timespec,
    /// Time of the last change of the content.
    pub mtime: Timespec,
    /// Time of the last change of the inode.
    pub ctime: Timespec,
    /// Time of the creation.
    pub btime: Timespec,
    /// Kind of the file.
    pub kind: FileKind,
    /// The twelve low bits of the mode.
    pub permissions: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device file.
    pub device: (u32, u32),
    /// Preferred I/O size in bytes.
    pub block_size: u32,
}

/// The reply to a look-up: each one counts as a look-up of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The id for the kernel.
    pub node: NodeId,
    /// Distinguishes inodes that have the same number one after the other.
    pub generation: u64,
    /// The attributes that `stat` shows.
    pub attributes: Attributes,
}

/// Changes to attributes; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// The twelve low bits of the mode.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// Time of the last change of the inode.
    pub ctime: Option<Timespec>,
    /// The file is open for the change (`ftruncate`, `O_TRUNC`), which then counts even if the size
    /// stays.
    pub by_handle: bool,
    /// Clear set-user-id and set-group-id bits with a change of the size, because the caller may
    /// not keep them.
    pub kills_privileges: bool,
}

/// An inode to create.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// The directory of its first name.
    pub parent: NodeId,
    /// Its first name.
    pub name: &'a [u8],
    /// The kind of inode.
    pub kind: NewNodeKind<'a>,
    /// The twelve low bits of the mode, before the umask.
    pub permissions: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// The kinds of inode that can be created.
#[derive(Clone, Copy, Debug)]
pub enum NewNodeKind<'a> {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
    /// A symbolic link.
    Symlink(&'a [u8]),
}

impl NewNodeKind<'_> {
    /// Returns the kind that `mknod` creates for a mode and a device number in the kernel's
    /// encoding; `None` for a mode that `mknod` does not support.
    pub fn of_mknod(mode: u32, device: u32) -> Option<Self> {
        let (major, minor) = device_number::unpack(device);
        match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => Some(Self::Regular),
            libc::S_IFIFO => Some(Self::Fifo),
            libc::S_IFSOCK => Some(Self::Socket),
            libc::S_IFCHR => Some(Self::CharacterDevice(major, minor)),
            libc::S_IFBLK => Some(Self::BlockDevice(major, minor)),
            _ => None,
        }
    }
}

/// A rename.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// The source directory.
    pub parent: NodeId,
    /// The source name.
    pub name: &'a [u8],
    /// The target directory.
    pub new_parent: NodeId,
    /// The target name.
    pub new_name: &'a [u8],
    /// How an existing target is treated.
    pub mode: RenameMode,
    /// Leave a whiteout at the source name.
    pub whiteout: bool,
}

/// A read or a write of data, without the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAccess {
    /// A read.
    Read {
        /// File offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: usize,
        /// Flags of `open`.
        flags: i32,
    },
    /// A write.
    Write(Write),
}

/// A write, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// File offset in bytes.
    pub offset: u64,
    /// Length of the data in bytes; of a write that has ended, of the part that is stored.
    pub length: usize,
    /// Clear set-user-id and set-group-id bits, because the caller may not keep them.
    pub kills_privileges: bool,
    /// The data comes from the kernel's cache; otherwise a caller waits for this write.
    pub from_cache: bool,
    /// The write passes the kernel's cache (`O_DIRECT`).
    pub direct: bool,
}

/// Stale pages of a file in the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedPages {
    /// Those of a range: file offset and length in bytes.
    Range(u64, u64),
    /// All of them. [`Server::pages_dropped`](crate::server::Server::pages_dropped) gets the number
    /// when they are dropped.
    All(u64),
}

/// Side effects of a change to data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataChange {
    /// Attributes changed without the kernel's knowledge.
    pub attributes: bool,
    /// Pages in the kernel's cache are stale.
    pub pages: Option<ChangedPages>,
    /// Room became short: the kernel must ask before each write from now on.
    pub room: bool,
}

/// How long the kernel may cache what a reply says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    /// For names.
    pub names: Duration,
    /// For attributes.
    pub attributes: Duration,
}

/// A range to copy from one file to another.
#[derive(Clone, Copy, Debug)]
pub struct CopyRange {
    /// The file to read from.
    pub source: NodeId,
    /// File offset in bytes to read from.
    pub source_offset: u64,
    /// The file to write to.
    pub target: NodeId,
    /// File offset in bytes to write to.
    pub target_offset: u64,
    /// Maximum length in bytes.
    pub length: u64,
}

/// An ioctl.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// The command's number.
    pub command: u32,
    /// The bytes that the caller passed.
    pub input: &'a [u8],
    /// Their address in the caller's memory; 0 for a caller whose pointers have 32 bits.
    pub address: u64,
    /// Maximum number of bytes to return.
    pub output_size: usize,
}

/// The target of `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Data.
    Data,
    /// A hole.
    Hole,
}

/// Whether setting an extended attribute creates or replaces it, or either.
pub use papilio::XattrSet;

/// An entry of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Inode number that users see.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Offset from which the listing continues after this entry.
    pub next: u64,
    /// The look-up reply, if attributes were requested. Those of `.` and `..` do not count as
    /// look-ups.
    pub entry: Option<Entry>,
}

/// A consumer of directory entries.
pub trait DirectorySink {
    /// Adds an entry; returns false if there is no space for it. The listing then ends before it.
    fn add(&mut self, entry: &ListedEntry<'_>) -> bool;
}

/// The kernel's use of its cached listing, for a directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptListing {
    /// Use the cached one, which is valid until names change.
    Use,
    /// Ask for it again, and cache the reply. Its attributes replace those that the kernel has.
    Renew,
    /// Ask for it each time.
    Never,
}

/// The sizes of a file system, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSizes {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub free: u64,
    /// Number of blocks that files can still use.
    pub available: u64,
    /// Length of the longest possible name in bytes.
    pub name_max: u32,
}

/// A write that the kernel may not take into its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    /// The error of the caller's write.
    pub error: Errno,
    /// The part of it that the server has stored nevertheless.
    pub stored: Option<StoredPrefix>,
}

impl From<Errno> for RefusedWrite {
    fn from(error: Errno) -> Self {
        Self { error, stored: None }
    }
}

/// The first bytes of a write, which the server has stored without the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPrefix {
    /// Their file offset.
    pub offset: u64,
    /// Their number, at least one.
    pub length: u64,
    /// The last of them.
    pub last: u8,
}

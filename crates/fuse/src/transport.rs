//! The interface between a transport and the server.
//!
//! Owns [`Operations`], the operations of a file system with typed arguments and replies. They do
//! not know how requests travel, so transports are interchangeable: `/dev/fuse`, and FUSE over
//! io_uring.
//!
//! **Invariants**
//! - A transport calls operations from any number of threads and holds no file-system state.
//! - It answers each request exactly once, also when an operation panics.
//! - It invalidates the kernel's caches where a reply asks for that.

use crate::device_number;
use crate::ioctl::{Caller, IoctlReply};
use papilio::{FileKind, RenameMode, SetTime, Timespec};
use papilio_ioctl::Errno;
use std::sync::Arc;
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

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// File offset in bytes.
    pub offset: u64,
    /// The data.
    pub data: &'a [u8],
    /// Clear set-user-id and set-group-id bits, because the caller may not keep them.
    pub kills_privileges: bool,
    /// The data comes from the kernel's cache; otherwise a caller waits for this write.
    pub from_cache: bool,
    /// The write passes the kernel's cache (`O_DIRECT`).
    pub direct: bool,
}

/// A write whose data is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// File offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// As in [`Write`].
    pub kills_privileges: bool,
    /// As in [`Write`].
    pub direct: bool,
}

/// Stale pages of a file in the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedPages {
    /// Those of a range: file offset and length in bytes.
    Range(u64, u64),
    /// All of them. [`Operations::pages_dropped`] gets the number when they are dropped.
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

/// The operations of a mounted file system. Each returns its result or an error number; none keeps
/// a reference to its arguments.
pub trait Operations: Send + Sync + 'static {
    /// Returns how long the kernel may cache names and attributes.
    fn valid_for(&self) -> Validity;

    /// Returns whether the caller may use the mount (`allow_root`).
    fn admits(&self, _caller: Caller) -> bool {
        true
    }

    /// Returns whether [`Operations::admits`] refuses any caller. The kernel must then ask for the
    /// root directory's attributes each time that a caller passes through it.
    fn refuses_callers(&self) -> bool {
        false
    }

    /// Looks up `name` in `parent`; counts as a look-up of the node.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// Returns words for a node, for the log.
    fn describe(&self, node: NodeId) -> String {
        format!("node {}", node.0)
    }

    /// Subtracts `count` look-ups from a node.
    fn forget(&self, node: NodeId, count: u64);

    /// Returns the attributes that `stat` shows.
    fn attributes(&self, node: NodeId) -> Result<Attributes, Errno>;

    /// Answers the kernel's question on behalf of an open file, which it may ask before it writes
    /// to its cache. An error fails that write.
    fn before_cached_write(&self, _caller: Caller, _node: NodeId) -> Result<(), RefusedWrite> {
        Ok(())
    }

    /// Returns whether room has become short by something other than a write.
    fn lost_room(&self) -> bool {
        false
    }

    /// Returns the names of a file whose write from the kernel's cache failed, as directories and
    /// entries. The kernel must forget them, and with its last close the file.
    fn names_after_failure(&self, _node: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        Vec::new()
    }

    /// As [`Operations::names_after_failure`], for a file that was closed. Most have none.
    fn names_after_close(&self, _node: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        Vec::new()
    }

    /// Returns the names in a deleted subvolume of inodes that processes may use, as directories
    /// and entries. The kernel must forget them, and with the last use the inodes.
    fn names_in_deleted(&self, _tree: papilio::format::TreeId) -> Vec<(NodeId, Vec<u8>)> {
        Vec::new()
    }

    /// Returns the files whose data the kernel must write back before `length` bytes are allocated:
    /// none where these leave room for it.
    fn dirty_before_allocating(&self, _length: u64) -> Vec<NodeId> {
        Vec::new()
    }

    /// Returns the files whose data the kernel must write back before it takes more of `node` into
    /// its cache. The default is that one.
    fn dirty_before_caching(&self, node: NodeId) -> Vec<NodeId> {
        vec![node]
    }

    /// Returns whether room is so short that the kernel must write back a file's data before it
    /// takes more into its cache.
    fn is_short_of_room(&self) -> bool;

    /// Notes that the kernel has dropped all pages of a file, as [`ChangedPages::All`] asked.
    fn pages_dropped(&self, node: NodeId, accesses: u64);

    /// Returns whether reads and writes of data wait for a device.
    fn waits_for_devices(&self) -> bool;

    /// Returns the file for a read or a write that is in flight without a thread. With `direct`
    /// the data passes the kernel's cache.
    fn data_file(&self, node: NodeId, direct: bool) -> Result<Arc<papilio::File>, Errno>;

    /// Notes that a file opened with `flags` was read, for a request that was in flight.
    fn has_read(&self, node: NodeId, flags: i32);

    /// Notes that a direct write has ended, for a request that was in flight.
    fn has_written(&self, caller: Caller, node: NodeId, written: &Written) -> Result<DataChange, Errno>;

    /// Returns the files that programs may be writing.
    fn may_be_written(&self) -> Vec<NodeId>;

    /// Changes attributes and the size.
    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno>;

    /// Returns the target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Creates an inode; counts as a look-up of the node.
    fn make(&self, caller: Caller, new: &NewNode<'_>) -> Result<Entry, Errno>;

    /// Creates a regular file and opens it with `open`'s flags; counts as a look-up. With `O_EXCL`
    /// the name must not exist.
    fn create(&self, caller: Caller, new: &NewNode<'_>, flags: i32) -> Result<Entry, Errno>;

    /// Creates a regular file without a name in a directory's subvolume and opens it with `open`'s
    /// flags; counts as a look-up. The name in `new` is ignored.
    fn create_unnamed(&self, caller: Caller, new: &NewNode<'_>, flags: i32) -> Result<Entry, Errno>;

    /// Adds a name to a node; counts as a look-up of the node.
    fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// Unlinks `name`; refuses directories.
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Renames an entry.
    fn rename(&self, caller: Caller, rename: &Rename<'_>) -> Result<(), Errno>;

    /// Opens a regular file with `open`'s flags. Files have no handles: the node stands for the
    /// open file. Returns whether the kernel may keep what it has cached of the file.
    fn open(&self, node: NodeId, flags: i32) -> Result<bool, Errno>;

    /// Closes a file that [`Operations::open`] or [`Operations::create`] opened with the same
    /// flags.
    fn release(&self, node: NodeId, flags: i32);

    /// Returns whether the kernel may hold unwritten data of the file. The transport has the kernel
    /// write it back before [`Operations::seek`].
    fn may_be_dirty(&self, node: NodeId) -> bool;

    /// Reads into `buffer`; returns the number of bytes, less than fits only at the end of the
    /// file.
    fn read(&self, node: NodeId, offset: u64, flags: i32, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Writes all of the data.
    fn write(&self, caller: Caller, node: NodeId, write: &Write<'_>) -> Result<(usize, DataChange), Errno>;

    /// Makes a file or directory durable; with `data_only`, only the data and the metadata needed
    /// to read it.
    fn sync(&self, node: NodeId, data_only: bool) -> Result<(), Errno>;

    /// Makes the whole file system durable.
    fn sync_all(&self) -> Result<(), Errno>;

    /// Allocates a range, punches a hole or zeroes it, depending on `fallocate`'s mode.
    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<DataChange, Errno>;

    /// Returns the offset of the next data or hole.
    fn seek(&self, node: NodeId, offset: u64, to: SeekTo) -> Result<u64, Errno>;

    /// Copies a range and shares extents where possible; returns the number of bytes copied.
    fn copy_range(&self, caller: Caller, range: &CopyRange) -> Result<(u64, DataChange), Errno>;

    /// Opens a directory, and says what the kernel may do with its listing.
    fn open_directory(&self, node: NodeId) -> Result<(DirectoryHandle, KeptListing), Errno>;

    /// Lists a directory from `offset`: 0, or the `next` of an entry. With `attributes`, each
    /// listed entry counts as a look-up.
    fn list(
        &self,
        node: NodeId,
        handle: DirectoryHandle,
        offset: u64,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno>;

    /// Closes a directory.
    fn release_directory(&self, handle: DirectoryHandle);

    /// Returns the file system's sizes.
    fn sizes(&self) -> Result<FileSystemSizes, Errno>;

    /// Returns the value of an extended attribute.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// Returns the names of extended attributes, each followed by a NUL.
    fn list_xattrs(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<(), Errno>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Returns the files that the kernel must write back before [`Operations::ioctl`]. A snapshot,
    /// for example, must contain all data written before it.
    fn dirty_before(&self, node: NodeId, command: u32) -> Vec<NodeId>;

    /// Returns whether an ioctl may wait for a program that uses this mount. It then needs a thread
    /// of its own.
    fn waits_for_programs(&self, _command: u32) -> bool {
        false
    }

    /// Answers an ioctl.
    fn ioctl(&self, caller: Caller, node: NodeId, ioctl: &Ioctl<'_>) -> Result<IoctlReply, Errno>;

    /// Returns the node id of an inode that an ioctl changed.
    fn node_of(&self, tree: papilio::format::TreeId, inode: papilio::format::InodeNumber) -> NodeId;
}

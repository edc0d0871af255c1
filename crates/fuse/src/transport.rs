//! What a transport asks of the server, and what it gets back.
//!
//! Owns [`Operations`], the operations of a file system with typed arguments and replies that know nothing
//! of how they travel, so that one transport (fuser's, over `/dev/fuse`) can be replaced by another (FUSE
//! over io_uring). A transport calls operations from any number of threads; it answers each request exactly
//! once, also when an operation panics; and it tells the kernel's caches of what a reply says is no longer
//! true. It has no state of the file system of its own.

use crate::device_number;
use crate::errno::Errno;
use crate::ioctl::{Caller, IoctlReply};
use papilio::{FileKind, RenameMode, SetTime, Timespec};
use std::time::Duration;

/// How the kernel calls an inode it knows; 1 is the root directory of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of the mount.
    pub const ROOT: NodeId = NodeId(1);
}

/// A directory that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectoryHandle(pub u64);

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `st_ino`.
    pub number: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Kind of file.
    pub kind: FileKind,
    /// The twelve low bits of the mode.
    pub permissions: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device file.
    pub device: (u32, u32),
    /// Bytes that reading and writing is best done in.
    pub block_size: u32,
}

/// An inode that the kernel now knows once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number towards the kernel.
    pub node: NodeId,
    /// Tells two inodes apart that had the same number one after the other.
    pub generation: u64,
    /// What `stat` shows of it.
    pub attributes: Attributes,
}

/// What is to be changed of an inode; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// The twelve low bits of the mode.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode.
    pub ctime: Option<Timespec>,
    /// Whether the file is open for it (`ftruncate`, `O_TRUNC`), and so changes also if its size stays.
    pub by_handle: bool,
}

/// An inode to make.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// The directory.
    pub parent: NodeId,
    /// Its name there.
    pub name: &'a [u8],
    /// What it is.
    pub kind: NewNodeKind<'a>,
    /// The twelve low bits of the mode, before the umask.
    pub permissions: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// What is made.
#[derive(Clone, Copy, Debug)]
pub enum NewNodeKind<'a> {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharacterDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
    /// A symbolic link.
    Symlink(&'a [u8]),
}

impl NewNodeKind<'_> {
    /// What `mknod` is to make with these mode and device numbers, as the kernel encodes them; `None` where it makes
    /// no such thing.
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
    /// The directory that the name is in.
    pub parent: NodeId,
    /// The name.
    pub name: &'a [u8],
    /// The directory that it shall be in.
    pub new_parent: NodeId,
    /// Its name there.
    pub new_name: &'a [u8],
    /// What happens with a name that is there.
    pub mode: RenameMode,
    /// Whether a whiteout is left.
    pub whiteout: bool,
}

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where.
    pub offset: u64,
    /// What.
    pub data: &'a [u8],
    /// Whether set-user-id and set-group-id bits are to go, as the caller may not keep them.
    pub kills_privileges: bool,
}

/// What a change of data did besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whether attributes changed that the kernel does not know of.
    pub attributes: bool,
}

/// A range to copy from one file to another.
#[derive(Clone, Copy, Debug)]
pub struct CopyRange {
    /// From which file.
    pub source: NodeId,
    /// From which byte on.
    pub source_offset: u64,
    /// To which file.
    pub target: NodeId,
    /// To which byte.
    pub target_offset: u64,
    /// Bytes at most.
    pub length: u64,
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Data.
    Data,
    /// A hole.
    Hole,
}

/// What setting an extended attribute asks of the one that is there.
pub use papilio::XattrSet;

/// An entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its inode's number.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Where the listing goes on after it.
    pub next: u64,
    /// Its attributes, where they were asked for; those of `.` and `..` make no node known.
    pub entry: Option<Entry>,
}

/// Takes the entries of a listing.
pub trait DirectorySink {
    /// Adds an entry; says whether there was room for it. Without, the listing ends before it.
    fn add(&mut self, entry: &ListedEntry<'_>) -> bool;
}

/// The sizes of a file system, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSizes {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that hold nothing.
    pub free: u64,
    /// Blocks that files could get.
    pub available: u64,
    /// The longest name, in bytes.
    pub name_max: u32,
}

/// The operations of a mounted file system. Each answers with what it did or an error number; none keeps
/// anything of its arguments.
pub trait Operations: Send + Sync + 'static {
    /// How long the kernel may believe names and attributes without asking.
    fn valid_for(&self) -> Duration;

    /// The node named `name` in `parent`; it is known once more.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// The kernel forgot `count` of the times that it learned of a node.
    fn forget(&self, node: NodeId, count: u64);

    /// What `stat` shows.
    fn attributes(&self, node: NodeId) -> Result<Attributes, Errno>;

    /// Changes attributes and the size.
    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno>;

    /// The target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Makes a node, which is known once then.
    fn make(&self, caller: Caller, new: &NewNode<'_>) -> Result<Entry, Errno>;

    /// Makes a regular file and opens it; with `exclusive`, only where there is none.
    fn create(&self, caller: Caller, new: &NewNode<'_>, flags: i32) -> Result<Entry, Errno>;

    /// Names a node once more; it is known once more.
    fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// Takes away the name of what is no directory.
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Renames.
    fn rename(&self, caller: Caller, rename: &Rename<'_>) -> Result<(), Errno>;

    /// Opens a regular file with `open`'s flags. Files have no handles: the node is what is open.
    fn open(&self, node: NodeId, flags: i32) -> Result<(), Errno>;

    /// Closes what [`Operations::open`] or [`Operations::create`] opened with the same flags.
    fn release(&self, node: NodeId, flags: i32);

    /// Whether the kernel may hold data of the file that was not written yet. It is to be written before
    /// [`Operations::seek`].
    fn may_be_dirty(&self, node: NodeId) -> bool;

    /// Reads into `buffer`; returns how many bytes, fewer than fit only at the end.
    fn read(&self, node: NodeId, offset: u64, flags: i32, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Writes all of it.
    fn write(&self, caller: Caller, node: NodeId, write: &Write<'_>) -> Result<Changed, Errno>;

    /// Makes a file or directory durable; with `data_only`, what reading the data takes.
    fn sync(&self, node: NodeId, data_only: bool) -> Result<(), Errno>;

    /// Gives room to a range, makes a hole of it or zeroes, by `fallocate`'s mode.
    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<Changed, Errno>;

    /// The next data or hole.
    fn seek(&self, node: NodeId, offset: u64, to: SeekTo) -> Result<u64, Errno>;

    /// Copies a range, sharing what can be shared; returns how many bytes.
    fn copy_range(&self, caller: Caller, range: &CopyRange) -> Result<(u64, Changed), Errno>;

    /// Opens a directory.
    fn open_directory(&self, node: NodeId) -> Result<DirectoryHandle, Errno>;

    /// Whether the kernel may keep how a directory was listed until its names change.
    fn may_keep_listings(&self) -> bool;

    /// Lists a directory from `offset` on: 0, or an entry's `next`. With `attributes`, each listed node is
    /// known once more.
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

    /// The file system's sizes.
    fn sizes(&self) -> Result<FileSystemSizes, Errno>;

    /// An extended attribute's value.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// The names of extended attributes, each followed by a NUL.
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

    /// The files whose data the kernel may hold unwritten, where an ioctl needs all of it: a snapshot shall have
    /// what was written before. It is to be written before [`Operations::ioctl`].
    fn dirty_before(&self, command: u32) -> Vec<NodeId>;

    /// Answers an ioctl.
    fn ioctl(
        &self,
        caller: Caller,
        node: NodeId,
        command: u32,
        input: &[u8],
        output_size: usize,
    ) -> Result<IoctlReply, Errno>;

    /// The node of an inode that an ioctl changed, if the kernel may know it.
    fn node_of(&self, tree: papilio::format::TreeId, inode: papilio::format::InodeNumber) -> NodeId;
}

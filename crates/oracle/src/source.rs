//! One view of a tree of files: what the kernel shows of a mount, and what Papilio reads of an image.
//!
//! [`Source`] is what the library under test implements to be compared. Paths are relative to the
//! root; the root itself is the empty path. Nothing is followed: a symbolic link is an entry.

use std::ffi::OsString;
use std::io;
use std::path::Path;

pub use crate::sys::FiemapExtent;

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    BlockDevice,
    CharacterDevice,
}

/// A point in time since 1970, as an inode holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second, 0 to 999,999,999, counted forward also before 1970.
    pub nanoseconds: u32,
}

/// What an inode says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its type.
    pub kind: Kind,
    /// Permission bits, with set-id and sticky bits: 0 to 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device node, else zeros.
    pub rdev: (u32, u32),
    /// Number of links; 1 for a directory of Btrfs.
    pub nlink: u64,
    /// Size in bytes.
    pub size: u64,
    /// Inode number in its subvolume.
    pub ino: u64,
    /// The id of the subvolume, where the source can tell; compared at subvolume roots (inode 256).
    pub subvolume: Option<u64>,
    /// `FS_*_FL` flags of files and directories, where the source can tell.
    pub flags: Option<u32>,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last access.
    pub atime: Time,
    /// Creation.
    pub btime: Time,
}

/// A stretch of a file that holds data, in bytes: from SEEK_DATA up to the next SEEK_HOLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub start: u64,
    /// The byte after its last.
    pub end: u64,
}

/// An open regular file.
pub trait Content {
    /// Reads at `offset` into `buffer`; fewer bytes than asked for are allowed, 0 only at the end.
    ///
    /// # Errors
    /// The source's.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

/// A tree of files that can be walked and read. Paths cross into subvolumes.
pub trait Source {
    /// The names in a directory, in any order, without `.` and `..`.
    ///
    /// # Errors
    /// The source's.
    fn read_directory(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// What the inode at `path` says.
    ///
    /// # Errors
    /// The source's.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// Extended attributes with their full names, in any order.
    ///
    /// # Errors
    /// The source's.
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The source's.
    fn read_link(&self, path: &Path) -> io::Result<OsString>;

    /// Opens a regular file.
    ///
    /// # Errors
    /// The source's.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Content + '_>>;

    /// Where a regular file holds data, merged and in order; `None` where the source cannot tell.
    ///
    /// # Errors
    /// The source's.
    fn segments(&self, _path: &Path) -> io::Result<Option<Vec<Segment>>> {
        Ok(None)
    }

    /// The extents of a regular file as FIEMAP gives them; `None` where the source cannot tell.
    ///
    /// # Errors
    /// The source's.
    fn extents(&self, _path: &Path) -> io::Result<Option<Vec<FiemapExtent>>> {
        Ok(None)
    }
}

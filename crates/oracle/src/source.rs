//! A common view of a file tree: a kernel mount, or an image read by Papilio.
//!
//! The library under test implements [`Source`] to be compared. Paths are relative to the root,
//! whose own path is empty. Symbolic links are entries and are never followed.

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

/// A point in time, relative to 1970, as stored in an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second, 0 to 999,999,999, counting forward even before 1970.
    pub nanoseconds: u32,
}

/// The metadata of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The type.
    pub kind: Kind,
    /// Permission bits, with set-id and sticky bits: 0 to 0o7777.
    pub mode: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Major and minor number of a device node, otherwise zeros.
    pub rdev: (u32, u32),
    /// Number of links; always 1 for a directory on Btrfs.
    pub nlink: u64,
    /// Size in bytes.
    pub size: u64,
    /// Inode number in its subvolume.
    pub ino: u64,
    /// The subvolume's id, if the source knows it; compared at subvolume roots (inode 256).
    pub subvolume: Option<u64>,
    /// `FS_*_FL` flags of a file or directory, if the source knows them.
    pub flags: Option<u32>,
    /// Time of the last change of the content.
    pub mtime: Time,
    /// Time of the last change of the inode.
    pub ctime: Time,
    /// Time of the last access.
    pub atime: Time,
    /// Time of creation.
    pub btime: Time,
}

/// A stretch of data in a file: the bytes from SEEK_DATA up to the next SEEK_HOLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset behind the last byte.
    pub end: u64,
}

/// An open regular file.
pub trait Content {
    /// Reads at `offset` into `buffer`. May return fewer bytes than requested, but 0 only at the
    /// end.
    ///
    /// # Errors
    /// The source's.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

/// A file tree that can be walked and read. Paths may cross into subvolumes.
pub trait Source {
    /// Returns the names in a directory, in any order, without `.` and `..`.
    ///
    /// # Errors
    /// The source's.
    fn read_directory(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Returns the metadata of the inode at `path`.
    ///
    /// # Errors
    /// The source's.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// Returns the extended attributes with their full names, in any order.
    ///
    /// # Errors
    /// The source's.
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The source's.
    fn read_link(&self, path: &Path) -> io::Result<OsString>;

    /// Opens a regular file.
    ///
    /// # Errors
    /// The source's.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Content + '_>>;

    /// Returns the data stretches of a regular file, merged and in order; `None` if the source
    /// cannot tell.
    ///
    /// # Errors
    /// The source's.
    fn segments(&self, _path: &Path) -> io::Result<Option<Vec<Segment>>> {
        Ok(None)
    }

    /// Returns the extents of a regular file as FIEMAP does; `None` if the source cannot tell.
    ///
    /// # Errors
    /// The source's.
    fn extents(&self, _path: &Path) -> io::Result<Option<Vec<FiemapExtent>>> {
        Ok(None)
    }
}

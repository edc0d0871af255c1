//! The metadata of an inode.
//!
//! Owns [`Metadata`], a read-only view of the inode item.

use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, Timespec};
use papilio_format::{Generation, InodeNumber, TreeId};

/// The metadata of an inode as of when it was read. The names of methods are those of
/// [`std::fs::Metadata`] and [`std::os::unix::fs::MetadataExt`], where these have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub(super) tree: TreeId,
    pub(super) number: InodeNumber,
    pub(super) kind: FileKind,
    pub(super) item: InodeItem,
}

impl Metadata {
    /// Returns the id of the subvolume that contains the inode.
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// Returns the inode number, which is unique in the subvolume only.
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// Returns the kind of file.
    pub fn file_type(&self) -> FileKind {
        self.kind
    }

    /// Returns whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    /// Returns whether this is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }

    /// Returns kind and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.item.mode
    }

    /// Returns the twelve permission bits, the set-id and sticky bits among them.
    pub fn permissions(&self) -> u32 {
        self.item.permissions()
    }

    /// Returns the owner's user id.
    pub fn uid(&self) -> u32 {
        self.item.uid
    }

    /// Returns the group id.
    pub fn gid(&self) -> u32 {
        self.item.gid
    }

    /// Returns the number of names; 1 for a directory.
    pub fn nlink(&self) -> u32 {
        self.item.nlink
    }

    /// Returns the size in bytes; for a directory, twice the total length of its names.
    pub fn size(&self) -> u64 {
        self.item.size
    }

    /// Returns the bytes of the file without its holes, before compression. `st_blocks` is this
    /// number, rounded up to whole sectors, in units of 512 bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.item.nbytes
    }

    /// Returns the major and minor number of a device file; (0, 0) for other kinds.
    pub fn rdev(&self) -> (u32, u32) {
        match self.kind {
            FileKind::BlockDevice | FileKind::CharacterDevice => self.item.device_number(),
            _ => (0, 0),
        }
    }

    /// Returns the time of the last read.
    pub fn atime(&self) -> Timespec {
        self.item.atime
    }

    /// Returns the time of the last change of the content.
    pub fn mtime(&self) -> Timespec {
        self.item.mtime
    }

    /// Returns the time of the last change of the inode.
    pub fn ctime(&self) -> Timespec {
        self.item.ctime
    }

    /// Returns the time of creation.
    pub fn btime(&self) -> Timespec {
        self.item.otime
    }

    /// Returns the inode flags, such as NODATACOW (`C` in `lsattr`).
    pub fn flags(&self) -> InodeFlags {
        self.item.flags
    }

    /// Returns the generation of the transaction that created the inode.
    pub fn generation(&self) -> Generation {
        self.item.generation
    }

    /// Returns the generation of the transaction that last changed the inode.
    pub fn last_changed(&self) -> Generation {
        self.item.transid
    }
}

//! What `stat` shows of an inode.
//!
//! Owns [`Metadata`], a read-only face of the inode item.

use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, Timespec};
use papilio_format::{Generation, InodeNumber, TreeId};

/// An inode's metadata as of the moment it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub(super) tree: TreeId,
    pub(super) number: InodeNumber,
    pub(super) kind: FileKind,
    pub(super) item: InodeItem,
}

impl Metadata {
    /// The subvolume that the inode lies in.
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// Its number, unique in its subvolume.
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// The kind of file.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }

    /// Kind and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.item.mode
    }

    /// Permissions only, with the set-id and sticky bits.
    pub fn permissions(&self) -> u32 {
        self.item.permissions()
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.item.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.item.gid
    }

    /// Names; a directory has 1.
    pub fn nlink(&self) -> u32 {
        self.item.nlink
    }

    /// Size in bytes; for a directory, twice the bytes of the names in it.
    pub fn size(&self) -> u64 {
        self.item.size
    }

    /// Bytes that the file's extents take in the address space before compression, holes not
    /// counted; `st_blocks` is this, rounded up to whole sectors, in units of 512.
    pub fn allocated_bytes(&self) -> u64 {
        self.item.nbytes
    }

    /// Major and minor number of a device file; (0, 0) of anything else.
    pub fn rdev(&self) -> (u32, u32) {
        match self.kind {
            FileKind::BlockDevice | FileKind::CharacterDevice => self.item.device_number(),
            _ => (0, 0),
        }
    }

    /// Last read.
    pub fn atime(&self) -> Timespec {
        self.item.atime
    }

    /// Last change of the content.
    pub fn mtime(&self) -> Timespec {
        self.item.mtime
    }

    /// Last change of the inode.
    pub fn ctime(&self) -> Timespec {
        self.item.ctime
    }

    /// Creation.
    pub fn btime(&self) -> Timespec {
        self.item.otime
    }

    /// Flags, such as NODATACOW (`lsattr`'s C).
    pub fn flags(&self) -> InodeFlags {
        self.item.flags
    }

    /// The transaction that created the inode.
    pub fn generation(&self) -> Generation {
        self.item.generation
    }

    /// The transaction that last changed it.
    pub fn last_changed(&self) -> Generation {
        self.item.transid
    }
}

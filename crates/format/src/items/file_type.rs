//! The kinds of files, as inodes and directory entries name them.
//!
//! Owns [`FileKind`] (the kind in an inode's mode), [`FileType`] (the type in a directory entry)
//! and the conversions between them. Source: `BTRFS_FT_*` (`include/uapi/linux/btrfs_tree.h`).

/// The type of an entry's target (`BTRFS_FT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum FileType {
    Regular = 1,
    Directory = 2,
    CharacterDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
    /// An extended attribute, not a file.
    Xattr = 8,
}

impl FileType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Regular,
        Self::Directory,
        Self::CharacterDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
        Self::Xattr,
    ];

    /// Decodes a number from disk, without the flag for encrypted names; returns `None` for 0 and
    /// unknown types.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.get(usize::from(raw).checked_sub(1)?).copied()
    }

    /// Returns the kind of file, or `None` for an attribute.
    pub const fn kind(self) -> Option<FileKind> {
        Some(match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::CharacterDevice => FileKind::CharacterDevice,
            Self::BlockDevice => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::Symlink => FileKind::Symlink,
            Self::Xattr => return None,
        })
    }
}

/// The mode bits that hold the kind of file.
pub const MODE_KIND_MASK: u32 = 0o170_000;

/// The kind of file in an inode's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    CharacterDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl FileKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::CharacterDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
    ];

    /// Returns the kind in a mode (`S_IFMT`), or `None` for an unknown one.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & MODE_KIND_MASK {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// Returns the kind's bits in a mode.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::CharacterDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Returns the type that directory entries hold for such a file.
    pub const fn file_type(self) -> FileType {
        match self {
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink => FileType::Symlink,
            Self::CharacterDevice => FileType::CharacterDevice,
            Self::BlockDevice => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

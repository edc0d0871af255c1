//! What can go wrong, as types that say what was found where.
//!
//! Owns [`Error`], [`Result`], and the parts of an error that name a place. Invariant: an error's
//! text is one line and holds the place (path, tree, block, key, device and offset) that its maker
//! knew. Front ends translate [`Error::kind`], or answer with [`Error::errno`].

use papilio_format::objectid::Objectid;
use papilio_format::{
    Corrupt, DeviceId, FileOffset, Incompatible, InodeNumber, Key, LogicalAddress, PhysicalAddress,
    SuperblockError, TreeId, Uuid,
};
use std::path::PathBuf;

/// The result of almost everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or image cannot be opened.
    #[error(transparent)]
    Open(#[from] papilio_device::OpenError),
    /// No superblock that can be used.
    #[error("{device}: superblock at {offset}: {reason}{}", good_superblocks(good_copies))]
    Superblock {
        /// Path of the device or image.
        device: String,
        /// Which copy.
        offset: PhysicalAddress,
        /// What is wrong with it.
        reason: Box<SuperblockError>,
        /// The other copies on the same device that are good, and could be chosen.
        good_copies: Vec<usize>,
    },
    /// A device is smaller than what it should hold.
    #[error("{device}: truncated: {have} bytes are there, the file system needs {need}")]
    Truncated {
        /// Path of the device or image.
        device: String,
        /// Bytes that the file system says the device has.
        need: u64,
        /// Bytes that it has.
        have: u64,
    },
    /// A device failed.
    #[error("{device}: {operation} of {length} bytes at {offset}: {source}")]
    Device {
        /// Path of the device or image.
        device: String,
        /// `read`, `write`, `flush`, `discard`.
        operation: &'static str,
        /// Where.
        offset: PhysicalAddress,
        /// Bytes asked for.
        length: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A copy of the superblock could not be written.
    #[error("{device}: writing superblock copy {copy}: {source}")]
    SuperblockWrite {
        /// Path of the device or image.
        device: String,
        /// Which copy, 0 to 2.
        copy: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Devices that don't belong together.
    #[error("{device}: {reason}")]
    DeviceMismatch {
        /// Path of the device or image.
        device: String,
        /// Why it doesn't belong.
        reason: String,
    },
    /// A device is missing, and reading without it was not asked for.
    #[error("device {devid} ({uuid}) is missing; name it with --device, or read without it with --degraded")]
    DeviceMissing {
        /// Its number.
        devid: DeviceId,
        /// Its UUID.
        uuid: Uuid,
    },
    /// Too many devices are missing to read a range at all.
    #[error("logical address {logical}: {missing} of the chunk's devices are missing, {tolerated} may be")]
    TooManyMissing {
        /// The range's start.
        logical: LogicalAddress,
        /// Missing devices of its chunk.
        missing: usize,
        /// What its profile tolerates.
        tolerated: usize,
    },
    /// An address that no chunk covers.
    #[error("logical address {logical}, {length} bytes: in no chunk")]
    Unmapped {
        /// The range's start.
        logical: LogicalAddress,
        /// Its length in bytes.
        length: u64,
    },
    /// No copy of a tree block is good.
    #[error("tree {}, block {address}: {reason}{}", Objectid(tree.0), copies_tried(*copies))]
    TreeBlock {
        /// The tree that was walked.
        tree: TreeId,
        /// The block.
        address: LogicalAddress,
        /// Copies tried.
        copies: usize,
        /// What is wrong with the first copy.
        reason: BlockFault,
    },
    /// An item that no tree can do without is missing.
    #[error("tree {}: no item {key}: {what}", Objectid(tree.0))]
    MissingItem {
        /// The tree.
        tree: TreeId,
        /// The key looked for.
        key: Key,
        /// What it would have been.
        what: &'static str,
    },
    /// An item that contradicts others.
    #[error("tree {}, item {key}: {reason}", Objectid(tree.0))]
    Item {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
        /// What is wrong with it.
        reason: Corrupt,
    },
    /// The log of fsyncs cannot be replayed. It is still there, and so is the last commit.
    #[error("replaying the log of fsyncs{}: {cause}", of_subvolume(*subvolume))]
    LogReplay {
        /// The subvolume whose log it is; `None` where it concerns all logs.
        subvolume: Option<TreeId>,
        /// What is wrong, and where.
        cause: Box<Error>,
    },
    /// File data that no copy holds with the right checksum.
    #[error("{place}: data at logical address {logical}: checksum mismatch{}", copies_tried(*copies))]
    DataChecksum {
        /// The file and offset.
        place: FilePlace,
        /// The bad sector.
        logical: LogicalAddress,
        /// Copies tried.
        copies: usize,
    },
    /// File data that should have a checksum and has none, so that nothing vouches for it.
    #[error("{place}: data at logical address {logical}: its checksum is missing")]
    MissingChecksum {
        /// The file and offset.
        place: FilePlace,
        /// The sector.
        logical: LogicalAddress,
    },
    /// File data whose compressed form cannot be decoded.
    #[error("{place}: {reason}")]
    Decompress {
        /// The file and offset.
        place: FilePlace,
        /// What the decoder said.
        reason: String,
    },
    /// The file system uses what this code does not know.
    #[error("{device}: {reason}")]
    Incompatible {
        /// Path of the device or image.
        device: String,
        /// What it uses.
        reason: Incompatible,
    },
    /// An item that is to be inserted is there already.
    #[error("tree {}, item {key}: there already", Objectid(tree.0))]
    ItemExists {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
    },
    /// No space is left: ENOSPC.
    #[error("no space left on the file system ({what})")]
    NoSpace {
        /// What there is none for: data, metadata, a chunk.
        what: &'static str,
    },
    /// The file system can only be read: it was opened so, or a failure made it so.
    #[error("the file system is read-only: {cause}")]
    ReadOnlyFileSystem {
        /// Why: the first failure, or how it was opened.
        cause: String,
    },
    /// A path or a name cannot be used as asked.
    #[error("{}: {kind}", String::from_utf8_lossy(path))]
    Path {
        /// The path as the caller gave it.
        path: Vec<u8>,
        /// What is wrong with it.
        kind: PathError,
    },
    /// An option or an argument that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A device that is to be overwritten holds something.
    #[error("{device}: holds {found}; only force overwrites it")]
    Occupied {
        /// Path of the device or image.
        device: String,
        /// What it seems to hold.
        found: &'static str,
    },
    /// A device is too small for the file system that was asked for.
    #[error("{device}: {size} bytes are too few: such a file system needs at least {minimum}")]
    TooSmall {
        /// Path of the device or image.
        device: String,
        /// Bytes that it has, or that were asked for.
        size: u64,
        /// Bytes that it must have.
        minimum: u64,
    },
    /// A host file could not be used.
    #[error("{}: {source}", path.display())]
    Host {
        /// The host's path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What is wrong with one copy of a tree block.
#[derive(Debug, thiserror::Error)]
pub enum BlockFault {
    /// Its bytes.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// It could not be read.
    #[error(transparent)]
    Read(Box<Error>),
    /// It is its own ancestor, or deeper than a tree can be.
    #[error("loop in the tree")]
    Loop,
}

/// Why a path cannot be used as asked: the POSIX reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// ENOTDIR.
    #[error("not a directory")]
    NotADirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsADirectory,
    /// EINVAL for readlink, and reads of what holds no data.
    #[error("not a symbolic link")]
    NotASymlink,
    /// A file operation on what is no regular file.
    #[error("not a regular file")]
    NotAFile,
    /// ELOOP.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// ENAMETOOLONG.
    #[error("file name too long")]
    NameTooLong,
    /// ENODATA.
    #[error("no such attribute")]
    NoAttribute,
    /// A subvolume id or path that names none.
    #[error("no such subvolume")]
    NoSubvolume,
    /// EEXIST.
    #[error("it exists already")]
    Exists,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// EXDEV: across subvolumes.
    #[error("cross-subvolume link or rename")]
    CrossDevice,
    /// EINVAL: an empty name, `.`, `..`, or one with a slash or a NUL.
    #[error("not a usable name")]
    InvalidName,
    /// EINVAL: a directory into itself or below itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// EBUSY.
    #[error("it is in use")]
    Busy,
    /// EROFS: the subvolume is read-only.
    #[error("the subvolume is read-only")]
    ReadOnly,
    /// EPERM: immutable, append-only, or an operation that its kind forbids.
    #[error("operation not permitted")]
    NotPermitted,
    /// EOVERFLOW: as many names of one hash as a leaf can hold.
    #[error("too many names with the same hash")]
    HashOverflow,
    /// EOPNOTSUPP: nothing that this kind of file or attribute has.
    #[error("not supported for this kind of file or attribute")]
    NotSupported,
    /// EACCES.
    #[error("permission denied")]
    AccessDenied,
    /// E2BIG: the value of an attribute of more than 65,536 bytes.
    #[error("attribute value too large")]
    AttributeTooLarge,
    /// EPERM for a name that only the deletion of a subvolume takes away.
    #[error("is a subvolume, and is deleted as one")]
    IsASubvolume,
    /// EFBIG.
    #[error("file too large")]
    TooLarge,
    /// ENXIO: a seek past the end.
    #[error("offset beyond the end of the file")]
    BeyondEnd,
}

/// A place in a file, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub inode: InodeNumber,
    /// The offset.
    pub offset: FileOffset,
}

impl std::fmt::Display for FilePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tree {}, inode {}, offset {}", Objectid(self.tree.0), self.inode, self.offset)
    }
}

/// The classes of errors that front ends translate, to errno values or exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Corruption or I/O failure: EIO.
    Io,
    /// Something of the format that is not known: EOPNOTSUPP.
    Incompatible,
    /// Not a Btrfs at all.
    NotBtrfs,
    /// A POSIX reason about a path.
    Path(PathError),
    /// A senseless argument: EINVAL.
    Invalid,
    /// Opening a device or a host file failed.
    Host,
    /// A device is missing.
    MissingDevice,
    /// ENOSPC.
    NoSpace,
    /// EROFS.
    ReadOnly,
}

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Superblock { reason, .. } => match **reason {
                SuperblockError::Corrupt(Corrupt::Magic { .. } | Corrupt::TooShort { .. }) => {
                    ErrorKind::NotBtrfs
                }
                SuperblockError::Incompatible(_) => ErrorKind::Incompatible,
                SuperblockError::Corrupt(_) => ErrorKind::Io,
            },
            Error::Incompatible { .. } => ErrorKind::Incompatible,
            Error::Path { kind, .. } => ErrorKind::Path(*kind),
            Error::Invalid(_)
            | Error::DeviceMismatch { .. }
            | Error::Occupied { .. }
            | Error::TooSmall { .. } => ErrorKind::Invalid,
            Error::NoSpace { .. } => ErrorKind::NoSpace,
            Error::LogReplay { cause, .. } => match cause.kind() {
                // A name that is not there is no answer to a caller who asked for none.
                ErrorKind::Path(_) | ErrorKind::Invalid => ErrorKind::Io,
                kind => kind,
            },
            Error::ReadOnlyFileSystem { .. } => ErrorKind::ReadOnly,
            Error::Open(_) | Error::Host { .. } => ErrorKind::Host,
            Error::DeviceMissing { .. } | Error::TooManyMissing { .. } => ErrorKind::MissingDevice,
            _ => ErrorKind::Io,
        }
    }

    /// An error about a path.
    pub(crate) fn path(path: &[u8], kind: PathError) -> Self {
        Error::Path { path: path.to_vec(), kind }
    }
}

fn of_subvolume(subvolume: Option<TreeId>) -> String {
    subvolume.map(|id| format!(" of subvolume {id}")).unwrap_or_default()
}

fn copies_tried(copies: usize) -> String {
    match copies {
        0 | 1 => String::new(),
        _ => format!(" ({copies} copies tried)"),
    }
}

fn good_superblocks(copies: &[usize]) -> String {
    match copies {
        [] => String::new(),
        [copy] => format!(" (copy {copy} is good and can be chosen)"),
        _ => {
            let copies: Vec<_> = copies.iter().map(ToString::to_string).collect();
            format!(" (copies {} are good and can be chosen)", copies.join(" and "))
        }
    }
}

//! The library's errors, as types that tell what was found and where.
//!
//! Owns [`Error`], [`Result`], and the types for places in errors.
//!
//! **Invariant**: the text of an error is one line and includes the place (path, tree, block, key,
//! device and offset) as far as it was known, and its cause. So no error has a
//! [`source`](std::error::Error::source) besides its text: a report of the whole chain would print
//! the cause twice. The raw identifier `r#source` keeps thiserror from making a field the source.
//!
//! Front ends translate [`Error::kind`], or return [`Error::errno`].

use crate::options::older::OlderFile;
use papilio_format::items::qgroup::QgroupId;
use papilio_format::objectid::Objectid;
use papilio_format::{
    Corrupt, DeviceId, FileOffset, Incompatible, InodeNumber, Key, LogicalAddress, PhysicalAddress,
    SuperblockError, TreeId, Uuid,
};
use std::path::PathBuf;

/// The result of almost every function in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or image cannot be opened.
    #[error(transparent)]
    Open(#[from] papilio_device::OpenError),
    /// No usable superblock was found.
    #[error("{device}: superblock at {offset}: {reason}{}{}", good_superblocks(good_copies), content(found))]
    Superblock {
        /// Path of the device or image.
        device: String,
        /// The offset of the copy, in bytes from the start of the device.
        offset: PhysicalAddress,
        /// The fault of that copy.
        reason: Box<SuperblockError>,
        /// The other copies on the same device that are good and can be chosen instead, 0 to 2.
        good_copies: Vec<usize>,
        /// The content of a device without Btrfs, and advice, if it is known.
        found: Option<String>,
    },
    /// A device belongs to something else, which writing would damage.
    #[error(
        "{device}: has the signature of {found} at {offset}, and writing would damage that; {}\
         ignoring signatures writes nevertheless",
        advice_first(advice)
    )]
    OtherSignature {
        /// Path of the device or image.
        device: String,
        /// The format, with its article.
        found: &'static str,
        /// The offset of the signature, in bytes from the start of the device.
        offset: PhysicalAddress,
        /// The way to its content; empty if nothing is known.
        advice: &'static str,
    },
    /// A device is smaller than the file system on it.
    #[error(
        "{device}: the device is truncated: it has {have} bytes, the file system needs {need}{}",
        split_hint(device)
    )]
    Truncated {
        /// Path of the device or image.
        device: String,
        /// Bytes that the file system expects the device to have.
        need: u64,
        /// Bytes that the device has.
        have: u64,
    },
    /// A device of the file system was cut after it had been made.
    #[error(
        "{device}: the device was cut: it has {have} bytes, the file system says {need}{}{}",
        split_hint(device),
        cut_hint(*used <= *have)
    )]
    DeviceCut {
        /// Path of the device or image.
        device: String,
        /// Bytes that the file system expects the device to have.
        need: u64,
        /// Bytes that the device has.
        have: u64,
        /// The end of the last chunk on the device.
        used: u64,
    },
    /// A device failed.
    #[error("{device}: {operation} of {length} bytes at {offset}: {source}")]
    Device {
        /// Path of the device or image.
        device: String,
        /// The operation: `read`, `write`, `flush` or `discard`.
        operation: &'static str,
        /// The start of the range, in bytes from the start of the device.
        offset: PhysicalAddress,
        /// The length of the range in bytes.
        length: usize,
        /// The system's error.
        r#source: std::io::Error,
    },
    /// A copy of the superblock could not be written.
    #[error("{device}: writing superblock copy {copy}: {source}")]
    SuperblockWrite {
        /// Path of the device or image.
        device: String,
        /// The copy, 0 to 2.
        copy: usize,
        /// The system's error.
        r#source: std::io::Error,
    },
    /// A device does not belong to the file system.
    #[error("{device}: {reason}")]
    DeviceMismatch {
        /// Path of the device or image.
        device: String,
        /// Why it does not belong to it.
        reason: String,
    },
    /// A device is missing.
    #[error("device {devid} ({uuid}) is missing{}", missing_hint(*refused))]
    DeviceMissing {
        /// The device's id.
        devid: DeviceId,
        /// The device's UUID.
        uuid: Uuid,
        /// The file system was not opened because of it; otherwise only this read needs it.
        refused: bool,
    },
    /// Too many devices are missing to read a range.
    #[error(
        "logical address {logical}: {missing} of the chunk's devices are missing, but it tolerates only \
         {tolerated}; what the other devices have can be read, with --degraded or -o ro,degraded"
    )]
    TooManyMissing {
        /// The start of the range.
        logical: LogicalAddress,
        /// The number of missing devices of its chunk.
        missing: usize,
        /// The number of missing devices that the chunk's profile tolerates.
        tolerated: usize,
    },
    /// No chunk covers an address.
    #[error("no chunk covers logical address {logical}")]
    Unmapped {
        /// The start of the range.
        logical: LogicalAddress,
        /// The length of the range in bytes.
        length: u64,
    },
    /// No copy of a tree block is good.
    #[error("tree {}, block {address}: {reason}{}", Objectid(tree.0), copies_tried(*copies))]
    TreeBlock {
        /// The tree that the block was read for.
        tree: TreeId,
        /// The address of the block.
        address: LogicalAddress,
        /// The number of copies that were tried.
        copies: usize,
        /// The fault of the first copy.
        reason: BlockFault,
    },
    /// A required item is missing.
    #[error("tree {}: item {key} is missing: {what}", Objectid(tree.0))]
    MissingItem {
        /// The tree that the item should be in.
        tree: TreeId,
        /// The item's key.
        key: Key,
        /// The meaning of the missing item.
        what: &'static str,
    },
    /// An item contradicts itself or others.
    #[error("tree {}, item {key}: {reason}", Objectid(tree.0))]
    Item {
        /// The tree that the item is in.
        tree: TreeId,
        /// The item's key.
        key: Key,
        /// The fault.
        reason: Corrupt,
    },
    /// The fsync log cannot be replayed. It is still on disk, and so is the last commit.
    #[error("replaying the fsync log{}: {cause}", of_subvolume(*subvolume))]
    LogReplay {
        /// The subvolume of the log; `None` if the error concerns all logs.
        subvolume: Option<TreeId>,
        /// The fault, and its place.
        cause: Box<Error>,
    },
    /// The fsync log cannot be replayed in memory, so that only the last commit could be read
    /// ([`OpenOptions::allow_older`](crate::OpenOptions::allow_older)).
    #[error("the log of fsyncs cannot be replayed: {}{}", reason_of(cause), names_of(older))]
    Unreplayed {
        /// The fault, and its place.
        cause: Box<Error>,
        /// The files for which the log has something newer, as far as it can be read.
        older: Vec<OlderFile>,
    },
    /// No copy of file data has the right checksum.
    #[error("{place}: data at logical address {logical}: checksum mismatch{}", copies_tried(*copies))]
    DataChecksum {
        /// The file and the offset in it.
        place: FilePlace,
        /// The address of the sector.
        logical: LogicalAddress,
        /// The number of copies that were tried.
        copies: usize,
    },
    /// File data has no checksum, though it should, so it cannot be verified.
    #[error("{place}: data at logical address {logical}: the checksum is missing")]
    MissingChecksum {
        /// The file and the offset in it.
        place: FilePlace,
        /// The address of the sector.
        logical: LogicalAddress,
    },
    /// Data of a file with fs-verity, or its Merkle tree, does not have the hash that it must have.
    #[error("{place}: fs-verity: {reason}")]
    Verity {
        /// The file and the offset in it of the data that was to be verified.
        place: FilePlace,
        /// The fault.
        reason: String,
    },
    /// Compressed file data cannot be decoded.
    #[error("{place}: {reason}")]
    Decompress {
        /// The file and the offset in it.
        place: FilePlace,
        /// The decoder's message.
        reason: String,
    },
    /// The file system uses an unsupported feature.
    #[error("{device}: {reason}")]
    Incompatible {
        /// Path of the device or image.
        device: String,
        /// The feature.
        reason: Incompatible,
    },
    /// An item to be inserted exists already.
    #[error("tree {}, item {key}: already exists", Objectid(tree.0))]
    ItemExists {
        /// The tree that the item is in.
        tree: TreeId,
        /// The item's key.
        key: Key,
    },
    /// No space is left: ENOSPC.
    #[error("no space left on the file system ({what})")]
    NoSpace {
        /// The purpose that there is no space for, such as data, metadata or a chunk.
        what: &'static str,
    },
    /// An extended attribute is larger than a tree block: ENOSPC.
    #[error("{}the extended attribute {} takes {need} bytes{}", place_prefix(path),
        String::from_utf8_lossy(name), node_hint(*need, *limit))]
    XattrExceedsNode {
        /// The file, where the caller named none; empty otherwise.
        path: Vec<u8>,
        /// The attribute.
        name: Vec<u8>,
        /// The bytes of the attribute's item.
        need: usize,
        /// The bytes that an item may have with the file system's size of tree blocks.
        limit: usize,
    },
    /// Another operation on the whole file system is running: EINPROGRESS.
    #[error("{running} is running on the file system")]
    Busy {
        /// The operation.
        running: &'static str,
    },
    /// An operation on quotas cannot be done, or a limit forbids a change.
    #[error(transparent)]
    Quota(QuotaError),
    /// The file system is read-only, because it was opened so or because a failure made it so.
    #[error("the file system is read-only: {cause}")]
    ReadOnlyFileSystem {
        /// The first failure, or how the file system was opened.
        cause: String,
    },
    /// A path or a name cannot be used.
    #[error("{}: {kind}", String::from_utf8_lossy(path))]
    Path {
        /// The path as passed by the caller.
        path: Vec<u8>,
        /// The reason.
        kind: PathError,
    },
    /// An option or an argument is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A device that is to be overwritten is not empty.
    #[error("{device}: contains {found}; use force to overwrite it")]
    Occupied {
        /// Path of the device or image.
        device: String,
        /// The content that was recognized.
        found: &'static str,
    },
    /// A device is too small for the requested file system.
    #[error("{device}: {size} bytes are too few, the file system needs at least {minimum}")]
    TooSmall {
        /// Path of the device or image.
        device: String,
        /// Bytes that the device has, or that were requested.
        size: u64,
        /// Bytes that it must have.
        minimum: u64,
    },
    /// A send stream is invalid.
    #[error(transparent)]
    SendStream(#[from] papilio_format::send_stream::SendStreamError),
    /// A command of a send stream could not be applied.
    #[error("{command} {}: {source}", String::from_utf8_lossy(path))]
    Receive {
        /// The command.
        command: papilio_format::send_stream::CommandKind,
        /// The path that it names.
        path: Vec<u8>,
        /// The reason.
        r#source: Box<Error>,
    },
    /// A file on the host could not be used.
    #[error("{}: {source}", path.display())]
    Host {
        /// The path on the host.
        path: PathBuf,
        /// The system's error.
        r#source: std::io::Error,
    },
}

/// Why quotas refuse something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// EDQUOT: a limit would be exceeded.
    #[error("disk quota exceeded: qgroup {qgroup} is limited to {limit} bytes")]
    Exceeded {
        /// The qgroup with the limit.
        qgroup: QgroupId,
        /// The limit in bytes.
        limit: u64,
    },
    /// ENOTCONN: quotas are off.
    #[error("quotas are not enabled")]
    Off,
    /// ENOENT: there is no such qgroup.
    #[error("there is no qgroup {0}")]
    NoQgroup(QgroupId),
    /// EEXIST: the qgroup exists.
    #[error("qgroup {0} exists already")]
    Exists(QgroupId),
    /// EINVAL: only subvolumes get qgroups with such ids.
    #[error("qgroup {0} can only be created together with its subvolume; choose a level above 0")]
    Reserved(QgroupId),
    /// EBUSY: the qgroup has members, or its subvolume exists.
    #[error("qgroup {0} is in use: it has members, or its subvolume exists")]
    Busy(QgroupId),
    /// EINVAL: a qgroup can only be in one of a higher level.
    #[error("a qgroup can only be a member of one with a higher level")]
    WrongLevels,
    /// EEXIST: the one includes the other already.
    #[error("qgroup {member} is a member of {parent} already")]
    Related {
        /// The member.
        member: QgroupId,
        /// The group.
        parent: QgroupId,
    },
    /// ENOENT: the one does not include the other.
    #[error("qgroup {member} is not a member of {parent}")]
    NotRelated {
        /// The qgroup that was to be a member.
        member: QgroupId,
        /// The group.
        parent: QgroupId,
    },
    /// EINPROGRESS: a rescan is under way.
    #[error("a rescan of quotas is under way")]
    Rescanning,
    /// EINVAL: simple quotas are never rescanned.
    #[error("simple quotas cannot be rescanned")]
    Simple,
}

/// The fault of one copy of a tree block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockFault {
    /// Its bytes are invalid.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// It could not be read.
    #[error(transparent)]
    Read(Box<Error>),
    /// It is its own ancestor, or deeper than a tree can be.
    #[error("loop in the tree")]
    Loop,
    /// It is not cached, and the reader does not wait. Never reaches a caller of the library.
    #[error("not cached")]
    NotCached,
}

/// Why a path cannot be used: the POSIX reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// ENOENT: there is no such entry.
    #[error("no such file or directory")]
    NotFound,
    /// ENOTDIR: a component, or the target, is not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// EISDIR: the target is a directory.
    #[error("is a directory")]
    IsADirectory,
    /// EINVAL: `readlink` of another kind of file.
    #[error("not a symbolic link")]
    NotASymlink,
    /// EINVAL: a file operation on an inode that is not a regular file.
    #[error("not a regular file")]
    NotAFile,
    /// ELOOP: more than 40 symbolic links.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// ENAMETOOLONG: a name of more than 255 bytes, or a symbolic link's target that is too long.
    #[error("file name too long")]
    NameTooLong,
    /// ENODATA: there is no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// ENOENT: there is no subvolume with that id or path.
    #[error("no such subvolume")]
    NoSubvolume,
    /// EEXIST: the name is taken.
    #[error("already exists")]
    Exists,
    /// ENOTEMPTY: the directory or subvolume has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// EMLINK: the inode has as many names as it can have.
    #[error("too many links")]
    TooManyLinks,
    /// EXDEV: a link or rename across subvolumes.
    #[error("cross-subvolume link or rename")]
    CrossDevice,
    /// EINVAL: an empty name, `.`, `..`, or a name with a slash or a NUL.
    #[error("invalid name")]
    InvalidName,
    /// EINVAL: moving a directory below itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// EBUSY: the target is in use.
    #[error("in use")]
    Busy,
    /// EROFS: the subvolume is read-only.
    #[error("the subvolume is read-only")]
    ReadOnly,
    /// EPERM: the inode is immutable or append-only, or its kind forbids the operation.
    #[error("operation not permitted")]
    NotPermitted,
    /// EOVERFLOW: the names of one hash would exceed a leaf.
    #[error("too many names with the same hash")]
    HashOverflow,
    /// EOPNOTSUPP: this kind of file or attribute does not support the operation.
    #[error("not supported for this kind of file or attribute")]
    NotSupported,
    /// EACCES: the operation is not allowed on this inode.
    #[error("permission denied")]
    AccessDenied,
    /// E2BIG: an attribute value of more than 65,536 bytes.
    #[error("attribute value too large")]
    AttributeTooLarge,
    /// ERANGE: the name of an attribute of more than 255 bytes.
    #[error("attribute name too long")]
    AttributeNameTooLong,
    /// EPERM: the entry is a subvolume, which only its deletion removes.
    #[error("is a subvolume; delete it as a subvolume")]
    IsASubvolume,
    /// EFBIG: the file would exceed the largest size.
    #[error("file too large")]
    TooLarge,
    /// EIO: the file ends before the requested bytes; [`std::io::ErrorKind::UnexpectedEof`] as a
    /// [`std::io::Error`].
    #[error("unexpected end of the file")]
    UnexpectedEnd,
    /// ENXIO: a seek past the end of the file.
    #[error("offset beyond the end of the file")]
    BeyondEnd,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilePlace {
    /// The id of the subvolume.
    pub tree: TreeId,
    /// The number of the inode.
    pub inode: InodeNumber,
    /// The offset in bytes.
    pub offset: FileOffset,
}

/// Bytes of the largest tree blocks that an item's header and the block's own leave to one item.
const LARGEST_ITEM: usize = 65536 - 101 - 25;

fn place_prefix(path: &[u8]) -> String {
    if path.is_empty() { String::new() } else { format!("{}: ", String::from_utf8_lossy(path)) }
}

fn node_hint(need: usize, limit: usize) -> String {
    let advice = if need <= LARGEST_ITEM { "; a file system made with -n 64k has room for it" } else { "" };
    format!(", and a tree block has room for {limit}{advice}")
}

/// Whether two messages are equal but for their numbers, as those of neighbouring ranges are.
pub fn differ_in_numbers_only(one: &str, other: &str) -> bool {
    let words = |text: &str| text.replace(|character: char| character.is_ascii_digit(), "");
    words(one) == words(other)
}

impl std::fmt::Display for FilePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tree {}, inode {}, offset {}", Objectid(self.tree.0), self.inode, self.offset)
    }
}

/// Classes of errors, which front ends translate to errno values or exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Corruption, or an I/O failure: EIO.
    Io,
    /// An unsupported feature of the format: EOPNOTSUPP.
    Incompatible,
    /// Not a Btrfs file system: EINVAL.
    NotBtrfs,
    /// A POSIX reason concerning a path.
    Path(PathError),
    /// An invalid argument: EINVAL.
    Invalid,
    /// A device or a file on the host could not be opened.
    Host,
    /// A device is missing.
    MissingDevice,
    /// No space is left: ENOSPC.
    NoSpace,
    /// Quotas: a limit (EDQUOT), or a state that does not allow the operation.
    Quota(QuotaError),
    /// The file system is read-only: EROFS.
    ReadOnly,
    /// Another operation is running: EINPROGRESS.
    Busy,
}

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Superblock { reason, .. } => match **reason {
                SuperblockError::Corrupt(
                    Corrupt::Magic { .. } | Corrupt::UnfinishedMkfs | Corrupt::TooShort { .. },
                ) => ErrorKind::NotBtrfs,
                SuperblockError::Incompatible(_) => ErrorKind::Incompatible,
                SuperblockError::Corrupt(_) => ErrorKind::Io,
            },
            Error::Incompatible { .. } => ErrorKind::Incompatible,
            Error::Path { kind, .. } => ErrorKind::Path(*kind),
            Error::Receive { source, .. } => source.kind(),
            Error::SendStream(_)
            | Error::Invalid(_)
            | Error::DeviceMismatch { .. }
            | Error::Occupied { .. }
            | Error::OtherSignature { .. }
            | Error::TooSmall { .. } => ErrorKind::Invalid,
            Error::NoSpace { .. } | Error::XattrExceedsNode { .. } => ErrorKind::NoSpace,
            Error::Quota(reason) => ErrorKind::Quota(*reason),
            Error::LogReplay { cause, .. } => match cause.kind() {
                // The replay looks names up itself, so the caller must not see POSIX reasons for
                // them.
                ErrorKind::Path(_) | ErrorKind::Invalid => ErrorKind::Io,
                kind => kind,
            },
            Error::Unreplayed { cause, .. } => match cause.kind() {
                // The caller only wants to read.
                ErrorKind::Path(_)
                | ErrorKind::Invalid
                | ErrorKind::ReadOnly
                | ErrorKind::Host
                | ErrorKind::NoSpace => ErrorKind::Io,
                kind => kind,
            },
            Error::ReadOnlyFileSystem { .. } => ErrorKind::ReadOnly,
            Error::Busy { .. } => ErrorKind::Busy,
            Error::Open(_) | Error::Host { .. } => ErrorKind::Host,
            Error::DeviceMissing { .. } | Error::TooManyMissing { .. } => ErrorKind::MissingDevice,
            Error::Truncated { .. }
            | Error::DeviceCut { .. }
            | Error::Device { .. }
            | Error::SuperblockWrite { .. }
            | Error::Unmapped { .. }
            | Error::TreeBlock { .. }
            | Error::MissingItem { .. }
            | Error::Item { .. }
            | Error::DataChecksum { .. }
            | Error::MissingChecksum { .. }
            | Error::Verity { .. }
            | Error::Decompress { .. }
            | Error::ItemExists { .. } => ErrorKind::Io,
        }
    }

    /// An error concerning a path.
    pub fn path(path: &[u8], kind: PathError) -> Self {
        Error::Path { path: path.to_vec(), kind }
    }
}

fn of_subvolume(subvolume: Option<TreeId>) -> String {
    subvolume.map(|id| format!(" of subvolume {id}")).unwrap_or_default()
}

/// Returns the text of the error that ended a replay in memory, without the parts that its context
/// says.
pub(crate) fn reason_of(cause: &Error) -> String {
    match cause {
        Error::LogReplay { subvolume: Some(subvolume), cause } => format!("subvolume {subvolume}: {cause}"),
        Error::LogReplay { subvolume: None, cause } => cause.to_string(),
        Error::ReadOnlyFileSystem { cause } => cause.clone(),
        other => other.to_string(),
    }
}

/// Most files that the text of [`Error::Unreplayed`] names.
const MOST_NAMED: usize = 10;

fn names_of(older: &[OlderFile]) -> String {
    let names: Vec<String> = older.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let rest = match older.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        rest => format!("; and {rest} more"),
    };
    if names.is_empty() { String::new() } else { format!("; {}{rest}", names.join("; ")) }
}

fn copies_tried(copies: usize) -> String {
    match copies {
        0 | 1 => String::new(),
        _ => format!(" ({copies} copies tried)"),
    }
}

fn content(found: &Option<String>) -> String {
    found.as_ref().map(|found| format!("; {found}")).unwrap_or_default()
}

fn advice_first(advice: &str) -> String {
    if advice.is_empty() { String::new() } else { format!("{advice}; ") }
}

/// Says what helps where a missing device is the reason why a file system was not opened.
fn missing_hint(refused: bool) -> &'static str {
    if refused { ": name its path with --device, or read without it with --degraded" } else { "" }
}

/// Returns the command that helps with a device that was cut.
fn cut_hint(behind_all: bool) -> &'static str {
    match behind_all {
        true => "; no chunk is behind its end: `papilio rescue fix-device-size` sets the size",
        false => "; --degraded reads what is left",
    }
}

/// Says of the first part of a split image what to do about it.
fn split_hint(device: &str) -> &'static str {
    let first = [(".001", ".002"), (".000", ".001"), (".00", ".01"), (".aa", ".ab")];
    let next = first.iter().find_map(|(first, next)| Some(format!("{}{next}", device.strip_suffix(first)?)));
    match next {
        Some(next) if std::path::Path::new(&next).exists() => {
            "; it is the first part of a split image: join the parts with cat(1)"
        }
        _ => "",
    }
}

fn good_superblocks(copies: &[usize]) -> String {
    match copies {
        [] => String::new(),
        [copy] => format!(" (copy {copy} is good: --superblock {copy} reads by it)"),
        [first, ..] => {
            let copies: Vec<_> = copies.iter().map(ToString::to_string).collect();
            format!(" (copies {} are good: --superblock {first} reads by one)", copies.join(" and "))
        }
    }
}

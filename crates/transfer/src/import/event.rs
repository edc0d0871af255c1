//! Messages from the thread that reads the host to the thread that writes the file system.
//!
//! Owns [`ImportEvent`] and [`MemberAttributes`].
//!
//! **Order:** `Enter` and `Leave` nest. After an incomplete `File` come its `Data` and `Clone`, by
//! ascending offset, and one `EndFile`.

use papilio_engine::errors::Error;
use papilio_engine::items::xattr::Xattr;
use papilio_format::items::inode::Timespec;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The weight of a clone in a batch, in bytes.
const CLONE_WEIGHT: usize = 64 << 10;

/// Events sent together.
pub(super) type Batch = Vec<ImportEvent>;

/// An inode's attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberAttributes {
    /// The twelve low bits of the mode.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Option<Timespec>,
    pub(super) mtime: Option<Timespec>,
    pub(super) xattrs: Vec<Xattr>,
}

/// A source inode: device and inode number.
pub(super) type LinkId = (u64, u64);

/// An inode with neither data nor entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImportedNode {
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    Block { major: u32, minor: u32 },
    Character { major: u32, minor: u32 },
}

/// A step of the walk. An empty name stands for the directory to fill.
#[derive(Debug)]
pub(super) enum ImportEvent {
    /// A directory. The events up to its `Leave` are inside it.
    Enter { name: Vec<u8>, attributes: MemberAttributes },
    /// The innermost directory is complete.
    Leave,
    /// A regular file.
    File {
        name: Vec<u8>,
        attributes: MemberAttributes,
        size: u64,
        /// Set if further links may follow.
        link: Option<LinkId>,
        /// The first bytes of its data.
        content: Vec<u8>,
        /// Whether this is all: neither `Data` nor `EndFile` follow.
        complete: bool,
    },
    /// More data of the file.
    Data { offset: u64, bytes: Vec<u8> },
    /// Data of the file that is to share the blocks of the host file, whole sectors of them.
    Clone { offset: u64, length: u64, source: Arc<OwnedFd> },
    /// The end of the file.
    EndFile { error: Option<Error> },
    /// An inode without data.
    Node { name: Vec<u8>, attributes: MemberAttributes, node: ImportedNode, link: Option<LinkId> },
    /// A further name of an earlier inode.
    Link { name: Vec<u8>, link: LinkId },
    /// A file or directory that cannot be read, of which no events follow.
    Problem(Error),
}

impl ImportEvent {
    /// Returns the weight of the event in a batch, in bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            ImportEvent::Data { bytes, .. } => bytes.len(),
            // It keeps a file of the host open, of which a process may have few.
            ImportEvent::Clone { .. } => CLONE_WEIGHT,
            ImportEvent::File { content, .. } => 512 + content.len(),
            _ => 512,
        }
    }
}

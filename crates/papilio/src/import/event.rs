//! What the reading half tells the writing half.
//!
//! Owns [`Event`] and [`Attributes`]. Order: `Enter` and `Leave` nest; after a `File` that is not
//! complete come its `Data`, by rising offset, and one `EndFile`.

use crate::errors::Error;
use crate::items::xattr::Xattr;
use papilio_format::items::inode::Timespec;

/// Events that are handed over together.
pub(super) type Batch = Vec<Event>;

/// An inode's attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes {
    /// The twelve low bits of the mode.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Option<Timespec>,
    pub(super) mtime: Option<Timespec>,
    pub(super) xattrs: Vec<Xattr>,
}

/// An inode of the source: device and number.
pub(super) type LinkId = (u64, u64);

/// What has neither content nor entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    Block { major: u32, minor: u32 },
    Character { major: u32, minor: u32 },
}

/// A step. A name is empty where it stands for the directory that is filled.
#[derive(Debug)]
pub(super) enum Event {
    /// A directory; what follows up to its `Leave` lies in it.
    Enter { name: Vec<u8>, attributes: Attributes },
    /// The innermost directory is complete.
    Leave,
    /// A regular file.
    File {
        name: Vec<u8>,
        attributes: Attributes,
        size: u64,
        /// Set where further links may follow.
        link: Option<LinkId>,
        /// The beginning of it.
        content: Vec<u8>,
        /// There is no more: neither `Data` nor `EndFile` follow.
        complete: bool,
    },
    /// More of the file.
    Data { offset: u64, bytes: Vec<u8> },
    /// The file has ended.
    EndFile { error: Option<Error> },
    /// What has no content.
    Node { name: Vec<u8>, attributes: Attributes, node: Node, link: Option<LinkId> },
    /// A further name of what came before.
    Link { name: Vec<u8>, link: LinkId },
    /// Something cannot be read, and nothing of it follows.
    Problem(Error),
}

impl Event {
    /// What it weighs in a batch, in bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Event::Data { bytes, .. } => bytes.len(),
            Event::File { content, .. } => 512 + content.len(),
            _ => 512,
        }
    }
}

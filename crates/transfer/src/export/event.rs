//! The messages from the reader of a copy to its writer.
//!
//! Owns [`Event`], [`Attributes`] and the pool of buffers.
//!
//! **Invariants**
//! - The events of a source follow its `Begin`.
//! - `EnterDirectory` and `LeaveDirectory` nest.
//! - A `File` is followed by its `Data` and `Missing` events in order of offset, and one `EndFile`.

use super::problem::{ExportProblem, Missing};
use papilio_engine::items::xattr::Xattr;
use papilio_format::items::inode::Timespec;
use papilio_fs::Metadata;
use std::sync::Mutex;

/// The size in bytes of the buffers for reading large files.
pub const BUFFER: usize = 1 << 20;

/// The attributes of an inode that a copy can keep.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permission, set-id and sticky bits, without the file type.
    pub permissions: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Time of the last access.
    pub atime: Timespec,
    /// Time of the last modification.
    pub mtime: Timespec,
    /// Extended attributes, including ACLs.
    pub xattrs: Vec<Xattr>,
}

impl Attributes {
    /// Combines an inode's metadata with its extended attributes.
    pub fn new(metadata: &Metadata, xattrs: Vec<Xattr>) -> Self {
        Self {
            permissions: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            atime: metadata.atime(),
            mtime: metadata.mtime(),
            xattrs,
        }
    }
}

/// The kind of a special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device.
    Block {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A character device.
    Character {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// Identifies an inode among all sources: index of the image, tree id, inode number.
pub type InodeId = (usize, u64, u64);

/// A step of a copy. The name of a source's own inode is empty.
#[derive(Debug)]
pub enum Event {
    /// The next source.
    Begin {
        /// Its index among the sources.
        source: usize,
    },
    /// A directory. Events up to its `LeaveDirectory` are about its entries.
    EnterDirectory {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
    },
    /// The innermost directory is complete.
    LeaveDirectory,
    /// A regular file.
    File {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
        /// Its size in bytes.
        size: u64,
        /// Set if more links to it may follow.
        id: Option<InodeId>,
        /// The ranges with data as (offset, length), if requested and the file has holes.
        segments: Option<Vec<(u64, u64)>>,
        /// The same file in a mount. It takes the place of the `Data` events.
        twin: Option<std::fs::File>,
    },
    /// Bytes of the file.
    Data {
        /// Their offset in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A range of the file that could not be read, where the copy has zeros, or not be verified.
    Missing(Missing),
    /// The end of the file.
    EndFile {
        /// The number of bytes that could not be read.
        missing: u64,
    },
    /// Another link to an inode that was sent before.
    Link {
        /// Its name.
        name: Vec<u8>,
        /// The inode.
        id: InodeId,
        /// The size of the inode in bytes.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
        /// Its target.
        target: Vec<u8>,
        /// Set if more links to it may follow.
        id: Option<InodeId>,
    },
    /// A special file.
    Special {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
        /// Its kind.
        special: Special,
        /// Set if more links to it may follow.
        id: Option<InodeId>,
    },
    /// Something could not be read, or is left out. No events about it follow.
    Problem(Box<ExportProblem>),
}

impl Event {
    /// Returns the bytes that the event adds to the size of its batch.
    pub fn weight(&self) -> usize {
        match self {
            Event::Data { bytes, .. } => bytes.len(),
            _ => 256,
        }
    }
}

/// Large buffers that the writer has finished with, for the reader to reuse.
#[derive(Default)]
pub struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    /// Returns a buffer of `length` bytes with arbitrary content.
    pub fn get(&self, length: usize) -> Vec<u8> {
        let mut buffer = match length {
            BUFFER => self.spares().pop().unwrap_or_default(),
            _ => Vec::new(),
        };
        buffer.resize(length, 0);
        buffer
    }

    /// Returns a buffer to the pool.
    pub fn put(&self, buffer: Vec<u8>) {
        let mut spares = self.spares();
        if buffer.capacity() == BUFFER && spares.len() < 16 {
            spares.push(buffer);
        }
    }

    fn spares(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

//! What the reading half of a copy tells the writing half.
//!
//! Owns [`Event`], [`Attributes`] and the pool of buffers. Order: a source's events follow its
//! `Begin`; `EnterDirectory` and `LeaveDirectory` nest; after `File` come its `Data`, by rising
//! offset, and one `EndFile`.

use papilio::{Metadata, Timespec, Xattr};
use std::sync::Mutex;

/// The size of the buffers that large files are read into, in bytes.
pub const BUFFER: usize = 1 << 20;

/// An inode's attributes, as far as a copy can keep them.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permissions with the set-id and sticky bits, without the kind.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last access.
    pub atime: Timespec,
    /// Time of the last modification.
    pub mtime: Timespec,
    /// Extended attributes, ACLs among them.
    pub xattrs: Vec<Xattr>,
}

impl Attributes {
    /// Of an inode, with the extended attributes given.
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

/// A special file's kind.
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

/// An inode among all sources: the image's number, the tree's and its own.
pub type InodeId = (usize, u64, u64);

/// A step of a copy. A name is empty where it is the source's top.
#[derive(Debug)]
pub enum Event {
    /// The next source, by its number among all of them.
    Begin {
        /// Which.
        source: usize,
    },
    /// A directory; what follows up to its `LeaveDirectory` lies in it.
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
        /// Set where further links to it may follow.
        id: Option<InodeId>,
        /// Where it has data, as (offset, length); set where it was asked for and the file has
        /// holes.
        segments: Option<Vec<(u64, u64)>>,
    },
    /// Bytes of the file.
    Data {
        /// Where in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The file has ended.
    EndFile {
        /// Why the rest of it could not be read.
        error: Option<String>,
    },
    /// A further link to what was copied before.
    Link {
        /// Its name.
        name: Vec<u8>,
        /// To what.
        id: InodeId,
        /// The size of that.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
        /// Where it points to.
        target: Vec<u8>,
        /// Set where further links to it may follow.
        id: Option<InodeId>,
    },
    /// A special file.
    Special {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
        /// What it is.
        special: Special,
        /// Set where further links to it may follow.
        id: Option<InodeId>,
    },
    /// Something could not be read; nothing of it follows.
    Problem {
        /// The line to report.
        text: String,
    },
}

impl Event {
    /// What it weighs in a batch, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Event::Data { bytes, .. } => bytes.len(),
            _ => 256,
        }
    }
}

/// Large buffers that have been written and can be read into again.
#[derive(Default)]
pub struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    /// A buffer of `length` bytes, their content left over from earlier.
    pub fn get(&self, length: usize) -> Vec<u8> {
        let mut buffer = match length {
            BUFFER => self.spares().pop().unwrap_or_default(),
            _ => Vec::new(),
        };
        buffer.resize(length, 0);
        buffer
    }

    /// Hands a buffer back.
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

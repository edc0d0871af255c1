//! The faults of streams that are read as archives.
//!
//! Owns [`StreamError`] and [`StreamFault`]. A fault names the stream, the byte at which the
//! command starts, the command and its path.

use crate::text::escaped;
use papilio_engine::errors::Error;
use papilio_format::send_stream::{CommandKind, SendStreamError};
use papilio_format::{Generation, Uuid};
use std::io;

/// An error of a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The bytes are no stream, or a checksum is wrong.
    #[error("{stream}: {source}")]
    Format {
        /// The stream's name.
        stream: String,
        /// The fault and its place.
        source: SendStreamError,
    },
    /// A command cannot be carried out on the tree that the commands before it made.
    #[error("{stream}: byte {offset}: {command}{}: {fault}", shown(path))]
    Command {
        /// The stream's name.
        stream: String,
        /// Where the command starts, in bytes from the start of the stream.
        offset: u64,
        /// The command.
        command: CommandKind,
        /// The path that it is about.
        path: Vec<u8>,
        /// The reason.
        fault: StreamFault,
    },
    /// The streams hold something else than what was asked for.
    #[error("{0}")]
    Invalid(String),
    /// The host cannot read or write a file.
    #[error("{name}: {source}")]
    Host {
        /// The file.
        name: String,
        /// The host's error.
        source: io::Error,
    },
    /// Any other error.
    #[error(transparent)]
    Other(#[from] Error),
}

/// The reason why a command cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamFault {
    /// A path names nothing.
    #[error("no such file or directory: {}", path_text(.0))]
    NotFound(Vec<u8>),
    /// The name exists.
    #[error("the name exists already")]
    Exists,
    /// A path leads through a file.
    #[error("{} is not a directory", path_text(.0))]
    NotADirectory(Vec<u8>),
    /// The command needs a regular file.
    #[error("{} is not a regular file", path_text(.0))]
    NotAFile(Vec<u8>),
    /// The command does not work on a directory.
    #[error("it is a directory")]
    IsADirectory,
    /// A directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory would move below itself.
    #[error("the directory would move below itself")]
    IntoItself,
    /// A path has an empty name, `.`, `..`, a leading slash, or a name of more than 255 bytes.
    #[error("invalid name in {}", path_text(.0))]
    InvalidName(Vec<u8>),
    /// A range that no file can have, or one past the end of a clone's source.
    #[error("{length} bytes at {offset} exceed {}", if *source_file { "the source of the clone" } else { "the largest file" })]
    Range {
        /// Bytes from the file's start.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether the file is the source of a clone.
        source_file: bool,
    },
    /// A number needs more than 32 bits, or a mode is not that of a device.
    #[error("{0} is not valid here")]
    Number(u64),
    /// `fallocate` with a mode that receivers do not know.
    #[error("fallocate mode {0:#x} is not supported")]
    FallocateMode(u32),
    /// The lengths of an encoded write contradict each other, or its data does not decompress.
    #[error("{0}")]
    Encoded(String),
    /// No subvolume was begun, or the last one has ended.
    #[error("no subvolume has begun")]
    NoSubvolume,
    /// The parent, or the source of a clone, comes after its user.
    #[error("subvolume {0} comes later in the chain: give the streams in order")]
    Later(Uuid),
    /// The subvolume's UUID is that of an earlier one.
    #[error("the chain has subvolume {0} already")]
    Twice(Uuid),
    /// The parent has the right UUID, but it is another version of it.
    #[error("the parent {uuid} was sent at transaction {found}, this stream needs it at {expected}")]
    ParentChanged {
        /// The parent.
        uuid: Uuid,
        /// The transaction in the chain.
        found: Generation,
        /// The transaction that the stream names.
        expected: Generation,
    },
    /// More than 65,536 subvolumes.
    #[error("a chain has at most 65,536 subvolumes and sources of clones")]
    TooMany,
    /// The trees need too much memory.
    #[error("the trees of this chain need more than {} MiB of memory", .0 >> 20)]
    Memory(u64),
}

fn path_text(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(&escaped(path)))
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { String::new() } else { format!(" {}", path_text(path)) }
}

impl StreamError {
    pub(super) fn host(name: &str, source: io::Error) -> Self {
        Self::Host { name: name.to_owned(), source }
    }

    pub(super) fn in_stream(stream: &str, error: Error) -> Self {
        match error {
            Error::SendStream(source) => Self::Format { stream: stream.to_owned(), source },
            Error::Host { source, .. } => Self::host(stream, source),
            other => Self::Other(other),
        }
    }

    /// Returns the errno of the host, if that caused the error.
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            Self::Host { source, .. } | Self::Other(Error::Host { source, .. }) => Some(source),
            _ => None,
        }
    }
}

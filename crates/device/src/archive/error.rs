//! `ArchiveError`: the fault of an archive, and its place.

use papilio_format::{Corrupt, Uuid};
use std::fmt;
use std::io;

/// An archive that cannot be read: its name, the place, and the fault.
#[derive(Debug)]
pub struct ArchiveError {
    /// The archive's name.
    pub archive: String,
    /// The number of the frame, if it is in one.
    pub frame: Option<u64>,
    /// The byte of the archive where the faulty part starts.
    pub offset: u64,
    /// The fault.
    pub fault: ArchiveFault,
}

/// The fault of an [`ArchiveError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveFault {
    /// A field that the format forbids.
    #[error(transparent)]
    Format(Box<Corrupt>),
    /// The checksum of a frame is wrong.
    #[error("the checksum is {computed:016x}, its header says {stored:016x}: the frame is damaged")]
    Checksum {
        /// That of the header.
        stored: u64,
        /// That of the bytes.
        computed: u64,
    },
    /// The archive ends too early.
    #[error("the archive ends here: it was cut")]
    Cut,
    /// Bytes after the end mark.
    #[error("more bytes follow the end mark")]
    Longer,
    /// Content that zstd refuses.
    #[error("its content cannot be decompressed: {0}")]
    Decompress(String),
    /// Parts that contradict one another.
    #[error("{0}")]
    Contradiction(String),
    /// The archive is based on one that was not found.
    #[error("it is based on the archive {0}, which was neither named nor found beside it")]
    NoParent(Uuid),
    /// The host.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Corrupt> for ArchiveFault {
    fn from(fault: Corrupt) -> Self {
        Self::Format(Box::new(fault))
    }
}

impl ArchiveError {
    /// Creates an error at a byte outside frames.
    pub fn at(archive: &str, offset: u64, fault: impl Into<ArchiveFault>) -> Self {
        Self { archive: archive.to_owned(), frame: None, offset, fault: fault.into() }
    }

    /// Creates an error in a frame.
    pub fn in_frame(archive: &str, frame: u64, offset: u64, fault: impl Into<ArchiveFault>) -> Self {
        Self { archive: archive.to_owned(), frame: Some(frame), offset, fault: fault.into() }
    }
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { archive, frame, offset, fault } = self;
        match frame {
            Some(frame) => write!(formatter, "{archive}: frame {frame} at byte {offset}: {fault}"),
            None => write!(formatter, "{archive}: at byte {offset}: {fault}"),
        }
    }
}

impl std::error::Error for ArchiveError {}

impl From<ArchiveError> for io::Error {
    fn from(error: ArchiveError) -> Self {
        let kind = match &error.fault {
            ArchiveFault::Io(source) => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

//! `PartcloneError`: the fault of an image of partclone, and its place.

use std::io;

/// An image that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{image}: at byte {offset}: {fault}")]
pub struct PartcloneError {
    /// The image's name.
    pub image: String,
    /// The byte of the image where the faulty part starts.
    pub offset: u64,
    /// The fault.
    pub fault: PartcloneFault,
}

/// The fault of a [`PartcloneError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartcloneFault {
    /// No magic number.
    #[error("it is no image of partclone")]
    Magic,
    /// A version that is neither 1 nor 2.
    #[error("version {0:?} of partclone's format is not known; 0001 and 0002 are")]
    Version(String),
    /// An image of a machine with the other order of bytes.
    #[error("it was made on a big-endian machine")]
    BigEndian,
    /// An image of another file system.
    #[error("it is an image of {0:?}, not of Btrfs")]
    FileSystem(String),
    /// A field that makes no sense.
    #[error("its {field} is {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// A checksum that does not match.
    #[error("the checksum of {part} is {computed:08x}, the image says {stored:08x}")]
    Checksum {
        /// The damaged part.
        part: &'static str,
        /// That of the image.
        stored: u32,
        /// That of the bytes.
        computed: u32,
    },
    /// The image ends too early.
    #[error("the image ends here: it was cut")]
    Cut,
    /// The host.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PartcloneError {
    pub(super) fn new(image: &str, offset: u64, fault: impl Into<PartcloneFault>) -> Self {
        Self { image: image.to_owned(), offset, fault: fault.into() }
    }
}

impl From<PartcloneError> for io::Error {
    fn from(error: PartcloneError) -> Self {
        let kind = match &error.fault {
            PartcloneFault::Io(source) => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

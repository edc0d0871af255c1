//! The reports of a copy: [`ExportProblem`], [`Missing`], [`ExportError`] and [`ExportObserver`].

use crate::image_path::{ImagePath, describe};
use crate::text::{kind_words, system_text};
use papilio_engine::errors::Error;
use papilio_format::items::inode::FileKind;
use std::io;
use std::sync::{Mutex, PoisonError};

/// A range of a file that could not be read, or not be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The file, as the user would name it.
    pub path: String,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// Why they could not be read.
    pub reason: String,
    /// Whether they were copied all the same, without a checksum to verify them by.
    pub is_unverified: bool,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, offset, length, reason, is_unverified } = self;
        let end = offset.saturating_add(*length);
        let state = if *is_unverified { "copied without verification" } else { "missing" };
        write!(f, "{path}: bytes {offset} to {end} are {state}: {reason}")
    }
}

/// Something that a copy lacks. The copy goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExportProblem {
    /// An inode could not be read; neither it nor anything below it is copied.
    Unreadable {
        /// Where it is.
        path: ImagePath,
        /// Why it could not be read.
        error: Error,
    },
    /// A directory lacks some entries, which could not be read.
    EntriesMissing {
        /// The directory.
        path: ImagePath,
        /// Why they could not be read.
        error: Error,
    },
    /// A name could leave the destination (`..`, `a/b`).
    UnsafeName {
        /// The entry.
        path: ImagePath,
    },
    /// A scan found the items of an inode without the blocks above them.
    Uncertain {
        /// The inode.
        path: ImagePath,
    },
    /// The extended attributes of an inode could not be read; its data was copied.
    AttributesUnreadable {
        /// The inode.
        path: ImagePath,
        /// Why they could not be read.
        error: Error,
    },
    /// A corrupt directory contains itself or appears twice.
    DirectoryTwice {
        /// Its second place.
        path: ImagePath,
    },
    /// A source is of this kind, which only a recursive copy includes.
    NotRecursive {
        /// The source.
        path: ImagePath,
        /// Its kind.
        kind: FileKind,
    },
    /// The options leave this subvolume out.
    SubvolumeSkipped {
        /// Its place.
        path: ImagePath,
    },
    /// A range of a file could not be read, or not be verified.
    Range(Missing),
    /// The host refused to make or change a file.
    Host {
        /// The file of the host.
        path: String,
        /// The host's error.
        error: io::Error,
    },
    /// A file would replace a directory of the host.
    DirectoryInTheWay {
        /// The directory of the host.
        path: String,
    },
    /// A directory would replace a file of the host.
    FileInTheWay {
        /// The file of the host.
        path: String,
    },
    /// A file is not whole: zeros are in place of the rest, or the host refused a write.
    Incomplete {
        /// The copy.
        path: String,
        /// The bytes copied.
        copied: u64,
        /// The bytes of the original.
        size: u64,
        /// The error of the write, if one failed.
        error: Option<io::Error>,
    },
    /// A hard link was not made, because the first link to the inode was not copied.
    NotLinked {
        /// The missing link.
        path: String,
    },
    /// The source is no regular file and the destination is a stream.
    NotRegular {
        /// The destination.
        path: String,
    },
    /// The host refused an extended attribute.
    Attribute {
        /// The copy.
        path: String,
        /// The attribute's name, with control characters escaped.
        name: String,
        /// The host's error.
        error: io::Error,
    },
    /// The destination does not support extended attributes, or this user may not set them.
    AttributesUnsupported {
        /// The number that were not kept.
        count: u64,
        /// The first of them: path, name and reason.
        example: String,
    },
    /// An access control list is invalid and not in the archive.
    InvalidAcl {
        /// The member.
        path: String,
    },
    /// An archive cannot store a socket.
    Socket {
        /// The member.
        path: String,
    },
}

impl std::fmt::Display for ExportProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable { path, error } => f.write_str(&describe(path, error)),
            Self::EntriesMissing { path, error } => write!(f, "{path}: some entries are missing: {error}"),
            Self::UnsafeName { path } => write!(f, "{path}: not a valid name of an entry; skipped"),
            Self::Uncertain { path } => {
                write!(f, "{path}: found by scanning below a lost block: it may be outdated or incomplete")
            }
            Self::AttributesUnreadable { path, error } => {
                write!(f, "{}; copied without attributes", describe(path, error))
            }
            Self::DirectoryTwice { path } => write!(f, "{path}: directory was already copied; skipped"),
            Self::NotRecursive { path, kind } => {
                write!(f, "{path}: {}; only a recursive copy includes it", kind_words(*kind))
            }
            Self::SubvolumeSkipped { path } => write!(f, "{path}: a subvolume, left out"),
            Self::Range(missing) => write!(f, "{missing}"),
            Self::Host { path, error } => write!(f, "{path}: {}", system_text(error)),
            Self::DirectoryInTheWay { path } => {
                write!(f, "{path}: cannot overwrite a directory with a file")
            }
            Self::FileInTheWay { path } => write!(f, "{path}: cannot overwrite a file with a directory"),
            Self::Incomplete { path, copied, size, error } => {
                write!(f, "incomplete: {path} ({copied} of {size} bytes): ")?;
                match error {
                    Some(error) => f.write_str(&system_text(error)),
                    None => f.write_str("zeros in place of the rest"),
                }
            }
            Self::NotLinked { path } => {
                write!(f, "{path}: not linked, because the first link to it was not copied")
            }
            Self::NotRegular { path } => write!(f, "{path}: not a regular file"),
            Self::Attribute { path, name, error } => {
                write!(f, "{path}: attribute {name}: {}", system_text(error))
            }
            Self::AttributesUnsupported { count, example } => {
                write!(f, "{count} extended attributes could not be kept; the first: {example}")
            }
            Self::InvalidAcl { path } => write!(f, "{path}: the ACL is invalid; skipped"),
            Self::Socket { path } => write!(f, "{path}: tar cannot store a socket; skipped"),
        }
    }
}

/// An error that ends a copy.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExportError {
    /// The content of a source is wanted that is no directory.
    NotADirectory,
    /// The destination is full or read-only, or its name is none of a directory's entry.
    Destination {
        /// The file of the host at which the copy stopped.
        path: String,
        /// The host's error.
        error: io::Error,
    },
    /// The destination took no more of a file, which [`ExportProblem::Incomplete`] named.
    Full,
    /// The archive could not be written to its end.
    Archive {
        /// Its name.
        name: String,
        /// The error of its writer.
        error: io::Error,
    },
    /// The observer stopped the copy.
    Stopped(io::Error),
    /// The copy would be wrong on this host.
    Refused(Error),
}

impl std::fmt::Display for ExportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Destination { path, error } => {
                write!(f, "{path}: {}; the copy stops here", system_text(error))
            }
            Self::NotADirectory => f.write_str("the source is not a directory"),
            Self::Full => f.write_str("cannot write to the destination; the copy stops here"),
            // The cause is the source.
            Self::Archive { name, .. } => write!(f, "incomplete archive: {name}"),
            Self::Stopped(error) => write!(f, "{error}"),
            Self::Refused(error) => write!(f, "{error}"),
        }
    }
}

impl ExportError {
    /// Returns the host's error, if one ended the copy.
    pub fn host_error(&self) -> Option<&io::Error> {
        match self {
            Self::Destination { error, .. } | Self::Archive { error, .. } | Self::Stopped(error) => {
                Some(error)
            }
            Self::NotADirectory | Self::Full | Self::Refused(_) => None,
        }
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Archive { error, .. } => Some(error),
            Self::NotADirectory
            | Self::Destination { .. }
            | Self::Full
            | Self::Stopped(_)
            | Self::Refused(_) => None,
        }
    }
}

/// Receives progress and problems of a copy. The methods take `&self`, because the reader of events
/// and the sink report to one observer; all are called on the thread that began the copy.
pub trait ExportObserver {
    /// Called for everything that the copy lacks. The copy goes on.
    fn problem(&self, problem: ExportProblem);

    /// Called before each step of a copy, which is at most about 1 MiB of a file.
    ///
    /// # Errors
    /// An error that ends the copy with [`ExportError::Stopped`], such as of a user who cancels it.
    fn proceed(&self) -> io::Result<()> {
        Ok(())
    }

    /// Called with the number of bytes of a file before they are written, and with the size of an
    /// inode that becomes a link instead.
    fn bytes(&self, _count: u64) {}

    /// Whether [`Self::created`] and [`Self::member`] are called (default false).
    fn wants_names(&self) -> bool {
        false
    }

    /// Called before a file is made, with its original and its path on the host or in an image.
    ///
    /// # Errors
    /// An error that ends the copy with [`ExportError::Stopped`].
    fn created(&self, _from: &ImagePath, _to: &str) -> io::Result<()> {
        Ok(())
    }

    /// Called before a member of an archive is written, with its path.
    ///
    /// # Errors
    /// As [`Self::created`].
    fn member(&self, _path: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// An observer that collects the problems. A copy is complete if there are none.
#[derive(Debug, Default)]
pub struct ExportProblems(Mutex<Vec<ExportProblem>>);

impl ExportProblems {
    /// Returns the problems so far, in order, and forgets them.
    pub fn take(&self) -> Vec<ExportProblem> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ExportObserver for ExportProblems {
    fn problem(&self, problem: ExportProblem) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }
}

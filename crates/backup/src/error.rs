//! The errors of repositories and backups.

use crate::holder::LockHolder;
use papilio::Uuid;
use papilio::stream::StreamError;
use rustix::io::Errno;
use std::io;

/// The result of a function of this crate.
pub type Result<T> = std::result::Result<T, BackupError>;

/// An error of a repository or a backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The store fails.
    #[error("{object}: {source}")]
    Store {
        /// The object, or the place of the repository.
        object: String,
        /// The store's error.
        source: io::Error,
    },
    /// An object is not there.
    #[error("{0}: the object is missing")]
    Missing(String),
    /// An object is not what its name says.
    #[error("{object}: {fault}")]
    Damaged {
        /// The object.
        object: String,
        /// The fault.
        fault: String,
    },
    /// The place cannot be used.
    #[error("{place}: {reason}")]
    Place {
        /// The path or URL.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The place has no repository.
    #[error("{0}: no backup repository; papilio backup init makes one")]
    NoRepository(String),
    /// The place has a repository already, or other files.
    #[error("{place}: {found}; a new repository needs an empty place")]
    NotEmpty {
        /// The place.
        place: String,
        /// The entry that was found.
        found: String,
    },
    /// The key opens nothing.
    #[error("{0}: wrong passphrase or key file")]
    WrongKey(String),
    /// The repository is encrypted, and there is no key.
    #[error("{0}: the repository is encrypted; a passphrase or a key file is needed")]
    KeyNeeded(String),
    /// Another writer has the repository.
    #[error("{place}: {holder}")]
    Locked {
        /// The place of the repository.
        place: String,
        /// The holder of the lock.
        holder: Box<LockHolder>,
    },
    /// The lock was broken while the writer worked.
    #[error("{0}: another process broke the lock of this one; nothing was made visible")]
    LockBroken(String),
    /// No backup has the name.
    #[error("{0}: no backup has this id or name")]
    NoBackup(String),
    /// Several backups have the start of an id.
    #[error("{0}: several backups have ids that begin so")]
    Ambiguous(String),
    /// The base of a backup is not in the repository.
    #[error("backup {backup} needs the snapshot with UUID {base}, which is not in the repository")]
    BaseMissing {
        /// The backup's id.
        backup: String,
        /// The UUID of the base.
        base: Uuid,
    },
    /// The snapshot is not read-only.
    #[error("{0}: the subvolume is not read-only, which a backup needs")]
    Writable(String),
    /// The file system or the target of a restore fails.
    #[error(transparent)]
    FileSystem(Box<papilio::Error>),
    /// A stream cannot be read.
    #[error(transparent)]
    Stream(Box<StreamError>),
    /// A directory of the host does not take a file of a backup.
    #[error("{directory}: {source}")]
    Extract {
        /// The directory.
        directory: String,
        /// The failure.
        source: Box<papilio::Error>,
    },
    /// No key of the repository has the id.
    #[error("{0}: no key of the repository has this id or label")]
    NoKey(String),
    /// Anything else, in words.
    #[error("{0}")]
    Invalid(String),
}

/// Returns the error of a repository that an error of the host wraps.
fn inner(error: &io::Error) -> Option<&BackupError> {
    error.get_ref()?.downcast_ref()
}

/// Returns the errno of an error of the host or of a store.
fn of_host(error: &io::Error) -> i32 {
    if let Some(inner) = inner(error) {
        return inner.errno();
    }
    let of_kind = match error.kind() {
        io::ErrorKind::NotFound => Errno::NOENT,
        io::ErrorKind::PermissionDenied => Errno::ACCESS,
        io::ErrorKind::AlreadyExists => Errno::EXIST,
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        io::ErrorKind::StorageFull => Errno::NOSPC,
        io::ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
        _ => Errno::IO,
    };
    error.raw_os_error().unwrap_or(of_kind.raw_os_error())
}

impl From<papilio::Error> for BackupError {
    fn from(error: papilio::Error) -> Self {
        Self::FileSystem(Box::new(error))
    }
}

impl From<papilio_keys::KeyError> for BackupError {
    fn from(error: papilio_keys::KeyError) -> Self {
        Self::Invalid(format!("the repository: {error}"))
    }
}

impl From<StreamError> for BackupError {
    fn from(error: StreamError) -> Self {
        Self::Stream(Box::new(error))
    }
}

impl BackupError {
    pub(crate) fn damaged(object: &str, fault: impl Into<String>) -> Self {
        Self::Damaged { object: object.to_owned(), fault: fault.into() }
    }

    /// Returns the errno that describes the error best.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Store { source, .. } => return of_host(source),
            Self::Missing(_) | Self::Damaged { .. } | Self::BaseMissing { .. } => Errno::IO,
            Self::NoRepository(_) | Self::NoBackup(_) | Self::NoKey(_) => Errno::NOENT,
            Self::NotEmpty { .. } => Errno::EXIST,
            Self::WrongKey(_) | Self::KeyNeeded(_) => Errno::ACCESS,
            Self::Locked { .. } | Self::LockBroken(_) => Errno::BUSY,
            Self::FileSystem(error) | Self::Extract { source: error, .. } => return error.errno(),
            Self::Stream(error) => match &**error {
                StreamError::Other(error) => return error.errno(),
                StreamError::Host { source, .. } => return of_host(source),
                StreamError::Invalid(_) => Errno::INVAL,
                _ => Errno::IO,
            },
            Self::Place { .. } | Self::Ambiguous(_) | Self::Writable(_) | Self::Invalid(_) => Errno::INVAL,
        };
        errno.raw_os_error()
    }

    /// Returns whether the repository contradicts its format or its checksums, or lacks a part.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Missing(_) | Self::Damaged { .. } | Self::BaseMissing { .. } => true,
            Self::Store { source, .. } => inner(source).is_some_and(Self::is_damage),
            Self::Stream(error) => match &**error {
                StreamError::Format { .. } | StreamError::Command { .. } => true,
                StreamError::Host { source, .. } => inner(source).is_some_and(Self::is_damage),
                _ => false,
            },
            Self::FileSystem(error) | Self::Extract { source: error, .. } => match &**error {
                papilio::Error::Host { source, .. } => inner(source).is_some_and(Self::is_damage),
                _ => false,
            },
            _ => false,
        }
    }

    /// Wraps the error for an interface that has errors of the host only.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Store { object, source } => io::Error::new(source.kind(), Self::Store { object, source }),
            other => io::Error::other(other),
        }
    }
}

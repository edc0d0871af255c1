//! The errors of repositories and backups.

use crate::holder::LockHolder;
use papilio::Uuid;
use papilio::stream::StreamError;
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
    /// Anything else, in words.
    #[error("{0}")]
    Invalid(String),
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

    /// Wraps the error for an interface that has errors of the host only.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Store { object, source } => io::Error::new(source.kind(), Self::Store { object, source }),
            other => io::Error::other(other),
        }
    }
}

//! `OpenError`: why a path could not be opened as a device, with the path.
//!
//! Reading and writing use `std::io::Error`, because what can go wrong there is the host's to say;
//! opening has causes of its own that a person can act upon.

use std::io;
use std::path::{Path, PathBuf};

/// A device could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}: {kind}", path.display())]
pub struct OpenError {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// The cause.
    pub kind: OpenErrorKind,
}

impl OpenError {
    pub(crate) fn new(path: &Path, kind: OpenErrorKind) -> Self {
        Self { path: path.to_owned(), kind }
    }
}

/// The cause of an [`OpenError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// ENOENT or ENOTDIR.
    #[error("no such file or device")]
    NotFound,
    /// EACCES or EPERM.
    #[error("permission denied")]
    PermissionDenied,
    /// A directory where an image or a block device belongs.
    #[error("it is a directory, not an image or a block device")]
    IsDirectory,
    /// A character device, FIFO or socket.
    #[error("it is a {0}, not an image or a block device")]
    UnsupportedFileType(&'static str),
    /// Nothing in it.
    #[error("it is empty (0 bytes)")]
    Empty,
    /// Another open of the same file holds a lock that excludes ours.
    #[error("it is in use by another process")]
    InUseByProcess,
    /// EBUSY: a block device that the kernel has mounted, or that another program claims.
    #[error("the block device is in use (mounted, or claimed by another program)")]
    InUseByKernel,
    /// An image file behind a loop device that the kernel has mounted.
    #[error("the image is in use: it is mounted through {0}")]
    InUseByLoop(String),
    /// ETXTBSY: a program that runs, or an active swap file.
    #[error("it is in use as a running program or a swap file")]
    TextBusy,
    /// EROFS: writing was asked for on a read-only host file system or block device.
    #[error("it can only be opened for reading (read-only file system or device)")]
    ReadOnlyMedium,
    /// O_DIRECT was asked for and the host's file system has none.
    #[error("the file system that holds it has no direct I/O")]
    DirectUnsupported,
    /// Anything else.
    #[error(transparent)]
    Io(io::Error),
}

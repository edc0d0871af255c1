//! `OpenError`: why a path could not be opened as a device.
//!
//! Reads and writes return `std::io::Error`, because their failures come from the host. Opening has
//! its own causes, which a user can act on.

use std::io;
use std::path::{Path, PathBuf};

/// A path could not be opened as a device.
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
    #[error("it is a directory; expected an image file or a block device")]
    IsDirectory,
    /// A character device, FIFO or socket.
    #[error("it is a {0}; expected an image file or a block device")]
    UnsupportedFileType(&'static str),
    /// The file is empty.
    #[error("the file is empty (0 bytes)")]
    Empty,
    /// Another open file description holds a conflicting lock.
    #[error("another process is using it")]
    InUseByProcess,
    /// The file is not the one that this process has open for reading.
    #[error("another file has taken the place of the one that is open")]
    Replaced,
    /// EBUSY: the kernel has mounted the block device, or another program has claimed it.
    #[error("the block device is mounted or claimed by another program")]
    InUseByKernel,
    /// EBUSY: the block device is a part of others, for example of an array or a volume.
    #[error("the block device is in use by {0}; open that instead")]
    InUseByDevice(String),
    /// The kernel has mounted the image file through a loop device.
    #[error("the image is mounted through {0}")]
    InUseByLoop(String),
    /// ETXTBSY: the file is a running program or an active swap file.
    #[error("it is a running program or an active swap file")]
    TextBusy,
    /// EROFS: write access to a read-only host file system or block device.
    #[error("the file system or device is read-only")]
    ReadOnlyMedium,
    /// O_DIRECT on a host file system that does not support it.
    #[error("its file system does not support direct I/O")]
    DirectUnsupported,
    /// The image is encrypted.
    #[error("it is encrypted with LUKS: unlock it with cryptsetup(8), and open the device that it makes")]
    Encrypted,
    /// A layer over the device, such as an array, cannot be opened.
    #[error(transparent)]
    Layer(Box<dyn std::error::Error + Send + Sync>),
    /// An image format that cannot be read, or not in this build.
    #[error("it is a {0} image: {1}")]
    UnsupportedFormat(&'static str, &'static str),
    /// An image that contradicts its format, or names files that must not be opened.
    #[error("as a {format} image: {reason}")]
    Image {
        /// The format's name.
        format: &'static str,
        /// The fault.
        reason: String,
    },
    /// An image at a URL, for a purpose that needs a file or a block device.
    #[error("an image at a URL can only be read, and not by this command")]
    RemoteReadOnly,
    /// An image at a URL, in a program that installed no object stores.
    #[error("this program opens no URLs: it was built without papilio-store")]
    NoObjectStores,
    /// A URL that names no image. A store that does not answer is [`OpenErrorKind::Io`].
    #[error("{0}")]
    Remote(String),
    /// A logical volume, in a program that installed no layers.
    #[error("this program opens no volumes: it was built without papilio-layers")]
    NoLayers,
    /// `IMAGE@+BYTES` with an offset that the image does not have.
    #[error("it has {size} bytes, so nothing is at offset {offset}")]
    OffsetPastEnd {
        /// The offset in bytes.
        offset: u64,
        /// The size in bytes.
        size: u64,
    },
    /// The disk has no such partition.
    #[error("it has no partition {wanted}; {found}")]
    NoPartition {
        /// The number, label or UUID.
        wanted: String,
        /// The partitions that there are.
        found: String,
    },
    /// The disk has more than one partition that may be meant, or none.
    #[error("{0}")]
    ChoosePartition(String),
    /// Any other host error.
    #[error(transparent)]
    Io(io::Error),
}

impl OpenErrorKind {
    /// Creates [`OpenErrorKind::Io`] from an errno.
    pub(crate) fn io(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

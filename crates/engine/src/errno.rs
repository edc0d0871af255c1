//! The errno of each error.
//!
//! Owns [`Error::errno`], the one table for all front ends (FUSE, fio, the C interface), so that
//! equal failures give equal numbers everywhere.
//!
//! **Invariants**
//! - Every value is an errno of the host, above 0.
//! - Nothing in this crate decides by an errno.
//!
//! Kernel counterpart: the return values of `fs/btrfs`.

use crate::errors::{Error, ErrorKind, PathError, QuotaError};
use papilio_device::OpenErrorKind;
use rustix::io::Errno;
use std::io;

/// `ENODATA`; FreeBSD has `ENOATTR` instead (sys/errno.h).
#[cfg(not(target_os = "freebsd"))]
const NO_ATTRIBUTE: Errno = Errno::NODATA;
#[cfg(target_os = "freebsd")]
const NO_ATTRIBUTE: Errno = Errno::from_raw_os_error(87);

impl Error {
    /// The errno that the kernel's Btrfs returns in such a case, or the nearest one. It is above 0,
    /// as in the host's `<errno.h>`.
    ///
    /// If a host file or a device could not be opened, it is the host's errno. If a device failed
    /// below the file system, it is always `EIO`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("backup.img");
    /// # papilio::mkfs(&image, &papilio::MkfsOptions::new().size(256 << 20))?;
    /// let fs = papilio::FileSystem::open(&image)?;
    /// let missing = fs.metadata("/no/such/file").unwrap_err();
    /// assert_eq!(missing.errno(), 2); // ENOENT
    /// let refused = fs.create_dir("/new").unwrap_err();
    /// assert_eq!(refused.errno(), 30); // EROFS: the file system is open for reading only
    /// # Ok(())
    /// # }
    /// ```
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Error::Open(open) => open_errno(&open.kind),
            Error::Host { source, .. } => host_errno(source),
            Error::Occupied { .. } => Errno::EXIST,
            // As mount(8), which finds another owner of the device.
            Error::OtherSignature { .. } => Errno::BUSY,
            Error::DeviceMissing { .. } => Errno::NOENT,
            other => kind_errno(other.kind()),
        };
        errno.raw_os_error()
    }
}

/// The error's kind is that of [`Error::errno`] and its text is the same.
/// [`io::Error::downcast`] returns the [`Error`] itself.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("backup.img");
/// # papilio::mkfs(&image, &papilio::MkfsOptions::new().size(256 << 20))?;
/// let fs = papilio::FileSystem::open(&image)?;
/// let error = std::io::Error::from(fs.metadata("/no/such/file").unwrap_err());
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "/no/such/file: no such file or directory");
/// let error = error.downcast::<papilio::Error>()?;
/// assert_eq!(error.errno(), 2);
/// # Ok(())
/// # }
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            // No errno stands for this kind.
            ErrorKind::Path(PathError::UnexpectedEnd) => io::ErrorKind::UnexpectedEof,
            _ => io::Error::from_raw_os_error(error.errno()).kind(),
        };
        io::Error::new(kind, error)
    }
}

fn kind_errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Io | ErrorKind::Host | ErrorKind::MissingDevice => Errno::IO,
        ErrorKind::Incompatible => Errno::OPNOTSUPP,
        ErrorKind::NotBtrfs | ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::Path(reason) => path_errno(reason),
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::Quota(reason) => quota_errno(reason),
        ErrorKind::ReadOnly => Errno::ROFS,
        ErrorKind::Busy => Errno::INPROGRESS,
    }
}

fn quota_errno(reason: QuotaError) -> Errno {
    match reason {
        QuotaError::Exceeded { .. } => Errno::DQUOT,
        QuotaError::Off => Errno::NOTCONN,
        QuotaError::NoQgroup(_) | QuotaError::NotRelated { .. } => Errno::NOENT,
        QuotaError::Exists(_) | QuotaError::Related { .. } => Errno::EXIST,
        QuotaError::Busy(_) => Errno::BUSY,
        QuotaError::Reserved(_) | QuotaError::WrongLevels | QuotaError::Simple => Errno::INVAL,
        QuotaError::Rescanning => Errno::INPROGRESS,
    }
}

fn path_errno(reason: PathError) -> Errno {
    match reason {
        PathError::NotFound | PathError::NoSubvolume => Errno::NOENT,
        PathError::NotADirectory => Errno::NOTDIR,
        PathError::IsADirectory => Errno::ISDIR,
        PathError::NotASymlink | PathError::NotAFile | PathError::InvalidName | PathError::IntoItself => {
            Errno::INVAL
        }
        PathError::SymlinkLoop => Errno::LOOP,
        PathError::NameTooLong => Errno::NAMETOOLONG,
        PathError::NoAttribute => NO_ATTRIBUTE,
        PathError::Exists => Errno::EXIST,
        PathError::NotEmpty => Errno::NOTEMPTY,
        PathError::TooManyLinks => Errno::MLINK,
        PathError::CrossDevice => Errno::XDEV,
        PathError::Busy => Errno::BUSY,
        PathError::ReadOnly => Errno::ROFS,
        PathError::NotPermitted | PathError::IsASubvolume => Errno::PERM,
        PathError::HashOverflow => Errno::OVERFLOW,
        PathError::NotSupported => Errno::OPNOTSUPP,
        PathError::AccessDenied => Errno::ACCESS,
        PathError::AttributeTooLarge => Errno::TOOBIG,
        PathError::AttributeNameTooLong => Errno::RANGE,
        PathError::TooLarge => Errno::FBIG,
        PathError::UnexpectedEnd => Errno::IO,
        PathError::BeyondEnd => Errno::NXIO,
    }
}

fn open_errno(kind: &OpenErrorKind) -> Errno {
    match kind {
        OpenErrorKind::NotFound => Errno::NOENT,
        OpenErrorKind::PermissionDenied => Errno::ACCESS,
        OpenErrorKind::IsDirectory => Errno::ISDIR,
        OpenErrorKind::UnsupportedFileType(_) => Errno::NOTBLK,
        OpenErrorKind::InUseByProcess
        | OpenErrorKind::InUseByKernel
        | OpenErrorKind::InUseByDevice(_)
        | OpenErrorKind::InUseByLoop(_) => Errno::BUSY,
        OpenErrorKind::TextBusy => Errno::TXTBSY,
        OpenErrorKind::ReadOnlyMedium | OpenErrorKind::RemoteReadOnly => Errno::ROFS,
        OpenErrorKind::NoObjectStores => Errno::OPNOTSUPP,
        OpenErrorKind::Io(source) => host_errno(source),
        // An empty device, missing direct I/O, and kinds that are added later.
        _ => Errno::INVAL,
    }
}

/// The host's errno, or the nearest one to its kind of error.
fn host_errno(source: &io::Error) -> Errno {
    match source.raw_os_error() {
        Some(number) if number > 0 => Errno::from_raw_os_error(number),
        _ => match source.kind() {
            io::ErrorKind::NotFound => Errno::NOENT,
            io::ErrorKind::PermissionDenied => Errno::ACCESS,
            io::ErrorKind::AlreadyExists => Errno::EXIST,
            io::ErrorKind::InvalidInput => Errno::INVAL,
            io::ErrorKind::StorageFull => Errno::NOSPC,
            io::ErrorKind::OutOfMemory => Errno::NOMEM,
            io::ErrorKind::TimedOut => Errno::TIMEDOUT,
            io::ErrorKind::Interrupted => Errno::INTR,
            _ => Errno::IO,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::PhysicalAddress;
    use std::path::PathBuf;

    fn host(source: io::Error) -> i32 {
        Error::Host { path: PathBuf::from("f"), source }.errno()
    }

    #[test]
    fn path_errors_have_linux_numbers() {
        for (reason, number) in [
            (PathError::NotFound, 2),
            (PathError::AccessDenied, 13),
            (PathError::Busy, 16),
            (PathError::Exists, 17),
            (PathError::CrossDevice, 18),
            (PathError::NotADirectory, 20),
            (PathError::IsADirectory, 21),
            (PathError::InvalidName, 22),
            (PathError::TooLarge, 27),
            (PathError::ReadOnly, 30),
            (PathError::TooManyLinks, 31),
            (PathError::NameTooLong, 36),
            (PathError::NotEmpty, 39),
            (PathError::SymlinkLoop, 40),
            (PathError::NoAttribute, 61),
            (PathError::HashOverflow, 75),
            (PathError::NotSupported, 95),
            (PathError::BeyondEnd, 6),
            (PathError::AttributeTooLarge, 7),
            (PathError::AttributeNameTooLong, 34),
        ] {
            assert_eq!(Error::path(b"p", reason).errno(), number, "{reason:?}");
        }
    }

    #[test]
    fn other_errors_have_the_kernels_numbers() {
        assert_eq!(Error::NoSpace { what: "data" }.errno(), 28);
        assert_eq!(Error::ReadOnlyFileSystem { cause: "x".into() }.errno(), 30);
        assert_eq!(Error::Invalid("x".into()).errno(), 22);
        assert_eq!(host(io::Error::from_raw_os_error(122)), 122);
        assert_eq!(host(io::ErrorKind::NotFound.into()), 2);
        // Even if the host's error is ENOSPC, a failed device is EIO.
        let device = Error::Device {
            device: "d".into(),
            operation: "write",
            offset: PhysicalAddress(0),
            length: 4096,
            source: io::Error::from_raw_os_error(28),
        };
        assert_eq!(device.errno(), 5);
    }

    #[test]
    fn io_errors_keep_kind_text_and_error() {
        let error = Error::path(b"p", PathError::NotEmpty);
        let text = error.to_string();
        let converted = io::Error::from(error);
        assert_eq!(converted.kind(), io::ErrorKind::DirectoryNotEmpty);
        assert_eq!(converted.to_string(), text);
        let inner = converted.downcast::<Error>().unwrap();
        assert_eq!(inner.kind(), ErrorKind::Path(PathError::NotEmpty));
        assert_eq!(io::Error::from(Error::NoSpace { what: "data" }).kind(), io::ErrorKind::StorageFull);
    }
}

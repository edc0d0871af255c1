//! Error numbers of the system, and which one each error of the library is.

use papilio::{Error, ErrorKind, PathError};

/// An error number, such as `libc::ENOENT`; above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The number.
    pub fn code(self) -> i32 {
        self.0
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        Self(match error.kind() {
            ErrorKind::Path(path) => of_path(path),
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::Incompatible => libc::EOPNOTSUPP,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::ReadOnly => libc::EROFS,
            _ => libc::EIO,
        })
    }
}

fn of_path(error: PathError) -> i32 {
    match error {
        PathError::NotFound | PathError::NoSubvolume => libc::ENOENT,
        PathError::NotADirectory => libc::ENOTDIR,
        PathError::IsADirectory => libc::EISDIR,
        PathError::SymlinkLoop => libc::ELOOP,
        PathError::NameTooLong => libc::ENAMETOOLONG,
        PathError::NoAttribute => libc::ENODATA,
        PathError::Exists => libc::EEXIST,
        PathError::NotEmpty => libc::ENOTEMPTY,
        PathError::TooManyLinks => libc::EMLINK,
        PathError::CrossDevice => libc::EXDEV,
        PathError::Busy => libc::EBUSY,
        PathError::ReadOnly => libc::EROFS,
        PathError::NotPermitted | PathError::IsASubvolume => libc::EPERM,
        PathError::HashOverflow => libc::EOVERFLOW,
        PathError::NotSupported => libc::EOPNOTSUPP,
        PathError::AccessDenied => libc::EACCES,
        PathError::AttributeTooLarge => libc::E2BIG,
        PathError::TooLarge => libc::EFBIG,
        PathError::BeyondEnd => libc::ENXIO,
        _ => libc::EINVAL,
    }
}

//! Errors of the file system as answers.

use crate::reply::Refusal;
use papilio::{Error, ErrorKind, PathError, QuotaError};

/// Returns the answer for an error.
pub(crate) fn refusal(error: &Error) -> Refusal {
    let status = match error.kind() {
        ErrorKind::Path(reason) => path_status(reason),
        ErrorKind::NoSpace | ErrorKind::Quota(QuotaError::Exceeded { .. }) => 507,
        ErrorKind::ReadOnly => 403,
        ErrorKind::Invalid => 409,
        ErrorKind::Busy => 503,
        _ => 500,
    };
    if status == 500 {
        tracing::warn!("{error}");
    }
    Refusal::new(status, error.to_string())
}

fn path_status(reason: PathError) -> u16 {
    match reason {
        PathError::NotFound | PathError::NoSubvolume | PathError::NotADirectory => 404,
        PathError::AccessDenied | PathError::NotPermitted | PathError::IsASubvolume | PathError::ReadOnly => {
            403
        }
        PathError::NameTooLong => 414,
        PathError::SymlinkLoop => 508,
        PathError::TooLarge => 413,
        PathError::AttributeTooLarge | PathError::AttributeNameTooLong | PathError::HashOverflow => 507,
        PathError::InvalidName => 400,
        PathError::Busy => 503,
        PathError::NotSupported => 501,
        PathError::IsADirectory => 405,
        PathError::Exists
        | PathError::NotEmpty
        | PathError::CrossDevice
        | PathError::IntoItself
        | PathError::TooManyLinks
        | PathError::NotAFile
        | PathError::NotASymlink => 409,
        _ => 500,
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        refusal(&error)
    }
}

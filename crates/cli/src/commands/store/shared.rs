//! Errors and times of the subcommands of `papilio store`.

use papilio::Timespec;
use papilio::device::{ObjectStores, OpenError, OpenErrorKind};
use std::path::PathBuf;
use std::time::SystemTime;

/// The object stores of this process.
pub(super) type Stores = &'static dyn ObjectStores;

/// Returns a function that names the device of an error.
pub(super) fn at(url: &str) -> impl Fn(OpenErrorKind) -> OpenError {
    let path = PathBuf::from(url);
    move |kind| OpenError { path: path.clone(), kind }
}

/// Converts a time for printing.
pub(super) fn timespec(at: SystemTime) -> Timespec {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = since.subsec_nanos();
    Timespec { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds }
}

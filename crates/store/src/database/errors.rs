//! Errors of SlateDB as those of devices.

use crate::sealed::SealFault;
use papilio_device::OpenErrorKind;
use slatedb::{CloseReason, ErrorKind};
use std::io;

/// Turns an error of the database into one of the device.
pub(super) fn error_of(name: &str, error: &slatedb::Error) -> io::Error {
    if let Some(fault) = SealFault::find(error) {
        return io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {fault}"));
    }
    let (kind, reason) = match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => (
            io::ErrorKind::StaleNetworkFileHandle,
            "another program has opened it for writing since, and this one can write no more".to_owned(),
        ),
        ErrorKind::Data => (io::ErrorKind::InvalidData, describe(error)),
        _ => (io::ErrorKind::Other, describe(error)),
    };
    io::Error::new(kind, format!("{name}: {reason}"))
}

/// Returns the messages of an error and of its causes, in one line.
fn describe(error: &slatedb::Error) -> String {
    if let Some(fault) = SealFault::find(error) {
        return fault.to_string();
    }
    crate::remote::object::innermost(error)
}

/// Turns an error of opening the database into one of opening the device.
pub(super) fn opening(error: slatedb::Error) -> OpenErrorKind {
    OpenErrorKind::Io(io::Error::other(describe(&error)))
}

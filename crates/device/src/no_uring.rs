//! Batches where the host has no io_uring: plain calls, one after the other.

use crate::device::{ReadRequest, WriteRequest};
use std::fs::File;
use std::io;

/// A request of a batch.
pub(crate) trait Transfer {}

impl Transfer for ReadRequest<'_> {}
impl Transfer for WriteRequest<'_> {}

/// Checks whether this process may use io_uring. Only Linux has it.
///
/// # Errors
/// `Unsupported`.
pub fn io_uring_available() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Runs all `requests` through `plain`.
pub(crate) fn run<R: Transfer>(
    _file: &File,
    requests: &mut [R],
    _eligible: impl Fn(&R) -> bool,
    plain: impl FnMut(&mut R),
) {
    requests.iter_mut().for_each(plain);
}

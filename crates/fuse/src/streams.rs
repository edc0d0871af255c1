//! The standard streams of a server that goes to the background.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard input.
    Input = 0,
    /// Standard output.
    Output = 1,
    /// Standard error.
    Error = 2,
}

/// Redirects a standard stream to `file`.
///
/// # Errors
/// The system's error from `dup2`.
pub fn replace(stream: Stream, file: impl AsFd) -> io::Result<()> {
    // SAFETY: both descriptors are open. No Rust value owns the stream's descriptor, and `dup2`
    // closes the file that it replaces.
    let result = unsafe { libc::dup2(file.as_fd().as_raw_fd(), stream as libc::c_int) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

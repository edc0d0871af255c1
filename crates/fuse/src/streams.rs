//! The standard streams of a server that goes to the background.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard input.
    Input = 0,
    /// Standard output.
    Output = 1,
    /// Standard error.
    Error = 2,
}

/// Lets a stream be `file` from now on.
///
/// # Errors
/// What the system says.
pub fn replace(stream: Stream, file: impl AsFd) -> io::Result<()> {
    // SAFETY: both are open, the streams for as long as the process lives; nobody owns them but the process,
    // and what they were before is closed by the call itself.
    let result = unsafe { libc::dup2(file.as_fd().as_raw_fd(), stream as libc::c_int) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

//! The output of commands that write a stream of send.
//!
//! Owns [`StreamOutput`].

use crate::host_output::HostOutput;
use crate::usage_error::UsageError;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// Where a stream goes.
pub enum StreamOutput {
    /// A file of the host.
    File(HostOutput),
    /// Standard output.
    Stdout(io::Stdout),
}

impl StreamOutput {
    /// Refuses a terminal.
    ///
    /// # Errors
    /// There is no file, and standard output is a terminal.
    pub fn check(file: Option<&Path>) -> Result<(), UsageError> {
        if file.is_none() && io::stdout().is_terminal() {
            let text = "a stream is not for a terminal: use -f FILE, or redirect standard output";
            return Err(UsageError::new(text));
        }
        Ok(())
    }

    /// Opens a file, or standard output.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match file {
            Some(path) => Self::File(HostOutput::open(path)?),
            None => Self::Stdout(io::stdout()),
        })
    }

    /// Keeps the file: it is complete.
    ///
    /// # Errors
    /// As [`HostOutput::finish`].
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.finish(),
            Self::Stdout(_) => Ok(()),
        }
    }
}

impl Write for StreamOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stdout(stdout) => stdout.flush(),
        }
    }
}

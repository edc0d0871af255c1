//! The stream that a send writes.
//!
//! Owns [`StreamWriter`], which serialises commands into one buffer and hands it on when it is
//! full.

use papilio_engine::errors::{Error, Result};
use papilio_format::send_stream::{Command, Protocol};
use std::io::Write;

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;
/// The longest path in bytes: `PATH_MAX` without the NUL.
const LONGEST_PATH: usize = 4095;

/// Writes commands to `out`.
pub(super) struct StreamWriter<'a> {
    out: &'a mut dyn Write,
    protocol: Protocol,
    buffer: Vec<u8>,
    /// Bytes handed to `out`.
    written: u64,
    /// Commands appended.
    commands: u64,
}

impl<'a> StreamWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write, protocol: Protocol, header: bool) -> Self {
        let buffer = if header { protocol.header().to_vec() } else { Vec::new() };
        Self { out, protocol, buffer, written: 0, commands: 0 }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the bytes of the stream so far.
    pub(super) fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Returns the commands so far.
    pub(super) fn commands(&self) -> u64 {
        self.commands
    }

    /// # Errors
    /// A path that no receiver can use, as it is longer than the kernel's `PATH_MAX` allows.
    pub(super) fn put(&mut self, command: &Command) -> Result<()> {
        if let Some(path) = command.paths().into_iter().flatten().find(|path| path.len() > LONGEST_PATH) {
            let start = String::from_utf8_lossy(&path[..80]);
            return Err(Error::Invalid(format!(
                "a path of {} bytes cannot be sent, as receivers take at most {LONGEST_PATH}: {start}...",
                path.len()
            )));
        }
        command.append_to(self.protocol, &mut self.buffer)?;
        self.commands += 1;
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Hands all bytes on.
    pub(super) fn flush(&mut self) -> Result<()> {
        let result = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        result.map_err(|source| Error::Host { path: "send stream".into(), source })?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

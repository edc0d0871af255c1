//! The stream that a send writes.
//!
//! Owns [`StreamWriter`], which serialises commands into one buffer and hands it on when it is
//! full.

use crate::errors::{Error, Result};
use papilio_format::send_stream::{Command, Protocol};
use std::io::Write;

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

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

    pub(super) fn put(&mut self, command: &Command) -> Result<()> {
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

//! The stream that a send writes.
//!
//! Owns [`StreamWriter`], which serialises commands into one buffer and hands it on when it is
//! full. A writer that resumes counts the commands that the receiver has, and writes those after.

use crate::receive::{ResumeToken, outline_of, outline_of_encoded, outline_of_write, part_header};
use papilio_engine::errors::{Error, Result};
use papilio_format::send_stream::{COMMAND_HEADER_SIZE, Command, CommandHeader, EncodedWrite, Protocol};
use std::io::Write;

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;
/// The longest path in bytes: `PATH_MAX` without the NUL.
const LONGEST_PATH: usize = 4095;

/// Writes commands to `out`.
pub(crate) struct StreamWriter<'a> {
    out: &'a mut dyn Write,
    protocol: Protocol,
    buffer: Vec<u8>,
    /// Bytes handed to `out`.
    written: u64,
    /// Commands appended.
    commands: u64,
    skip: Option<Skip>,
}

/// Commands that the receiver has.
struct Skip {
    until: ResumeToken,
    /// The position, once the command that begins the subvolume was written.
    at: Option<ResumeToken>,
}

impl<'a> StreamWriter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, protocol: Protocol, header: bool) -> Self {
        let buffer = if header { protocol.header().to_vec() } else { Vec::new() };
        Self { out, protocol, buffer, written: 0, commands: 0, skip: None }
    }

    /// Writes the rest of a stream: the command that begins the subvolume, and those behind the
    /// position of `token`.
    pub(crate) fn rest(out: &'a mut dyn Write, protocol: Protocol, token: ResumeToken) -> Self {
        let skip = Some(Skip { until: token, at: None });
        Self { skip, buffer: part_header(protocol, &token), ..Self::new(out, protocol, false) }
    }

    /// Returns whether the receiver has the next command. Then its data need not be read.
    pub(crate) fn skips(&self) -> bool {
        self.skip.is_some()
    }

    /// Passes over a write of `length` bytes.
    ///
    /// # Errors
    /// The stream is not the one of the token.
    pub(crate) fn skip_write(&mut self, path: &[u8], offset: u64, length: u64) -> Result<()> {
        self.pass_over(0, outline_of_write(path, offset, length))
    }

    /// Passes over an encoded write with `stored` bytes of data, which `write` lacks.
    ///
    /// # Errors
    /// As [`Self::skip_write`].
    pub(crate) fn skip_encoded(&mut self, write: &EncodedWrite, stored: u64) -> Result<()> {
        self.pass_over(0, outline_of_encoded(write, stored))
    }

    /// Counts a command that the receiver has.
    fn pass_over(&mut self, checksum: u32, outline: u32) -> Result<()> {
        let Some(Skip { until, at: Some(at) }) = &mut self.skip else { return Ok(()) };
        *at = at.after(checksum, outline);
        if at.commands < until.commands {
            return Ok(());
        }
        if at.outline != until.outline {
            return Err(until.other_stream());
        }
        self.skip = None;
        Ok(())
    }

    /// Fails if the receiver has more commands than the stream, whose last one was put.
    ///
    /// # Errors
    /// The stream is not the one of the token.
    pub(crate) fn check_end(&self) -> Result<()> {
        self.skip.as_ref().map_or(Ok(()), |skip| Err(skip.until.other_stream()))
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the bytes of the stream so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Returns the commands so far.
    pub(crate) fn commands(&self) -> u64 {
        self.commands
    }

    /// # Errors
    /// A path that no receiver can use, as it is longer than the kernel's `PATH_MAX` allows.
    pub(crate) fn put(&mut self, command: &Command) -> Result<()> {
        if let Some(path) = command.paths().into_iter().flatten().find(|path| path.len() > LONGEST_PATH) {
            let start = String::from_utf8_lossy(&path[..80]);
            return Err(Error::Invalid(format!(
                "a path of {} bytes cannot be sent, as receivers take at most {LONGEST_PATH}: {start}...",
                path.len()
            )));
        }
        let start = self.buffer.len();
        command.append_to(self.protocol, &mut self.buffer)?;
        if let Some(skip) = &mut self.skip {
            let header = self.buffer[start..].first_chunk::<COMMAND_HEADER_SIZE>();
            let header = CommandHeader::parse(header.expect("a command has a header"), self.protocol, 0)?;
            let outline = outline_of(command, header.crc);
            if skip.at.is_some() {
                self.buffer.truncate(start);
                return self.pass_over(header.crc, outline);
            }
            let begun = ResumeToken::start(skip.until.subvolume, header.crc, outline);
            if skip.until.commands > 0 {
                skip.at = Some(begun);
            } else if begun.outline == skip.until.outline {
                self.skip = None;
            } else {
                return Err(skip.until.other_stream());
            }
        }
        self.commands += 1;
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Returns the output. Bytes that were not flushed are lost.
    pub(crate) fn into_inner(self) -> &'a mut dyn Write {
        self.out
    }

    /// Hands all bytes on.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let result = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        result.map_err(|source| Error::Host { path: "send stream".into(), source })?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

//! A stream's bytes.
//!
//! Owns [`StreamInput`], which reads at any place. A pipe is first copied to a temporary file that
//! has no name. A stream may also lie in pieces elsewhere ([`StreamSource`]), with an outline from
//! which its trees are built. The outline begins with the stream's header. Each record of it is the
//! byte at which a command starts (8, little endian), and the command. In place of a command with
//! data it has `update_extent` with the range that the command writes.

use super::fault::StreamError;
use papilio_engine::errors::{Error, Result as EngineResult};
use papilio_format::send_stream::{COMMAND_HEADER_SIZE, Command, CommandHeader, Protocol, SendStreamFault};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A stream whose bytes lie in pieces elsewhere, such as in the objects of a backup.
pub trait StreamSource: std::fmt::Debug + Send + Sync {
    /// Fills the buffer with the bytes at `offset` of the stream.
    ///
    /// # Errors
    /// The pieces cannot be read; `UnexpectedEof` if the stream ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

#[derive(Debug)]
enum Bytes {
    File(File),
    Pieces { source: Arc<dyn StreamSource>, outline: Vec<u8> },
}

/// A stream, or several one behind another, that can be read at any place.
#[derive(Debug)]
pub struct StreamInput {
    name: String,
    bytes: Bytes,
    /// Bytes.
    length: u64,
}

impl StreamInput {
    /// Opens a file.
    ///
    /// # Errors
    /// The host's error.
    pub fn open(path: &Path) -> Result<Self, StreamError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| StreamError::host(&name, source))?;
        Self::of_file(name, file)
    }

    /// Takes an open file, which is copied to a temporary file if it is a pipe. A regular file is
    /// read from its start.
    ///
    /// # Errors
    /// The host's error.
    pub fn of_file(name: String, mut file: File) -> Result<Self, StreamError> {
        let at = |source| StreamError::host(&name, source);
        let metadata = file.metadata().map_err(at)?;
        if metadata.is_file() {
            return Ok(Self { length: metadata.len(), bytes: Bytes::File(file), name });
        }
        if metadata.is_dir() {
            return Err(at(io::ErrorKind::IsADirectory.into()));
        }
        let at_spill = |source| StreamError::host("temporary file for the stream", source);
        let mut spill = tempfile::tempfile().map_err(at_spill)?;
        let length = io::copy(&mut file, &mut spill).map_err(at_spill)?;
        spill.rewind().map_err(at_spill)?;
        Ok(Self { name, bytes: Bytes::File(spill), length })
    }

    /// Takes a stream of `length` bytes that lies in pieces, and its outline. Loading reads the
    /// outline only; the pieces are read where data is wanted.
    pub fn of_pieces(name: String, source: Arc<dyn StreamSource>, length: u64, outline: Vec<u8>) -> Self {
        Self { name, bytes: Bytes::Pieces { source, outline }, length }
    }

    /// Returns the outline of a stream that lies in pieces.
    pub(super) fn outline(&self) -> Option<&[u8]> {
        match &self.bytes {
            Bytes::File(_) => None,
            Bytes::Pieces { outline, .. } => Some(outline),
        }
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.bytes {
            Bytes::File(file) => file.read_exact_at(buffer, offset),
            Bytes::Pieces { source, .. } => source.read_exact_at(buffer, offset),
        }
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns a reader from the start.
    pub fn reader(&self) -> impl Read + '_ {
        io::BufReader::with_capacity(1 << 20, InputReader { input: self, at: 0 })
    }

    /// Reads the bytes from `start` to `end`.
    pub(super) fn range(&self, start: u64, end: u64) -> impl Read + '_ {
        io::BufReader::with_capacity(1 << 20, InputReader { input: self, at: start })
            .take(end.saturating_sub(start))
    }

    /// Reads and verifies the command that starts at byte `offset`.
    pub(super) fn command_at(&self, offset: u64, protocol: Protocol) -> EngineResult<Command> {
        let fill = |buffer: &mut [u8], at: u64| {
            self.fill(buffer, at).map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    SendStreamFault::Cut { need: buffer.len(), have: 0 }.at(at).into()
                }
                _ => Error::Host { path: self.name.clone().into(), source },
            })
        };
        let mut header = [0; COMMAND_HEADER_SIZE];
        fill(&mut header, offset)?;
        let header = CommandHeader::parse(&header, protocol, offset)?;
        let mut bytes = vec![0; header.length];
        fill(&mut bytes, offset + COMMAND_HEADER_SIZE as u64)?;
        Ok(Command::parse(protocol, &header, &bytes, offset)?)
    }
}

struct InputReader<'a> {
    input: &'a StreamInput,
    at: u64,
}

impl Read for InputReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &self.input.bytes {
            Bytes::File(file) => file.read_at(buffer, self.at)?,
            Bytes::Pieces { source, .. } => {
                let left = self.input.length.saturating_sub(self.at);
                let length = left.min(buffer.len() as u64) as usize;
                source.read_exact_at(&mut buffer[..length], self.at)?;
                length
            }
        };
        self.at += read as u64;
        Ok(read)
    }
}

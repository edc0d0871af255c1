//! `Body`: the body of a request, read piece by piece.
//!
//! **Invariants**
//! - A body is read at a rate of at least [`LEAST_RATE`] on average, or it fails.
//! - Sizes of chunks are checked before they are believed. Chunk extensions and trailers are read
//!   and ignored.
//!
//! Source: RFC 9112, 7.1.

use crate::head::{Framing, Head};
use crate::wire::Wire;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The least bytes a second, on average, after the first minute.
const LEAST_RATE: u64 = 1024;
/// The most bytes of a line with the size of a chunk, and of all trailers.
const LINE_MOST: usize = 256;
const TRAILERS_MOST: usize = 8 << 10;
/// The most bytes of a body that nobody wants, which are read so that the connection can go on.
const DRAINED_MOST: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This many bytes follow, of the body or of a chunk.
    Length(u64),
    Chunk(u64),
    /// The line with the size of a chunk follows.
    ChunkSize,
    /// The end of the line behind a chunk follows.
    ChunkEnd,
    Trailers,
    Done,
    /// The body was not understood, so nothing after it is.
    Failed,
}

/// The body of a request.
pub(crate) struct Body<'w, 'c> {
    wire: &'w mut Wire<'c>,
    state: State,
    /// Whether the client waits for a sign that the body is wanted.
    waits: bool,
    idle: Duration,
    started: Instant,
    received: u64,
}

fn malformed(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl<'w, 'c> Body<'w, 'c> {
    pub(crate) fn new(wire: &'w mut Wire<'c>, head: &Head, idle: Duration) -> Self {
        let state = match head.framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize,
        };
        let waits = head.expects_continue;
        Self { wire, state, waits, idle, started: Instant::now(), received: 0 }
    }

    /// Reads the rest, if it is short, so that the next request can be read. Returns whether it is
    /// at its end.
    pub(crate) fn drain(&mut self) -> bool {
        if self.state == State::Done {
            return true;
        }
        // A client that still waits sends no body, and may send it or not after the answer.
        if self.waits {
            return false;
        }
        let mut buffer = [0; 8192];
        let end = self.received.saturating_add(DRAINED_MOST);
        while self.received < end {
            match self.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// `FileTooLarge` for more than `most` bytes; as `read`.
    pub(crate) fn read_whole(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut whole = Vec::new();
        self.take(most as u64 + 1).read_to_end(&mut whole)?;
        match whole.len() > most {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(whole),
        }
    }

    /// Makes sure that a byte is pending.
    fn fill(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.waits) {
            self.wire.send(b"HTTP/1.1 100 Continue\r\n\r\n", self.idle)?;
        }
        if !self.wire.pending().is_empty() {
            return Ok(());
        }
        let slowest = self.started + self.idle + Duration::from_secs(self.received / LEAST_RATE);
        let deadline = slowest.min(Instant::now() + self.idle);
        match self.wire.fill(deadline)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads a line without its CR LF.
    fn line(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            self.fill()?;
            let byte = self.wire.pending()[0];
            self.wire.consume(1);
            match byte {
                b'\n' if line.last() == Some(&b'\r') => {
                    line.pop();
                    return Ok(line);
                }
                b'\n' => return Err(malformed("a line of a chunked body ends without CR")),
                byte if line.len() < most => line.push(byte),
                _ => return Err(malformed("a line of a chunked body is too long")),
            }
        }
    }

    fn next_chunk(&mut self) -> io::Result<State> {
        let line = self.line(LINE_MOST)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let rest = &line[digits..];
        let is_end = rest.first().is_none_or(|byte| matches!(byte, b';' | b' ' | b'\t'));
        let size = std::str::from_utf8(&line[..digits]).ok().filter(|text| (1..=15).contains(&text.len()));
        let size = size.and_then(|text| u64::from_str_radix(text, 16).ok()).filter(|_| is_end);
        match size.ok_or_else(|| malformed("the size of a chunk is malformed"))? {
            0 => Ok(State::Trailers),
            size => Ok(State::Chunk(size)),
        }
    }

    fn skip_trailers(&mut self) -> io::Result<()> {
        let mut left = TRAILERS_MOST;
        loop {
            let line = self.line(left)?;
            if line.is_empty() {
                return Ok(());
            }
            left = left.saturating_sub(line.len() + 2);
        }
    }

    fn take_pending(&mut self, buffer: &mut [u8], left: u64) -> io::Result<usize> {
        self.fill()?;
        let pending = self.wire.pending();
        let count = buffer.len().min(pending.len()).min(usize::try_from(left).unwrap_or(usize::MAX));
        buffer[..count].copy_from_slice(&pending[..count]);
        self.wire.consume(count);
        self.received += count as u64;
        Ok(count)
    }
}

impl Read for Body<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = if buffer.is_empty() { Ok(0) } else { self.read_some(buffer) };
        if read.is_err() {
            self.state = State::Failed;
        }
        read
    }
}

impl Body<'_, '_> {
    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.state {
                State::Done => return Ok(0),
                State::Failed => return Err(malformed("the body is broken")),
                State::Length(left) => {
                    let count = self.take_pending(buffer, left)?;
                    let left = left - count as u64;
                    self.state = if left == 0 { State::Done } else { State::Length(left) };
                    return Ok(count);
                }
                State::Chunk(left) => {
                    let count = self.take_pending(buffer, left)?;
                    let left = left - count as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                    return Ok(count);
                }
                State::ChunkSize => self.state = self.next_chunk()?,
                State::ChunkEnd => {
                    if !self.line(1)?.is_empty() {
                        return Err(malformed("a chunk is longer than its size"));
                    }
                    self.state = State::ChunkSize;
                }
                State::Trailers => {
                    self.skip_trailers()?;
                    self.state = State::Done;
                }
            }
        }
    }
}

//! `Replies`: sends replies to requests, simple or structured ones.
//!
//! **Invariants**
//! - A reply is sent as a whole, before another begins.
//! - After a failed write nothing more is sent: the client could not tell where a reply begins.
//!
//! **Locks**: `output`, held while a reply is written to the socket. The client decides how long.

use crate::export::Extent;
use crate::protocol::{
    BASE_ALLOCATION_ID, CHUNK_MAGIC, Errno, Request, SIMPLE_REPLY_MAGIC, STATE_HOLE_ZERO, chunk,
};
use crate::stream::Stream;
use papilio_locks::Mutex;
use std::io::{self, IoSlice, Write};

/// Sends the replies of one client.
#[derive(Debug)]
pub(crate) struct Replies<'a> {
    stream: &'a Stream,
    /// Whether the client asked for structured replies.
    structured: bool,
    /// Whether a write has failed.
    output: Mutex<bool>,
}

impl<'a> Replies<'a> {
    /// Creates the sender.
    pub fn new(stream: &'a Stream, structured: bool) -> Self {
        Self { stream, structured, output: Mutex::new(false) }
    }

    /// Sends the outcome of a command that returns no data.
    pub fn done(&self, request: &Request, result: Result<(), Errno>) -> io::Result<()> {
        match result {
            Ok(()) => self.simple(request, 0, &[]),
            Err(errno) => self.error(request, errno),
        }
    }

    /// Sends an error. A structured READ or BLOCK_STATUS needs a structured one.
    pub fn error(&self, request: &Request, errno: Errno) -> io::Result<()> {
        if !self.structured {
            return self.simple(request, errno as u32, &[]);
        }
        let mut payload = (errno as u32).to_be_bytes().to_vec();
        // The length of a message for people: none.
        payload.extend([0, 0]);
        self.chunk(request, chunk::ERROR, &payload, &[])
    }

    /// Sends the bytes of a READ.
    pub fn data(&self, request: &Request, bytes: &[u8]) -> io::Result<()> {
        if !self.structured {
            return self.simple(request, 0, bytes);
        }
        if bytes.is_empty() {
            return self.chunk(request, chunk::NONE, &[], &[]);
        }
        self.chunk(request, chunk::OFFSET_DATA, &request.offset.to_be_bytes(), bytes)
    }

    /// Answers a READ of nothing but zeros. Returns whether the client understands that.
    pub fn zeros(&self, request: &Request) -> io::Result<bool> {
        if !self.structured {
            return Ok(false);
        }
        let mut payload = request.offset.to_be_bytes().to_vec();
        payload.extend(request.length.to_be_bytes());
        self.chunk(request, chunk::OFFSET_HOLE, &payload, &[])?;
        Ok(true)
    }

    /// Sends the extents of a BLOCK_STATUS.
    pub fn extents(&self, request: &Request, extents: &[Extent]) -> io::Result<()> {
        let mut payload = BASE_ALLOCATION_ID.to_be_bytes().to_vec();
        for extent in extents {
            // A request is at most as long as the field allows.
            let length = u32::try_from(extent.length).unwrap_or(u32::MAX);
            payload.extend(length.to_be_bytes());
            payload.extend(if extent.is_hole { STATE_HOLE_ZERO } else { 0 }.to_be_bytes());
        }
        self.chunk(request, chunk::BLOCK_STATUS, &payload, &[])
    }

    fn simple(&self, request: &Request, error: u32, bytes: &[u8]) -> io::Result<()> {
        let mut header = Vec::with_capacity(16);
        header.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        header.extend(error.to_be_bytes());
        header.extend(request.cookie.to_be_bytes());
        self.send(&header, bytes)
    }

    fn chunk(&self, request: &Request, kind: u16, start: &[u8], rest: &[u8]) -> io::Result<()> {
        let mut header = Vec::with_capacity(20 + start.len());
        header.extend(CHUNK_MAGIC.to_be_bytes());
        header.extend(chunk::DONE.to_be_bytes());
        header.extend(kind.to_be_bytes());
        header.extend(request.cookie.to_be_bytes());
        header.extend(((start.len() + rest.len()) as u32).to_be_bytes());
        header.extend(start);
        self.send(&header, rest)
    }

    fn send(&self, header: &[u8], bytes: &[u8]) -> io::Result<()> {
        let mut failed = self.output.lock();
        if *failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = write_both(self.stream, header, bytes);
        *failed = sent.is_err();
        sent
    }
}

/// Writes two buffers, with one call if the socket takes them.
fn write_both(mut stream: &Stream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < first.len() {
        match stream.write_vectored(&[IoSlice::new(&first[done..]), IoSlice::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.write_all(&second[done - first.len()..])
}

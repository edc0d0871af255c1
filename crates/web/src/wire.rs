//! `Connection`: the socket of a client; `Wire`: the bytes that pass over it, with TLS or without.
//!
//! **Invariants**
//! - Every read and write has a deadline, so no client holds a thread for ever.
//! - A connection reads at most [`PIECE`] bytes ahead of the request that it serves.
//!
//! **Locks**: `waits`, a leaf, held for moments.

use papilio_locks::Mutex;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read or written at once.
pub(crate) const PIECE: usize = 64 << 10;
/// The most bytes of an answer that one deadline covers.
const SENT_AT_ONCE: usize = 256 << 10;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    waits: Mutex<Waits>,
}

/// The state of the thread of a connection.
#[derive(Debug, Default)]
struct Waits {
    /// Whether it waits for a request.
    is_idle: bool,
    /// Whether the server ends.
    is_ending: bool,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, waits: Mutex::default() }
    }

    /// Lets the request in flight end, and serves no further one.
    pub(crate) fn end(&self) {
        let mut waits = self.waits.lock();
        waits.is_ending = true;
        if waits.is_idle {
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    /// Disconnects the client.
    pub(crate) fn cut(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Notes whether the thread waits for a request. Returns whether the server goes on.
    fn set_idle(&self, is_idle: bool) -> bool {
        let mut waits = self.waits.lock();
        waits.is_idle = is_idle;
        !waits.is_ending
    }

    /// Returns whether the server ends.
    pub(crate) fn is_ending(&self) -> bool {
        self.waits.lock().is_ending
    }
}

/// A socket whose reads and writes fail at a deadline.
#[derive(Debug)]
struct TimedSocket<'c> {
    socket: &'c TcpStream,
    deadline: Cell<Instant>,
}

impl TimedSocket<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.get().saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// Gives a time-out one name.
fn timed<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    })
}

impl Read for TimedSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        timed(self.socket.read(buffer))
    }
}

impl Write for TimedSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        timed(self.socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Stream<'c> {
    Plain(TimedSocket<'c>),
    Tls(Box<StreamOwned<ServerConnection, TimedSocket<'c>>>),
}

/// The bytes of a connection, and those that were read ahead.
pub(crate) struct Wire<'c> {
    connection: &'c Connection,
    stream: Stream<'c>,
    /// The bytes from `start` on are not used yet.
    buffer: Vec<u8>,
    start: usize,
}

impl<'c> Wire<'c> {
    /// Begins to use a connection. A handshake of TLS takes place with the first read.
    pub(crate) fn new(
        connection: &'c Connection,
        tls: Option<&Arc<ServerConfig>>,
        deadline: Instant,
    ) -> io::Result<Self> {
        // Answers are written whole.
        connection.socket.set_nodelay(true)?;
        let socket = TimedSocket { socket: &connection.socket, deadline: Cell::new(deadline) };
        let stream = match tls {
            None => Stream::Plain(socket),
            Some(config) => {
                let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                Stream::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        };
        Ok(Self { connection, stream, buffer: Vec::new(), start: 0 })
    }

    /// Returns the connection.
    pub(crate) fn connection(&self) -> &'c Connection {
        self.connection
    }

    fn set_deadline(&self, deadline: Instant) {
        match &self.stream {
            Stream::Plain(socket) => socket.deadline.set(deadline),
            Stream::Tls(stream) => stream.sock.deadline.set(deadline),
        }
    }

    /// Returns the bytes that were read and not used.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Marks bytes as used.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.buffer.len());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
    }

    /// Waits for the first byte of a request. Returns false if there is none: the client is gone or
    /// idle for too long, or the server ends.
    pub(crate) fn wait_for_request(&mut self, until: Instant) -> bool {
        if !self.pending().is_empty() {
            return !self.connection.is_ending();
        }
        if !self.connection.set_idle(true) {
            return false;
        }
        let read = self.fill(until);
        self.connection.set_idle(false) && matches!(read, Ok(1..))
    }

    /// Reads more bytes until a deadline. Returns how many; 0 at the end of the connection.
    pub(crate) fn fill(&mut self, deadline: Instant) -> io::Result<usize> {
        self.set_deadline(deadline);
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let length = self.buffer.len();
        self.buffer.resize(length + PIECE, 0);
        let read = loop {
            let read = match &mut self.stream {
                Stream::Plain(socket) => socket.read(&mut self.buffer[length..]),
                Stream::Tls(stream) => stream.read(&mut self.buffer[length..]),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(length + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Sends bytes. Each [`SENT_AT_ONCE`] of them have `time`.
    pub(crate) fn send(&mut self, bytes: &[u8], time: Duration) -> io::Result<()> {
        for piece in bytes.chunks(SENT_AT_ONCE) {
            self.set_deadline(Instant::now() + time);
            match &mut self.stream {
                Stream::Plain(socket) => socket.write_all(piece)?,
                Stream::Tls(stream) => stream.write_all(piece).and_then(|()| stream.flush())?,
            }
        }
        Ok(())
    }

    /// Ends the connection after a whole answer, and gives the client `time` to take it: a socket
    /// that is closed with bytes unread would drop the answer.
    pub(crate) fn finish(mut self, time: Duration) {
        let deadline = Instant::now() + time;
        self.set_deadline(deadline);
        if let Stream::Tls(stream) = &mut self.stream {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.connection.socket.shutdown(Shutdown::Write);
        if self.connection.is_ending() {
            return;
        }
        let mut rest = [0; 4096];
        let mut socket = TimedSocket { socket: &self.connection.socket, deadline: Cell::new(deadline) };
        for _ in 0..256 {
            if !matches!(socket.read(&mut rest), Ok(1..)) {
                return;
            }
        }
    }
}

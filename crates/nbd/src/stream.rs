//! `Stream`: the bytes that a client sends and receives, over a socket or over TLS on it.
//!
//! Owns [`Socket`], and the interface of TLS: [`Tls`] and [`Channel`]. This crate has no TLS of its
//! own, so that programs without it need no cryptography.
//!
//! **Invariant**: once a client has a channel, nothing passes the socket beside it.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

/// The socket of a client. Threads read and write it at once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Socket {
    /// A client over TCP.
    Tcp(TcpStream),
    /// A client on this machine.
    Unix(UnixStream),
}

/// The side of TLS that accepts clients.
pub trait Tls: fmt::Debug + Send + Sync {
    /// Carries the handshake out, and returns the channel.
    ///
    /// # Errors
    /// The client is not accepted, or gone.
    fn accept(&self, socket: &Socket) -> io::Result<Box<dyn Channel>>;
}

/// An encrypted channel over a socket. One thread reads while others write.
pub trait Channel: Send + Sync {
    /// Reads as many bytes as there are, one at least; 0 at the end.
    ///
    /// # Errors
    /// Those of the socket; bytes that the client did not encrypt.
    fn read(&self, socket: &Socket, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes some of the bytes of `parts`, and sends them.
    ///
    /// # Errors
    /// Those of the socket.
    fn write(&self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Tells the client that no more follows.
    fn end(&self, socket: &Socket);
}

/// The socket of a client, with a channel once there is one.
pub(crate) struct Stream {
    socket: Socket,
    channel: OnceLock<Box<dyn Channel>>,
}

impl Stream {
    pub fn new(socket: Socket) -> Self {
        Self { socket, channel: OnceLock::new() }
    }

    /// Sets how long a read may wait.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Ends a direction, which wakes the threads that wait for it.
    pub fn shutdown(&self, how: Shutdown) {
        // Fails only if the client is gone.
        let _ = match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Returns whether the client has a channel.
    pub fn is_secure(&self) -> bool {
        self.channel.get().is_some()
    }

    /// Lets a client without a channel begin one.
    pub fn secure(&self, tls: &dyn Tls) -> io::Result<()> {
        let channel = tls.accept(&self.socket)?;
        self.channel.set(channel).map_err(|_| io::Error::other("the client has a channel"))
    }

    /// Tells the client that no more follows.
    pub fn finish(&self) {
        if let Some(channel) = self.channel.get() {
            channel.end(&self.socket);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("socket", &self.socket).field("tls", &self.is_secure()).finish()
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.channel.get() {
            Some(channel) => channel.read(&self.socket, buffer),
            None => (&self.socket).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.channel.get() {
            Some(channel) => channel.write(&self.socket, parts),
            None => (&self.socket).write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).read(buffer),
            Socket::Unix(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write_vectored(parts),
            Socket::Unix(stream) => (&mut &*stream).write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! `DiskTls`: TLS for the clients of `papilio serve --nbd`, by rustls.
//!
//! **Invariants**
//! - The records of a channel are sent in the order in which they were encrypted.
//! - No lock that a writer needs is held while a reader waits for the client.
//!
//! **Locks**, in this order: `input`, of the one reader; `output`, held while bytes are sent;
//! `state`, held to encrypt and decrypt, never while the socket is used.

use papilio_locks::Mutex;
use papilio_nbd::{Channel, Socket, Tls};
use rustls::{ServerConfig, ServerConnection};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

/// Bytes that are read from a socket at once: more than the longest record.
const PIECE: usize = 32 << 10;
/// Bytes that are encrypted and sent at once.
const SENT_AT_ONCE: usize = 256 << 10;

/// The TLS of a server.
pub struct DiskTls(Arc<ServerConfig>);

/// The channel of a client.
struct Encrypted {
    state: Mutex<ServerConnection>,
    input: Mutex<Input>,
    output: Mutex<Vec<u8>>,
}

/// Bytes of a socket that were read and not decrypted yet.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn fill(&mut self, socket: &mut &Socket) -> io::Result<()> {
        self.end = socket.read(&mut self.bytes)?;
        self.start = 0;
        Ok(())
    }
}

impl DiskTls {
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(config)
    }
}

impl fmt::Debug for DiskTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiskTls")
    }
}

impl Tls for DiskTls {
    fn accept(&self, mut socket: &Socket) -> io::Result<Box<dyn Channel>> {
        let mut state = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        // The writer decides how much is encrypted at once.
        state.set_buffer_limit(None);
        while state.is_handshaking() {
            state.complete_io(&mut socket)?;
        }
        // The reply that ends the handshake, and tickets.
        while state.wants_write() {
            state.write_tls(&mut socket)?;
        }
        Ok(Box::new(Encrypted {
            state: Mutex::new(state),
            input: Mutex::new(Input { bytes: vec![0; PIECE].into(), start: 0, end: 0 }),
            output: Mutex::default(),
        }))
    }
}

impl Encrypted {
    /// Encrypts the bytes that `add` adds, and sends them.
    fn send(
        &self,
        mut socket: &Socket,
        add: impl FnOnce(&mut ServerConnection) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut output = self.output.lock();
        output.clear();
        let mut state = self.state.lock();
        let added = add(&mut state)?;
        while state.wants_write() {
            state.write_tls(&mut *output)?;
        }
        drop(state);
        socket.write_all(&output)?;
        Ok(added)
    }
}

impl Channel for Encrypted {
    fn read(&self, mut socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
        let mut input = self.input.lock();
        loop {
            let mut state = self.state.lock();
            match state.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Also the end, which the client told; an end without that is an error.
                found => return found,
            }
            if input.is_empty() {
                drop(state);
                input.fill(&mut socket)?;
                state = self.state.lock();
            }
            // Takes a part only: its bytes are read before more are decrypted. An empty slice tells
            // the connection that the client is gone.
            let mut arrived = input.rest();
            input.start += state.read_tls(&mut arrived)?;
            let decrypted = state.process_new_packets();
            let must_answer = state.wants_write();
            drop(state);
            if must_answer {
                // The client changes its keys, or is told what is wrong.
                self.send(socket, |_| Ok(0))?;
            }
            decrypted.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn write(&self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(socket, |state| {
            let mut added = 0;
            for part in parts {
                let part = &part[..part.len().min(SENT_AT_ONCE - added)];
                state.writer().write_all(part)?;
                added += part.len();
            }
            Ok(added)
        })
    }

    fn end(&self, socket: &Socket) {
        // A client that is gone needs to hear nothing.
        let _ = self.send(socket, |state| {
            state.send_close_notify();
            Ok(0)
        });
    }
}

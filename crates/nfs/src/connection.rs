//! `Connection`: one client, and its messages as records of a TCP stream.
//!
//! Threads take turns: one reads the next message, then lets another one read, carries the call
//! out and replies. A further thread starts when a message is read and none waits for its turn.
//!
//! **Locks**
//! - `turn`: held by the thread that reads a message. It may wait for the client.
//! - `replies`: held while a reply is sent.
//!
//! Source: RFC 5531, section 11.

use crate::dispatch::{Route, answer};
use crate::duplicates::Duplicates;
use crate::export::Export;
use crate::read::MOST;
use papilio_locks::Mutex;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Duration;

/// The most threads of a client, and calls in flight.
const MAX_THREADS: usize = 8;
/// The most bytes of a message: a write, and what is around its data.
const MAX_MESSAGE: usize = MOST as usize + 4096;
const LAST_FRAGMENT: u32 = 1 << 31;
/// How long a client may refuse to take a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    client: SocketAddr,
    /// Whether no more messages are read.
    ending: AtomicBool,
}

/// The state that the threads of a client share.
struct Conversation<'a> {
    connection: &'a Connection,
    export: &'a Export,
    duplicates: &'a Duplicates,
    turn: Mutex<()>,
    replies: Mutex<()>,
    threads: AtomicUsize,
    /// Threads that wait for their turn, or have it and wait for a message.
    waiting: AtomicUsize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, client: SocketAddr) -> Self {
        Self { stream, client, ending: AtomicBool::new(false) }
    }

    /// Serves the client until it disconnects or breaks the protocol, or the server ends.
    pub(crate) fn serve(&self, export: &Export, duplicates: &Duplicates) -> io::Result<()> {
        // Replies are whole messages.
        self.stream.set_nodelay(true)?;
        self.stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let conversation = Conversation {
            connection: self,
            export,
            duplicates,
            turn: Mutex::new(()),
            replies: Mutex::new(()),
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
        };
        let port = self.stream.local_addr()?.port();
        std::thread::scope(|scope| conversation.run(scope, port));
        Ok(())
    }

    /// Lets the calls in flight end, and takes no more.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        // A client that is gone has ended it already.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection without waiting for the client to take its replies.
    pub(crate) fn cut(&self) {
        self.ending.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Conversation<'_> {
    /// Reads and answers messages until the connection ends.
    fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, port: u16) {
        loop {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            let turn = self.turn.lock();
            let message = self.receive();
            // Under the turn, so that one thread counts at a time.
            let others = self.waiting.fetch_sub(1, Ordering::AcqRel) - 1;
            let Ok(message) = message else { return self.connection.end() };
            if others == 0 && self.threads.load(Ordering::Acquire) < MAX_THREADS {
                self.start_thread(scope, port);
            }
            drop(turn);
            let route = Route { client: self.connection.client, port };
            let sent = match answer(self.export, self.duplicates, route, &message) {
                Ok(Some(reply)) => self.send(&reply),
                Ok(None) => Ok(()),
                Err(_) => Err(io::ErrorKind::InvalidData.into()),
            };
            if sent.is_err() {
                self.connection.cut();
            }
        }
    }

    /// Starts a thread; without one the calls wait for each other.
    fn start_thread<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, port: u16) {
        let builder = std::thread::Builder::new().name("papilio-nfs-call".to_owned());
        if builder.spawn_scoped(scope, move || self.run(scope, port)).is_ok() {
            self.threads.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Reads the next message, which may have several fragments.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut stream = &self.connection.stream;
        let mut message = Vec::new();
        loop {
            if self.connection.ending.load(Ordering::Acquire) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let mut header = [0; 4];
            stream.read_exact(&mut header)?;
            let header = u32::from_be_bytes(header);
            let length = (header & !LAST_FRAGMENT) as usize;
            if length > MAX_MESSAGE - message.len() {
                tracing::warn!("an NFS client broke the protocol: a message is too long");
                return Err(io::ErrorKind::InvalidData.into());
            }
            // The buffer grows with the bytes that arrive.
            let before = message.len();
            stream.take(length as u64).read_to_end(&mut message)?;
            if message.len() - before != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if header & LAST_FRAGMENT != 0 {
                return Ok(message);
            }
        }
    }

    fn send(&self, reply: &[u8]) -> io::Result<()> {
        let mut stream = &self.connection.stream;
        let header = (reply.len() as u32 | LAST_FRAGMENT).to_be_bytes();
        let _replies = self.replies.lock();
        stream.write_all(&header)?;
        stream.write_all(reply)
    }
}

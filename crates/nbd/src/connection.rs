//! `Connection`: one client, from the handshake to the end.
//!
//! Threads take turns: one reads the next request, then lets another one read, carries the request
//! out and replies. So no request is handed from thread to thread, and as many are in flight as
//! there are threads. A further thread starts when a request is read and none waits for its turn.
//!
//! **Invariants**
//! - A write reaches the device only when all its bytes are there. A client that goes away in the
//!   middle of one changes nothing.
//! - The buffers of the requests in flight have at most [`BUDGET`] bytes.
//! - The writes of a client that goes away are flushed.
//!
//! **Locks**
//! - `turn`: held by the thread that reads a request. It may wait for the client, and for the
//!   budget.
//! - The budget and the replies have locks of their own; the budget's is acquired under `turn`.

use crate::budget::{Budget, Share};
use crate::export::Export;
use crate::handshake::{Agreement, negotiate, skip};
use crate::protocol::{Errno, MAX_PAYLOAD, Request, command, command_flag};
use crate::replies::Replies;
use crate::stream::{Socket, Stream, Tls};
use papilio_locks::Mutex;
use std::io::{self, Read};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Duration;

/// The most threads of a client, and requests in flight.
const MAX_THREADS: usize = 16;
/// The most bytes of a client's requests in memory.
const BUDGET: u64 = 2 * MAX_PAYLOAD as u64;
/// How long a client may be silent in the handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// The most extents of a reply.
const MAX_EXTENTS: usize = 1024;

/// The protocol of network block devices.
pub(crate) struct Nbd {
    pub(crate) export: Export,
    /// Whether several clients may be connected.
    pub(crate) shared: bool,
    pub(crate) tls: Option<Arc<dyn Tls>>,
}

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// Whether no more requests are read.
    ending: AtomicBool,
}

/// A request with its payload and the memory that it holds.
struct Received<'a> {
    request: Request,
    /// The bytes of a WRITE, or the reason to refuse the request.
    payload: Result<Vec<u8>, Errno>,
    _share: Share<'a>,
}

/// The state of the transmission, which the threads of a client share.
struct Transmission<'a> {
    connection: &'a Connection,
    export: &'a Export,
    agreed: Agreement,
    replies: Replies<'a>,
    budget: Budget,
    turn: Mutex<()>,
    threads: AtomicUsize,
    /// Threads that wait for their turn, or have it and wait for a request.
    waiting: AtomicUsize,
}

impl Connection {
    /// Creates the connection of a client.
    pub fn new(socket: Socket) -> Self {
        Self { stream: Stream::new(socket), ending: AtomicBool::new(false) }
    }

    /// Serves the client until it ends the connection, breaks the protocol, or the server ends.
    /// Every request that was read has its reply, unless the client no longer takes it.
    pub fn serve(&self, nbd: &Nbd) -> io::Result<()> {
        let (export, tls) = (&nbd.export, nbd.tls.as_deref());
        self.stream.set_read_timeout(Some(HANDSHAKE))?;
        let Some(agreed) = negotiate(&self.stream, export, nbd.shared, tls)? else { return Ok(()) };
        self.stream.set_read_timeout(None)?;
        let transmission = Transmission {
            connection: self,
            export,
            agreed,
            replies: Replies::new(&self.stream, agreed.structured),
            budget: Budget::new(BUDGET),
            turn: Mutex::new(()),
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
        };
        std::thread::scope(|scope| transmission.run(scope));
        self.stream.finish();
        export.flush_rest()
    }

    /// Lets the client's requests in flight end, and takes no more.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection without waiting for the client to take its replies.
    pub fn cut(&self) {
        self.ending.store(true, Ordering::Release);
        self.stream.shutdown(Shutdown::Both);
    }
}

impl<'a> Transmission<'a> {
    /// Reads and serves requests until the connection ends.
    fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        loop {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            let turn = self.turn.lock();
            let received = self.receive();
            // Under the turn, so that one thread counts at a time.
            let others = self.waiting.fetch_sub(1, Ordering::AcqRel) - 1;
            let Some(received) = received else { return };
            if others == 0 && self.threads.load(Ordering::Acquire) < MAX_THREADS {
                self.start_thread(scope);
            }
            drop(turn);
            if self.serve(&received).is_err() {
                self.connection.cut();
            }
        }
    }

    /// Starts a thread; without one the requests wait for each other.
    fn start_thread<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let builder = std::thread::Builder::new().name("papilio-nbd-io".to_owned());
        if builder.spawn_scoped(scope, || self.run(scope)).is_ok() {
            self.threads.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Reads the next request. `None` ends the connection, also for the other threads.
    fn receive(&self) -> Option<Received<'_>> {
        let received = self.read_request();
        if received.is_none() {
            // The stream is in the middle of something, so nothing more can be read.
            self.connection.end();
        }
        received
    }

    fn read_request(&self) -> Option<Received<'_>> {
        if self.connection.ending.load(Ordering::Acquire) {
            return None;
        }
        let mut stream = &self.connection.stream;
        let mut header = [0; Request::SIZE];
        stream.read_exact(&mut header).ok()?;
        let Some(request) = Request::parse(&header) else {
            tracing::warn!("an NBD client broke the protocol: a request has a wrong magic number");
            return None;
        };
        if request.command == command::DISCONNECT {
            return None;
        }
        let refused = self.refuse(&request).err();
        let held = match request.command {
            command::READ | command::WRITE if refused.is_none() => request.length.into(),
            _ => 0,
        };
        let share = self.budget.take(held);
        let payload = match (request.command, refused) {
            (command::WRITE, Some(errno)) => {
                skip(stream, request.length).ok()?;
                Err(errno)
            }
            (_, Some(errno)) => Err(errno),
            (command::WRITE, None) => {
                let mut bytes = vec![0; request.length as usize];
                stream.read_exact(&mut bytes).ok()?;
                Ok(bytes)
            }
            (_, None) => Ok(Vec::new()),
        };
        Some(Received { request, payload, _share: share })
    }

    /// Refuses requests before memory is taken for them.
    fn refuse(&self, request: &Request) -> Result<(), Errno> {
        use command_flag::{DONT_FRAGMENT, FUA, NO_HOLE, REQUEST_ONE};
        let allowed = match request.command {
            // FUA is valid for every command, and means something for those that write.
            command::READ => FUA | DONT_FRAGMENT,
            command::WRITE_ZEROES => FUA | NO_HOLE,
            command::BLOCK_STATUS => FUA | REQUEST_ONE,
            _ => FUA,
        };
        if request.flags & !allowed != 0 {
            return Err(Errno::Invalid);
        }
        match request.command {
            command::READ | command::WRITE if request.length > MAX_PAYLOAD => Err(Errno::Overflow),
            command::READ => self.export.check_read(request.offset, request.length),
            command::WRITE if self.export.is_read_only() => Err(Errno::Perm),
            _ => Ok(()),
        }
    }

    /// Carries a request out and replies. An error means that the client is gone.
    fn serve(&self, received: &Received<'_>) -> io::Result<()> {
        let Received { request, payload, .. } = received;
        let (offset, length, fua) = (request.offset, request.length, request.has(command_flag::FUA));
        let payload = match payload {
            Ok(payload) => payload,
            Err(errno) => return self.replies.error(request, *errno),
        };
        let result = match request.command {
            command::READ => return self.read(request),
            command::BLOCK_STATUS => return self.block_status(request),
            command::WRITE => self.export.write(payload, offset, fua),
            command::FLUSH => self.export.flush(),
            command::TRIM => self.export.trim(offset, length, fua),
            command::WRITE_ZEROES => {
                self.export.write_zeros(offset, length, request.has(command_flag::NO_HOLE), fua)
            }
            _ => Err(Errno::Invalid),
        };
        self.replies.done(request, result)
    }

    fn read(&self, request: &Request) -> io::Result<()> {
        let length = u64::from(request.length);
        if self.agreed.structured && length > 0 {
            let extent = self.export.extent(request.offset, length);
            if extent.is_hole && extent.length == length && self.replies.zeros(request)? {
                return Ok(());
            }
        }
        let mut bytes = vec![0; request.length as usize];
        match self.export.read(&mut bytes, request.offset) {
            Ok(()) => self.replies.data(request, &bytes),
            Err(errno) => self.replies.error(request, errno),
        }
    }

    fn block_status(&self, request: &Request) -> io::Result<()> {
        let checked = match self.export.check_read(request.offset, request.length) {
            _ if !self.agreed.block_status || request.length == 0 => Err(Errno::Invalid),
            checked => checked,
        };
        if let Err(errno) = checked {
            return self.replies.error(request, errno);
        }
        let most = if request.has(command_flag::REQUEST_ONE) { 1 } else { MAX_EXTENTS };
        let end = request.offset + u64::from(request.length);
        let (mut at, mut extents) = (request.offset, Vec::new());
        while at < end && extents.len() < most {
            let extent = self.export.extent(at, end - at);
            at += extent.length;
            extents.push(extent);
        }
        self.replies.extents(request, &extents)
    }
}

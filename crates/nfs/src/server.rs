//! `Server`: listens, accepts clients, and ends them.
//!
//! **Invariants**
//! - When [`Server::stop`] returns, no thread of the server uses the file system any more.
//! - At most [`MOST_CLIENTS`] clients are connected; further ones are disconnected at once.
//!
//! **Locks**: `clients`, held to add, remove and end clients, and to wait for their end. No other
//! lock is acquired under it.

use crate::connection::Connection;
use crate::duplicates::Duplicates;
use crate::export::{Export, NAME};
use papilio_device::WakeFd;
use papilio_locks::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long [`Server::stop`] waits for requests.
const GRACE: Duration = Duration::from_secs(5);
/// The most clients at once.
const MOST_CLIENTS: usize = 64;

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// The address as it was given.
    pub address: String,
    /// The reason.
    pub source: io::Error,
}

/// A server of one export. It serves until it is stopped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// The state that the threads share.
#[derive(Debug)]
struct Shared {
    export: Export,
    duplicates: Duplicates,
    /// Readable once the server ends.
    wake: WakeFd,
    clients: Mutex<Vec<Arc<Connection>>>,
    /// Notified when a client has ended.
    ended: Condvar,
}

impl Server {
    /// Listens on `ADDRESS:PORT`, for example `127.0.0.1:2049` or `[::1]:2049`; port 0 chooses a
    /// free one. Serves NFS and the mount protocol on the same port.
    ///
    /// # Errors
    /// The address is not valid, or in use; threads cannot be started.
    pub fn start(address: &str, export: Export) -> Result<Self, BindError> {
        let failed = |source| BindError { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let wake = WakeFd::new().map_err(failed)?;
        let (clients, ended) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { export, duplicates: Duplicates::default(), wake, clients, ended });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("papilio-nfs".to_owned())
            .spawn(move || accepting.accept_all(&listener))
            .map_err(failed)?;
        Ok(Self { shared, address: bound, acceptor: Some(acceptor) })
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URI of the export, as libnfs reads it.
    pub fn uri(&self) -> String {
        let port = self.address.port();
        let host = match self.address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        };
        format!("nfs://{host}/{NAME}?nfsport={port}&mountport={port}")
    }

    /// Returns whether other machines can reach the server.
    pub fn is_public(&self) -> bool {
        !self.address.ip().is_loopback()
    }

    /// Ends the requests in flight, disconnects the clients, and makes everything durable.
    ///
    /// # Errors
    /// Errors of making it durable.
    pub fn stop(mut self) -> papilio::Result<()> {
        self.end();
        if self.shared.export.read_only { Ok(()) } else { self.shared.export.fs.sync() }
    }

    fn end(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.wake.set();
        // The acceptor catches no panic of its own, and has none to tell.
        let _ = acceptor.join();
        self.shared.end_clients();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Accepts clients until the server ends.
    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            if let Err(errno) = poll(&mut fds, None)
                && errno != rustix::io::Errno::INTR
            {
                tracing::error!("cannot wait for NFS clients: {errno}");
                return;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                Ok((stream, client)) => self.begin(stream, client),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Too many open files, for example; or the client is gone already.
                    tracing::warn!("cannot accept an NFS client: {error}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, stream: TcpStream, client: SocketAddr) {
        if let Err(error) = stream.set_nonblocking(false) {
            tracing::warn!("an NFS client was refused: {error}");
            return;
        }
        let connection = Arc::new(Connection::new(stream, client));
        let mut clients = self.clients.lock();
        if clients.len() >= MOST_CLIENTS {
            tracing::warn!("an NFS client was refused: {} are connected", clients.len());
            return;
        }
        clients.push(Arc::clone(&connection));
        drop(clients);
        let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
        let started = std::thread::Builder::new()
            .name("papilio-nfs-client".to_owned())
            .spawn(move || shared.serve(&own));
        if let Err(error) = started {
            tracing::warn!("an NFS client was refused: {error}");
            self.forget(&connection);
        }
    }

    fn serve(&self, connection: &Arc<Connection>) {
        // Also after a panic, or the server would wait for this client forever.
        let _gone = Gone { shared: self, connection };
        if let Err(error) = connection.serve(&self.export, &self.duplicates) {
            tracing::debug!("an NFS client's connection ended: {error}");
        }
    }

    fn forget(&self, connection: &Arc<Connection>) {
        self.clients.lock().retain(|client| !Arc::ptr_eq(client, connection));
        self.ended.notify_all();
    }

    /// Ends all clients, and waits for them.
    fn end_clients(&self) {
        let mut clients = self.clients.lock();
        clients.iter().for_each(|client| client.end());
        let deadline = Instant::now() + GRACE;
        while !clients.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.ended.wait_for(&mut clients, left).timed_out() {
                break;
            }
        }
        clients.iter().for_each(|client| client.cut());
        while !clients.is_empty() {
            self.ended.wait(&mut clients);
        }
    }
}

/// Disconnects a client and forgets it, when it is dropped.
struct Gone<'a> {
    shared: &'a Shared,
    connection: &'a Arc<Connection>,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.connection.cut();
        self.shared.forget(self.connection);
    }
}

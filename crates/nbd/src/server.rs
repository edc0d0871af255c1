//! `Server`: accepts clients, and ends them.
//!
//! **Invariants**
//! - When [`Server::stop`] returns, no thread of the server uses the device any more.
//! - At most `most_clients` clients are connected; further ones are disconnected at once.
//!
//! **Locks**: `clients`, held to add, remove and end clients, and to wait for their end. No other
//! lock is acquired under it.

use crate::address::{Address, BindError, Listener};
use crate::connection::Connection;
use crate::export::Export;
use papilio_device::WakeFd;
use papilio_locks::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long clients may take to receive the replies to their last requests.
const GRACE: Duration = Duration::from_secs(10);

/// A server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot listen.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the server: {0}")]
    System(io::Error),
}

/// A server with its threads. Dropping it ends it, as [`Server::stop`] does.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    uri: String,
    is_public: bool,
    acceptor: Option<JoinHandle<()>>,
}

/// The state that the threads share.
#[derive(Debug)]
struct Shared {
    export: Export,
    most_clients: usize,
    /// Readable once the server ends.
    wake: WakeFd,
    clients: Mutex<Vec<Arc<Connection>>>,
    /// Notified when a client has ended.
    ended: Condvar,
}

impl Server {
    /// Listens, and serves up to `most_clients` clients at once in threads of its own. The address
    /// accepts clients when this returns.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(address: &Address, export: Export, most_clients: usize) -> Result<Self, StartError> {
        let listener = address.listen()?;
        let uri = listener.uri(export.name());
        let is_public = listener.is_public();
        let wake = WakeFd::new().map_err(StartError::System)?;
        let (clients, ended) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { export, most_clients, wake, clients, ended });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("papilio-nbd".to_owned())
            .spawn(move || accepting.accept_all(&listener))
            .map_err(StartError::System)?;
        Ok(Self { shared, uri, is_public, acceptor: Some(acceptor) })
    }

    /// Returns the URI that clients connect to.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns whether clients of other machines can connect.
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// Ends the server: accepts no more clients, lets the requests in flight end, and flushes the
    /// device. A client that does not take its replies for ten seconds is cut off.
    ///
    /// # Errors
    /// That of the flush. The server has ended nevertheless.
    pub fn stop(mut self) -> io::Result<()> {
        self.end();
        self.shared.export.flush_rest()
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
    fn accept_all(self: &Arc<Self>, listener: &Listener) {
        loop {
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            if let Err(errno) = poll(&mut fds, None)
                && errno != rustix::io::Errno::INTR
            {
                tracing::error!("cannot wait for NBD clients: {errno}");
                return;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                Ok(stream) => self.begin(Connection::new(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Too many open files, for example; or the client is gone already.
                    tracing::warn!("cannot accept an NBD client: {error}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, connection: Connection) {
        let connection = Arc::new(connection);
        let mut clients = self.clients.lock();
        if clients.len() >= self.most_clients {
            tracing::warn!("an NBD client was refused: {} are connected", clients.len());
            return;
        }
        clients.push(Arc::clone(&connection));
        drop(clients);
        let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
        let started = std::thread::Builder::new()
            .name("papilio-nbd-client".to_owned())
            .spawn(move || shared.serve(&own));
        if let Err(error) = started {
            tracing::warn!("an NBD client was refused: {error}");
            self.forget(&connection);
        }
    }

    fn serve(&self, connection: &Arc<Connection>) {
        // Also after a panic, or the server would wait for this client forever.
        let _gone = Gone { shared: self, connection };
        let shared = self.most_clients > 1;
        if let Err(error) = connection.serve(&self.export, shared) {
            // A client that goes away in the handshake is not worth a warning.
            tracing::debug!("an NBD client's connection ended: {error}");
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

//! `Server`: an export with its clients.
//!
//! **Invariant**: when [`Server::stop`] returns, no thread of the server uses the device any more.

use crate::address::{Address, BindError, Listener, Listening};
use crate::connection::Connection;
use crate::export::Export;
use papilio_serving::{Clients, Listen, Protocol};
use std::io;
use std::time::Duration;

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
    clients: Clients<Nbd>,
    uri: String,
    is_public: bool,
}

/// The protocol of network block devices.
struct Nbd {
    export: Export,
    /// Whether several clients may be connected.
    shared: bool,
}

impl Protocol for Nbd {
    type Connection = Connection;
    const NAME: &'static str = "NBD";
    const THREAD: &'static str = "papilio-nbd";

    fn serve(&self, connection: &Connection) -> io::Result<()> {
        connection.serve(&self.export, self.shared)
    }

    fn end(connection: &Connection) {
        connection.end();
    }

    fn cut(connection: &Connection) {
        connection.cut();
    }
}

impl Listen for Listener {
    type Connection = Connection;

    fn accept(&self) -> io::Result<Connection> {
        Listener::accept(self).map(Connection::new)
    }
}

impl Server {
    /// Listens, and serves up to `most_clients` clients at once in threads of its own. The address
    /// accepts clients when this returns.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(address: &Address, export: Export, most_clients: usize) -> Result<Self, StartError> {
        Self::start_on(address.listen()?, export, most_clients)
    }

    /// As [`Self::start`], on a socket that listens already.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn start_on(
        Listening(listener): Listening,
        export: Export,
        most_clients: usize,
    ) -> Result<Self, StartError> {
        let uri = listener.uri(export.name());
        let is_public = listener.is_public();
        let nbd = Nbd { export, shared: most_clients > 1 };
        let clients = Clients::accept(listener, nbd, most_clients, GRACE).map_err(StartError::System)?;
        Ok(Self { clients, uri, is_public })
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
        self.clients.end();
        self.clients.protocol().export.flush_rest()
    }
}

//! `Server`: an export with its clients.
//!
//! **Invariant**: when [`Server::stop`] returns, no thread of the server uses the device any more.

use crate::address::{Address, BindError, Listener, Listening};
use crate::connection::{Connection, Nbd};
use crate::export::Export;
use crate::stream::Tls;
use papilio_serving::{Bounds, Clients, Listen, Networks, Protocol};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
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

/// The clients that a server serves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The most clients at once.
    pub connections: usize,
    /// The networks that their addresses are in.
    pub networks: Networks,
    /// The TLS that every client must use; without, none does.
    pub tls: Option<Arc<dyn Tls>>,
}

impl Settings {
    /// Serves up to `connections` clients at once, of all addresses and without TLS.
    pub fn new(connections: usize) -> Self {
        Self { connections, networks: Networks::default(), tls: None }
    }
}

impl Protocol for Nbd {
    type Connection = Connection;
    const NAME: &'static str = "NBD";
    const THREAD: &'static str = "papilio-nbd";

    fn serve(&self, connection: &Connection) -> io::Result<()> {
        connection.serve(self)
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

    fn accept(&self) -> io::Result<(Connection, Option<IpAddr>)> {
        Listener::accept(self).map(|(socket, client)| (Connection::new(socket), client))
    }
}

impl Server {
    /// Listens, and serves up to `most_clients` clients at once in threads of its own. The address
    /// accepts clients when this returns.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(address: &Address, export: Export, most_clients: usize) -> Result<Self, StartError> {
        Self::start_on(address.listen()?, export, Settings::new(most_clients))
    }

    /// As [`Self::start`], on a socket that listens already.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn start_on(
        Listening(listener): Listening,
        export: Export,
        settings: Settings,
    ) -> Result<Self, StartError> {
        let uri = listener.uri(export.name(), settings.tls.is_some());
        let is_public = listener.is_public();
        let nbd = Nbd { export, shared: settings.connections > 1, tls: settings.tls };
        let bounds = Bounds { most: settings.connections, networks: settings.networks, grace: GRACE };
        let clients = Clients::accept(listener, nbd, bounds).map_err(StartError::System)?;
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

//! `Server`: an export with its clients.
//!
//! **Invariant**: when [`Server::stop`] returns, no client uses the file system any more, and
//! everything that was answered is durable.

use crate::dav::locks::LockTable;
use crate::export::Export;
use crate::guard::{Guard, Secret};
use crate::limits::Limits;
use crate::service::Service;
use crate::views::{Pictures, Views};
use crate::wire::Connection;
use papilio_serving::{Bounds, Clients, Listen, Networks, Protocol};
use rustls::ServerConfig;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The server cannot listen, or start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// The address as it was given.
    pub address: String,
    /// The reason.
    pub source: io::Error,
}

/// How a server serves.
#[non_exhaustive]
pub struct Settings {
    /// The secret that clients must know.
    pub secret: Secret,
    /// The configuration of TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// Further names of this server, which clients send as `Host`.
    pub hosts: Vec<String>,
    /// Bounds of connections.
    pub limits: Limits,
    /// The networks that clients' addresses are in.
    pub networks: Networks,
    /// The drawings of the views.
    pub pictures: Option<Box<dyn Pictures>>,
}

impl Settings {
    /// The settings of a server for all addresses, without TLS and without pictures.
    pub fn new(secret: Secret) -> Self {
        let (limits, networks) = (Limits::default(), Networks::default());
        Self { secret, tls: None, hosts: Vec::new(), limits, networks, pictures: None }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("tls", &self.tls.is_some())
            .field("hosts", &self.hosts)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A server of one export. It serves until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    clients: Clients<Web>,
    address: SocketAddr,
    token: Option<String>,
    is_tls: bool,
}

/// HTTP/1.1 and WebDAV.
struct Web(Service);

impl Protocol for Web {
    type Connection = Connection;
    const NAME: &'static str = "HTTP";
    const THREAD: &'static str = "papilio-web";

    fn serve(&self, connection: &Connection) -> io::Result<()> {
        self.0.serve(connection)
    }

    fn end(connection: &Connection) {
        connection.end();
    }

    fn cut(connection: &Connection) {
        connection.cut();
    }
}

struct Listener(TcpListener);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listen for Listener {
    type Connection = Connection;

    fn accept(&self) -> io::Result<(Connection, Option<IpAddr>)> {
        let (stream, client) = self.0.accept()?;
        stream.set_nonblocking(false)?;
        Ok((Connection::new(stream), Some(client.ip())))
    }
}

/// Listens on an address, before there is a server. Clients that connect wait until there is.
///
/// # Errors
/// The address is not valid, or in use.
pub fn listen(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).map_err(|source| BindError { address: address.to_owned(), source })
}

impl Server {
    /// Serves an export on a socket that listens already.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn start_on(listener: TcpListener, export: Export, settings: Settings) -> Result<Self, BindError> {
        let bound = listener.local_addr();
        let shown = bound.as_ref().map_or_else(|_| "the socket".to_owned(), SocketAddr::to_string);
        let failed = |source| BindError { address: shown.clone(), source };
        let address = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let token = settings.secret.token().map(str::to_owned);
        let is_tls = settings.tls.is_some();
        let service = Service {
            export,
            guard: Guard::new(settings.secret, address, is_tls, settings.hosts),
            views: Views::new(settings.pictures),
            locks: LockTable::default(),
            limits: settings.limits,
            tls: settings.tls,
        };
        let (most, grace) = (settings.limits.connections, settings.limits.grace);
        let bounds = Bounds { most, networks: settings.networks, grace };
        let clients = Clients::accept(Listener(listener), Web(service), bounds).map_err(failed)?;
        Ok(Self { clients, address, token, is_tls })
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the page, with the token if there is one.
    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        match &self.token {
            Some(token) => format!("{scheme}://{}/?token={token}", self.address),
            None => format!("{scheme}://{}/", self.address),
        }
    }

    /// Ends the requests in flight, disconnects the clients, and makes everything durable.
    ///
    /// # Errors
    /// Errors of making it durable.
    pub fn stop(mut self) -> papilio::Result<()> {
        self.clients.end();
        let export = &self.clients.protocol().0.export;
        if export.is_writable { export.fs.sync() } else { Ok(()) }
    }
}

//! `Server`: an export with its clients.
//!
//! **Invariant**: when [`Server::stop`] returns, no thread of the server uses the file system any
//! more. At most [`MOST_CLIENTS`] clients are connected.

use crate::connection::Connection;
use crate::duplicates::Duplicates;
use crate::export::{Export, NAME};
use papilio_serving::{Bounds, Clients, Listen, Networks, Protocol};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

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

/// A server of one export. It serves until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    clients: Clients<Nfs>,
    address: SocketAddr,
}

/// NFS version 3 and its mount protocol.
struct Nfs {
    export: Export,
    duplicates: Duplicates,
}

impl Protocol for Nfs {
    type Connection = Connection;
    const NAME: &'static str = "NFS";
    const THREAD: &'static str = "papilio-nfs";

    fn serve(&self, connection: &Connection) -> io::Result<()> {
        connection.serve(&self.export, &self.duplicates)
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
        Ok((Connection::new(stream, client), Some(client.ip())))
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
    /// Listens on `ADDRESS:PORT`, for example `127.0.0.1:2049` or `[::1]:2049`; port 0 chooses a
    /// free one. Serves NFS and the mount protocol on the same port.
    ///
    /// # Errors
    /// The address is not valid, or in use; threads cannot be started.
    pub fn start(address: &str, export: Export) -> Result<Self, BindError> {
        Self::start_on(listen(address)?, export, Networks::default())
    }

    /// As [`Self::start`], on a socket that listens already, for clients of some networks.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn start_on(listener: TcpListener, export: Export, networks: Networks) -> Result<Self, BindError> {
        let bound = listener.local_addr();
        let shown = bound.as_ref().map_or_else(|_| "the socket".to_owned(), SocketAddr::to_string);
        let failed = |source| BindError { address: shown.clone(), source };
        let bound = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let nfs = Nfs { export, duplicates: Duplicates::default() };
        let bounds = Bounds { most: MOST_CLIENTS, networks, grace: GRACE };
        let clients = Clients::accept(Listener(listener), nfs, bounds).map_err(failed)?;
        Ok(Self { clients, address: bound })
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
        self.clients.end();
        let export = &self.clients.protocol().export;
        if export.read_only { Ok(()) } else { export.fs.sync() }
    }
}

//! `Server`: listens, and serves each client.

use crate::export::Export;
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The name of the export, without the slash before it. Some clients cannot mount `/`.
const NAME: &str = "papilio";
/// How long [`Server::stop`] waits for requests.
const GRACE: Duration = Duration::from_secs(5);
/// Threads that carry out requests; more are started while these wait for devices.
const WORKERS: usize = 4;

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
    runtime: Runtime,
    address: SocketAddr,
    export: Export,
}

impl Server {
    /// Listens on `ADDRESS:PORT`, with an IPv4 address; port 0 chooses a free one. Serves NFS and
    /// the mount protocol on the same port.
    ///
    /// # Errors
    /// The address is not valid, or in use; threads cannot be started.
    pub fn start(address: &str, export: Export) -> Result<Self, BindError> {
        let failed = |source| BindError { address: address.to_owned(), source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("papilio-nfs")
            .enable_all()
            .build()
            .map_err(failed)?;
        let listener = runtime.block_on(NFSTcpListener::bind(address, export.clone()));
        let mut listener = listener.map_err(failed)?;
        listener.with_export_name(NAME);
        let address = SocketAddr::new(listener.get_listen_ip(), listener.get_listen_port());
        runtime.spawn(async move {
            if let Err(error) = listener.handle_forever().await {
                tracing::error!("the server takes no more clients: {error}");
            }
        });
        Ok(Self { runtime, address, export })
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URI of the export, as libnfs reads it.
    pub fn uri(&self) -> String {
        let (ip, port) = (self.address.ip(), self.address.port());
        format!("nfs://{ip}/{NAME}?nfsport={port}&mountport={port}")
    }

    /// Returns whether other machines can reach the server.
    pub fn is_public(&self) -> bool {
        let IpAddr::V4(address) = self.address.ip() else { return true };
        !address.is_loopback()
    }

    /// Ends the requests in flight, disconnects the clients, and makes everything durable.
    ///
    /// # Errors
    /// Errors of making it durable.
    pub fn stop(self) -> papilio::Result<()> {
        self.runtime.shutdown_timeout(GRACE);
        if self.export.read_only { Ok(()) } else { self.export.fs.sync() }
    }
}

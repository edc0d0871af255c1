//! The web server and TLS that a program may bring: `papilio-web` has them, `papilio` itself does
//! not.
//!
//! Owns the interface between the command and the server. The crates of both are none of those
//! that the command depends on.

use crate::commands::TlsFiles;
use papilio::FileSystem;
use papilio_nbd::Tls;
use papilio_serving::Networks;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};

static INSTALLED: OnceLock<&'static dyn WebFrontEnd> = OnceLock::new();

/// The files that a web server serves, and to whom.
#[derive(Debug)]
#[non_exhaustive]
pub struct WebJob {
    /// The file system.
    pub fs: FileSystem,
    /// The directory in it.
    pub path: Vec<u8>,
    /// The name that pages show.
    pub title: String,
    /// Whether clients may change files.
    pub is_writable: bool,
    /// The user and the group that requests act as; root without them.
    pub user: Option<(u32, u32)>,
    /// Certificate and key.
    pub tls: Option<TlsFiles>,
    /// The password; without one the server makes a token.
    pub password: Option<Vec<u8>>,
    /// Further names of the server.
    pub hosts: Vec<String>,
    /// The most clients at once.
    pub connections: Option<usize>,
    /// The networks that their addresses are in.
    pub networks: Networks,
}

impl WebJob {
    pub(crate) fn new(fs: FileSystem, path: Vec<u8>, title: String) -> Self {
        Self {
            fs,
            path,
            title,
            is_writable: false,
            user: None,
            tls: None,
            password: None,
            hosts: Vec::new(),
            connections: None,
            networks: Networks::default(),
        }
    }
}

/// A server that runs.
pub trait RunningWeb {
    /// Returns the URL of its page.
    fn url(&self) -> String;

    /// Ends the requests in flight, and makes everything durable.
    ///
    /// # Errors
    /// Errors of making it durable.
    fn stop(self: Box<Self>) -> anyhow::Result<()>;
}

/// A web server, and TLS for other servers.
pub trait WebFrontEnd: Sync {
    /// Serves files on a socket that listens.
    ///
    /// # Errors
    /// There is no such directory; certificate or key are wrong; threads cannot be started.
    fn start(&self, listener: TcpListener, job: WebJob) -> anyhow::Result<Box<dyn RunningWeb>>;

    /// Returns TLS for the clients of a disk.
    ///
    /// # Errors
    /// A certificate or the key is wrong.
    fn disk_tls(&self, files: &TlsFiles) -> anyhow::Result<Arc<dyn Tls>>;
}

/// Gives the command a web server. Returns whether it had none.
pub fn install_web(front_end: &'static dyn WebFrontEnd) -> bool {
    INSTALLED.set(front_end).is_ok()
}

/// Returns the web server, if this program has one.
pub(crate) fn web_front_end() -> Option<&'static dyn WebFrontEnd> {
    INSTALLED.get().copied()
}

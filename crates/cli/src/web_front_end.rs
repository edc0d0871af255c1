//! The web server that a program may bring: `papilio-web` has one, `papilio` itself does not.
//!
//! Owns the interface between the command and the server. The server's crate is none of those that
//! the command depends on.

use papilio::FileSystem;
use std::net::TcpListener;
use std::sync::OnceLock;

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
    /// Certificate and key in PEM.
    pub tls: Option<(Vec<u8>, Vec<u8>)>,
    /// The password; without one the server makes a token.
    pub password: Option<Vec<u8>>,
    /// Further names of the server.
    pub hosts: Vec<String>,
    /// The most clients at once.
    pub connections: Option<usize>,
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

/// A web server.
pub trait WebFrontEnd: Sync {
    /// Serves files on a socket that listens.
    ///
    /// # Errors
    /// There is no such directory; certificate or key are wrong; threads cannot be started.
    fn start(&self, listener: TcpListener, job: WebJob) -> anyhow::Result<Box<dyn RunningWeb>>;
}

/// Gives the command a web server. Returns whether it had none.
pub fn install_web(front_end: &'static dyn WebFrontEnd) -> bool {
    INSTALLED.set(front_end).is_ok()
}

/// Returns the web server, if this program has one.
pub(crate) fn web_front_end() -> Option<&'static dyn WebFrontEnd> {
    INSTALLED.get().copied()
}

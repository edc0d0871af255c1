//! `Address`: where a server listens, and the socket that does so.
//!
//! **Invariants**
//! - A socket file is removed only if no process answers on it, or if this listener made it.

use crate::stream::Socket;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port, as `HOST:PORT`. Port 0 chooses a free one.
    Tcp(String),
    /// A Unix socket, which is created and, at the end, removed.
    Unix(PathBuf),
}

/// A server could not listen on its address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct BindError {
    address: String,
    reason: io::Error,
}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, SocketAddr),
    /// The socket, its path, and the device and inode of the file.
    Unix(UnixListener, PathBuf, (u64, u64)),
}

/// A socket that listens. Clients that connect wait until a [`Server`](crate::Server) is started on
/// it.
#[derive(Debug)]
pub struct Listening(pub(crate) Listener);

impl Address {
    /// Listens on the address.
    ///
    /// # Errors
    /// It is not valid, or in use.
    pub fn listen(&self) -> Result<Listening, BindError> {
        let (address, bound) = match self {
            Self::Tcp(address) => (address.clone(), listen_tcp(address)),
            Self::Unix(path) => (path.display().to_string(), listen_unix(path)),
        };
        bound.map(Listening).map_err(|reason| BindError { address, reason })
    }
}

fn listen_tcp(address: &str) -> io::Result<Listener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    Ok(Listener::Tcp(listener, bound))
}

fn listen_unix(path: &Path) -> io::Result<Listener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    let made = fs::symlink_metadata(path)?;
    let path = std::path::absolute(path)?;
    Ok(Listener::Unix(listener, path, (made.dev(), made.ino())))
}

/// Returns whether a path is a socket that a server left behind.
fn is_left_over(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

impl Listener {
    /// Accepts a client that waits, and returns its socket and its address.
    pub fn accept(&self) -> io::Result<(Socket, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, client) = listener.accept()?;
                stream.set_nonblocking(false)?;
                // Replies are whole messages.
                stream.set_nodelay(true)?;
                Ok((Socket::Tcp(stream), Some(client.ip())))
            }
            Self::Unix(listener, ..) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok((Socket::Unix(stream), None))
            }
        }
    }

    /// Returns the URI of an export, to which clients connect with TLS if `is_secure`.
    pub fn uri(&self, export: &str, is_secure: bool) -> String {
        let name = escaped(export.as_bytes(), b"");
        let scheme = if is_secure { "nbds" } else { "nbd" };
        match self {
            Self::Tcp(_, bound) if name.is_empty() => format!("{scheme}://{bound}"),
            Self::Tcp(_, bound) => format!("{scheme}://{bound}/{name}"),
            Self::Unix(_, path, _) => {
                use std::os::unix::ffi::OsStrExt;
                format!("{scheme}+unix:///{name}?socket={}", escaped(path.as_os_str().as_bytes(), b"/"))
            }
        }
    }

    /// Returns whether clients of other machines can connect.
    pub fn is_public(&self) -> bool {
        matches!(self, Self::Tcp(_, bound) if !bound.ip().is_loopback())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Self::Unix(_, path, made) = self else { return };
        if fs::symlink_metadata(&*path).is_ok_and(|found| (found.dev(), found.ino()) == *made) {
            // A socket that is left behind is removed by the next server.
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener, _) => listener.as_fd(),
            Self::Unix(listener, ..) => listener.as_fd(),
        }
    }
}

/// Escapes all bytes for a URI but letters, digits, some marks and those in `plain`.
fn escaped(bytes: &[u8], plain: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_escaped() {
        let listener = listen_tcp("127.0.0.1:0").unwrap();
        assert!(!listener.is_public());
        let uri = listener.uri("a b/ü", false);
        assert!(uri.starts_with("nbd://127.0.0.1:") && uri.ends_with("/a%20b%2F%C3%BC"), "{uri}");
        assert!(!listener.uri("", false).ends_with('/'));
        assert!(listener.uri("", true).starts_with("nbds://127.0.0.1:"));
    }

    #[test]
    fn socket_left_behind_is_replaced_and_others_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = listen_unix(&path).unwrap();
        assert!(listener.uri("x", false).starts_with("nbd+unix:///x?socket=/"));
        assert!(listener.uri("x", false).ends_with("nbd%20socket"));
        assert_eq!(listen_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists(), "the socket of a server that runs was removed");
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(Address::Unix(path.clone()).listen().unwrap_err().to_string().contains("nbd socket"));
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }
}

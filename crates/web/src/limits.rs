//! `Limits`: the share of the server that one client can take.

use std::time::Duration;

/// Bounds of connections. The defaults fit people and programs on one machine or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most connections at once. Further ones are closed.
    pub connections: usize,
    /// The time that a request line with its headers, or the handshake of TLS, may take.
    pub head: Duration,
    /// The time that a connection may be idle between two requests.
    pub idle: Duration,
    /// The time without a byte of a body after which an upload ends.
    pub body: Duration,
    /// The time that a client may take for a piece of an answer, at most 256 KiB.
    pub send: Duration,
    /// The time that requests in flight have when the server ends.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            head: Duration::from_secs(20),
            idle: Duration::from_secs(60),
            body: Duration::from_secs(60),
            send: Duration::from_secs(60),
            grace: Duration::from_secs(5),
        }
    }
}

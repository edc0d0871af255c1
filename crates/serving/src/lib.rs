//! The clients of a network server: a thread accepts them, and each is served by a thread.
//!
//! Owns [`Clients`] and [`Networks`]. The protocols of `papilio-nbd`, `papilio-nfs` and
//! `papilio-web` are [`Protocol`]s of it.
//!
//! **Invariants**
//! - When [`Clients::end`] returns, no thread of the server calls the protocol any more.
//! - At most `most` clients are connected; further ones are disconnected at once.
//! - No byte of a client is read whose address is not in the networks that are served.
//!
//! **Locks**: `connected`, held to add, remove and end clients, and to wait for their end. No other
//! lock is acquired under it.

#![forbid(unsafe_code)]

mod networks;

pub use networks::{BadNetwork, Network, Networks};

use papilio_device::WakeFd;
use papilio_locks::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long the server waits after it could not accept a client.
const PAUSE: Duration = Duration::from_millis(50);

/// The side of a server that knows its protocol.
pub trait Protocol: Send + Sync + 'static {
    /// A connected client.
    type Connection: Send + Sync + 'static;

    /// The protocol's name, for messages.
    const NAME: &'static str;
    /// The name of the thread that accepts clients.
    const THREAD: &'static str;

    /// Serves a client until it disconnects, breaks the protocol, or [`end`](Self::end) is called.
    ///
    /// # Errors
    /// Errors of the connection, which end it.
    fn serve(&self, connection: &Self::Connection) -> io::Result<()>;

    /// Lets the requests of a client in flight end, and reads no further ones.
    fn end(connection: &Self::Connection);

    /// Disconnects a client without waiting for it to take its replies.
    fn cut(connection: &Self::Connection);
}

/// A socket that clients connect to. It does not block.
pub trait Listen: AsFd + Send + 'static {
    /// A client that was accepted.
    type Connection;

    /// Accepts a client that waits, and returns it with its address, if it has one.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if none waits; the system's errors.
    fn accept(&self) -> io::Result<(Self::Connection, Option<IpAddr>)>;
}

/// The clients of a server. Dropping it ends them, as [`Clients::end`] does.
pub struct Clients<P: Protocol> {
    shared: Arc<Shared<P>>,
    acceptor: Option<JoinHandle<()>>,
}

/// The clients that a server serves at once.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Their most.
    pub most: usize,
    /// The networks that their addresses are in.
    pub networks: Networks,
    /// The time that they have at the end to take their replies.
    pub grace: Duration,
}

/// The state that the threads share.
struct Shared<P: Protocol> {
    protocol: P,
    bounds: Bounds,
    /// Readable once the server ends.
    wake: WakeFd,
    connected: Mutex<Vec<Arc<P::Connection>>>,
    /// Notified when a client has ended.
    ended: Condvar,
}

impl<P: Protocol> Clients<P> {
    /// Accepts clients within bounds.
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub fn accept(
        listener: impl Listen<Connection = P::Connection>,
        protocol: P,
        bounds: Bounds,
    ) -> io::Result<Self> {
        let (connected, ended) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { protocol, bounds, wake: WakeFd::new()?, connected, ended });
        let accepting = Arc::clone(&shared);
        let acceptor =
            Builder::new().name(P::THREAD.to_owned()).spawn(move || accepting.accept_all(&listener))?;
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    /// Returns the protocol.
    pub fn protocol(&self) -> &P {
        &self.shared.protocol
    }

    /// Accepts no more clients, lets the requests in flight end, and disconnects all clients. A
    /// later call has no effect.
    pub fn end(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.wake.set();
        // The acceptor catches no panic of its own, and has none to tell.
        let _ = acceptor.join();
        self.shared.end_all(self.shared.bounds.grace);
    }
}

impl<P: Protocol> Drop for Clients<P> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<P: Protocol> fmt::Debug for Clients<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.shared.connected.lock().len();
        f.debug_struct("Clients")
            .field("protocol", &P::NAME)
            .field("connected", &connected)
            .finish_non_exhaustive()
    }
}

impl<P: Protocol> Shared<P> {
    /// Accepts clients until the server ends.
    fn accept_all(self: &Arc<Self>, listener: &impl Listen<Connection = P::Connection>) {
        loop {
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            if let Err(errno) = poll(&mut fds, None)
                && errno != rustix::io::Errno::INTR
            {
                tracing::error!("cannot wait for {} clients: {errno}", P::NAME);
                return;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                Ok((connection, address)) if self.bounds.networks.serve(address) => self.begin(connection),
                Ok((_, address)) => {
                    let address = address.map_or_else(String::new, |address| address.to_string());
                    tracing::warn!(
                        "an {} client at {address} was refused: its address is not allowed",
                        P::NAME
                    );
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Too many open files, for example; or the client is gone already.
                    tracing::warn!("cannot accept an {} client: {error}", P::NAME);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, connection: P::Connection) {
        let connection = Arc::new(connection);
        let mut connected = self.connected.lock();
        if connected.len() >= self.bounds.most {
            tracing::warn!("an {} client was refused: {} are connected", P::NAME, connected.len());
            return;
        }
        connected.push(Arc::clone(&connection));
        drop(connected);
        let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
        let started = Builder::new().name(format!("{}-client", P::THREAD)).spawn(move || shared.serve(&own));
        if let Err(error) = started {
            tracing::warn!("an {} client was refused: {error}", P::NAME);
            self.forget(&connection);
        }
    }

    fn serve(&self, connection: &Arc<P::Connection>) {
        // Also after a panic, or the server would wait for this client forever.
        let _gone = Gone { shared: self, connection };
        if let Err(error) = self.protocol.serve(connection) {
            // A client that goes away in the handshake is not worth a warning.
            tracing::debug!("an {} client's connection ended: {error}", P::NAME);
        }
    }

    fn forget(&self, connection: &Arc<P::Connection>) {
        self.connected.lock().retain(|client| !Arc::ptr_eq(client, connection));
        self.ended.notify_all();
    }

    /// Ends all clients, and waits for them.
    fn end_all(&self, grace: Duration) {
        let mut connected = self.connected.lock();
        connected.iter().for_each(|client| P::end(client));
        let deadline = Instant::now() + grace;
        while !connected.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.ended.wait_for(&mut connected, left).timed_out() {
                break;
            }
        }
        connected.iter().for_each(|client| P::cut(client));
        while !connected.is_empty() {
            self.ended.wait(&mut connected);
        }
    }
}

/// Disconnects a client and forgets it, when it is dropped.
struct Gone<'a, P: Protocol> {
    shared: &'a Shared<P>,
    connection: &'a Arc<P::Connection>,
}

impl<P: Protocol> Drop for Gone<'_, P> {
    fn drop(&mut self) {
        P::cut(self.connection);
        self.shared.forget(self.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::BorrowedFd;

    /// Sends every byte back; panics at a 0.
    struct Echo;

    struct Listener(TcpListener);

    impl AsFd for Listener {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Listen for Listener {
        type Connection = TcpStream;

        fn accept(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
            let (stream, client) = self.0.accept()?;
            stream.set_nonblocking(false)?;
            Ok((stream, Some(client.ip())))
        }
    }

    impl Protocol for Echo {
        type Connection = TcpStream;
        const NAME: &'static str = "echo";
        const THREAD: &'static str = "papilio-echo";

        fn serve(&self, mut connection: &TcpStream) -> io::Result<()> {
            let mut byte = [0];
            while connection.read(&mut byte)? == 1 {
                assert_ne!(byte, [0], "as the test wants it");
                connection.write_all(&byte)?;
            }
            Ok(())
        }

        fn end(connection: &TcpStream) {
            let _ = connection.shutdown(Shutdown::Read);
        }

        fn cut(connection: &TcpStream) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn start(most: usize, networks: Networks) -> (Clients<Echo>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = Bounds { most, networks, grace: Duration::from_secs(5) };
        (Clients::accept(Listener(listener), Echo, bounds).unwrap(), address)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn echoes(mut stream: &TcpStream) -> bool {
        let mut byte = [0];
        stream.write_all(b"x").is_ok() && matches!(stream.read(&mut byte), Ok(1))
    }

    #[test]
    fn clients_are_served_bounded_and_ended() {
        let (mut clients, address) = start(2, Networks::default());
        let (one, two) = (connect(address), connect(address));
        assert!(echoes(&one) && echoes(&two));
        assert!(!echoes(&connect(address)), "a third client is disconnected");
        clients.end();
        assert!(!echoes(&one) && !echoes(&two));
        assert!(clients.shared.connected.lock().is_empty());
    }

    #[test]
    fn clients_elsewhere_are_refused() {
        for (network, is_served) in [("127.0.0.0/8", true), ("::1", false), ("127.0.0.2", false)] {
            let (mut clients, address) = start(2, Networks::new([network.parse().unwrap()]));
            assert_eq!(echoes(&connect(address)), is_served, "{network}");
            clients.end();
        }
    }

    #[test]
    fn a_panic_ends_its_client_only() {
        let (mut clients, address) = start(8, Networks::default());
        let (mut one, two) = (connect(address), connect(address));
        assert!(echoes(&one) && echoes(&two));
        one.write_all(&[0]).unwrap();
        assert!(matches!(one.read(&mut [0]), Ok(0) | Err(_)));
        assert!(echoes(&two));
        clients.end();
    }
}

//! An S3 server that is none of ours, moto, and a proxy before it that delays, fails and counts.
//!
//! Owns [`ObjectServer`] and [`Proxy`], which end with their owners. Programs under test talk to
//! the proxy. The proxy signs requests that are not signed, so that the server is a web server with
//! ranges for them.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The program that a test needs for an [`ObjectServer`].
pub const PROGRAM: &str = "moto_server";

const SIGNATURE: &str = "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, \
                         SignedHeaders=host, Signature=x\r\n";

/// A server of objects in memory.
#[derive(Debug)]
pub struct ObjectServer {
    child: Child,
    address: SocketAddr,
}

impl ObjectServer {
    /// Starts a server, and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, or does not listen within 30 s.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// As [`ObjectServer::start`], with TLS: the files of a certificate and its key, in PEM. Of
    /// this type's methods, only [`ObjectServer::address`] then works.
    ///
    /// # Errors
    /// As [`ObjectServer::start`].
    pub fn start_tls(certificate: &Path, key: &Path) -> io::Result<Self> {
        let (certificate, key) = (certificate.as_os_str(), key.as_os_str());
        Self::start_with(&[OsStr::new("-s"), OsStr::new("-c"), certificate, OsStr::new("-k"), key])
    }

    /// Returns the server's own address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn start_with(arguments: &[&OsStr]) -> io::Result<Self> {
        // The server takes a free port and names it in its log. If this process chose the port,
        // another one could take it before the server listens.
        let mut child = Command::new(PROGRAM)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let log = child.stderr.take().expect("stderr is piped");
        let (sender, addresses) = mpsc::channel();
        // The thread reads the log to its end, so that the server never waits for a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                if let Some(address) = address_in(&line) {
                    // The receiver may have given up.
                    let _ = sender.send(address);
                }
            }
        });
        // Ends the server if it names no address. It listens before it names one.
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        server.address = addresses.recv_timeout(Duration::from_secs(30)).map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("{PROGRAM} ended, or named no address in 30 s"))
        })?;
        Ok(server)
    }

    fn request(&self, method: &str, path: &str, body: &[u8]) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        let (address, length) = (self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{SIGNATURE}Content-Length: {length}\r\n\
             Content-Type: binary/octet-stream\r\nConnection: close\r\n\r\n"
        )?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let status = answer.get(9..12).unwrap_or_default();
        match status.first() {
            Some(b'2') => Ok(()),
            _ => Err(io::Error::other(format!("{method} {path}: {}", String::from_utf8_lossy(&answer)))),
        }
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// The server refuses.
    pub fn make_bucket(&self, bucket: &str) -> io::Result<()> {
        self.request("PUT", &format!("/{bucket}"), &[])
    }

    /// Stores an object, in the place of an older one.
    ///
    /// # Errors
    /// The server refuses.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) -> io::Result<()> {
        self.request("PUT", &format!("/{bucket}/{key}"), bytes)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// The server refuses.
    pub fn remove(&self, bucket: &str, key: &str) -> io::Result<()> {
        self.request("DELETE", &format!("/{bucket}/{key}"), &[])
    }

    /// Starts a proxy that delays each request by `delay`.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn proxy(&self, delay: Duration) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State { upstream: self.address, delay, ..State::default() });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                let state = Arc::clone(&shared);
                // An error ends the connection, which the client notices.
                std::thread::spawn(move || state.serve(client));
            }
        });
        Ok(Proxy { address, state })
    }
}

/// Returns the address in a line of the server's log: ` * Running on http://127.0.0.1:5000`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, url) = line.split_once(" * Running on ")?;
    url.trim_end().rsplit('/').next()?.parse().ok()
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    delay: Duration,
    requests: AtomicU64,
    bytes: AtomicU64,
    /// Requests to answer with 503.
    throttled: AtomicUsize,
    /// Whether ranges are ignored.
    whole: AtomicBool,
    /// Whether requests are not answered.
    silent: AtomicBool,
    ended: AtomicBool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            upstream: SocketAddr::from(([127, 0, 0, 1], 0)),
            delay: Duration::ZERO,
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            throttled: AtomicUsize::new(0),
            whole: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }
}

impl State {
    /// Serves one request of a connection.
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if client.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        while self.silent.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(self.delay);
        let one_less = |left: usize| left.checked_sub(1);
        if self.throttled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return client
                .write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.trim_end().split("\r\n");
        let mut forwarded = format!("{}\r\n", lines.next().unwrap_or_default());
        let mut signed = false;
        let mut body = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let name = name.to_ascii_lowercase();
            if name == "content-length" {
                body.resize(value.trim().parse().map_err(io::Error::other)?, 0);
            }
            signed |= name == "authorization";
            let dropped = name == "connection" || name == "range" && self.whole.load(Ordering::Relaxed);
            if !dropped {
                forwarded.push_str(line);
                forwarded.push_str("\r\n");
            }
        }
        if !signed {
            forwarded.push_str(SIGNATURE);
        }
        forwarded.push_str("Connection: close\r\n\r\n");
        client.read_exact(&mut body)?;
        let mut server = TcpStream::connect(self.upstream)?;
        server.write_all(forwarded.as_bytes())?;
        server.write_all(&body)?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        self.bytes.fetch_add(answer.len() as u64, Ordering::Relaxed);
        client.write_all(&answer)
    }
}

/// A proxy before an [`ObjectServer`].
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    /// Returns `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests and the bytes of all answers since the last call.
    pub fn take_counts(&self) -> (u64, u64) {
        let state = &self.state;
        (state.requests.swap(0, Ordering::Relaxed), state.bytes.swap(0, Ordering::Relaxed))
    }

    /// Lets the next `count` requests fail as a store that throttles.
    pub fn throttle(&self, count: usize) {
        self.state.throttled.store(count, Ordering::Relaxed);
    }

    /// Sets whether ranges are ignored, so that answers are whole objects.
    pub fn ignore_ranges(&self, ignore: bool) {
        self.state.whole.store(ignore, Ordering::Relaxed);
    }

    /// Sets whether requests wait without an answer.
    pub fn be_silent(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

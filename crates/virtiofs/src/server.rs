//! The server: a socket that monitors connect to, one after another.
//!
//! Owns [`Listening`] and [`Server`].
//!
//! **Invariants**
//! - When a monitor is gone, all its requests have ended, its guest's open files are closed, and
//!   the file system is committed, before the next monitor is served.
//! - When [`Server::stop`] returns, no thread of the server is left.
//!
//! **Locks:** `connected`, for an instant.

use crate::device::{Backend, FsDevice};
use crate::tag::Tag;
use crate::threads::Threads;
use papilio_device::WakeFd;
use papilio_fuse::guest::GuestSession;
use papilio_locks::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use vhost::vhost_user::{self, Listener};
use vhost_user_backend::{Error, ShutdownHandle, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

/// Threads for slow requests where devices answer from memory, for each processor.
const THREADS_EACH: usize = 2;
/// Threads for slow requests where they wait for devices.
const WAITING_THREADS: usize = 32;
/// How long the server waits after it could not serve a monitor.
const PAUSE: Duration = Duration::from_millis(50);

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket cannot be made.
    #[error("{path}: cannot listen there: {source}", path = path.display())]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses a thread or a descriptor.
    #[error("the server cannot start: {0}")]
    System(#[from] io::Error),
}

/// A socket that monitors connect to. It is removed when this is dropped.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

impl Listening {
    /// Listens at `path`. Only this user, and root, can connect: a socket there has the rights of
    /// the process's umask, without those of group and others.
    ///
    /// # Errors
    /// [`ServeError::Listen`]; something is at that path.
    pub fn new(path: &Path) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { path: path.to_owned(), source };
        let listener = UnixListener::bind(path).map_err(failed)?;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let closed = rustix::fs::chmod(path, mode);
        let listening = Self { listener, path: path.to_owned() };
        closed.map_err(|error| failed(error.into()))?;
        Ok(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Shared {
    session: Arc<GuestSession>,
    threads: Arc<Threads>,
    tag: Tag,
    /// Readable once the server ends.
    wake: WakeFd,
    connected: Mutex<Connected>,
}

#[derive(Default)]
struct Connected {
    monitor: Option<ShutdownHandle>,
    ended: bool,
}

/// A server.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves monitors until [`Server::stop`].
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub fn start(listening: Listening, session: GuestSession, tag: Tag) -> Result<Self, ServeError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = match session.waits_for_devices() {
            true => WAITING_THREADS,
            false => THREADS_EACH * processors,
        };
        let shared = Arc::new(Shared {
            session: Arc::new(session),
            threads: Arc::new(Threads::start(count)?),
            tag,
            wake: WakeFd::new()?,
            connected: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let thread =
            Builder::new().name("papilio-monitors".to_owned()).spawn(move || serving.serve_all(listening))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Disconnects the monitor, lets the requests in flight end, and closes the file system.
    ///
    /// # Errors
    /// The last commit failed, and the changes since the previous one are lost.
    pub fn stop(mut self) -> papilio::Result<()> {
        self.end();
        let shared = Arc::clone(&self.shared);
        drop(self);
        // The thread has ended, so that nobody else has them.
        let shared = Arc::into_inner(shared).expect("only the server's thread shares it");
        drop(shared.threads);
        let session = Arc::into_inner(shared.session).expect("no connection is left");
        session.close()
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.end();
        if thread.join().is_err() {
            tracing::error!("the thread that serves monitors panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn end(&self) {
        self.wake.set();
        let mut connected = self.connected.lock();
        connected.ended = true;
        if let Some(monitor) = &connected.monitor {
            monitor.shutdown();
        }
    }

    fn serve_all(&self, listening: Listening) {
        let waited = listening.listener.try_clone();
        let Ok(accepted) = listening.listener.try_clone() else { return };
        let (Ok(waited), mut accepted) = (waited, Listener::from(accepted)) else { return };
        loop {
            let mut waits = [PollFd::new(&waited, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            match poll(&mut waits, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("waiting for a monitor: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
            if self.connected.lock().ended {
                return;
            }
            if !waits[0].revents().contains(PollFlags::IN) {
                continue;
            }
            match self.serve(&mut accepted) {
                Ok(()) | Err(Error::HandleRequest(vhost_user::Error::Disconnected)) => {}
                Err(error) => {
                    tracing::warn!("the monitor: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Serves the monitor that waits, until it disconnects.
    fn serve(&self, listener: &mut Listener) -> Result<(), Error> {
        let session = Arc::clone(&self.session);
        let device = Arc::new(FsDevice::new(session, Arc::clone(&self.threads), self.tag));
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let backend = Backend(Arc::clone(&device));
        let mut daemon = VhostUserDaemon::new("papilio-vhost".to_owned(), backend, memory)?;
        let served = daemon.start(listener).and_then(|()| {
            tracing::info!("a monitor is connected");
            {
                let mut connected = self.connected.lock();
                connected.monitor = daemon.shutdown_handle();
                if let (true, Some(monitor)) = (connected.ended, &connected.monitor) {
                    monitor.shutdown();
                }
            }
            daemon.wait()
        });
        self.connected.lock().monitor = None;
        // This ends the threads of the queues.
        drop(daemon);
        device.drain();
        // SAFETY: the threads of the queues have ended with the daemon.
        unsafe { device.close() };
        if let Err(error) = self.session.disconnect() {
            tracing::error!("the guest's last changes: {error}");
        }
        tracing::info!("the monitor is gone");
        served
    }
}

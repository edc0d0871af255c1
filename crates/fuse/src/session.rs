//! A mount and its server, from beginning to end.
//!
//! Owns [`Session`]. States: *mounted* from [`Session::mount`] on, while threads serve; *unmounted* when the kernel
//! has closed the channel (`umount`, `fusermount3 -u`, [`Unmounter`]) and the threads have ended; *closed*
//! when the file system has been committed and its devices are unlocked, which is when [`Session::wait`]
//! returns. A session that is dropped unmounts, lazily if it must, and waits.

use crate::MountOptions;
use crate::fuser_transport::{Assistant, FuserTransport, MAX_WRITE};
use crate::ioctl::MountInfo;
use crate::mount_point::{self, MountError, Unmounter};
use crate::server::Server;
use papilio::FileSystem;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads that serve at least: some may wait for a commit.
const MIN_THREADS: usize = 4;
/// And at most, unless the options say otherwise.
const MAX_THREADS: usize = 16;

/// A file system that is mounted.
#[derive(Debug)]
pub struct Session {
    unmounter: Unmounter,
    serving: Option<JoinHandle<papilio::Result<()>>>,
}

impl Session {
    /// Mounts `fs`, which was opened from `source`, on `directory`. Returns when the mount can be used.
    ///
    /// # Errors
    /// [`MountError`], in a line; the file system is closed then.
    pub fn mount(
        fs: FileSystem,
        source: &Path,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let directory = mount_point::check(directory)?;
        let info = MountInfo::new(source, &directory, options);
        let server = Arc::new(Server::new(fs, info, options)?);
        let (assistant, helper) = Assistant::start().map_err(MountError::Thread)?;
        let transport = FuserTransport::new(Arc::clone(&server), options.clone(), assistant.clone());
        let unmounter = Unmounter::new(directory.clone());
        let channel = mount_point::attach(source, &directory, options)?;
        let session = fuser::Session::from_fd(transport, channel, fuser::SessionACL::All, threads(options));
        let session = session.map_err(|error| {
            let _ = unmounter.detach();
            MountError::Handshake(error)
        })?;
        assistant.connect(session.notifier());
        // The threads' own is the last that keeps the assistant alive.
        drop(assistant);
        let ending = unmounter.clone();
        let serve = move || {
            if let Err(error) = session.run() {
                tracing::error!("serving: {error}");
                // Nobody would answer any more.
                let _ = ending.detach();
            }
            if helper.join().is_err() {
                tracing::error!("the assistant's thread panicked");
            }
            close(server)
        };
        let serving = std::thread::Builder::new().name("papilio-mount".to_owned()).spawn(serve);
        let serving = serving.map_err(|error| {
            let _ = unmounter.detach();
            MountError::Thread(error)
        })?;
        mount_point::raise_readahead(&directory, MAX_WRITE);
        Ok(Self { unmounter, serving: Some(serving) })
    }

    /// What ends the mount, for who handles signals.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Waits until the file system is unmounted, and all of it is durable and closed.
    ///
    /// # Errors
    /// What the last commit returned: changes since the one before are lost then.
    pub fn wait(mut self) -> papilio::Result<()> {
        self.join()
    }

    fn join(&mut self) -> papilio::Result<()> {
        let Some(serving) = self.serving.take() else { return Ok(()) };
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.serving.is_none() {
            return;
        }
        if let Err(error) = self.unmounter.unmount().or_else(|_| self.unmounter.detach()) {
            // The threads would be waited for in vain.
            tracing::error!("the mount could not be ended: {error}");
            return;
        }
        if let Err(error) = self.join() {
            tracing::error!("the last changes could not be committed: {error}");
        }
    }
}

/// Closes the file system when the last request has been answered.
fn close(server: Arc<Server>) -> papilio::Result<()> {
    let fs = server.file_system();
    // Files that lost their names while they were open go now.
    drop(server);
    fs.close()
}

/// How fuser serves.
fn threads(options: &MountOptions) -> fuser::Config {
    let cores = std::thread::available_parallelism().map_or(MIN_THREADS, usize::from);
    let count = options.max_threads.unwrap_or_else(|| (2 * cores).clamp(MIN_THREADS, MAX_THREADS));
    let mut config = fuser::Config::default();
    config.acl = fuser::SessionACL::All;
    config.n_threads = Some(count.max(1));
    config.clone_fd = false;
    config
}

/// The kind of error that a mount ends with, for callers that have it as `std::io`'s.
impl From<MountError> for io::Error {
    fn from(error: MountError) -> Self {
        io::Error::other(error)
    }
}

//! A mount and its server, from start to end.
//!
//! Owns [`Session`]. Its states:
//!
//! - *Mounted* from [`Session::mount`] on, while threads serve.
//! - *Unmounted* once the kernel has closed the channel (`umount`, `fusermount3 -u`, [`Unmounter`])
//!   and the threads have ended.
//! - *Closed* once the file system is committed and its devices are unlocked. [`Session::wait`]
//!   then returns.
//!
//! Dropping a session unmounts, lazily if necessary, and waits.

use crate::assistant::Assistant;
use crate::cpu_latency::CpuLatency;
use crate::device_transport::{Channel, DeviceTransport};
use crate::dispatch::{Dispatcher, QueuedData};
use crate::follower::Follower;
use crate::ioctl::MountInfo;
use crate::mount_point::{self, MountError};
use crate::options::{MountOptions, Transport};
use crate::protocol::init::MAX_WRITE;
use crate::ring_transport::{RingError, RingTransport, Serving};
use crate::server::Server;
use crate::unmount::Unmounter;
use crate::whole_mount::WholeMount;
use papilio::FileSystem;
use papilio::format::objectid;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Minimum number of threads that serve, because some may wait for a commit.
const MIN_THREADS: usize = 4;
/// Maximum number of threads that serve, unless the options set another one.
const MAX_THREADS: usize = 16;
/// Number of threads that serve where requests wait for a device.
const WAITING_THREADS: usize = 64;
/// Number of threads that serve `/dev/fuse` when requests come over io_uring.
const BESIDE_RINGS: usize = 2;

/// A mounted file system.
#[derive(Debug)]
pub struct Session {
    unmounter: Unmounter,
    serving: Option<JoinHandle<papilio::Result<()>>>,
}

impl Session {
    /// Mounts `fs`, which was opened from `source`, on `directory`. Returns once the mount is
    /// usable.
    ///
    /// # Errors
    /// A [`MountError`]; the file system is closed in that case.
    pub fn mount(
        fs: FileSystem,
        source: &Path,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let directory = mount_point::check(directory)?;
        let cached = options.writeback_cache.unwrap_or(!options.read_only && !fs.has_page_cache());
        let options = &MountOptions { writeback_cache: Some(cached), ..options.clone() };
        let mut info = MountInfo::new(source, &directory, options);
        let below_top = make_below_top(&fs, source, options)?;
        info.from_top_level = below_top.is_some();
        let server = Arc::new(Server::new(fs, info, options)?);
        let count = thread_count(options, &server);
        let ring = prepare_ring(&directory, options, count)?;
        let unmounter = Unmounter::new(directory.clone());
        let (device, mut below_top) = match below_top {
            Some(made) => (made.device, Some((made.whole, made.inside))),
            None => (mount_point::attach(source, &directory, options)?, None),
        };
        if below_top.is_none() {
            unmounter.note_mounted();
        }
        let device = Arc::new(device);
        let mut detach = |error: MountError| {
            below_top = None;
            let _ = unmounter.detach();
            error
        };
        let channel = Arc::new(Channel::new(Arc::clone(&device)));
        let agreed = channel.shake_hands(options, ring.is_some()).map_err(|error| detach(error.into()))?;
        let (assistant, helper) =
            Assistant::start(Arc::clone(&device)).map_err(|error| detach(MountError::Thread(error)))?;
        server.tell_with(Box::new(assistant.attributes_forgetter()));
        let mut beside = vec![helper];
        let follower = follow(options, &server, &assistant, source, &mut beside).map_err(&mut detach)?;
        let cpu_latency = CpuLatency::start(&mut beside);
        let dispatcher = Dispatcher::new(Arc::clone(&server), agreed.parallel_direct, cpu_latency);
        let dispatcher = Arc::new(dispatcher);
        let rings = match ring.filter(|_| agreed.ring) {
            None if options.transport == Transport::Ring => return Err(detach(RingError::Off.into())),
            None => None,
            Some(ring) => {
                let (dispatcher, assistant) = (Arc::clone(&dispatcher), assistant.clone());
                let (rings, taken) = ring.serve(dispatcher, assistant, device, unmounter.clone());
                if let Err(error) = taken {
                    let error = detach(error.into());
                    rings.join();
                    return Err(error);
                }
                Some(rings)
            }
        };
        let count = if rings.is_some() { count.min(BESIDE_RINGS) } else { count };
        // The transport's threads keep the assistant alive from here on.
        let transport = DeviceTransport::new(
            Arc::clone(&dispatcher),
            (channel, assistant),
            unmounter.clone(),
            &mut beside,
        );
        let transport = transport.map_err(|error| detach(MountError::Thread(error)))?;
        let threads = transport.start(count).map_err(|error| detach(MountError::Thread(error)))?;
        drop(transport);
        log_choices(&server, cached, (rings.is_some(), count));
        let resumed = Arc::clone(&server);
        let serve = move || {
            wait_for_end((threads, rings), (dispatcher, follower), beside);
            close(server)
        };
        let serving = std::thread::Builder::new().name("papilio-mount".to_owned()).spawn(serve);
        let serving = serving.map_err(|error| detach(MountError::Thread(error)))?;
        let mut session = Self { unmounter, serving: Some(serving) };
        if let Some((whole, inside)) = below_top {
            session.attach(whole, &inside, &directory)?;
        }
        mount_point::raise_readahead(&directory, MAX_WRITE);
        if !options.read_only {
            resumed.resume_jobs();
        }
        Ok(session)
    }

    /// Attaches the part of the file system that the mount shows, once threads serve.
    fn attach(&mut self, whole: WholeMount, inside: &Path, directory: &Path) -> Result<(), MountError> {
        let attached = whole.attach(inside, directory);
        if let Err(source) = attached {
            // The file system went with its only mount, and the threads end.
            let _ = self.join();
            return Err(MountError::Refused { path: directory.to_path_buf(), source });
        }
        self.unmounter.note_mounted();
        Ok(())
    }

    /// Returns a handle that ends the mount, for a signal handler thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Waits until the file system is unmounted, durable and closed.
    ///
    /// # Errors
    /// The last commit failed, and the changes since the previous one are lost.
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
            // Joining the threads would block forever.
            tracing::error!("the mount could not be ended: {error}");
            return;
        }
        if let Err(error) = self.join() {
            tracing::error!("the last changes could not be committed: {error}");
        }
    }
}

/// Starts the thread that follows a writer, if the options ask for it. Appends its handle to
/// `beside`.
fn follow(
    options: &MountOptions,
    server: &Arc<Server>,
    assistant: &Assistant,
    source: &Path,
    beside: &mut Vec<JoinHandle<()>>,
) -> Result<Option<Follower>, MountError> {
    let Some(period) = options.follow else { return Ok(None) };
    let (follower, thread) = Follower::start(Arc::clone(server), assistant.clone(), source, period)?;
    beside.push(thread);
    Ok(Some(follower))
}

/// Logs the mount's choices, most of which the options leave open.
fn log_choices(server: &Server, writeback_cache: bool, (rings, threads): (bool, usize)) {
    let fs = server.fs();
    let device = match server.queued_data() {
        QueuedData::All => "the devices directly (device_io=direct)",
        QueuedData::DirectReads => "the devices through the host's page cache, except for direct reads",
        QueuedData::Nothing => "the devices through the host's page cache (device_io=cached)",
    };
    let transport = if rings { "io_uring" } else { "/dev/fuse" };
    let writes = if writeback_cache { "gathers writes" } else { "passes writes on" };
    let opens = if server.opens_by_kernel() { "the kernel" } else { "the server" };
    let cache = if fs.has_page_cache() { "has" } else { "has no" };
    tracing::info!(
        "uses {device}; requests come by {transport} to {threads} threads; the kernel {writes}; \
         {opens} opens files; the server {cache} page cache of its own"
    );
}

/// A file system that is attached nowhere yet.
struct BelowTop {
    device: OwnedFd,
    whole: WholeMount,
    /// The path of the mounted subvolume from the top level.
    inside: PathBuf,
}

/// Makes a file system whose root is the top level, if the mount shows another subvolume and this
/// user and this kernel can. Later mounts can then show any subvolume.
fn make_below_top(
    fs: &FileSystem,
    source: &Path,
    options: &MountOptions,
) -> Result<Option<BelowTop>, MountError> {
    let shown = fs.root()?.tree();
    // `allow_root` judges each caller on the way through the root, which no such mount shows.
    if shown == objectid::FS_TREE || options.allow_root {
        return Ok(None);
    }
    // A damaged file system may have lost the way to the subvolume.
    let reachable = fs.subvolume_root(objectid::FS_TREE).and_then(|_| fs.subvolume(shown));
    let Ok(Some(path)) = reachable.map(|subvolume| subvolume.path) else { return Ok(None) };
    let inside = PathBuf::from(OsString::from_vec(path));
    let made = mount_point::make(source, options)?;
    Ok(made.map(|(device, whole)| BelowTop { device, whole, inside }))
}

/// Waits until the kernel has ended the mount and no thread is left.
fn wait_for_end(
    (threads, rings): (Vec<JoinHandle<()>>, Option<Serving>),
    (dispatcher, follower): (Arc<Dispatcher>, Option<Follower>),
    beside: Vec<JoinHandle<()>>,
) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread of /dev/fuse panicked");
        }
    }
    rings.into_iter().for_each(Serving::join);
    tracing::info!("requests served: {}", dispatcher.counts());
    // The threads beside those that serve end with their last user.
    drop((dispatcher, follower));
    for thread in beside {
        if thread.join().is_err() {
            tracing::error!("a thread beside those that serve panicked");
        }
    }
}

/// Closes the file system after the last request was answered.
fn close(server: Arc<Server>) -> papilio::Result<()> {
    papilio::device::announce_ending();
    let fs = server.file_system();
    server.stop_jobs();
    // This deletes files that lost their last name while they were open.
    drop(server);
    fs.close()
}

/// Prepares the rings if the options ask for them.
fn prepare_ring(
    directory: &Path,
    options: &MountOptions,
    threads: usize,
) -> Result<Option<RingTransport>, MountError> {
    let prepare = || RingTransport::prepare(threads, directory.to_owned());
    match options.transport {
        Transport::Classic => Ok(None),
        Transport::Ring => Ok(Some(prepare()?)),
        Transport::Auto => Ok(prepare().inspect_err(|error| tracing::info!("{error}")).ok()),
    }
}

/// Returns the number of threads for slow requests, or for all requests without rings.
fn thread_count(options: &MountOptions, server: &Server) -> usize {
    let cores = std::thread::available_parallelism().map_or(MIN_THREADS, usize::from);
    let usual = || match server.waits_for_devices() {
        true => WAITING_THREADS,
        false => (2 * cores).clamp(MIN_THREADS, MAX_THREADS),
    };
    options.max_threads.unwrap_or_else(usual).max(1)
}

/// Converts for callers that handle `std::io` errors.
impl From<MountError> for io::Error {
    fn from(error: MountError) -> Self {
        io::Error::other(error)
    }
}

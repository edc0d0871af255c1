//! The transport over io_uring, beside `/dev/fuse`.
//!
//! Owns [`RingTransport`], the queues before a mount is there, and [`Serving`], the threads that serve one. The kernel
//! has a queue for each processor; each has a thread here that stays on that processor, with a ring and some entries.
//! A request is put into an entry, answered in it, and given back with the system call that also waits for the next
//! ones: one wake-up for several requests, no copy of data between a buffer of ours and the reply, and most often no change of
//! processor. Requests that may take long (`fsync`, ioctls, `fallocate`, copies, truncation) are answered by threads
//! beside, so that what comes behind them does not wait.
//!
//! The first request of a mount, what the kernel wants forgotten and interrupts still come by `/dev/fuse`, and
//! notifications go there, so that the other transport serves too, with few threads.
//!
//! Kernel counterpart: `fs/fuse/dev_uring.c`, from Linux 6.14 on, where root has switched it on.

mod answer;
mod aside;
mod cpus;
mod entry;
mod home;
mod protocol;
mod queue;
mod reply;
mod request;
mod shared;

#[cfg(test)]
mod tests;

use crate::fuser_transport::Assistant;
use crate::transport::Operations;
use crate::unmount::Unmounter;
use answer::Server;
use aside::{Nudge, Workers};
use queue::{Queue, Ring};
use shared::Shared;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Where the kernel says whether it has this transport switched on.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Entries of a queue, at the beginning.
const ENTRIES: usize = 8;

/// Why requests cannot come over io_uring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel does not have it.
    #[error("this kernel has no FUSE over io_uring (Linux 6.14 or newer has)")]
    Unknown,
    /// The kernel has it switched off.
    #[error("FUSE over io_uring is off in this kernel; root switches it on by: echo Y > {SWITCH}")]
    Off,
    /// There are no rings for this process, or no threads.
    #[error("FUSE over io_uring: {0}")]
    NoRing(io::Error),
    /// The kernel refused what it was given to put requests into.
    #[error("FUSE over io_uring: the kernel refused the rings: {0}")]
    Refused(io::Error),
}

/// Whether the kernel offers it.
///
/// # Errors
/// It does not, and why.
pub(crate) fn offered() -> Result<(), RingError> {
    match std::fs::read_to_string(SWITCH) {
        Ok(value) if value.trim() == "Y" => Ok(()),
        Ok(_) => Err(RingError::Off),
        Err(_) => Err(RingError::Unknown),
    }
}

/// A thread of a queue that has its ring and waits to be told what to serve.
struct Waiting<O> {
    begin: Sender<Arc<Shared<O>>>,
    /// Whether it has a ring, and then whether the kernel took its entries.
    went_well: Receiver<io::Result<()>>,
    thread: JoinHandle<()>,
}

/// Queues with their rings, before there is a mount.
pub(crate) struct RingTransport<O> {
    queues: Vec<Waiting<O>>,
    workers: Workers,
    nudge: Nudge,
    threads: Vec<JoinHandle<()>>,
}

impl<O: Operations> RingTransport<O> {
    /// Makes the rings, so that what this process may not have is known before anything is mounted on `directory`;
    /// `workers` threads answer what may take long.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn prepare(workers: usize, directory: PathBuf) -> Result<Self, RingError> {
        offered()?;
        let (online, others) = cpus::queues().map_err(RingError::NoRing)?;
        let mut threads = Vec::new();
        let workers = Workers::start(workers, &mut threads).map_err(RingError::NoRing)?;
        let nudge = Nudge::start(directory, &mut threads).map_err(RingError::NoRing)?;
        let mut queues = Vec::with_capacity(online.len());
        for (number, &processor) in online.iter().enumerate() {
            let mut served = vec![(processor, ENTRIES)];
            if number == 0 {
                // The kernel wants an entry for these too before it begins.
                served.extend(others.iter().map(|&other| (other, 1)));
            }
            queues.push(wait_for_mount(processor, served).map_err(RingError::NoRing)?);
        }
        for queue in &queues {
            said(&queue.went_well).map_err(RingError::NoRing)?;
        }
        Ok(Self { queues, workers, nudge, threads })
    }

    /// Begins to serve what is mounted, over a descriptor of its `/dev/fuse` on which kernel and server have agreed on it.
    /// Returns the threads, and whether the kernel took the entries of all: the mount answers nothing otherwise, and
    /// is to be ended.
    pub(crate) fn serve(
        self,
        operations: Arc<O>,
        parallel_direct: bool,
        assistant: Assistant,
        device: OwnedFd,
        unmounter: Unmounter,
    ) -> (Serving, Result<(), RingError>) {
        let Self { queues, workers, nudge, mut threads } = self;
        let server = Server::new(operations, parallel_direct);
        let shared = Arc::new(Shared { server, assistant, workers, nudge, device, unmounter });
        for queue in &queues {
            // A thread that is gone does not answer below.
            let _ = queue.begin.send(Arc::clone(&shared));
        }
        drop(shared);
        let mut taken = Ok(());
        for queue in queues {
            taken = taken.and(said(&queue.went_well));
            threads.push(queue.thread);
        }
        (Serving(threads), taken.map_err(RingError::Refused))
    }
}

/// Starts the thread of a queue, which makes its ring.
fn wait_for_mount<O: Operations>(processor: u16, served: Vec<(u16, usize)>) -> io::Result<Waiting<O>> {
    let (begin, told) = channel::<Arc<Shared<O>>>();
    let (say, went_well) = channel();
    let serve = move || {
        cpus::stay_on(processor);
        let made = Ring::new();
        // Who is not listened to any more is not told what to serve either.
        let ring = match made {
            Ok(ring) => ring,
            Err(error) => {
                let _ = say.send(Err(error));
                return;
            }
        };
        let _ = say.send(Ok(()));
        let Ok(shared) = told.recv() else { return };
        let unmounter = shared.unmounter.clone();
        match Queue::register(ring, shared, &served) {
            Ok(queue) => {
                let _ = say.send(Ok(()));
                run(queue, &unmounter);
            }
            Err(error) => {
                let _ = say.send(Err(error));
            }
        }
    };
    let thread = Builder::new().name(format!("papilio-ring{processor}")).spawn(serve)?;
    Ok(Waiting { begin, went_well, thread })
}

fn said(went_well: &Receiver<io::Result<()>>) -> io::Result<()> {
    went_well.recv().unwrap_or_else(|_| Err(io::Error::other("a queue's thread is gone")))
}

/// Serves, and ends the mount if that fails.
fn run<O: Operations>(queue: Queue<O>, unmounter: &Unmounter) {
    match catch_unwind(AssertUnwindSafe(|| queue.run())) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => tracing::error!("a queue's ring: {error}"),
        Err(_) => tracing::error!("a queue's thread panicked"),
    }
    let _ = unmounter.detach();
}

/// The threads that serve a mount.
pub(crate) struct Serving(Vec<JoinHandle<()>>);

impl Serving {
    /// Waits until the kernel has ended the connection and the last request has been answered.
    pub(crate) fn join(self) {
        for thread in self.0 {
            if thread.join().is_err() {
                tracing::error!("a thread of the rings panicked");
            }
        }
    }
}

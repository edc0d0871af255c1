//! The transport over io_uring, beside `/dev/fuse`.
//!
//! Owns [`RingTransport`], the queues before the mount exists, and [`Serving`], the threads that
//! serve a mount. The kernel has a queue for each processor. Each queue has a thread here that
//! stays on its processor, with a ring and some entries. The kernel puts a request into an entry,
//! and the thread answers it there. One system call returns the reply and waits for the next
//! requests. So one wake-up can serve several requests, data is not copied between buffers of the
//! server, and a request seldom changes processors. Other threads answer slow requests (`fsync`,
//! ioctls, `fallocate`, copies, truncation), so that they do not delay the ones behind them.
//!
//! The first request of a mount, forget requests and interrupts still arrive through `/dev/fuse`,
//! and notifications leave through it. The other transport therefore runs too, with few threads.
//!
//! Kernel counterpart: `fs/fuse/dev_uring.c`, from Linux 6.14 on, where root has enabled it.

mod aside;
mod cpus;
mod entry;
mod home;
mod queue;
mod shared;

use crate::assistant::Assistant;
use crate::data_queue::DataQueue;
use crate::dispatch::{Dispatcher, QueuedData};
use crate::unmount::Unmounter;
use aside::{Nudge, Workers};
use home::Held;
use queue::{Queue, Ring};
use shared::Shared;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// The kernel's switch for this transport.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Initial number of entries of a queue.
const ENTRIES: usize = 8;

/// Reasons why requests cannot come over io_uring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel does not support it.
    #[error("this kernel has no FUSE over io_uring (it needs Linux 6.14 or newer)")]
    Unknown,
    /// Root has not enabled it in the kernel.
    #[error("FUSE over io_uring is disabled in this kernel; root enables it with: echo Y > {SWITCH}")]
    Off,
    /// This process may not create a ring, or a thread could not be started.
    #[error("FUSE over io_uring: setting up the rings: {0}")]
    NoRing(io::Error),
    /// The kernel refused the entries.
    #[error("FUSE over io_uring: the kernel refused the entries: {0}")]
    Refused(io::Error),
}

/// Checks that the kernel offers this transport.
///
/// # Errors
/// It does not; the error says why.
pub(crate) fn offered() -> Result<(), RingError> {
    match std::fs::read_to_string(SWITCH) {
        Ok(value) if value.trim() == "Y" => Ok(()),
        Ok(_) => Err(RingError::Off),
        Err(_) => Err(RingError::Unknown),
    }
}

/// A queue's thread, before it knows the mount that it serves.
struct WaitingQueue {
    begin: Sender<Arc<Shared>>,
    /// Reports whether the ring exists, and later whether the kernel accepted the entries.
    went_well: Receiver<io::Result<()>>,
    thread: JoinHandle<()>,
}

/// Queues with their rings, before the mount exists.
pub(crate) struct RingTransport {
    queues: Vec<WaitingQueue>,
    workers: Workers,
    nudge: Nudge,
    threads: Vec<JoinHandle<()>>,
}

impl RingTransport {
    /// Creates the rings, so that missing permissions are known before anything is mounted on
    /// `directory`. Starts `workers` threads for slow requests.
    ///
    /// # Errors
    /// The kernel does not offer this transport, or a ring or thread cannot be created.
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
                // The kernel requires an entry for each of these before it starts.
                served.extend(others.iter().map(|&other| (other, 1)));
            }
            queues.push(wait_for_mount(processor, served).map_err(RingError::NoRing)?);
        }
        for queue in &queues {
            said(&queue.went_well).map_err(RingError::NoRing)?;
        }
        Ok(Self { queues, workers, nudge, threads })
    }

    /// Starts to serve a mount through `device`, a descriptor of its `/dev/fuse` on which kernel
    /// and server have agreed on this transport. Returns the threads, and whether the kernel
    /// accepted all entries. If it did not, the mount answers nothing and the caller must end it.
    pub(crate) fn serve(
        self,
        dispatcher: Arc<Dispatcher>,
        assistant: Assistant,
        device: Arc<OwnedFd>,
        unmounter: Unmounter,
    ) -> (Serving, Result<(), RingError>) {
        let Self { queues, workers, nudge, mut threads } = self;
        let data = data_queue(&dispatcher, &assistant, &mut threads);
        let shared = Shared { dispatcher, data, assistant, workers, nudge, device, unmounter };
        let shared = Arc::new(shared);
        for queue in &queues {
            // A thread that has ended does not report below.
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

/// Creates the queue for data, if devices answer later and there is a thread for it. Otherwise the
/// workers answer all requests for data.
fn data_queue(
    dispatcher: &Arc<Dispatcher>,
    assistant: &Assistant,
    threads: &mut Vec<JoinHandle<()>>,
) -> Option<DataQueue<Held>> {
    if dispatcher.queued_data() == QueuedData::Nothing {
        return None;
    }
    let (of_queue, assistant) = (Arc::clone(dispatcher), assistant.clone());
    let finish = move |held, aftermath| queue::finish(&of_queue, &assistant, held, aftermath);
    let made = DataQueue::start(Arc::clone(dispatcher), threads, finish, None);
    made.inspect_err(|error| tracing::warn!("starting a thread for data: {error}")).ok()
}

/// Starts a queue's thread, which creates its ring.
fn wait_for_mount(processor: u16, served: Vec<(u16, usize)>) -> io::Result<WaitingQueue> {
    let (begin, told) = channel::<Arc<Shared>>();
    let (say, went_well) = channel();
    let serve = move || {
        cpus::stay_on(processor);
        let made = Ring::new();
        // A failed send means that the caller gave up; `begin` is closed then as well.
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
    Ok(WaitingQueue { begin, went_well, thread })
}

fn said(went_well: &Receiver<io::Result<()>>) -> io::Result<()> {
    went_well.recv().unwrap_or_else(|_| Err(io::Error::other("the queue's thread has ended")))
}

/// Serves a queue; ends the mount if that fails.
fn run(queue: Queue, unmounter: &Unmounter) {
    match catch_unwind(AssertUnwindSafe(|| queue.run())) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => tracing::error!("a queue's ring failed: {error}"),
        Err(_) => tracing::error!("a queue's thread panicked"),
    }
    let _ = unmounter.detach();
}

/// The threads that serve a mount.
pub(crate) struct Serving(Vec<JoinHandle<()>>);

impl Serving {
    /// Waits until the kernel has closed the connection and the last request is answered.
    pub(crate) fn join(self) {
        for thread in self.0 {
            if thread.join().is_err() {
                tracing::error!("a queue's thread panicked");
            }
        }
    }
}

//! A thread that calls into the kernel on behalf of a waiting request.
//!
//! Owns [`Assistant`], and [`Stale`], the data that it has the kernel drop. Before the kernel drops
//! cached pages of a file, it writes them back through the server. If the serving threads made such
//! calls, all of them could end up waiting for one another.

use crate::protocol::notification::Notification;
use crate::transport::NodeId;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce(&Kernel) + Send>;

/// Access to the kernel's caches.
pub(crate) struct Kernel {
    device: Arc<OwnedFd>,
}

impl Kernel {
    /// Has the kernel write back its dirty data of a file and drop its cached pages.
    pub(crate) fn write_back(&self, node: NodeId) {
        self.tell(Notification::Data(node));
    }

    /// Has the kernel drop its cached pages of a range, given as file offset and length in bytes.
    pub(crate) fn forget_pages(&self, node: NodeId, offset: u64, length: u64) {
        self.tell(Notification::Pages(node, offset, length));
    }

    /// Tells the kernel that a file has grown to `size` bytes, of which `last` is the last. With
    /// the writeback cache the kernel takes no size from replies.
    pub(crate) fn grow(&self, node: NodeId, size: u64, last: u8) {
        if let Some(at) = size.checked_sub(1) {
            self.tell(Notification::Store(node, at, &[last]));
        }
    }

    /// Has the kernel drop a node's cached attributes.
    pub(crate) fn forget_attributes(&self, node: NodeId) {
        self.tell(Notification::Attributes(node));
    }

    /// Has the kernel drop a directory entry, the directory's attributes and its cached listing.
    pub(crate) fn forget_entry(&self, directory: NodeId, name: &[u8]) {
        self.tell(Notification::Entry(directory, name));
        // The listing is cached as the directory's pages. Invalidating an entry that the kernel did
        // not know leaves them in place.
        self.write_back(directory);
    }

    fn tell(&self, notification: Notification<'_>) {
        // The kernel reports ENOENT for something that it has not cached.
        if let Err(error) = rustix::io::write(&*self.device, &notification.encode()) {
            tracing::debug!("invalidating the kernel's cache: {error}");
        }
    }
}

/// Stale data in the kernel's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    Attributes(NodeId),
    Pages(NodeId, u64, u64),
    /// The size of a file that has grown to so many bytes, with its last byte.
    Size(NodeId, u64, u8),
    /// All pages of a file, with the number for
    /// [`Server::pages_dropped`](crate::server::Server::pages_dropped).
    AllPages(NodeId, u64),
    Entry {
        directory: NodeId,
        name: Vec<u8>,
    },
}

impl Stale {
    /// Has the kernel drop it.
    pub(crate) fn forget(&self, kernel: &Kernel) {
        match self {
            Self::Attributes(node) => kernel.forget_attributes(*node),
            Self::Pages(node, offset, length) => kernel.forget_pages(*node, *offset, *length),
            Self::Size(node, size, last) => kernel.grow(*node, *size, *last),
            Self::AllPages(node, _) => kernel.write_back(*node),
            Self::Entry { directory, name } => kernel.forget_entry(*directory, name),
        }
    }
}

/// A handle to the thread. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Assistant {
    tasks: Sender<Task>,
    device: Arc<OwnedFd>,
}

impl Assistant {
    /// Starts the thread; `device` is a descriptor of the mount's `/dev/fuse`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(device: Arc<OwnedFd>) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (tasks, received) = channel::<Task>();
        let kernel = Kernel { device: Arc::clone(&device) };
        let thread = std::thread::Builder::new().name("papilio-assist".to_owned()).spawn(move || {
            for task in received {
                let run = std::panic::AssertUnwindSafe(|| task(&kernel));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!("a task of the assistant panicked");
                }
            }
        })?;
        Ok((Self { tasks, device }, thread))
    }

    /// Returns a function that has the kernel drop the attributes of a node. That waits for
    /// nothing, so any thread may call it.
    pub(crate) fn attributes_forgetter(&self) -> impl Fn(NodeId) + Send + Sync + 'static {
        let device = Arc::downgrade(&self.device);
        move |node| {
            if let Some(device) = device.upgrade() {
                Kernel { device }.forget_attributes(node);
            }
        }
    }

    /// Has the kernel drop stale data, some time from now.
    pub(crate) fn forget_later(&self, stale: Vec<Stale>) {
        if !stale.is_empty() {
            self.run(move |kernel| stale.iter().for_each(|stale| stale.forget(kernel)));
        }
    }

    /// Runs a task. A task that cannot run is dropped together with its reply, which then answers
    /// EIO.
    pub(crate) fn run(&self, task: impl FnOnce(&Kernel) + Send + 'static) {
        let _ = self.tasks.send(Box::new(task));
    }

    /// Runs a task in a thread of its own, for a request that the assistant may be waiting for.
    pub(crate) fn run_apart(&self, task: impl FnOnce(&Kernel) + Send + 'static) {
        let kernel = Kernel { device: Arc::clone(&self.device) };
        let spawned =
            std::thread::Builder::new().name("papilio-apart".to_owned()).spawn(move || task(&kernel));
        if let Err(error) = spawned {
            tracing::warn!("starting a thread beside the assistant: {error}");
        }
    }
}

//! A thread that calls into the kernel on behalf of a waiting request.
//!
//! Owns [`Assistant`]. Before the kernel drops cached pages of a file, it writes them back through
//! the server. If the serving threads made such calls, all of them could end up waiting for one
//! another.

use crate::transport::NodeId;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce(&Kernel) + Send>;

/// Access to the kernel's caches.
pub(crate) struct Kernel {
    notifier: Arc<OnceLock<Notifier>>,
}

impl Kernel {
    /// Has the kernel write back its dirty data of a file and drop its cached pages.
    pub(crate) fn write_back(&self, node: NodeId) {
        self.tell(|notifier| notifier.inval_inode(INodeNo(node.0), 0, 0));
    }

    /// Has the kernel drop a node's cached attributes.
    pub(crate) fn forget_attributes(&self, node: NodeId) {
        self.tell(|notifier| notifier.inval_inode(INodeNo(node.0), -1, 0));
    }

    /// Has the kernel drop a directory entry, the directory's attributes and its cached listing.
    pub(crate) fn forget_entry(&self, directory: NodeId, name: &[u8]) {
        self.tell(|notifier| notifier.inval_entry(INodeNo(directory.0), OsStr::from_bytes(name)));
        // The listing is cached as the directory's pages. Invalidating an entry that the kernel did
        // not know leaves them in place.
        self.write_back(directory);
    }

    fn tell(&self, tell: impl FnOnce(&Notifier) -> std::io::Result<()>) {
        let Some(notifier) = self.notifier.get() else { return };
        // The kernel reports an error for entries that it has not cached.
        if let Err(error) = tell(notifier) {
            tracing::debug!("invalidating the kernel's cache: {error}");
        }
    }
}

/// A handle to the thread. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Assistant {
    tasks: Sender<Task>,
    notifier: Arc<OnceLock<Notifier>>,
}

impl Assistant {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start() -> std::io::Result<(Self, JoinHandle<()>)> {
        let (tasks, received) = channel::<Task>();
        let notifier = Arc::new(OnceLock::new());
        let kernel = Kernel { notifier: Arc::clone(&notifier) };
        let thread = std::thread::Builder::new().name("papilio-assist".to_owned()).spawn(move || {
            for task in received {
                let run = std::panic::AssertUnwindSafe(|| task(&kernel));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!("a task of the assistant panicked");
                }
            }
        })?;
        Ok((Self { tasks, notifier }, thread))
    }

    /// Connects the thread to the kernel once the mount exists.
    pub(crate) fn connect(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Runs a task. A task that cannot run is dropped together with its reply, which then answers
    /// EIO.
    pub(crate) fn run(&self, task: impl FnOnce(&Kernel) + Send + 'static) {
        let _ = self.tasks.send(Box::new(task));
    }
}

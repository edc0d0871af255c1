//! A thread that asks the kernel for something while a request waits.
//!
//! Owns [`Assistant`]. The kernel may have to turn to the server to do what it is asked: to give up a file's
//! cached pages it first writes them. So it must not be a thread that serves that asks, or all of them could come
//! to wait for one another.

use crate::transport::NodeId;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce(&Kernel) + Send>;

/// The kernel's caches.
pub(crate) struct Kernel {
    notifier: Arc<OnceLock<Notifier>>,
}

impl Kernel {
    /// Has the kernel write what it holds of a file's data, and forget it.
    pub(crate) fn write_back(&self, node: NodeId) {
        self.tell(|notifier| notifier.inval_inode(INodeNo(node.0), 0, 0));
    }

    /// Has the kernel forget a node's attributes.
    pub(crate) fn forget_attributes(&self, node: NodeId) {
        self.tell(|notifier| notifier.inval_inode(INodeNo(node.0), -1, 0));
    }

    /// Has the kernel forget an entry of a directory, the directory's attributes and how it was listed.
    pub(crate) fn forget_entry(&self, directory: NodeId, name: &[u8]) {
        self.tell(|notifier| notifier.inval_entry(INodeNo(directory.0), OsStr::from_bytes(name)));
        // Its pages are the listing. That the entry is gone says nothing of it where the kernel did not know the entry.
        self.write_back(directory);
    }

    fn tell(&self, tell: impl FnOnce(&Notifier) -> std::io::Result<()>) {
        let Some(notifier) = self.notifier.get() else { return };
        // What the kernel does not know it need not forget.
        if let Err(error) = tell(notifier) {
            tracing::debug!("the kernel's cache: {error}");
        }
    }
}

/// The thread; it ends when the last [`Sender`] of its tasks is gone.
#[derive(Clone)]
pub(crate) struct Assistant {
    tasks: Sender<Task>,
    notifier: Arc<OnceLock<Notifier>>,
}

impl Assistant {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn start() -> std::io::Result<(Self, JoinHandle<()>)> {
        let (tasks, received) = channel::<Task>();
        let notifier = Arc::new(OnceLock::new());
        let kernel = Kernel { notifier: Arc::clone(&notifier) };
        let thread = std::thread::Builder::new().name("papilio-assist".to_owned()).spawn(move || {
            for task in received {
                let run = std::panic::AssertUnwindSafe(|| task(&kernel));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!("a request panicked");
                }
            }
        })?;
        Ok((Self { tasks, notifier }, thread))
    }

    /// How the kernel is reached, once there is a mount.
    pub(crate) fn connect(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Runs a task; one that cannot be run is dropped, and with it the reply that it owes, which answers EIO.
    pub(crate) fn run(&self, task: impl FnOnce(&Kernel) + Send + 'static) {
        let _ = self.tasks.send(Box::new(task));
    }
}

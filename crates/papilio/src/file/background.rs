//! Requests to the background thread.
//!
//! Owns [`Background`], through which files and subvolumes ask the committer for work without
//! knowing it. Lock: a leaf, held while one message is sent.

use papilio_locks::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request to the background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A deleted subvolume waits to be cleaned.
    Clean,
    /// A rescan of quotas is under way.
    Rescan,
    /// The page cache has too many dirty pages.
    WriteBack,
}

/// The sending side. Requests are dropped while no thread listens.
#[derive(Debug, Default)]
pub(crate) struct Background {
    sender: Mutex<Option<Sender<Wake>>>,
    /// Set from a request to write back until the thread starts on it.
    write_back_requested: Arc<AtomicBool>,
}

/// The receiving side, for the thread.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) receiver: Receiver<Wake>,
    pub(crate) write_back_requested: Arc<AtomicBool>,
}

impl Background {
    /// Opens the channel and returns the side that the thread receives on.
    pub(crate) fn connect(&self) -> Requests {
        let (sender, receiver) = channel();
        self.write_back_requested.store(false, Ordering::Release);
        *self.sender.lock() = Some(sender);
        Requests { receiver, write_back_requested: Arc::clone(&self.write_back_requested) }
    }

    /// Closes the channel, which ends the thread's wait.
    pub(crate) fn disconnect(&self) {
        drop(self.sender.lock().take());
    }

    /// Asks for deleted subvolumes to be cleaned.
    pub(crate) fn clean(&self) {
        self.send(Wake::Clean);
    }

    /// Asks for the rescan of quotas to be carried on.
    pub(crate) fn rescan(&self) {
        self.send(Wake::Rescan);
    }

    /// Asks for dirty pages to be written back, unless a request for that is pending.
    pub(crate) fn write_back(&self) {
        if !self.write_back_requested.load(Ordering::Acquire)
            && !self.write_back_requested.swap(true, Ordering::AcqRel)
        {
            self.send(Wake::WriteBack);
        }
    }

    fn send(&self, request: Wake) {
        if let Some(sender) = &*self.sender.lock() {
            // The thread ends after a failure, which the next writer hears of.
            let _ = sender.send(request);
        }
    }
}

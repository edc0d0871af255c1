//! Requests to the background threads.
//!
//! Owns [`Background`], through which files and subvolumes ask for work without knowing the threads
//! that do it. Each [`Task`] has a thread and a channel of its own, so that none delays another.
//! Lock: a leaf, held while one message is sent.

use papilio_locks::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The work of one background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Commits at an interval. It gets no requests.
    Commit,
    /// Cleans deleted subvolumes and counts for quotas.
    Clean,
    /// Writes dirty pages back.
    WriteBack,
    /// Discards freed space.
    Discard,
}

impl Task {
    /// All tasks.
    pub(crate) const ALL: [Self; 4] = [Self::Commit, Self::Clean, Self::WriteBack, Self::Discard];
}

/// A request to a background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A deleted subvolume waits to be cleaned.
    Clean,
    /// A rescan of quotas is under way.
    Rescan,
    /// The page cache has too many dirty pages.
    WriteBack,
    /// Freed space may be discarded.
    Discard,
}

impl Wake {
    fn task(self) -> Task {
        match self {
            Self::Clean | Self::Rescan => Task::Clean,
            Self::WriteBack => Task::WriteBack,
            Self::Discard => Task::Discard,
        }
    }
}

/// The sending side. Requests are dropped while no thread listens.
#[derive(Debug, Default)]
pub struct Background {
    senders: Mutex<[Option<Sender<Wake>>; Task::ALL.len()]>,
    /// Set from a request to write back until the thread starts on it.
    write_back_requested: Arc<AtomicBool>,
}

/// The receiving side, for a thread.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) receiver: Receiver<Wake>,
    pub(crate) write_back_requested: Arc<AtomicBool>,
}

impl Background {
    /// Opens a task's channel and returns the side that its thread receives on.
    pub(crate) fn connect(&self, task: Task) -> Requests {
        let (sender, receiver) = channel();
        self.write_back_requested.store(false, Ordering::Release);
        self.senders.lock()[task as usize] = Some(sender);
        Requests { receiver, write_back_requested: Arc::clone(&self.write_back_requested) }
    }

    /// Closes the channels, which ends the threads' waits.
    pub(crate) fn disconnect(&self) {
        drop(std::mem::take(&mut *self.senders.lock()));
    }

    /// Asks for deleted subvolumes to be cleaned.
    pub fn clean(&self) {
        self.send(Wake::Clean);
    }

    /// Asks for the rescan of quotas to be carried on.
    pub fn rescan(&self) {
        self.send(Wake::Rescan);
    }

    /// Asks for freed space to be discarded.
    pub(crate) fn discard(&self) {
        self.send(Wake::Discard);
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
        if let Some(sender) = &self.senders.lock()[request.task() as usize] {
            // The thread ends after a failure, which the next writer hears of.
            let _ = sender.send(request);
        }
    }
}

//! Reading ahead of a reader, in a thread of its own.
//!
//! Owns [`ReadAhead`]. A reader that has consumed half of the pages that were read ahead asks for
//! the next ones, and goes on while they are read. Only file systems on devices that wait have the
//! thread: in memory the reader is as fast.
//!
//! **Invariants**
//! - Nothing depends on a request: a reader that gets to a missing page reads it.
//! - The thread keeps a file open only while a request for it is queued or carried out.
//!
//! **Locks**: `sender`, a leaf.
//!
//! Kernel counterpart: `page_cache_async_ra` (`mm/readahead.c`).

use papilio_locks::Mutex;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Requests that wait for the thread.
const WAITING: usize = 16;

/// Where readers ask for pages.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    sender: Mutex<Option<SyncSender<Request>>>,
}

/// Reads pages of a file, which it keeps open.
type Request = Box<dyn FnOnce() + Send>;

impl ReadAhead {
    /// Starts the thread. It ends after [`ReadAhead::stop`].
    ///
    /// # Errors
    /// The host's error if a thread cannot be started.
    pub(crate) fn start(&self) -> io::Result<JoinHandle<()>> {
        let (sender, receiver) = sync_channel(WAITING);
        let thread = Builder::new().name("papilio-ahead".to_owned()).spawn(move || run(&receiver))?;
        *self.sender.lock() = Some(sender);
        Ok(thread)
    }

    /// Ends the thread once it has carried out what waits.
    pub(crate) fn stop(&self) {
        drop(self.sender.lock().take());
    }

    /// Has the thread carry out `request`. Returns `false` if it has too much to do, or there is no
    /// thread.
    pub(super) fn ask(&self, request: impl FnOnce() + Send + 'static) -> bool {
        let sender = self.sender.lock();
        sender.as_ref().is_some_and(|sender| sender.try_send(Box::new(request)).is_ok())
    }
}

fn run(receiver: &Receiver<Request>) {
    receiver.iter().for_each(|request| request());
}

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

use crate::file::open_file::OpenFile;
use papilio_locks::Mutex;
use papilio_pagecache::ReadaheadRequest;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Requests that wait for the thread.
const WAITING: usize = 16;

/// Where readers ask for pages.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    sender: Mutex<Option<SyncSender<Request>>>,
}

#[derive(Debug)]
struct Request {
    file: OpenFile,
    pages: Range<u64>,
    order: u8,
}

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

    /// Asks for pages of a file. Returns whether the thread will read them.
    pub(super) fn ask(&self, file: &OpenFile, request: &ReadaheadRequest) -> bool {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else { return false };
        let (file, pages) = (file.clone(), request.pages.clone());
        sender.try_send(Request { file, pages, order: request.order }).is_ok()
    }
}

fn run(receiver: &Receiver<Request>) {
    for Request { file, pages, order } in receiver {
        if let Some(mapping) = file.cached() {
            file.fill_ahead(mapping, pages, order);
        }
    }
}

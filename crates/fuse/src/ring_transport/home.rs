//! The way back for entries that other threads answer.
//!
//! Owns [`Home`], where a queue's thread receives such entries, and [`Held`], an entry on its way.
//!
//! **Invariants**
//! - Each held entry comes back with a reply. The reply is EIO if the task that should answer it
//!   panicked or never ran.
//!
//! **Locks**
//! - `returned`, for one push or one swap.

use super::entry::RingEntry;
use crate::data_queue::LentMessage;
use crate::dispatch::Message;
use crate::protocol::request::{DecodeError, Head};
use papilio_locks::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The place to which entries return.
#[derive(Debug)]
pub(super) struct Home {
    returned: Mutex<Vec<(usize, RingEntry)>>,
    event: OwnedFd,
}

impl Home {
    /// Creates an empty home.
    ///
    /// # Errors
    /// No file descriptor is available.
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { returned: Mutex::new(Vec::new()), event })
    }

    /// Returns a descriptor that becomes readable when an entry has returned.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes the returned entries, each with its index in the queue's table. `into` is empty, and
    /// its memory serves the next ones.
    pub(super) fn take(&self, into: &mut Vec<(usize, RingEntry)>) {
        debug_assert!(into.is_empty(), "entries of the last call are left");
        // Read first: an entry that returns after the swap signals again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::swap(into, &mut *self.returned.lock());
    }

    fn put(&self, place: usize, entry: RingEntry) {
        self.returned.lock().push((place, entry));
        // A write fails only if the counter would overflow; the descriptor is readable in that
        // case.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// An entry that another thread answers.
#[derive(Debug)]
pub(super) struct Held {
    place: usize,
    entry: Option<RingEntry>,
    answered: bool,
    home: Arc<Home>,
}

impl Held {
    pub(super) fn new(place: usize, entry: RingEntry, answered: bool, home: Arc<Home>) -> Self {
        Self { place, entry: Some(entry), answered, home }
    }

    /// Has the entry answered. Dropping it then sends it home.
    pub(super) fn answer<R>(&mut self, answer: impl FnOnce(&mut RingEntry) -> R) -> R {
        let entry = self.entry.as_mut().expect("only dropping takes the entry");
        let result = answer(entry);
        self.answered = true;
        result
    }
}

impl Message for Held {
    fn open(&mut self) -> (Result<Head, DecodeError>, &mut [u8]) {
        self.entry.as_mut().expect("only dropping takes the entry").open()
    }

    fn reply(&mut self, error: i32, bytes: usize) {
        self.entry.as_mut().expect("only dropping takes the entry").reply(error, bytes);
        self.answered = true;
    }
}

// SAFETY: the buffer is a mapping of the entry's own, and only the held entry opens it.
unsafe impl LentMessage for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(mut entry) = self.entry.take() else { return };
        if !self.answered {
            entry.reply(libc::EIO, 0);
        }
        self.home.put(self.place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_entry_returns_with_eio() {
        let home = Arc::new(Home::new().unwrap());
        let mut taken = Vec::new();
        home.take(&mut taken);
        assert!(taken.is_empty());
        let entry = || RingEntry::new(0, 4096).unwrap();
        drop(Held::new(3, entry(), false, Arc::clone(&home)));
        let mut held = Held::new(4, entry(), false, Arc::clone(&home));
        held.answer(|entry| entry.reply(0, 8));
        drop(held);
        home.take(&mut taken);
        let errors: Vec<(usize, i32)> = taken
            .drain(..)
            .map(|(place, mut entry)| {
                let in_out = entry.request().0.in_out;
                (place, i32::from_ne_bytes(in_out[4..8].try_into().unwrap()))
            })
            .collect();
        assert_eq!(errors, [(3, -libc::EIO), (4, 0)]);
        home.take(&mut taken);
        assert!(taken.is_empty());
    }
}

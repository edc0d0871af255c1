//! Entries that are answered elsewhere than by their queue's thread, and their way back.
//!
//! Owns [`Home`], the place of a queue's thread where they are put, and [`Held`], an entry on its way. Invariant: each
//! entry that was taken out comes back with a reply, also if what should have answered it panicked or was never run
//! (EIO then). Locks: `returned`, held for a push or a swap.

use super::entry::Entry;
use papilio_locks::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Where entries come back to.
#[derive(Debug)]
pub(super) struct Home {
    returned: Mutex<Vec<(usize, Entry)>>,
    event: OwnedFd,
}

impl Home {
    /// A home that nothing has come back to.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { returned: Mutex::new(Vec::new()), event })
    }

    /// What can be read when something came back.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes what came back, with the place of each in the queue's table.
    pub(super) fn take(&self) -> Vec<(usize, Entry)> {
        // Before the list is looked at: what is added later is announced anew.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *self.returned.lock())
    }

    fn put(&self, place: usize, entry: Entry) {
        self.returned.lock().push((place, entry));
        // It fails only where it would overflow, and then it can be read anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// An entry that somebody else answers.
#[derive(Debug)]
pub(super) struct Held {
    place: usize,
    entry: Option<Entry>,
    answered: bool,
    home: Arc<Home>,
}

impl Held {
    pub(super) fn new(place: usize, entry: Entry, answered: bool, home: Arc<Home>) -> Self {
        Self { place, entry: Some(entry), answered, home }
    }

    /// Has it answered; it goes home when it is dropped.
    pub(super) fn answer<R>(&mut self, answer: impl FnOnce(&mut Entry) -> R) -> R {
        let entry = self.entry.as_mut().expect("it is taken out only when it goes home");
        let result = answer(entry);
        self.answered = true;
        result
    }
}

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
    fn what_nobody_answers_comes_home_with_an_error() {
        let home = Arc::new(Home::new().unwrap());
        assert!(home.take().is_empty());
        let entry = || Entry::new(0, 4096).unwrap();
        drop(Held::new(3, entry(), false, Arc::clone(&home)));
        let mut held = Held::new(4, entry(), false, Arc::clone(&home));
        held.answer(|entry| entry.reply(0, 8));
        drop(held);
        let errors: Vec<(usize, i32)> = home
            .take()
            .into_iter()
            .map(|(place, mut entry)| {
                let in_out = entry.request().0.in_out;
                (place, i32::from_ne_bytes(in_out[4..8].try_into().unwrap()))
            })
            .collect();
        assert_eq!(errors, [(3, -libc::EIO), (4, 0)]);
        assert!(home.take().is_empty());
    }
}

//! How many threads wait for requests at a time.
//!
//! Owns [`Readers`]. The kernel wakes a thread for each request that arrives while one waits. Many
//! waiting threads so take turns at a stream of requests that one or two could serve without
//! sleeping. Where requests may wait for a device, there must be many threads, but few of them need
//! to wait for requests.
//!
//! **Invariants**
//! - While a thread is left, one waits for requests, or is about to.
//!
//! **Locks**: `state`, a leaf.

use papilio_locks::{Condvar, Mutex};

/// The threads of a transport that wait for requests, and those that wait to.
#[derive(Debug)]
pub(super) struct Readers {
    /// The most that wait for requests.
    limit: usize,
    state: Mutex<State>,
    /// Notified when an idle thread should wait for requests, or end.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reading: usize,
    idle: usize,
    closed: bool,
}

impl Readers {
    /// Lets `limit` threads wait for requests at a time, at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), state: Mutex::default(), wanted: Condvar::new() }
    }

    /// Waits for the caller's turn to wait for requests. Returns `false` once the mount has ended.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.state.lock();
        while state.reading >= self.limit && !state.closed {
            state.idle += 1;
            self.wanted.wait(&mut state);
            state.idle -= 1;
        }
        state.reading += 1;
        !state.closed
    }

    /// Ends the caller's turn: it has a request.
    pub(super) fn leave(&self) {
        self.state.lock().reading -= 1;
    }

    /// Has another thread wait for requests, unless one does. Called before the caller answers a
    /// request that may take long.
    pub(super) fn replace(&self) {
        let state = self.state.lock();
        if state.reading == 0 && state.idle > 0 {
            drop(state);
            self.wanted.notify_one();
        }
    }

    /// Ends the waits of all threads.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.wanted.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn few_threads_read_and_none_starves() {
        const REQUESTS: usize = 2000;
        let readers = Readers::new(2);
        let (reading, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while readers.enter() {
                        assert!(reading.fetch_add(1, Ordering::SeqCst) < 2, "more than two read");
                        let number = taken.fetch_add(1, Ordering::SeqCst);
                        reading.fetch_sub(1, Ordering::SeqCst);
                        readers.leave();
                        if number >= REQUESTS {
                            return readers.close();
                        }
                        if number % 3 == 0 {
                            // A request that takes long.
                            readers.replace();
                            std::thread::yield_now();
                        }
                    }
                    readers.leave();
                });
            }
        });
        assert!(taken.into_inner() > REQUESTS);
        assert_eq!(readers.state.lock().reading, 0);
    }

    #[test]
    fn another_thread_reads_while_all_readers_answer() {
        let readers = Readers::new(1);
        assert!(readers.enter());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| readers.enter());
            while readers.state.lock().idle == 0 {
                std::thread::yield_now();
            }
            readers.leave();
            readers.replace();
            assert!(other.join().unwrap());
        });
    }
}
